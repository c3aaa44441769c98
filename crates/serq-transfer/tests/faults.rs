//! Schedules with faults, drawn and enumerated: a short form of `cargo xtask faults`.

use serq_transfer::simulated::exhaustive::{Setting, enumerate};
use serq_transfer::simulated::{Outcome, Report, schedule, trace};

#[test]
fn four_thousand_schedules_leave_nothing_and_decode_nothing_wrong() {
    let mut all = Report::default();
    for seed in 1..=4_000 {
        match schedule(seed) {
            Ok(report) => all.add(&report),
            Err(violation) => panic!("seed {seed}: {violation}\n{}", trace(seed).join("\n")),
        }
    }
    // What such schedules are to meet, so that tame ones are seen.
    let count = |outcome| all.outcomes.get(&outcome).copied().unwrap_or(0);
    assert!(count(Outcome::Loaded) > 4_000, "{all:?}");
    assert!(count(Outcome::Recomputed) > 1_000, "{all:?}");
    let failed = all.outcomes.keys().filter(|outcome| matches!(outcome, Outcome::Failed(_))).count();
    assert!(failed >= 12, "{all:?}");
    assert_eq!(all.blocks_left, 0);
    assert!(all.cells_copied > 50_000 && all.cells_read > 500_000, "{all:?}");
    assert!(all.fences > 1_000 && all.leases_expired > 1_000, "{all:?}");
}

#[test]
fn a_schedule_is_a_function_of_its_seed() {
    for seed in [3, 1_000_003] {
        assert_eq!(schedule(seed), schedule(seed));
        assert_eq!(trace(seed), trace(seed));
    }
}

#[test]
fn one_fault_anywhere_in_every_setting() {
    for setting in Setting::all() {
        let enumerated = enumerate(setting, 1).unwrap_or_else(|violation| panic!("{violation}"));
        assert!(enumerated.schedules > 900, "{setting:?}: {enumerated:?}");
    }
}

#[test]
fn without_a_fault_every_load_is_used() {
    for setting in Setting::all() {
        let enumerated = enumerate(setting, 0).unwrap_or_else(|violation| panic!("{violation}"));
        assert_eq!((enumerated.schedules, enumerated.loaded), (1, 2), "{setting:?}");
    }
}
