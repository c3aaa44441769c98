//! Every snippet of `tests/cases/acceptance.json` is accepted or refused as the
//! reference release does, at the same place, but for the tables below.

use std::path::Path;

use serq_lang::diagnostic::{Severity, Style, render};
use serq_lang::{Settings, compile, load};

/// Accepted by the reference and refused here, with the code it is refused with.
/// `tests/lang/acceptance_stricter.md` has the reasons.
const STRICTER: &[(&str, &str)] = &[
    ("dup run", "repeated"),
    ("dup let", "repeated"),
    ("arrive twice", "repeated"),
    ("pool dup opt", "repeated"),
    ("admit via nonstep", "wrong-kind"),
    ("chunk attr", "wrong-moment"),
];

/// Refused by both, said at another place: the reference points behind the word, or
/// at the end of the text. The same file has the reasons.
const PLACED: &[(&str, &str)] = &[
    ("unknown pool opt", "1:9"),
    ("step no cost", "1:9"),
    ("both sessions", "1:89"),
    ("requeue tail own opt", "1:32"),
    ("granule opt", "1:18"),
    ("binding dup", "1:109"),
    ("entry before serve", "1:89"),
];

#[test]
fn the_handed_snippets_are_answered_as_by_the_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/acceptance.json");
    let text = std::fs::read_to_string(path).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let cases = file.as_object().unwrap().values().find_map(|v| v.as_array()).unwrap();
    assert_eq!(cases.len(), 165);
    let mut failures = String::new();
    for case in cases {
        let title = case["title"].as_str().unwrap();
        assert_eq!(case["settings"], serde_json::json!({}), "{title}: settings are not read by this test");
        let (mut sources, mut said) = load(None, case["source"].as_str().unwrap(), &mut |_| unreachable!());
        let (program, more) = compile(&mut sources, &Settings::default());
        said.extend(more);
        let errors: Vec<_> = said.iter().filter(|d| d.severity == Severity::Error).collect();
        let places: Vec<String> = errors
            .iter()
            .map(|d| {
                d.span.map_or(String::new(), |span| {
                    let (line, column) = sources.line_column(span);
                    format!("{line}:{column}")
                })
            })
            .collect();
        let stricter = STRICTER.iter().find(|(t, _)| *t == title);
        let wanted = PLACED.iter().find(|(t, _)| *t == title).map(|(_, at)| *at).or(case["position"].as_str());
        // What the reference accepts and then stops running is the simulator's to test.
        let accepted = matches!(case["outcome"].as_str().unwrap(), "accepted" | "run_error");
        let right = match stricter {
            Some((_, code)) => accepted && program.is_none() && errors.iter().all(|d| d.code == *code),
            None if accepted => program.is_some(),
            None => program.is_none() && wanted.is_none_or(|at| places.first().is_some_and(|p| p == at)),
        };
        // One mistake, one message.
        if !right || errors.len() > 1 {
            failures += &format!(
                "{title}: wanted {} {wanted:?}, said at {places:?}\n{}\n",
                case["outcome"],
                render(&sources, &said, Style::Plain)
            );
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}
