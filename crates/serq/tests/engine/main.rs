//! A program served by instances whose memory shows whether every block had what it should.

mod apart;
mod failures;
mod ledger;
mod orders;
mod pair;
mod store;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};

use ledger::{Ledger, next_token};
use serq_engine::decisions::{Decisions, Replayed, replay};
use serq_engine::request::{Choice, Event, Finish, Mute, Request};
use serq_engine::sampler::Sampling;
use serq_engine::served::Served;
use serq_engine::service::{Instances, Service, Submitted};
use serq_lang::{Settings, compile, load};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An example as it is served.
fn served(path: &str, sets: &[(&str, String)]) -> Served {
    let path = root().join(path);
    let text = fs::read_to_string(&path).unwrap();
    compiled(&path, &text, sets)
}

/// A program's text, as it is served from there.
fn compiled(path: &Path, text: &str, sets: &[(&str, String)]) -> Served {
    compiled_if(path, text, sets).unwrap()
}

/// The same of one that may be refused.
fn compiled_if(path: &Path, text: &str, sets: &[(&str, String)]) -> Result<Served, String> {
    let mut read = |path: &str| fs::read_to_string(path).map_err(|error| error.to_string());
    let (mut sources, mut found) = load(Some(path.to_str().unwrap()), text, &mut read);
    let settings = Settings {
        sets: sets.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        horizon: Some(1e9),
        warmup: Some(0.0),
        served: true,
        ..Settings::default()
    };
    let (program, more) = compile(&mut sources, &settings);
    found.extend(more);
    let told = serq_lang::diagnostic::render(&sources, &found, serq_lang::diagnostic::Style::Plain);
    Served::new(program.unwrap_or_else(|| panic!("{told}")))
}

const PAIR: &str = "examples/local/pd_smollm2.sq";

/// A linear congruential generator (Knuth, TAOCP 2, 3.3.4).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A log that can be read while it is written.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A request, and what is told of it.
struct Asked {
    prompt: Vec<u32>,
    max_tokens: usize,
    choices: usize,
    events: Receiver<Event>,
    submitted: Option<Submitted>,
}

fn ask(service: &Service, prompt: Vec<u32>, max_tokens: usize, choices: usize) -> Asked {
    ask_for(service, prompt, max_tokens, vec![Sampling::default(); choices])
}

fn ask_for(service: &Service, prompt: Vec<u32>, max_tokens: usize, samplings: Vec<Sampling>) -> Asked {
    let (tell, events) = mpsc::channel();
    let choices = samplings.len();
    let choice = |sampling| Choice { sampling, stops: Vec::new(), voice: Box::new(Mute) };
    let request = Request { prompt: prompt.clone(), max_tokens, choices: samplings.into_iter().map(choice).collect() };
    let submitted = Some(service.submit(request, Box::new(move |event| drop(tell.send(event)))));
    Asked { prompt, max_tokens, choices, events, submitted }
}

/// What all blocks together should make it say.
fn expected(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..max_tokens {
        tokens.push(next_token(&tokens));
    }
    tokens.split_off(prompt.len())
}

/// Waits for all of an answer; answers tokens found, and moved.
fn check(asked: &Asked) -> (usize, usize) {
    let (answers, cached, moved) = collect(asked);
    for answer in answers.values() {
        assert_eq!(*answer, expected(&asked.prompt, asked.max_tokens), "a prompt of {}", asked.prompt.len());
    }
    assert_eq!(answers.len(), asked.choices);
    (cached, moved)
}

/// Waits for all of an answer: its choices, and tokens found and moved.
fn collect(asked: &Asked) -> (BTreeMap<usize, Vec<u32>>, usize, usize) {
    let mut answers: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    let (mut over, mut cached, mut moved) = (0, 0, 0);
    while over < asked.choices {
        match asked.events.recv().expect("every choice is finished") {
            Event::Token { choice, token, .. } => answers.entry(choice).or_default().push(token),
            Event::Finished { finish, figures, .. } => {
                assert!(matches!(finish, Finish::Length | Finish::Stop(_)), "{finish:?}");
                over += 1;
                cached += figures.tokens_cached;
                moved += figures.tokens_moved;
            }
        }
    }
    (answers, cached, moved)
}

fn nothing_is_left(service: &Service) {
    let look = service.look().unwrap();
    assert_eq!(look.live, 0);
    for pool in &look.pools {
        assert_eq!((pool.left, pool.used, pool.holders), (0.0, 0.0, 0), "{}", pool.name);
    }
}

