//! 210,000 inputs, the same in every build: no panic, no hang, no memory without bound.
//!
//! Mutations of every example and case, pieces of programs in any order, any bytes, and
//! mutated IR go through the lexer, parser, formatter, linker and IR reader; what links or
//! reads is simulated under a bound on events. `fuzz/` has the same checks for libFuzzer.
//!
//! `FUZZ_ONLY=1234 cargo test -p serq --test fuzz mutated_ir` runs one input, and
//! prints it first, for those that take the process down.

mod fuzzing;

use std::cell::Cell;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use fuzzing::inputs::{self, Ir, Random};
use fuzzing::{check_ir, check_link, check_simulation, check_syntax};

/// No single input takes this long, on a busy machine with assertions on.
const INPUT_TIME_MAX: Duration = Duration::from_secs(20);
/// Peak memory of the process.
const MEMORY_MAX_KB: u64 = 2 << 20;

/// The number of the one input to run.
fn only() -> Option<u64> {
    std::env::var("FUZZ_ONLY").ok().map(|k| k.parse().expect("FUZZ_ONLY is a number"))
}

/// Runs inputs 0 … n-1 of a kind and tells all that fail.
fn run(n: u64, what: impl Fn(&mut Random) -> String, check: impl Fn(&str)) {
    let only = only();
    let mut failures = Vec::new();
    for k in only.map_or(0..n, |k| k..k + 1) {
        let input = what(&mut Random::new(k));
        if only.is_some() {
            eprintln!("{input}");
        }
        let start = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&input)));
        let took = start.elapsed();
        if outcome.is_err() || took > INPUT_TIME_MAX {
            let how = if outcome.is_err() { "panics" } else { "takes long" };
            failures.push(format!("input {k} {how} ({took:?})"));
            if failures.len() >= 20 {
                break;
            }
        }
    }
    assert!(failures.is_empty(), "FUZZ_ONLY=k shows one:\n{}", failures.join("\n"));
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    assert!(peak.is_none_or(|peak: u64| peak < MEMORY_MAX_KB), "{peak:?} kB at the peak");
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every example and case.
fn programs() -> Vec<String> {
    let mut folders = vec![root().join("examples"), root().join("tests/cases")];
    let mut paths = Vec::new();
    while let Some(folder) = folders.pop() {
        for file in fs::read_dir(&folder).expect("the folder can be read") {
            let path = file.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "sq") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    assert!(paths.len() > 70, "the examples and cases are there");
    paths.iter().map(|path| fs::read_to_string(path).expect("a program can be read")).collect()
}

fn mutated_programs(part: u64, n: u64) {
    let programs = programs();
    let linked = Cell::new(0);
    run(
        n,
        |random| {
            let mut random = Random::new(random.below(usize::MAX) as u64 ^ part);
            inputs::mutated(&programs, &mut random)
        },
        |text| {
            check_syntax(text);
            if let Some(program) = check_link(text) {
                linked.set(linked.get() + 1);
                check_simulation(&program);
            }
        },
    );
    assert!(only().is_some() || linked.get() > n / 6, "only {} of {n} programs link", linked.get());
}

// In two parts, because tests run side by side.
#[test]
fn mutated_programs_one() {
    mutated_programs(1, 50_000);
}

#[test]
fn mutated_programs_two() {
    mutated_programs(2, 50_000);
}

#[test]
fn token_soups() {
    run(30_000, inputs::soup, |text| {
        check_syntax(text);
        check_link(text);
    });
}

#[test]
fn arbitrary_bytes() {
    run(30_000, inputs::bytes, |text| {
        check_syntax(text);
        check_link(text);
        check_ir(text);
    });
}

#[test]
fn mutated_ir() {
    let programs: Vec<Ir> = programs()
        .iter()
        .filter_map(|text| check_link(text))
        .map(|program| Ir::new(serde_json::to_value(program).expect("a program is JSON")))
        .collect();
    assert!(programs.len() > 70, "the examples and cases link");
    let read = Cell::new(0);
    run(
        50_000,
        |random| inputs::mutated_ir(&programs, random),
        |text| {
            if let Some(program) = check_ir(text) {
                read.set(read.get() + 1);
                check_simulation(&program);
            }
        },
    );
    assert!(only().is_some() || read.get() > 50_000 / 6, "only {} programs are read", read.get());
}
