//! The page of every code, tried out: its first program is refused with that code, and the
//! drawing is kept in `tests/lang/pictures/`; its second program has no mistake.
//! `UPDATE_EXPECT=1` writes the drawings anew.

use std::path::Path;

use expect_test::expect_file;
use serq_lang::Settings;
use serq_lang::diagnostic::{Diagnostic, Style, render};
use serq_lang::explain;
use serq_lang::source::SourceMap;

/// What is said of a page's program.
fn diagnostics(code: &str, sources: &mut SourceMap) -> Vec<Diagnostic> {
    let settings = Settings {
        // Pages show what they are about, not how long to run.
        horizon: (code != "horizon-missing" && code != "bad-run").then_some(100.0),
        served: code == "not-served",
        played: code == "not-played",
        sets: if code == "unknown-setting" { vec![("thr".into(), "1".into())] } else { Vec::new() },
        ..Settings::default()
    };
    serq_lang::compile(sources, &settings).1
}

/// The programs of a page, in order.
fn programs(page: &str) -> Vec<&str> {
    page.split("```sq\n").skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Wrong programs that no page could show.
fn unprintable(code: &str) -> Option<String> {
    Some(match code {
        "byte-order-mark" => "\u{feff}stage disk : delay;\n".to_owned(),
        "file-too-large" => " ".repeat(serq_lang::lexer::FILE_BYTES_MAX + 1),
        // Twenty-two doublings.
        "too-large" => {
            let mut text = String::from("def d0(x) = x;\n");
            for k in 1..23 {
                text += &format!("def d{k}(x) = d{0}(x) + d{0}(x);\n", k - 1);
            }
            text + "session { observe n = d22(serial); }\n"
        }
        "unknown-setting" => "let threshold = 512;\n".to_owned(),
        "too-deep" => format!("let x = {}1;\n", "1 + ".repeat(serq_ir::DEPTH_MAX)),
        "too-many-errors" => ";\n".repeat(200),
        _ => return None,
    })
}

#[test]
fn the_wrong_program_of_a_page_is_refused_with_its_code() {
    for code in explain::CODES {
        // Nobody knows a program that is answered so.
        if *code == "not-verified" {
            continue;
        }
        let page = explain::page(code).unwrap();
        let text = unprintable(code).or_else(|| programs(page).first().map(|&text| text.to_owned()));
        let text = text.unwrap_or_else(|| panic!("{code}: the page has no program"));
        let mut sources = SourceMap::new("page.sq", text);
        let all = diagnostics(code, &mut sources);
        assert!(all.iter().any(|one| one.code == *code), "{code}: {all:?}");
        let one: Vec<Diagnostic> = all.into_iter().filter(|one| one.code == *code).collect();
        let picture = render(&sources, &one, Style::Plain);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lang/pictures");
        expect_file![folder.join(format!("{code}.txt"))].assert_eq(&picture);
    }
}

#[test]
fn the_right_program_of_a_page_is_right() {
    let mut failures = String::new();
    for code in explain::CODES {
        for text in programs(explain::page(code).unwrap()).iter().skip(1) {
            let mut sources = SourceMap::new("page.sq", *text);
            let (served, played) = (*code == "not-served", *code == "not-played");
            let settings = Settings { horizon: Some(100.0), served, played, ..Settings::default() };
            let (program, said) = serq_lang::compile(&mut sources, &settings);
            let picture = render(&sources, &said, Style::Plain);
            // A page about reading a text may show a part of a program.
            let reads = serq_lang::parse(0, text).1.is_empty();
            let linked = program.is_some() && said.is_empty();
            if !reads || linked == PARTS.contains(code) {
                failures += &format!("{code}:\n{picture}");
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Pages of the reader whose right programs are parts.
const PARTS: &[&str] = &[
    "else-needs-block",
    "incomplete-transfer",
    "misplaced-clause",
    "stray-semicolon",
    "unclosed-block",
    "unclosed-string",
    "unknown-item",
];
