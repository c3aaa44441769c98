//! One of the two processes is killed, stopped, or started again where it was.

use std::time::{Duration, Instant};

use serq_transfer::protocol::reader::Mode;
use serq_transfer::transport::Way;

use crate::instance::{Instance, Other, Outcome, Waits, nixl_is_there};

/// A sequence of numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

const LAYOUTS: [(&str, &str); 2] = [("4-block-nhd-f32", "8-block-nhd-f32"), ("4-block-nhd-f32", "6-layer-hnd-bf16")];

fn sources_are_killed(way: Way) {
    let mut dice = Dice(1);
    for (source, reader) in LAYOUTS {
        let mut decode = Instance::start(reader, way, Waits::Short);
        let mut prefill = Other::start(source, way, Waits::Short);
        let address = prefill.address;
        let (mut id, mut loaded, mut failed) = (0, 0, 0);
        for incarnation in 101..106 {
            let first = id;
            for _ in 0..4 {
                id += 1;
                prefill.ask(&format!("expect {id}"));
                let mode = if dice.below(2) == 0 { Mode::Pull } else { Mode::Push };
                let concurrent = dice.below(2) == 0;
                if concurrent {
                    decode.load(id, address, 40, 0, mode, true);
                }
                prefill.ask(&format!("prefill {id} 40"));
                if !concurrent {
                    decode.load(id, address, 40, 0, mode, false);
                }
            }
            // Once some of the four are over, and a little later.
            let over = first + 1 + u128::from(dice.below(4));
            decode.outcomes(first + 1..over);
            let until = Instant::now() + Duration::from_micros(dice.below(300));
            while decode.hear(until) {}
            match dice.below(3) {
                0 => prefill.signal("-STOP"),
                _ => prefill.signal("-KILL"),
            }
            for outcome in decode.outcomes(first + 1..id + 1) {
                match outcome {
                    Outcome::Loaded => loaded += 1,
                    Outcome::Failed(_) => failed += 1,
                }
            }
            decode.settles();
            prefill.kill();
            prefill = Other::start_at(address, source, way, incarnation, Waits::Short);
        }
        println!("{way} {source} to {reader}: {loaded} loaded, {failed} failed");
        // As before.
        for id in id + 1..id + 21 {
            prefill.ask(&format!("expect {id}"));
            prefill.ask(&format!("prefill {id} 30"));
            decode.load(id, address, 30, 5, Mode::Pull, false);
            assert_eq!(decode.outcomes(id..id + 1), [Outcome::Loaded], "{:?}", decode.notes);
        }
        decode.settles();
        prefill.ask("settle");
    }
}

fn readers_are_killed(way: Way) {
    let mut dice = Dice(2);
    let (source, reader) = LAYOUTS[0];
    let mut prefill = Instance::start(source, way, Waits::Short);
    let mut decode = Other::start(reader, way, Waits::Short);
    let address = decode.address;
    let mut id = 1;
    for incarnation in 101..109 {
        for id in id..id + 4 {
            prefill.expect(id);
            assert!(prefill.prefill(id, 40));
        }
        let mode = if dice.below(2) == 0 { "pull" } else { "push" };
        decode.say(&format!("load {} {id} {} 40 {mode}", prefill.address(), id + 4));
        let until = Instant::now() + Duration::from_micros(dice.below(6_000));
        while prefill.hear(until) {}
        match dice.below(3) {
            0 => decode.signal("-STOP"),
            _ => decode.signal("-KILL"),
        }
        // By the end of a lease, or a fence, its blocks are back.
        prefill.settles();
        decode.kill();
        decode = Other::start_at(address, reader, way, incarnation, Waits::Short);
        id += 4;
    }
    for id in id..id + 10 {
        prefill.expect(id);
        assert!(prefill.prefill(id, 30));
        assert_eq!(decode.ask(&format!("load {} {id} {} 30 pull", prefill.address(), id + 1)), "1 of 1");
        prefill.settles();
    }
    decode.ask("settle");
}

#[test]
fn sources_are_killed_within_a_process() {
    sources_are_killed(Way::Local);
}

#[test]
fn sources_are_killed_over_tcp() {
    sources_are_killed(Way::Tcp);
}

#[test]
fn sources_are_killed_over_shared_memory() {
    sources_are_killed(Way::Shm);
}

#[test]
fn sources_are_killed_over_nixl() {
    if nixl_is_there() {
        sources_are_killed(Way::Nixl);
    }
}

#[test]
fn readers_are_killed_within_a_process() {
    readers_are_killed(Way::Local);
}

#[test]
fn readers_are_killed_over_tcp() {
    readers_are_killed(Way::Tcp);
}

#[test]
fn readers_are_killed_over_shared_memory() {
    readers_are_killed(Way::Shm);
}

#[test]
fn readers_are_killed_over_nixl() {
    if nixl_is_there() {
        readers_are_killed(Way::Nixl);
    }
}

/// 200 loads, in every mode, given up at some time of their lives; now and then the prefill is, too.
fn aborts_leave_nothing(way: Way) {
    let mut dice = Dice(3);
    let (source, reader) = LAYOUTS[0];
    let (mut prefill, mut decode) =
        (Other::start(source, way, Waits::Short), Instance::start(reader, way, Waits::Short));
    for first in (1..201).step_by(4) {
        for id in first..first + 4 {
            prefill.ask(&format!("expect {id}"));
            let mode = if dice.below(2) == 0 { Mode::Pull } else { Mode::Push };
            let concurrent = dice.below(2) == 0;
            if concurrent {
                decode.load(id, prefill.address, 40, 0, mode, true);
            }
            if dice.below(4) == 0 {
                decode.cancel(id);
            }
            prefill.ask(&format!("prefill {id} 40"));
            if !concurrent {
                decode.load(id, prefill.address, 40, 0, mode, false);
            }
            let until = Instant::now() + Duration::from_micros(dice.below(500));
            while decode.hear(until) {}
            if dice.below(4) > 0 {
                decode.cancel(id);
            }
            if dice.below(4) == 0 {
                prefill.ask(&format!("abandon {id}"));
            }
        }
        decode.settles();
        // What nobody fetched any more was dropped, or its lease runs out.
        prefill.ask("settle");
    }
    prefill.ask("expect 1000");
    prefill.ask("prefill 1000 40");
    decode.load(1000, prefill.address, 40, 0, Mode::Pull, false);
    assert_eq!(decode.outcomes(1000..1001), [Outcome::Loaded]);
}

#[test]
fn aborts_leave_nothing_within_a_process() {
    aborts_leave_nothing(Way::Local);
}

#[test]
fn aborts_leave_nothing_over_tcp() {
    aborts_leave_nothing(Way::Tcp);
}

#[test]
fn aborts_leave_nothing_over_shared_memory() {
    aborts_leave_nothing(Way::Shm);
}

#[test]
fn aborts_leave_nothing_over_nixl() {
    if nixl_is_there() {
        aborts_leave_nothing(Way::Nixl);
    }
}
