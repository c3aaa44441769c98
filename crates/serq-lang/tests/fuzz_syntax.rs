//! No text makes the syntax half panic, hang, or contradict itself.
//!
//! Programs are mutated and tokens are mixed, from one fixed seed. What holds of every
//! text: it is read, drawn in every style, and laid out; and what can be laid out parses
//! to the same tree and stays as it is.

mod tree;

use serq_lang::diagnostic::{Style, render};
use serq_lang::source::SourceMap;
use serq_lang::{format, parse, parse_expr};

const SEED: u64 = 0x5ee9_5ee9_5ee9_0001;

const PROGRAMS: [&str; 4] = [
    include_str!("../../../tests/format/chat.sq"),
    include_str!("../../../tests/format/pair.sq"),
    include_str!("../../../tests/format/untidy.sq"),
    include_str!("../../../tests/lang/syntax.sq"),
];

const SOUP: &[&str] = &[
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ",",
    ";",
    ":",
    "?",
    "=",
    ".",
    "~",
    "+",
    "-",
    "*",
    "/",
    "^",
    "<",
    "<=",
    "==",
    "&&",
    "||",
    "!",
    "1",
    "1.5",
    ".5",
    "1.",
    "1..5",
    "1e",
    "1e400",
    "inf",
    "\"a\"",
    "\"",
    "/*",
    "*/",
    "//",
    "\n",
    "\r\n",
    "\t",
    "\u{feff}",
    "λ",
    "#",
    "max k in 3 (",
    "let",
    "let x =",
    "use",
    "def f(a)",
    "pool",
    "pool p {",
    "stage s :",
    "step {",
    "fifo",
    "ps(",
    "queue Q : prefill {",
    "prefill (",
    "decode",
    "transfer",
    "from",
    "to",
    "on",
    "hold",
    "hold kv (",
    "reserve",
    "reuse",
    "at admission (",
    "cache (",
    "lease",
    "branch",
    "branch with (",
    "else",
    "loop {",
    "choose",
    "in",
    "by",
    "run",
    "run {",
    "session {",
    "server {",
    "workload {",
    "arrive",
    "poisson(",
    "bursts(",
    "for",
    "repeat",
    "turn",
    "end;",
    "set x =",
    "observe",
    "mark",
    "request",
    "grow",
    "release",
    "growing",
    "share maxmin;",
    "D pull P",
    "latency",
    "gauge",
    "claim",
    "fork",
    "x",
    "kv",
];

struct Random(u64);

impl Random {
    /// xorshift64 (Marsaglia 2003).
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

fn check(text: &str) {
    let (_, diagnostics) = parse(0, text);
    let sources = SourceMap::new("fuzz.sq", text);
    for diagnostic in &diagnostics {
        let notes = diagnostic.notes.iter().map(|(span, _)| span);
        for span in diagnostic.span.iter().chain(notes) {
            let range = span.start as usize..span.end as usize;
            assert!(text.get(range).is_some(), "{span:?} in {text:?}");
        }
    }
    for style in [Style::Plain, Style::Colour, Style::Short] {
        render(&sources, &diagnostics, style);
    }
    match format(text) {
        Ok(once) => {
            assert!(diagnostics.is_empty());
            assert_eq!(tree::without_places(text), tree::without_places(&once), "of\n{text}");
            let twice = format(&once).expect("what was laid out is a program");
            assert!(once == twice, "of\n{text}\nonce\n{once}\ntwice\n{twice}");
        }
        Err(errors) => assert_eq!(errors, diagnostics),
    }
}

fn boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[test]
fn mutated_programs() {
    let mut random = Random(SEED);
    for _ in 0..10_000 {
        let program = random.of(&PROGRAMS);
        let from = boundary(program, random.below(program.len()));
        let to = boundary(program, from + random.below(600));
        let mut text = if random.below(4) == 0 { program } else { &program[from..to] }.to_owned();
        for _ in 0..=random.below(4) {
            let at = boundary(&text, random.below(text.len() + 1));
            let end = boundary(&text, at + random.below(12));
            match random.below(4) {
                0 => text.replace_range(at..end, ""),
                1 => text.insert_str(at, random.of(SOUP)),
                2 => text.replace_range(at..end, random.of(SOUP)),
                _ => text.insert(at, char::from_u32(random.below(0x300) as u32).unwrap_or(' ')),
            }
        }
        check(&text);
    }
}

/// Only white space and comments are put in, so most of the texts stay programs.
#[test]
fn programs_with_comments_anywhere() {
    let what = [
        " ",
        "\n",
        "\n\n\n",
        " // c\n",
        " /* c */ ",
        "\n// c\n",
        "\n/*\n  c */",
        "\t",
        "\r\n",
        "\n// c\n\n// d\n",
        "\n/* c */",
        "               ",
    ];
    let mut random = Random(SEED);
    for _ in 0..4_000 {
        let mut text = random.of(&PROGRAMS[..3]).to_owned();
        for _ in 0..=random.below(6) {
            let at = boundary(&text, random.below(text.len() + 1));
            if let Some(space) = text[at..].find([' ', ';', '(', '{', ',']) {
                text.insert_str(at + space + 1, random.of(&what));
            }
        }
        check(&text);
    }
}

#[test]
fn token_soups() {
    let mut random = Random(SEED);
    for _ in 0..6_000 {
        let mut text = String::new();
        for _ in 0..random.below(60) {
            text.push_str(random.of(SOUP));
            text.push_str(random.of(&["", " ", " ", "\n"]));
        }
        check(&text);
        parse_expr(0, &text);
    }
}

/// What is deep or long is refused, and neither the stack nor the time is spent on it.
#[test]
fn deep_and_long_texts() {
    for (before, piece, after) in [
        ("let x = ", "1 + ", "1;"),
        ("let x = ", "2 ^ ", "1;"),
        ("let x = ", "-", "1;"),
        ("let x = ", "!", "1;"),
        ("let x = ", "(", "1;"),
        ("let x = ", "f(", "1;"),
        ("let x = ", "a[", "1;"),
        ("let x = ", "1 ? 2 : ", "1;"),
        ("let x = ", "1 ? ", "1;"),
        ("let x = ", "max k in 2 (", "1;"),
        ("let x = ", "max k in (", "1;"),
        ("let x = f(", "1, ", "1);"),
        ("session { ", "loop { ", "end;"),
        ("session { ", "prefill[", "1];"),
        ("session { ", "branch (1) { ", "} else { "),
        ("session { ", "hold kv (1) { ", ""),
        ("", "session { ", ""),
        ("", "pool p { ", ""),
        ("", "queue q { prefill (x) { ", ""),
        ("", "{", ""),
        ("", "}", ""),
        ("", ";", ""),
        ("", "λ", ""),
        ("", "\"", ""),
        ("", "/*", ""),
        ("", "\u{0}", ""),
        ("", "\n", "}"),
        ("", "#$", ""),
        ("", "//\n", ""),
        ("let x = 1", "//\n", ";"),
        ("let x = 1", "/**/", ";"),
        ("session { ", "f(\nset\n", ""),
        ("session { ", "f(\n#\n", ""),
        ("session { ", "prefill[\n", ""),
        ("session { ", "hold kv (1) { } ", "}"),
        ("session { ", "set x = 1; ", "}"),
    ] {
        check(&format!("{before}{}{after}", piece.repeat(40_000)));
    }
    check(&" ".repeat(serq_lang::lexer::FILE_BYTES_MAX + 1));
}
