//! Programs with a mistake or a few in them: linking answers, in bounded time, and what
//! it accepts is verified, is the same without sugar, and reads back.
//!
//! `FUZZ=n` tries n programs instead of the few of every day.

use std::path::Path;

use serq_lang::diagnostic::{Severity, Style, render};
use serq_lang::lexer;
use serq_lang::{Settings, compile, load, unsugar};

/// A small generator; the seed is printed with a failure.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

fn seeds() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("tests/cases/acceptance.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let cases = file.as_object().unwrap().values().find_map(|v| v.as_array()).unwrap();
    let mut seeds: Vec<String> = cases.iter().map(|c| c["source"].as_str().unwrap().to_owned()).collect();
    for code in serq_lang::explain::CODES {
        let page = serq_lang::explain::page(code).unwrap();
        seeds.extend(page.split("```sq\n").skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned));
    }
    seeds
}

/// The words of a text, so that mutations keep most of it a program.
fn words(text: &str) -> Vec<String> {
    let lexed = lexer::lex(0, text);
    lexed
        .tokens
        .iter()
        .map(|t| text[t.span.start as usize..t.span.end as usize].to_owned())
        .filter(|w| !w.is_empty())
        .collect()
}

fn mutate(random: &mut Random, text: &str, other: &str) -> String {
    let mut list = words(text);
    let others = words(other);
    if list.is_empty() || others.is_empty() {
        return text.to_owned();
    }
    for _ in 0..=random.below(3) {
        let at = random.below(list.len());
        let from = random.below(list.len());
        match random.below(6) {
            // Most often a name or number for another: such a text still reads.
            0..=2 => {
                let name = |w: &str| w.starts_with(|c: char| c.is_alphanumeric());
                if name(&list[at]) && name(&list[from]) {
                    list[at] = list[from].clone();
                }
            }
            3 => {
                list.remove(at);
                if list.is_empty() {
                    return String::new();
                }
            }
            4 => list[at] = others[random.below(others.len())].clone(),
            _ => {
                let end = (from + 1 + random.below(12)).min(list.len());
                let piece: Vec<String> = list[from..end].to_vec();
                list.splice(at..at, piece);
            }
        }
    }
    list.join(" ")
}

#[test]
fn linking_always_answers() {
    let tries: u64 = std::env::var("FUZZ").ok().and_then(|n| n.parse().ok()).unwrap_or(3_000);
    let seeds = seeds();
    let (mut linked, mut refused) = (0, 0);
    for n in 1..=tries {
        let mut random = Random(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let (a, b) = (random.below(seeds.len()), random.below(seeds.len()));
        let text = mutate(&mut random, &seeds[a], &seeds[b]);
        let (mut sources, _) = load(None, &text, &mut |_| unreachable!());
        let settings = Settings { horizon: Some(10.0), ..Settings::default() };
        let (program, said) = compile(&mut sources, &settings);
        // Every finding can be drawn.
        let picture = render(&sources, &said, Style::Plain);
        match program {
            Some(program) => {
                linked += 1;
                let plain = unsugar(&program);
                let (mut again, _) = load(None, &plain, &mut |_| unreachable!());
                let (same, said) = compile(&mut again, &settings);
                let picture = render(&again, &said, Style::Plain);
                assert!(same.is_some(), "try {n}:\n{text}\n{plain}\n{picture}");
            }
            None => {
                refused += 1;
                let why = said.iter().any(|d| d.severity == Severity::Error);
                assert!(why, "try {n}: refused in silence\n{text}");
                assert!(said.iter().all(|d| d.code != "not-verified"), "try {n}:\n{text}\n{picture}");
            }
        }
    }
    // Otherwise nothing much was tried.
    assert!(linked * 20 > refused, "{linked} linked, {refused} refused");
}
