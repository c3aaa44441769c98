//! The page of every code, tried out: its first program is refused with that code, and the
//! drawing is kept in `tests/lang/pictures/`; its second program has no mistake of syntax.
//! `UPDATE_EXPECT=1` writes the drawings anew.

use std::path::Path;

use expect_test::expect_file;
use serq_lang::diagnostic::{Diagnostic, Style, render};
use serq_lang::explain;
use serq_lang::source::SourceMap;

/// What is said of a program: the one place that knows how far a text is taken.
fn diagnostics(sources: &SourceMap) -> Vec<Diagnostic> {
    serq_lang::parse(0, &sources.sources[0].text).1
}

/// The programs of a page, in order.
fn programs(page: &str) -> Vec<&str> {
    page.split("```sq\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect()
}

/// Wrong programs that no page could show.
fn unprintable(code: &str) -> Option<String> {
    Some(match code {
        "byte-order-mark" => "\u{feff}stage disk : delay;\n".to_owned(),
        "file-too-large" => " ".repeat(serq_lang::lexer::FILE_BYTES_MAX + 1),
        "too-deep" => format!("let x = {}1;\n", "1 + ".repeat(serq_ir::DEPTH_MAX)),
        "too-many-errors" => ";\n".repeat(200),
        _ => return None,
    })
}

#[test]
fn the_wrong_program_of_a_page_is_refused_with_its_code() {
    for code in explain::CODES {
        let page = explain::page(code).unwrap();
        let text =
            unprintable(code).or_else(|| programs(page).first().map(|&text| text.to_owned()));
        let text = text.unwrap_or_else(|| panic!("{code}: the page has no program"));
        let sources = SourceMap::new("page.sq", text);
        let all = diagnostics(&sources);
        assert!(all.iter().any(|one| one.code == *code), "{code}: {all:?}");
        let one: Vec<Diagnostic> = all.into_iter().filter(|one| one.code == *code).collect();
        let picture = render(&sources, &one, Style::Plain);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/lang/pictures");
        expect_file![folder.join(format!("{code}.txt"))].assert_eq(&picture);
    }
}

#[test]
fn the_right_program_of_a_page_reads() {
    for code in explain::CODES {
        for text in programs(explain::page(code).unwrap()).iter().skip(1) {
            assert_eq!(serq_lang::parse(0, text).1, [], "{code}");
        }
    }
}