struct Setup {
    service: Service,
    log: Log,
}

fn start(sets: &[(&str, String)]) -> Setup {
    let served = served(PAIR, sets);
    let (ledger, _) = Ledger::new(&served, false);
    Setup::of(served, ledger)
}

impl Setup {
    /// A program, served by these.
    fn of(served: Served, instances: impl Instances + 'static) -> Self {
        let log = Log::default();
        let decisions = Decisions::new(&served, false, Box::new(log.clone()));
        Self { service: Service::start(served, Box::new(instances), Some(decisions)), log }
    }

    /// The same where time is modelled.
    fn modelled(served: Served) -> Self {
        let log = Log::default();
        let decisions = Decisions::new(&served, true, Box::new(log.clone()));
        Self { service: Service::modelled(served, Some(decisions)), log }
    }

    /// Ends it; its log is decided again.
    fn replay(self) -> Replayed {
        drop(self.service);
        let log = self.log.0.lock().unwrap().clone();
        replay(&log[..]).unwrap_or_else(|why| panic!("{why}"))
    }
}

fn prompt(random: &mut Random, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|_| random.below(50_000) as u32).collect()
}

/// Every pair of block sizes, prompts around every boundary, prefixes there and not, the prefill
/// here and there, in chunks: the answer is always the same.
#[test]
fn the_answer_does_not_depend_on_blocks_chunks_or_where_it_is_computed() {
    let mut random = Random(1);
    for from in [1, 8, 16, 32, 48, 128] {
        for to in [1, 8, 16, 32, 48, 128] {
            for (threshold, budget) in [("1", "512"), ("inf", "512"), ("20", "37")] {
                let setup = start(&[
                    ("bsP", from.to_string()),
                    ("bsD", to.to_string()),
                    ("blocksP", (4096 / from).to_string()),
                    ("blocksD", (4096 / to).to_string()),
                    ("thr", threshold.into()),
                    ("B", budget.into()),
                ]);
                let mut lengths = vec![1, 2, 3, 100];
                for block in [from, to, from * to / if from > to { to } else { from }] {
                    lengths.extend([block - 1, block, block + 1, 2 * block, 2 * block + 1]);
                }
                lengths.retain(|&length| (1..=700).contains(&length));
                let (mut cached, mut moved) = (0, 0);
                for length in lengths {
                    let text = prompt(&mut random, length as usize);
                    let one = ask(&setup.service, text.clone(), 5, 1);
                    moved += check(&one).1;
                    // The same again, and one that goes on from its answer.
                    let again = ask(&setup.service, text.clone(), 3, 1);
                    cached += check(&again).0;
                    let mut further = text;
                    further.extend(expected(&one.prompt, 5));
                    further.extend(prompt(&mut random, 7));
                    cached += check(&ask(&setup.service, further, 4, 1)).0;
                }
                nothing_is_left(&setup.service);
                assert!(cached > 0, "{from} {to}: prefixes are found");
                assert_eq!(moved > 0, threshold != "inf", "{from} {to} {threshold}: reads");
                setup.replay();
            }
        }
    }
}

/// Many at once, in pools that are too small for them, with steps that end in any order, answers
/// that several want, and clients that go away at any time.
///
/// Where instances are `far`, copies end in any order too, and instances end at any time.
fn crowd(path: &str, far: bool, seed: u64, requests: u64, sets: &[(&str, String)]) -> Replayed {
    crowd_served(served(path, sets), far, seed, requests).0
}

