//! Pools that share prefixes: against a model, against pools that count, and what they find.

mod model;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Instant;

use model::{Request, Setting, play};
use serq_ir::{Evict, Program};
use serq_lang::{Settings, compile, load};
use serq_sim::trace::{BadRows, TraceFile};
use serq_sim::{Options, Outcome, simulate};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn link(path: &str, text: &str, settings: &Settings) -> Program {
    let mut read = |path: &str| fs::read_to_string(path).map_err(|error| error.to_string());
    let (mut sources, mut found) = load(Some(path), text, &mut read);
    let (program, more) = compile(&mut sources, settings);
    found.extend(more);
    let told = serq_lang::diagnostic::render(&sources, &found, serq_lang::diagnostic::Style::Plain);
    program.unwrap_or_else(|| panic!("{told}"))
}

fn run(program: &Program, trace: Option<&TraceFile>) -> Outcome {
    let options = Options { record: true, ..Options::default() };
    simulate(program, trace, &options, &mut |_, _| true).unwrap_or_else(|error| panic!("{}: {error:?}", program.name))
}

/// The samples of an observation.
fn samples<'o>(program: &Program, outcome: &'o Outcome, name: &str) -> &'o [serq_sim::Sample] {
    &outcome.samples[program.observes.iter().position(|observe| observe == name).unwrap()]
}

/// A linear congruential generator (Knuth, TAOCP 2, 3.3.4).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Prompts that begin as others did: each follows an earlier one for some blocks.
fn requests(random: &mut Random, count: u64) -> Vec<Request> {
    let mut all: Vec<Request> = Vec::new();
    let (mut ms, mut next_id) = (0, 0);
    // Every one has a part of a second of its own, so that nothing ends when another comes.
    let mut parts: Vec<u64> = (1..1_000).collect();
    for k in 0..count {
        let mut ids = Vec::new();
        if k > 0 {
            let part = parts.remove(random.below(parts.len() as u64) as usize);
            ms = (ms / 1_000 + random.below(3) + 1) * 1_000 + part;
            let like = &all[random.below(k) as usize].ids;
            ids.extend_from_slice(&like[..random.below(like.len() as u64 + 1) as usize]);
        }
        // An id names all before it too, so those behind the first new one are new.
        for _ in 0..random.below(4) + u64::from(ids.is_empty()) {
            ids.push(next_id);
            next_id += 1;
        }
        let new = (ids.len() as u64 - 1) * 512 + random.below(512) + 1;
        all.push(Request { at: ms as f64 / 1e3, new, out: random.below(20) + 1, ids, group: None });
    }
    all
}

fn trace(requests: &[Request]) -> TraceFile {
    let mut rows = String::new();
    for Request { at, new, out, ids, .. } in requests {
        let ms = (at * 1e3).round();
        let _ = writeln!(
            rows,
            "{{\"timestamp\": {ms}, \"input_length\": {new}, \"output_length\": {out}, \"hash_ids\": {ids:?}}}"
        );
    }
    TraceFile::read(rows.as_bytes(), BadRows::Refuse).unwrap()
}

