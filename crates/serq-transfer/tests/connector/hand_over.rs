//! A prompt computed in one process decodes in another: every way, mode, order of the legs, and pair of layouts.

use serq_transfer::protocol::reader::Mode;
use serq_transfer::transport::Way;

use crate::instance::{Instance, Other, Outcome, Waits, nixl_is_there};

/// Pairs of layouts; whether a push can convert them.
const PAIRS: [(&str, &str, bool); 8] = [
    ("4-block-nhd-f32", "4-block-nhd-f32", true),
    ("4-block-nhd-bf16", "8-block-nhd-bf16", true),
    ("8-block-nhd-f32", "3-block-nhd-f32", true),
    ("4-block-nhd-f32", "6-layer-hnd-f32", true),
    ("5-layer-pnhd-f16", "4-block-nhd-f32", true),
    ("4-block-nhd-f32", "4-layerblock-phnd-bf16", true),
    ("4-block-nhd-bf16", "8-block-hnd-fp8", false),
    ("8-layer-nhd-fp8", "4-block-nhd-f32", true),
];

fn texts_arrive(way: Way) {
    for (source, reader, push_converts) in PAIRS {
        let (mut prefill, mut decode) =
            (Other::start(source, way, Waits::Long), Instance::start(reader, way, Waits::Long));
        decode.discovered(prefill.address);
        let mut id = 0;
        for mode in [Mode::Pull, Mode::Push] {
            for concurrent in [false, true] {
                // Around the ends of blocks, with none, a part or nearly all of the prompt there already.
                for (tokens, hit) in [(2, 0), (5, 0), (9, 3), (24, 0), (25, 8), (48, 24), (49, 47), (41, 13)] {
                    id += 1;
                    prefill.ask(&format!("expect {id}"));
                    if concurrent {
                        decode.load(id, prefill.address, tokens, hit, mode, true);
                    }
                    assert_eq!(prefill.ask(&format!("prefill {id} {tokens}")), "true");
                    if !concurrent {
                        decode.load(id, prefill.address, tokens, hit, mode, false);
                    }
                    let outcome = decode.outcomes(id..id + 1).remove(0);
                    match (mode, push_converts) {
                        (Mode::Push, false) => assert_eq!(outcome, Outcome::Failed("the source's write failed".into())),
                        _ => assert_eq!(
                            outcome,
                            Outcome::Loaded,
                            "{way} {source} to {reader} {mode:?}: {:?}",
                            decode.notes
                        ),
                    }
                    // Of a push that failed, the prefill is still there.
                    if outcome != Outcome::Loaded {
                        prefill.ask(&format!("abandon {id}"));
                    }
                }
            }
        }
        decode.settles();
        prefill.ask("settle");
        assert!(decode.went_by(way), "{:?}", decode.notes);
    }
}

#[test]
fn texts_arrive_within_a_process() {
    texts_arrive(Way::Local);
}

#[test]
fn texts_arrive_over_tcp() {
    texts_arrive(Way::Tcp);
}

#[test]
fn texts_arrive_over_shared_memory() {
    texts_arrive(Way::Shm);
}

#[test]
fn texts_arrive_over_nixl() {
    if nixl_is_there() {
        texts_arrive(Way::Nixl);
    }
}

#[test]
fn layouts_that_cannot_be_joined_are_refused_in_a_sentence() {
    let (mut prefill, mut decode) = (
        Other::start("4-block-nhd-f32-wide", Way::Tcp, Waits::Long),
        Instance::start("4-block-nhd-f32", Way::Tcp, Waits::Long),
    );
    prefill.ask("expect 1");
    prefill.ask("prefill 1 10");
    decode.load(1, prefill.address, 10, 0, Mode::Pull, false);
    let Outcome::Failed(why) = decode.outcomes(1..2).remove(0) else { panic!("it was loaded") };
    assert_eq!(why, "the source's compatibility hash differs: model, KV type or layout cannot be joined");
    decode.settles();
    assert!(
        decode.notes.iter().any(|note| note.contains("4-block-nhd-f32-wide") && note.contains("kv heads")),
        "{:?}",
        decode.notes
    );
    prefill.ask("abandon 1");
    prefill.ask("settle");
}

#[test]
fn unknown_spent_and_cancelled_loads_leave_nothing() {
    let (mut prefill, mut decode) = (
        Other::start("4-block-nhd-f32", Way::Shm, Waits::Long),
        Instance::start("8-block-nhd-f32", Way::Shm, Waits::Long),
    );
    // Nobody expects it.
    decode.load(7, prefill.address, 20, 0, Mode::Pull, false);
    assert_eq!(decode.outcomes(7..8), [Outcome::Failed("the source does not know the transfer".into())]);
    prefill.ask("expect 8");
    prefill.ask("prefill 8 20");
    decode.load(8, prefill.address, 20, 0, Mode::Pull, false);
    assert_eq!(decode.outcomes(8..9), [Outcome::Loaded]);
    // Once more, as after a preemption.
    decode.outcomes.clear();
    decode.load(8, prefill.address, 20, 0, Mode::Pull, false);
    assert_eq!(decode.outcomes(8..9), [Outcome::Failed("the transfer was used before".into())]);
    // Aborted while the prefill still runs.
    prefill.ask("expect 9");
    decode.load(9, prefill.address, 20, 0, Mode::Push, true);
    decode.cancel(9);
    prefill.ask("prefill 9 20");
    decode.settles();
    prefill.ask("settle");
}
