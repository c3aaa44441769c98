//! The rules of docs/vllm_0_32.json: their table, their scenarios, and that the scenarios show them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serq_lang::Settings;
use serq_oracle::{Recorded, Scenario};
use xtask::citations::{path, rules, table, with_table, without};
use xtask::program;

#[test]
fn the_table_is_what_the_rules_say() {
    let page = fs::read_to_string(program::root().join("docs/validation.md")).expect("it can be read");
    let new = with_table(&page, &table(&rules().unwrap())).unwrap();
    assert!(page == new, "docs/validation.md is old: run `cargo xtask citations --write`");
}

#[test]
fn every_rule_is_one_and_cites_and_is_shown() {
    let rules = rules().unwrap();
    let ids: BTreeSet<&str> = rules.rules.iter().map(|rule| &rule.id[..]).collect();
    assert_eq!(ids.len(), rules.rules.len(), "two rules have one id");
    for rule in &rules.rules {
        assert!(!rule.source.is_empty() && !rule.shown.is_empty(), "{} cites nothing or is not shown", rule.id);
        for shown in &rule.shown {
            assert!(!shown.scenarios.is_empty(), "{}", rule.id);
            assert!(shown.without.is_some() != shown.unwritten.is_some(), "{}: either of the two", rule.id);
            for scenario in &shown.scenarios {
                assert!(path(scenario).is_file(), "{}: there is no {scenario}", rule.id);
            }
        }
    }
}

#[test]
fn every_scenario_is_a_variant_that_compiles() {
    let mut count = 0;
    for kind in ["colocated", "pull", "push", "asynchronous"] {
        for file in fs::read_dir(program::root().join("tests/oracle").join(kind)).expect("the folder is there") {
            let path = file.expect("it can be read").path();
            let text = fs::read_to_string(&path).expect("it can be read");
            let varies = |program: &str| text.contains(&format!("\nvary \"../{program}.sq\";\n"));
            assert!(text.starts_with("// "), "{} does not say what it shows", path.display());
            let right = match kind {
                "colocated" => varies("colocated"),
                "asynchronous" => varies("colocated") || varies("prefill_decode"),
                _ => varies("prefill_decode"),
            };
            assert!(right, "{} is no variant", path.display());
            let program = program::read(&path, &Settings::default()).unwrap_or_else(|wrong| panic!("{wrong}"));
            let scenario = Scenario::of(&program).unwrap_or_else(|wrong| panic!("{wrong:?}"));
            if kind == "asynchronous" {
                assert_eq!(scenario.mode, "async", "{}", path.display());
            } else {
                assert_eq!(
                    (&scenario.mode[..], scenario.transfer == "push"),
                    ("sync", kind == "push"),
                    "{}",
                    path.display()
                );
            }
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}

/// With a rule taken out of the text, every scenario that is to show it goes another way.
#[test]
fn without_its_rule_every_scenario_goes_another_way() {
    let recorded = program::root().join("tests/oracle/recorded.jsonl.gz");
    let recorded = Recorded::read(Path::new(&recorded)).unwrap_or_else(|wrong| panic!("{wrong:?}"));
    let mut wrong = Vec::new();
    for rule in &rules().unwrap().rules {
        for shown in &rule.shown {
            let Some(edit) = &shown.without else { continue };
            for scenario in &shown.scenarios {
                match without(scenario, edit, &recorded) {
                    Ok(Some(_)) => {}
                    Ok(None) => wrong.push(format!("{}: {scenario} goes as before", rule.id)),
                    Err(why) => wrong.push(format!("{}: {scenario}: {why}", rule.id)),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