fn replay(setting: &Setting, prefix: &str, count: usize) -> String {
    let Setting { cap, block, more, early, store } = setting;
    let load = match store {
        Some(_) => {
            "set have = cached;
            hold store (cachedin(store)) {
              observe stored = cached;
              set more = min(cached, new - have);
              load kv (more);
            } cache (cached)
            load kv (new - have - more);"
        }
        None if *early => "load kv (new - cached);",
        None => "",
    };
    let (spill, there) = store.map_or_else(Default::default, |(cap, block)| {
        let there = format!("pool store {{ cap {}; block {block}; share prefixes; }}", cap as u64 * block);
        ("spill store via bus (0.001 * size) when (1);", there)
    });
    format!(
        "pool kv {{ cap {}; block {block}; share prefixes; {spill} }}
        {there}
        stage desk : delay;
        stage bus : delay;
        workload {{ arrive trace; trace \"requests\"; {prefix} }}
        session {{
          turn;
          hold kv (new + {more}) reuse (new) {{
            observe found = cached;
            {load}
            run desk (out);
          }} cache (new + {more})
          end;
        }}
        run {{ horizon 1e9; arrivals {count}; }}",
        cap * block
    )
}

#[test]
fn a_replay_is_what_the_model_plays() {
    let mut random = Random(1);
    let (mut found, mut evicted, mut waited) = (0, 0, 0);
    let (mut loaded, mut behind, mut spilled, mut lost) = (0, 0, 0, 0);
    for round in 0..60 {
        let block = [512, 128, 300, 1024, 64][round % 5];
        let count = 150;
        let mut requests = requests(&mut random, count);
        let grouped = round % 3 == 2;
        let mut prefix = "";
        if grouped {
            prefix = "prefix (serial - 3 * floor(serial / 3), 700 * (serial - 4 * floor(serial / 4)));";
            for (serial, request) in requests.iter_mut().enumerate() {
                request.group = Some((serial as u64 % 3, 700 * (serial as u64 % 4)));
            }
        }
        let more = random.below(3) * 100;
        let most = requests.iter().map(|request| (request.new + more).div_ceil(block)).max().unwrap();
        let mut setting =
            Setting { cap: most * (1 + random.below(4)), block, more, early: random.below(2) == 1, store: None };
        if round % 4 != 0 {
            let parts = [1, 1, 2, 4][random.below(4) as usize];
            setting.early = true;
            setting.store = Some((1 + (random.below(4) * setting.cap * parts) as usize, block / parts));
        }
        let program = link("replay.sq", &replay(&setting, prefix, requests.len()), &Settings::default());
        let outcome = run(&program, Some(&trace(&requests)));
        let played = play(&requests, &setting);

        let samples = samples(&program, &outcome, "found");
        let ours: Vec<(usize, f64, u64)> =
            samples.iter().map(|sample| (sample.session as usize, sample.time, sample.value as u64)).collect();
        assert_eq!(ours, played.admitted, "round {round}");
        let pool = &outcome.report.pools[0];
        assert_eq!(pool.evicted_units, (played.evicted * block) as f64);
        match &setting.store {
            // What is spilled last may be written after the last end.
            None => assert_eq!(outcome.report.end, played.end),
            Some((_, block)) => {
                let ours: Vec<(usize, f64, u64)> = self::samples(&program, &outcome, "stored")
                    .iter()
                    .map(|sample| (sample.session as usize, sample.time, sample.value as u64))
                    .collect();
                assert_eq!(ours, played.stored, "round {round}");
                let there = &outcome.report.pools[1];
                assert_eq!((pool.spills, there.evicted_units), (played.spilled, (played.evicted_there * block) as f64));
                assert_eq!((there.left, there.in_use_at_end), (0.0, 0.0));
                loaded += ours.iter().filter(|(.., tokens)| *tokens > 0).count();
                behind += ours.iter().zip(&played.admitted).filter(|(there, here)| there.2 > 0 && here.2 > 0).count();
                (spilled, lost) = (spilled + played.spilled, lost + played.evicted_there);
            }
        }
        let mean = |integral: f64| integral * block as f64 / played.end;
        for (ours, theirs) in [(pool.mean_used, mean(played.allocated)), (pool.mean_cached, mean(played.cached))] {
            assert!((ours - theirs).abs() <= 1e-9 * theirs.max(1.0), "round {round}: {ours}, not {theirs}");
        }
        assert_eq!((pool.left, pool.in_use_at_end), (0.0, 0.0));
        found += ours.iter().filter(|(.., tokens)| *tokens > 0).count();
        evicted += played.evicted;
        waited += usize::from(pool.mean_wait > 0.0);
    }
    assert!(found > 1_000 && evicted > 5_000 && waited > 30, "{found} {evicted} {waited}");
    assert!(loaded > 500 && behind > 300 && spilled > 3_000 && lost > 1_000, "{loaded} {behind} {spilled} {lost}");
}

/// What the session with number 2 finds of a prefix of two blocks of 4 tokens at time 2, when
/// number 1 came at 1.
fn found_at_2(rest: &str, first: &str) -> f64 {
    let text = format!(
        "{rest}
        stage s : delay;
        workload {{ arrive batch(3); prefix (0, 8); }}
        session {{
          run s (serial);
          branch (serial == 0) {{ {first} end; }}
          branch (serial == 2) {{ hold kv (8) {{ observe found = cached; }} cache (8) end; }}
          body ();
        }}
        run {{ horizon 20; }}"
    );
    let program = link("found.sq", &text, &Settings::default());
    let outcome = run(&program, None);
    assert!(outcome.report.pools.iter().all(|pool| pool.left == 0.0));
    let found = samples(&program, &outcome, "found");
    assert_eq!((found.len(), found[0].time), (1, 2.0));
    found[0].value
}

#[test]
fn a_shared_block_is_found_once_it_is_computed_and_its_session_has_gone_on() {
    let pool = "pool kv { cap 64; block 4; share prefixes; }";
    // Loaded, and waiting for a seat that somebody else has.
    let seat = format!("{pool} pool seat {{ cap 1; }}");
    let waits = "def body() { hold kv (8) { load kv (8 - cached); hold seat (1) { run s (5); } } cache (8) }";
    assert_eq!(found_at_2(&format!("{seat} {waits}"), "hold seat (1) { run s (10); }"), 8.0);
    // Nobody knows what a run computes that neither loads nor grows, before it is over: then
    // all of it.
    assert_eq!(found_at_2(&format!("{pool} def body() {{ hold kv (8) {{ run s (5); }} cache (8) }}"), ""), 0.0);
    let leased = "def body() { hold kv (8) { run s (0.5); } cache (8) lease kv (inf) run s (5); }";
    assert_eq!(found_at_2(&format!("{pool} {leased}"), ""), 8.0);
    // As far as `cache` says.
    let half = "def body() { hold kv (8) { run s (0.5); } cache (7) lease kv (inf) run s (5); }";
    assert_eq!(found_at_2(&format!("{pool} {half}"), ""), 4.0);
    // Chunks of 4 tokens at 0.75 a step: the first is computed at 1.75, and growing.
    let engine = "stage e : step { budget inf; chunk 4; cost 0.75; memory kv; }";
    let grows = "def body() { hold kv (4) { run e prefill (12) growing kv; } cache (12) }";
    assert_eq!(found_at_2(&format!("{pool} {engine} {grows}"), ""), 4.0);
    // Without a `cache` clause, never.
    assert_eq!(found_at_2(&format!("{pool} def body() {{ hold kv (8) {{ load kv (8); run s (5); }} }}"), ""), 0.0);
}

/// Five blocks of room. Number 1 is thrown out; what number 2 has of its prefix stays.
#[test]
fn a_victim_gives_back_its_references_and_finds_the_rest_again() {
    let text = "pool kv { cap 20; block 4; preempt lifo; share prefixes; }
        stage s : delay;
        workload { arrive batch(3); prefix (0, 8); }
        session {
          run s (serial);
          hold kv (8) reserve (serial == 1 ? 12 : 8) {
            observe found = cached;
            load kv (8 - cached);
            branch (serial == 2) { run s (5); }
            branch (serial == 1) { grow kv (4); load kv (4); observe used = used(kv); run s (10); }
            branch (serial == 0) { run s (3); grow kv (12); observe used = used(kv); run s (4); }
          } cache (12)
          end;
        }
        run { horizon 40; }";
    let program = link("victim.sq", text, &Settings::default());
    let outcome = run(&program, None);
    let values =
        |name| samples(&program, &outcome, name).iter().map(|s| (s.time, s.session, s.value)).collect::<Vec<_>>();
    // At 3 number 0 wants three blocks more, of 5 there are 3 in use: the last admitted goes,
    // which frees nothing, then number 1, which frees one.
    assert_eq!(outcome.report.pools[0].preemptions, 2);
    assert_eq!(values("found")[..3], [(0.0, 0, 0.0), (1.0, 1, 8.0), (2.0, 2, 8.0)]);
    assert_eq!(values("used")[..2], [(1.0, 1, 12.0), (3.0, 0, 20.0)]);
    // Number 1 wants room for a third block besides those number 0 has for it.
    assert_eq!(values("found")[3..], [(7.0, 1, 8.0), (7.0, 2, 8.0)]);
    assert_eq!((outcome.report.pools[0].left, outcome.report.ended), (0.0, 3));
}

/// A router that asks many instances who has the prefix, which no session before had there.
#[test]
fn a_choice_among_many_finds_who_has_the_prefix() {
    let text = "pool kv[12] { cap 64; block 4; share prefixes; }
        stage s : delay;
        workload { arrive batch(6); prefix (serial - 3 * floor(serial / 3), 8); }
        session {
          run s (serial);
          choose i in 12 by (-cachedin(kv[i]), used(kv[i]));
          observe chosen = i;
          hold kv[i] (8) { load kv[i] (8 - cached); run s (10); } cache (8)
          end;
        }
        run { horizon 40; }";
    let program = link("many.sq", text, &Settings::default());
    let outcome = run(&program, None);
    let chosen: Vec<f64> = samples(&program, &outcome, "chosen").iter().map(|sample| sample.value).collect();
    assert_eq!(chosen, [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]);
}

/// Every pool that can shares prefixes; answers whether there is one.
fn share_all(program: &mut Program) -> bool {
    let targets: Vec<u32> = program.pools.iter().filter_map(|pool| Some(pool.spill.as_ref()?.pool.pool)).collect();
    let mut any = false;
    for (number, pool) in program.pools.iter_mut().enumerate() {
        let plain = pool.block.is_some() && pool.evict == Evict::Lru && pool.spill.is_none();
        pool.share_prefixes = plain && !targets.contains(&(number as u32));
        any |= pool.share_prefixes;
    }
    any
}

/// What is told of a run, to the last bit.
fn told(program: &Program) -> String {
    let options = Options { record: true, max_events: Some(3_000_000), ..Options::default() };
    match simulate(program, None, &options, &mut |_, _| true) {
        Ok(Outcome { report, samples, gauge_points }) => {
            format!("{}\n{samples:?}\n{gauge_points:?}", serde_json::to_string_pretty(&report).unwrap())
        }
        Err(error) => format!("{error:?}"),
    }
}

/// Programs whose sessions leave part of an entry, or replace one by a shorter: a pool that
/// counts has nothing to find it by any more, one that shares prefixes has.
const DIFFER: [&str; 3] =
    ["d32_cache_consume_and_dead_rest", "d38_one_entry_per_session", "d44_two_leases_first_in_first_out"];

#[test]
fn where_nothing_is_shared_and_entries_are_used_whole_both_kinds_of_pool_are_the_same() {
    let mut files: Vec<PathBuf> = Vec::new();
    for folder in ["tests/cases", "examples/cache", "examples/engine", "examples/pd-disaggregation"] {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|e| e == "sq")));
    }
    files.sort();
    let mut programs = Vec::new();
    let limited = |sets: &[(&str, &str)]| Settings {
        sets: sets.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        horizon: Some(80.0),
        warmup: Some(5.0),
        ..Settings::default()
    };
    for path in &files {
        // The small ones, done by hand, run as they are.
        let by_hand = path.file_name().unwrap().to_str().unwrap().starts_with('d');
        let settings = if by_hand { Settings::default() } else { limited(&[]) };
        programs.push(link(path.to_str().unwrap(), &fs::read_to_string(path).unwrap(), &settings));
    }
    // Full pools: evictions, preemptions, refused heads.
    let seed = root().join("examples/pd-disaggregation/llmd_nixl_pull.sq");
    let text = fs::read_to_string(&seed).unwrap();
    let stress: [&[(&str, &str)]; 3] = [
        &[("Lambda", "1.2"), ("blocksD", "1100"), ("blocksP", "1100")],
        &[("thr", "1e18"), ("Lambda", "2.5"), ("blocksD", "1100")],
        &[("NP", "4"), ("ND", "3"), ("Lambda", "2"), ("blocksP", "1100"), ("thr", "1")],
    ];
    programs.extend(stress.iter().map(|sets| link(seed.to_str().unwrap(), &text, &limited(sets))));
    let (mut same, mut differ) = (0, Vec::new());
    for counted in programs {
        let mut shared = counted.clone();
        if share_all(&mut shared) {
            if told(&counted) == told(&shared) {
                same += 1;
            } else {
                differ.push(counted.name);
            }
        }
    }
    assert_eq!(differ, DIFFER);
    assert!(same > 30, "only {same} programs have such a pool");
}