/// The same; where there are stores, their blocks are spoiled at times. Answers how often they were read, too, and how
/// often in vain.
fn crowd_served(served: Served, far: bool, seed: u64, requests: u64) -> (Replayed, (usize, usize)) {
    let mut random = Random(seed);
    let spoils = !served.stores().is_empty() && !seed.is_multiple_of(3);
    let (ledger, steps) = if far { Ledger::far(&served) } else { Ledger::new(&served, true) };
    let setup = Setup::of(served, ledger);
    let service = &setup.service;
    let mut texts: Vec<Vec<u32>> = Vec::new();
    let mut asked: Vec<Asked> = Vec::new();
    let mut came = 0;
    loop {
        let running = steps.lock().unwrap().running();
        match random.below(10) {
            0..4 if came < requests => {
                let length = 1 + random.below(60) as usize;
                let mut text = prompt(&mut random, length);
                // Often it goes on from another.
                if random.below(2) == 0 && !texts.is_empty() {
                    let mut longer = texts[random.below(texts.len() as u64) as usize].clone();
                    longer.truncate(90);
                    longer.extend(&text[..text.len().min(9)]);
                    text = longer;
                }
                texts.push(text.clone());
                let choices = if random.below(8) == 0 { 3 } else { 1 };
                asked.push(ask(service, text, 1 + random.below(40) as usize, choices));
                came += 1;
                if far && random.below(4) == 0 {
                    // It may come back between an arrival and what follows from it.
                    steps.lock().unwrap().all_back();
                }
            }
            4 if !asked.is_empty() && random.below(4) == 0 => {
                let at = random.below(asked.len() as u64) as usize;
                drop(asked[at].submitted.take());
            }
            5 if far && random.below(6) == 0 => {
                let back = random.below(2) == 0;
                steps.lock().unwrap().lose(random.below(8) as usize, back);
            }
            6 if far && random.below(3) == 0 => steps.lock().unwrap().all_back(),
            7 if spoils => steps.lock().unwrap().spoil(random.below(1 << 30) as usize),
            _ if running > 0 => steps.lock().unwrap().end(random.below(running as u64) as usize),
            _ => {}
        }
        // It answers once everything told before is done.
        let look = service.look().unwrap();
        if came == requests && look.live == 0 && steps.lock().unwrap().running() == 0 {
            break;
        }
        if look.live > 0 && steps.lock().unwrap().running() == 0 {
            if far {
                steps.lock().unwrap().all_back();
                continue;
            }
            let look = service.look().unwrap();
            assert!(look.live == 0 || steps.lock().unwrap().running() > 0, "{look:#?}");
        }
    }
    nothing_is_left(service);
    for one in &asked {
        if one.submitted.is_some() {
            check(one);
        } else {
            // What came before it went away is right.
            let tokens = one.events.try_iter().filter_map(|event| match event {
                Event::Token { choice: 0, token, .. } => Some(token),
                _ => None,
            });
            let tokens: Vec<u32> = tokens.collect();
            assert_eq!(tokens, expected(&one.prompt, tokens.len()));
        }
    }
    let reads = steps.lock().unwrap().reads;
    (setup.replay(), reads)
}

fn crowds(path: &str, far: bool, count: u64, requests: u64) -> Replayed {
    let mut all = Replayed::default();
    for seed in 0..count {
        let block = |nth: u64| [1, 8, 16, 32, 48, 128][(seed * 7 + nth) as usize % 6];
        let (from, to) = (block(0), block(3));
        let tokens = 200 + 40 * (seed % 5);
        let sets = [
            ("bsP", from.to_string()),
            ("bsD", to.to_string()),
            ("blocksP", (tokens / from + 2).to_string()),
            ("blocksD", (tokens / to + 2).to_string()),
            ("thr", ["1", "20", "inf"][seed as usize % 3].into()),
            ("B", ["16", "64", "512"][seed as usize / 3 % 3].into()),
            ("seats", ["2", "16"][seed as usize % 2].into()),
        ];
        add(&mut all, crowd(path, far, seed, requests, &sets));
    }
    all
}

fn add(all: &mut Replayed, replayed: Replayed) {
    all.facts += replayed.facts;
    all.decisions += replayed.decisions;
    all.requests += replayed.requests;
    all.preemptions += replayed.preemptions;
    all.evicted += replayed.evicted;
}

/// The answers are right, nothing is left, and a fresh kernel decides every log the same.
#[test]
fn a_crowd_in_small_pools_gets_its_answers_and_its_log_is_decided_again() {
    let all = crowds(PAIR, false, 36, 40);
    assert!(all.requests >= 1_000 && all.preemptions >= 100 && all.evicted >= 1_000, "{all:?}");
}

/// Two of each, one leg after the other and both at once.
#[test]
fn several_instances_are_no_different() {
    for path in [apart::PAIRS, apart::CONCURRENT] {
        let all = crowds(path, false, 18, 40);
        assert!(all.requests >= 500 && all.preemptions >= 20 && all.evicted >= 500, "{path}: {all:?}");
    }
}

