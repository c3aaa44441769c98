//! Instances whose memory is small, and stores behind it: what comes back is what was evicted, or is computed again.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serq_engine::decisions::Replayed;
use serq_engine::instances::LocalInstances;
use serq_engine::kernels::{Compute, Path};
use serq_engine::model::Model;
use serq_engine::sampler::Sampling;
use serq_engine::service::{Service, StoreCounts};
use serq_engine::weights::Checkpoint;

use crate::ledger::Ledger;
use crate::pair::alone;
use crate::{
    Random, Setup, add, ask, ask_for, check, collect, compiled, compiled_if, crowd_served, nothing_is_left, prompt,
    root, served,
};

/// A pair of instances, a store in memory and a cold one behind it.
const STORES: &str = "examples/local/pd_store_smollm2.sq";

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Blocks of the prefiller, the decoder and the stores.
fn blocks(nth: u64) -> [u64; 3] {
    let block = |nth: u64| [1, 8, 16, 32, 48, 128][nth as usize % 6];
    let (from, to) = (block(nth), block(nth / 6));
    let both = gcd(from, to);
    let of_store = if nth.is_multiple_of(2) && both.is_multiple_of(2) { both / 2 } else { both };
    [from, to, of_store]
}

/// Small pools: what a request needs, and little more; `stored` tokens in each store.
fn sets(nth: u64, tokens: u64, stored: [u64; 2]) -> Vec<(&'static str, String)> {
    let [from, to, of_store] = blocks(nth);
    vec![
        ("bsP", from.to_string()),
        ("bsD", to.to_string()),
        ("bsS", of_store.to_string()),
        ("blocksP", (tokens / from + 2).to_string()),
        ("blocksD", (tokens / to + 2).to_string()),
        ("blocksS", (stored[0] / of_store + 1).to_string()),
        ("blocksC", (stored[1] / of_store + 1).to_string()),
        ("thr", ["1", "20", "inf"][nth as usize % 3].into()),
        ("B", ["16", "64", "512"][nth as usize / 3 % 3].into()),
        ("seats", ["2", "16"][nth as usize % 2].into()),
    ]
}

/// Every pair of block sizes: the answers are right, though blocks of the stores are spoiled at any moment; nothing is
/// left; the log is decided again.
#[test]
fn what_comes_out_of_a_store_is_what_was_evicted_or_is_computed_again() {
    let mut all = Replayed::default();
    let (mut read, mut spoiled) = (0, 0);
    for nth in 0..36 {
        let sets = sets(nth, 200 + 40 * (nth % 5), [100 * (nth % 4), 1_000]);
        let (replayed, reads) = crowd_served(served(STORES, &sets), false, nth, 40);
        add(&mut all, replayed);
        (read, spoiled) = (read + reads.0, spoiled + reads.1);
    }
    assert!(all.requests > 36 * 40 && all.evicted >= 5_000 && all.preemptions >= 50, "{all:?}");
    assert!(read >= 500 && spoiled >= 20, "{read} reads, {spoiled} in vain");
}

/// Two prompts take turns in room for one. What the second time is read is not computed.
#[test]
fn a_prompt_that_was_evicted_is_read_and_not_computed() {
    let served = served(STORES, &sets(14, 150, [400, 400]));
    let (ledger, steps) = Ledger::new(&served, false);
    let setup = Setup::of(served, ledger);
    let mut random = Random(4);
    let texts: Vec<Vec<u32>> = (0..2).map(|_| prompt(&mut random, 140)).collect();
    let tokens_read = |of: &Setup| of.service.look().unwrap().pools.iter().map(|pool| pool.counts.spills).sum::<u64>();
    for text in &texts {
        check(&ask(&setup.service, text.clone(), 3, 1));
    }
    assert_eq!(steps.lock().unwrap().reads.0, 0);
    assert!(tokens_read(&setup) > 0, "the first went to the store");
    for text in &texts {
        check(&ask(&setup.service, text.clone(), 3, 1));
    }
    assert!(steps.lock().unwrap().reads.0 >= 2, "both are read");
    nothing_is_left(&setup.service);
    setup.replay();
}

/// A pin whose time is over before it is read: the request begins again, and its text is the same.
#[test]
fn a_pin_that_is_over_is_no_wrong_text() {
    let path = root().join(STORES);
    let text = fs::read_to_string(&path).unwrap();
    // The pin outlives its hold, for no time at all, and is read later.
    let text = text.replace(
        "    transfer on link (more) from store to kv (more);
  } cache (cached)
",
        "  } cache (cached) lease store (0)
  run pause (0.001);
  transfer on link (more) from store to kv (more);
",
    );
    let text = text.replace("stage file : ps(Bw_file);", "stage file : ps(Bw_file);\nstage pause : delay;");
    let text = text.replacen(
        "D pull P latency 0.0001 share maxmin;\n\nstage pause : delay;",
        "D pull P latency 0.0001 share maxmin;",
        1,
    );
    let served = compiled(&path, &text, &sets(14, 150, [400, 400]));
    let (ledger, _) = Ledger::new(&served, false);
    let service = Service::start(served, Box::new(ledger), None);
    let mut random = Random(4);
    let texts: Vec<Vec<u32>> = (0..3).map(|_| prompt(&mut random, 140)).collect();
    for text in texts.iter().chain(&texts) {
        let asked = ask(&service, text.clone(), 3, 1);
        // It is told that the pin was over, or served from what is there; it is never another text.
        for event in &asked.events {
            match event {
                serq_engine::request::Event::Token { token, .. } => {
                    let right = crate::expected(text, 3);
                    assert!(right.contains(&token));
                }
                serq_engine::request::Event::Finished { .. } => break,
            }
        }
    }
    nothing_is_left(&service);
}

