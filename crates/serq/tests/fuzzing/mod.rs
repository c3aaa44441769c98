//! What holds of every input, and inputs made from programs.
//!
//! Shared by `tests/fuzz.rs` (a fixed list of inputs, every build) and `fuzz/` (whatever
//! libFuzzer comes upon). Each check takes any input: it must not panic, recurse out of
//! the stack, or run away in time or memory; what it answers is not looked at further than
//! the check says.

#![allow(dead_code, reason = "the fuzz targets use a part each")]

pub(crate) mod inputs;

use serq_ir::{Arrive, Program, json};
use serq_lang::diagnostic::{Style, render};
use serq_lang::source::SourceMap;
use serq_lang::{Settings, compile, format, load, parse, parse_expr};
use serq_sim::{Options, simulate};

/// Events a simulated input gets.
pub(crate) const EVENTS_MAX: u64 = 300;
/// Sessions an input starts with at most: a million of them are allowed and slow.
const POPULATION_MAX: u32 = 200;

/// The one library programs in `examples/` use.
const LIBRARY: &str = include_str!("../../../../lib/vllm.sq");

/// The syntax half: reading, drawing what is wrong, laying out. What can be laid out has
/// no errors, and laid out again it stays.
pub(crate) fn check_syntax(text: &str) {
    let (_, diagnostics) = parse(0, text);
    parse_expr(0, text);
    let sources = SourceMap::new("fuzz.sq", text);
    for diagnostic in &diagnostics {
        for span in diagnostic.span.iter().chain(diagnostic.notes.iter().map(|(span, _)| span)) {
            let range = span.start as usize..span.end as usize;
            assert!(text.get(range).is_some(), "{span:?} is no place of the text");
        }
    }
    render(&sources, &diagnostics, Style::Short);
    match format(text) {
        Ok(once) => {
            assert!(diagnostics.is_empty(), "laid out in spite of {diagnostics:?}");
            assert_eq!(format(&once).as_ref(), Ok(&once), "laid out twice");
        }
        Err(errors) => assert_eq!(errors, diagnostics),
    }
}

/// From text to IR. A program that links is verified and reads back the same.
pub(crate) fn check_link(text: &str) -> Option<Program> {
    let mut read = |path: &str| if path.ends_with("vllm.sq") { Ok(LIBRARY.into()) } else { Err("not here".into()) };
    let (mut sources, mut diagnostics) = load(Some("examples/fuzz/fuzz.sq"), text, &mut read);
    let (program, more) = compile(&mut sources, &Settings::default());
    diagnostics.extend(more);
    render(&sources, &diagnostics, Style::Short);
    let program = program?;
    match json::read(&json::print(&program)) {
        Ok(back) => assert!(back == program, "the printed IR reads back as another program"),
        Err(error) => panic!("the linker's program is refused: {error}"),
    }
    Some(program)
}

/// Any text as IR. What is read can be run.
pub(crate) fn check_ir(text: &str) -> Option<Program> {
    json::read(text).ok()
}

/// A program runs to its end or to a typed error.
pub(crate) fn check_simulation(program: &Program) {
    let mut program = program.clone();
    if let Arrive::Batch(n) | Arrive::Closed(n) = &mut program.workload.arrive {
        *n = (*n).min(POPULATION_MAX);
    }
    let options = Options { max_events: Some(EVENTS_MAX), record: true, ..Options::default() };
    match simulate(&program, None, &options, &mut |_, _| true) {
        Ok(outcome) => {
            for pool in &outcome.report.pools {
                assert!(pool.left == 0.0, "{} units of {} are nobody's", pool.left, pool.name);
            }
        }
        Err(error) => assert!(!error.message.is_empty(), "an error says what is wrong"),
    }
}