/// Copies that take time and are given up, instances that end with all they had, at any moment: the answers are
/// right all the same, nothing is left, and the log is decided again.
#[test]
fn a_crowd_gets_its_answers_though_instances_end() {
    for path in [PAIR, apart::PAIRS, apart::CONCURRENT] {
        let all = crowds(path, true, 18, 40);
        // Who is routed again arrives again.
        assert!(all.requests >= 18 * 40 + 50, "{path}: {all:?}");
    }
}

/// Without a model the same decisions are made at the times the program's costs say; the answer is
/// the prompt again.
#[test]
fn a_modelled_instance_says_its_prompt_again() {
    let served = served(PAIR, &[("weights", "0.0001".into()), ("token", "0.00001".into()), ("thr", "20".into())]);
    let setup = Setup::modelled(served);
    let mut random = Random(5);
    let asked: Vec<Asked> =
        (0..20).map(|nth| ask(&setup.service, prompt(&mut random, 5 + 3 * nth), 12, 1 + nth % 2)).collect();
    for one in &asked {
        let again: Vec<u32> = (0..12).map(|nth| one.prompt[nth % one.prompt.len()]).collect();
        let (answers, _, moved) = collect(one);
        assert!(answers.values().all(|answer| *answer == again));
        assert_eq!(moved > 0, one.prompt.len() >= 20);
    }
    nothing_is_left(&setup.service);
    let replayed = setup.replay();
    assert_eq!(replayed.requests, 30);
}

/// A request that stops the program takes everybody with it, and nobody else: who comes after is served
/// rightly, though a step of before still writes to blocks.
#[test]
fn a_program_that_stops_goes_on_anew() {
    let path = root().join(PAIR);
    let text = fs::read_to_string(&path).unwrap();
    let text =
        text.replacen("set asked = now;", "set asked = now; branch (answer == 13 ? 2 : 0) { set asked = 0; }", 1);
    let served = compiled(&path, &text, &[("thr", "20".into())]);
    let (ledger, steps) = Ledger::new(&served, true);
    let setup = Setup::of(served, ledger);
    let mut random = Random(3);
    let before = ask(&setup.service, prompt(&mut random, 50), 5, 2);
    assert_eq!(setup.service.look().unwrap().live, 2);
    // The step of before is over when the test says so; the one that stops the program is told first.
    let stops = ask(&setup.service, prompt(&mut random, 9), 13, 1);
    steps.lock().unwrap().end(0);
    for (asked, choices) in [(&before, 2), (&stops, 1)] {
        for _ in 0..choices {
            match asked.events.recv().unwrap() {
                Event::Finished { finish: Finish::Failed(why), .. } => {
                    assert!(why.contains("neither 1 nor 0"), "{why}")
                }
                other => panic!("{other:?}"),
            }
        }
    }
    let after = ask(&setup.service, prompt(&mut random, 60), 7, 3);
    while setup.service.look().unwrap().live > 0 {
        let mut steps = steps.lock().unwrap();
        if steps.running() > 0 {
            steps.end(0);
        }
    }
    check(&after);
    nothing_is_left(&setup.service);
    assert_eq!(setup.replay().requests, 5);
}

/// The same while an instance is gone, whose step nobody ends any more.
#[test]
fn a_program_stops_though_an_instance_is_gone() {
    let path = root().join(PAIR);
    let text = fs::read_to_string(&path).unwrap();
    let text =
        text.replacen("set asked = now;", "set asked = now; branch (answer == 13 ? 2 : 0) { set asked = 0; }", 1);
    for seed in 0..20 {
        let served = compiled(&path, &text, &[("thr", "20".into())]);
        let (ledger, steps) = Ledger::far(&served);
        let service = Service::start(served, Box::new(ledger), None);
        let mut random = Random(seed);
        let before = ask(&service, prompt(&mut random, 50), 5, 1);
        assert_eq!(service.look().unwrap().live, 1);
        steps.lock().unwrap().lose(0, false);
        let stops = ask(&service, prompt(&mut random, 9), 13, 1);
        for asked in [&before, &stops] {
            let (_, finish) = ending(asked);
            assert!(matches!(&finish, Finish::Failed(why) if why.contains("neither 1 nor 0")), "{finish:?}");
        }
        steps.lock().unwrap().all_back();
        let after = ask(&service, prompt(&mut random, 60), 7, 1);
        while service.look().unwrap().live > 0 {
            let mut steps = steps.lock().unwrap();
            if steps.running() > 0 {
                steps.end(0);
            }
        }
        check(&after);
        nothing_is_left(&service);
    }
}