/// Of a trace's blocks, the share a cache without a limit finds; the partly filled ones count.
fn hit_rate(trace: &TraceFile) -> f64 {
    let text = "let bs = 512;
        pool kv { block bs; share prefixes; }
        workload { arrive trace; trace \"requests\"; turn { set new = bs * ceil(new / bs); } }
        session {
          turn;
          hold kv (new) reuse (new) { observe found = cached / bs; observe blocks = new / bs; } cache (new)
          end;
        }
        run { horizon 1e9; }";
    let program = link("rate.sq", text, &Settings::default());
    let outcome = run(&program, Some(trace));
    let sum = |name| samples(&program, &outcome, name).iter().map(|sample| sample.value).sum::<f64>();
    sum("found") / sum("blocks")
}

#[test]
fn a_pool_without_a_limit_finds_all_that_came_before() {
    let requests = requests(&mut Random(7), 400);
    let (mut found, mut all) = (0, 0);
    for (k, request) in requests.iter().enumerate() {
        let alike = |other: &Request| request.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count();
        found += requests[..k].iter().map(alike).max().unwrap_or(0);
        all += request.ids.len();
    }
    assert!(found > 100);
    assert_eq!(hit_rate(&trace(&requests)), found as f64 / all as f64);
}

#[test]
#[ignore = "the public trace is not shipped: SERQ_TRACES names its folder"]
fn the_conversation_trace_has_the_hit_rate_that_is_known_of_it() {
    let here = PathBuf::from(std::env::var_os("SERQ_TRACES").expect("SERQ_TRACES names a folder"));
    let file = File::open(here.join("mooncake_conversation_trace.jsonl")).unwrap();
    let trace = TraceFile::read(BufReader::new(file), BadRows::Refuse).unwrap();
    let start = Instant::now();
    let rate = hit_rate(&trace);
    println!("{rate:.6} of the blocks are found, in {:?}", start.elapsed());
    assert!((rate - 0.3664).abs() < 1e-4, "{rate}");
}
