//! What the chores check, checked in every build.

use std::path::PathBuf;

use serde_json::Value;
use serq_lang::Settings;
use xtask::program::{SEED_PROGRAM, root};
use xtask::{bench, layers, mutate, program, schema, seed};

#[test]
fn every_arrow_between_crates_is_drawn() {
    layers::check().unwrap_or_else(|wrong| panic!("{wrong}"));
}

#[test]
fn the_shipped_schema_is_the_irs() {
    let shipped = std::fs::read_to_string(schema::path()).expect("docs/ir.schema.json can be read");
    assert!(shipped == serq_ir::json::schema(), "docs/ir.schema.json is old: run `cargo xtask schema`");
}

fn examples() -> Vec<PathBuf> {
    let mut folders = vec![root().join("examples")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(&folder).expect("examples can be read") {
            let path = file.expect("examples can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "sq") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "there are examples");
    found.sort();
    found
}

#[test]
fn the_ir_of_every_example_and_case_is_as_the_schema_says() {
    let schema: Value = serde_json::from_str(&serq_ir::json::schema()).expect("a schema is JSON");
    let validator = jsonschema::validator_for(&schema).expect("the schema is one");
    let mut paths = examples();
    paths.extend(program::cases('d').unwrap());
    paths.extend(program::cases('r').unwrap());
    for path in paths {
        let program = program::read(&path, &Settings::default()).unwrap_or_else(|wrong| panic!("{wrong}"));
        let text = serq_ir::json::print(&program);
        let ir: Value = serde_json::from_str(&text).expect("printed IR is JSON");
        let errors: Vec<String> =
            validator.iter_errors(&ir).map(|e| format!("{} at {}", e, e.instance_path())).collect();
        assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
        assert!(serq_ir::json::read(&text).as_ref() == Ok(&program), "{} reads back the same", path.display());
    }
    let mut other: Value = serde_json::from_str(r#"{ "ir_version": 1 }"#).unwrap();
    assert!(!validator.is_valid(&other), "a schema that takes anything checks nothing");
    other["name"] = Value::from(1);
    assert!(!validator.is_valid(&other));
}

#[test]
fn names_the_clock_and_units_do_not_matter() {
    mutate::cases().unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// The seed's program with its queues, relation, library and a stage named `tool`.
#[test]
fn names_the_clock_and_units_do_not_matter_to_the_seeds_program() {
    let settings = Settings { horizon: Some(100.0), warmup: Some(10.0), ..program::sets(&[("blocksD", "1100")]) };
    let tried = mutate::try_program(&root().join(SEED_PROGRAM), &settings).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(tried.renamed > 50 && tried.figures > 1000, "{tried:?}");
}

/// Ours is still the seed's program: two of the recorded rows, one of them with preemptions.
#[test]
fn our_text_of_the_seeds_program_is_still_that_program() {
    let recorded = seed::recorded().unwrap_or_else(|wrong| panic!("{wrong}"));
    let row = |sets: usize| recorded.iter().find(|row| row.sets.len() == sets).expect("the row is recorded");
    for row in [row(0), row(2)] {
        let ours = seed::ours(&row.sets, row.seed).unwrap_or_else(|wrong| panic!("{wrong}"));
        assert_eq!(&ours, row, "`cargo xtask seed FOLDER` compares with the seed's own text and records anew");
    }
}

#[test]
fn a_run_can_be_timed_with_leaps_and_without() {
    let timed = |no_leap| {
        let (sets, program, arrivals, trace) = (vec![], None, None, None);
        let arguments =
            bench::Arguments { program, sets, seed: 1, horizon: 20.0, warmup: 0.0, arrivals, trace, no_leap };
        let line: Value = serde_json::from_str(&bench::bench(&arguments).unwrap()).expect("a line of JSON");
        // The system's account of so short a time may still be 0.
        assert!(line["cpu_s"].as_f64() >= Some(0.0) && line["wall_s"].as_f64() > Some(0.0), "{line}");
        assert!(line["turns"].as_u64() > Some(10), "{line}");
        line
    };
    let (leaps, steps) = (timed(false), timed(true));
    assert_eq!(leaps["turns"], steps["turns"]);
    assert!(leaps["events"].as_u64() < steps["events"].as_u64(), "{leaps} {steps}");
}

/// The README's first command names no binary.
#[test]
fn cargo_run_knows_what_to_run() {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo is there");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let default = metadata["workspace_default_members"].as_array().expect("it is listed");
    let binaries: Vec<&str> = metadata["packages"]
        .as_array()
        .expect("packages are listed")
        .iter()
        .filter(|package| default.contains(&package["id"]))
        .flat_map(|package| package["targets"].as_array().expect("targets are listed"))
        .filter(|target| target["kind"][0] == "bin")
        .filter_map(|target| target["name"].as_str())
        .collect();
    assert_eq!(binaries, ["serq"]);
}