fn start_served(served: Served) -> Setup {
    let (ledger, _) = Ledger::new(&served, false);
    Setup::of(served, ledger)
}

/// The pair's text with something else in it.
fn changed(from: &str, to: &str, sets: &[(&str, String)]) -> Setup {
    let path = root().join(PAIR);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    start_served(compiled(&path, &text.replace(from, to), sets))
}

/// How an answer ended, after which tokens.
fn ending(asked: &Asked) -> (Vec<u32>, Finish) {
    let mut tokens = Vec::new();
    loop {
        match asked.events.recv().expect("every choice is finished") {
            Event::Token { token, .. } => tokens.push(token),
            Event::Finished { finish, .. } => return (tokens, finish),
        }
    }
}

/// A program may decode in several runs, or bound the answer by what only follows from `max_tokens`:
/// after a stop nothing more is drawn. (A second run once went on behind it.)
#[test]
fn after_a_stop_no_further_run_draws_a_token() {
    let last = "decode (answer - 1 - (known - prompt)) growing kv;";
    for more in ["decode (1) growing kv; decode (answer - 2) growing kv;", "decode (answer + 50) growing kv;"] {
        let setup = changed(last, more, &[("thr", "20".into())]);
        let mut random = Random(11);
        for length in [5, 40] {
            let text = prompt(&mut random, length);
            let all = expected(&text, 8);
            for stop in 0..8 {
                let sampling = Sampling { ends: vec![all[stop]], ..Sampling::default() };
                let (tokens, finish) = ending(&ask_for(&setup.service, text.clone(), 8, vec![sampling]));
                assert_eq!((&tokens[..], matches!(finish, Finish::Stop(_))), (&all[..=stop], true), "{more}");
            }
            assert_eq!(ending(&ask(&setup.service, text, 8, 1)), (all, Finish::Length), "{more}");
        }
        nothing_is_left(&setup.service);
        setup.replay();
    }
}

/// A request that outgrows its pool is refused, not cut short; one that is preempted for ever too; and
/// who is beside it is served.
#[test]
fn what_a_pool_cannot_hold_is_refused() {
    let small = [("blocksD", "3".to_owned()), ("thr", "inf".to_owned())];
    let setups = [
        start_served(served(PAIR, &small)),
        changed(
            "hold kv (min(known, found + budget_left(D))) reserve (known), reqs (1)",
            "hold kv (1), reqs (1)",
            &small,
        ),
    ];
    for setup in setups {
        let mut random = Random(12);
        let too_long = ask(&setup.service, prompt(&mut random, 60), 60, 1);
        let beside = ask(&setup.service, prompt(&mut random, 10), 6, 1);
        let (tokens, finish) = ending(&too_long);
        assert_eq!(tokens, expected(&too_long.prompt, tokens.len()));
        assert!(matches!(&finish, Finish::Refused(why) if why.contains("D.kv") && why.contains("96")), "{finish:?}");
        check(&beside);
        nothing_is_left(&setup.service);
        setup.replay();
    }
}

/// A route whose works take no time in service, and which loops, stops; the service goes on.
#[test]
fn a_route_that_loops_is_stopped() {
    let setup = changed(
        "set asked = now;",
        "set asked = now; loop { run pause (1); branch (answer == 13 ? 0 : 1) { set asked = now; P.prefill (1); } }",
        &[],
    );
    let mut random = Random(13);
    let looping = ask(&setup.service, prompt(&mut random, 9), 13, 1);
    let (_, finish) = ending(&looping);
    assert!(matches!(&finish, Finish::Failed(why) if why.contains("loop")), "{finish:?}");
    assert_eq!(setup.service.look().unwrap().live, 0);
}

/// Where a program counts less of what it found than it took, it runs some tokens again.
#[test]
fn answers_that_find_their_whole_prompt_are_right() {
    let setup = start_served(served(
        "examples/pd-disaggregation/llmd_nixl_pull.sq",
        &[("blocksP", "2000".into()), ("blocksD", "2000".into())],
    ));
    let mut random = Random(14);
    for length in [16, 32, 33, 48] {
        check(&ask(&setup.service, prompt(&mut random, length), 5, 3));
    }
    nothing_is_left(&setup.service);
    setup.replay();
}