/// Where the program says so, what a store does not have any more is computed where it was to be read.
#[test]
fn what_can_not_be_read_is_computed_in_its_place() {
    let path = root().join(STORES);
    let read = "transfer on link (more) from store to kv (more)";
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(text.matches(read).count(), 1);
    let text = text.replace(read, &format!("{read} else retry 1 then recompute"));
    let (mut reads, mut spoiled) = (0, 0);
    for nth in 0..12 {
        let sets = sets(nth, 200 + 40 * (nth % 5), [100 * (nth % 4), 1_000]);
        let (_, of_store) = crowd_served(compiled(&path, &text, &sets), false, nth, 40);
        (reads, spoiled) = (reads + of_store.0, spoiled + of_store.1);
    }
    assert!(reads >= 150 && spoiled >= 10, "{reads} reads, {spoiled} in vain");
}

/// Where time is modelled, reads last as long as the program says, and nothing is left either.
#[test]
fn a_modelled_service_has_stores_too() {
    let mut sets = sets(14, 150, [400, 400]);
    sets.extend([("weights", "0.0001".into()), ("token", "0.00001".into())]);
    let served = served(STORES, &sets);
    let setup = Setup::modelled(served);
    let mut random = Random(6);
    let texts: Vec<Vec<u32>> = (0..3).map(|_| prompt(&mut random, 140)).collect();
    let mut moved = 0;
    for text in texts.iter().chain(&texts) {
        moved += collect(&ask(&setup.service, text.clone(), 3, 1)).2;
    }
    assert!(moved > 100, "{moved} tokens are read");
    nothing_is_left(&setup.service);
    setup.replay();
}

#[test]
fn what_no_store_can_keep_is_refused() {
    let path = root().join(STORES);
    let text = fs::read_to_string(&path).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        compiled_if(&path, &text.replace(from, to), &[]).err().unwrap()
    };
    assert_eq!(
        refused("spill cold via file (size) when (stored);", "spill P.kv via file (size) when (stored);"),
        "store spills into P.kv, the memory of P: a pool that is no engine's memory is meant"
    );
    let counted = "pool seats { cap 4; spill more via file (1) when (1); } pool more { cap 4; }\nqueue router";
    assert_eq!(
        refused("queue router", counted),
        "seats spills what belongs to one session; what `share prefixes` can be found in a store"
    );
}

/// A real model, block sizes of all kinds, greedy and drawn, with a store in memory, and with a cold one in a file.
fn model(nth: u64, requests: u64, file: Option<PathBuf>, spoil: bool) -> [StoreCounts; 2] {
    let model =
        Arc::new(Model::new(&Checkpoint::tiny(nth), Path::best(), [Compute::F32, Compute::Int8][nth as usize % 2]));
    let served = served(STORES, &sets(nth, 260, [60, 2_000]));
    let stores = served.stores();
    let files: BTreeMap<u32, PathBuf> = file.iter().map(|file| (stores[1].pool, file.clone())).collect();
    let instances = LocalInstances::with_files(&served, &model, 1, u64::MAX, &files, |_| {}).unwrap();
    let setup = Setup::of(served, instances);
    let mut random = Random(nth);
    let texts: Vec<Vec<u32>> =
        (0..4).map(|_| (0..120 + random.below(60)).map(|_| random.below(250) as u32).collect()).collect();
    for request in 0..requests {
        let mut text = texts[random.below(4) as usize].clone();
        text.extend((0..1 + random.below(9)).map(|_| random.below(250) as u32));
        let sampling = match request % 2 {
            0 => Sampling { temperature: 0.0, ..Sampling::default() },
            _ => Sampling { temperature: 0.8, top_k: 40, seed: request, ..Sampling::default() },
        };
        let asked = ask_for(&setup.service, text.clone(), 6, vec![sampling.clone()]);
        assert_eq!(collect(&asked).0[&0], alone(&model, &text, 6, &sampling), "{nth}: request {request}");
        if let Some(file) = file.as_ref().filter(|_| spoil) {
            // One bit of every page.
            let mut bytes = fs::read(file).unwrap();
            bytes.iter_mut().skip(4096).step_by(997).for_each(|byte| *byte ^= 1);
            fs::write(file, bytes).unwrap();
        }
    }
    nothing_is_left(&setup.service);
    let look = setup.service.look().unwrap();
    let counts = ["store", "cold"].map(|name| look.pools.iter().find(|pool| pool.name == name).unwrap().store.unwrap());
    setup.replay();
    counts
}

#[test]
fn a_model_says_with_stores_what_it_says_alone() {
    let mut all = [StoreCounts::default(); 2];
    for nth in 0..36 {
        let file = (nth % 2 == 1).then(|| std::env::temp_dir().join(format!("serq-cold-{}-{nth}", std::process::id())));
        for (all, counts) in all.iter_mut().zip(model(nth, 12, file, false)) {
            all.puts += counts.puts;
            all.tokens_read += counts.tokens_read;
            assert_eq!(counts.failures, 0);
        }
    }
    assert!(all.iter().all(|counts| counts.puts > 1_000 && counts.tokens_read > 300), "{all:?}");
}

/// Somebody writes into the file: what was put is not read, and the text is the same.
#[test]
fn a_spoiled_file_is_noticed_and_its_blocks_are_computed_again() {
    let file = std::env::temp_dir().join(format!("serq-spoiled-{}", std::process::id()));
    let [_, cold] = model(1, 24, Some(file), true);
    assert!(cold.failures > 5 && cold.puts > 100, "{cold:?}");
}
