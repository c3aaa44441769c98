//! `--report out.html`: results as one page that needs nothing else: no network, no scripts, no
//! fonts; light or dark as the reader's screen is; as wide as a phone or a desk.
//!
//! ```text
//!   run    recorder ─▶ gather (series, distributions, misses) ─┐
//!                                             report ─────────┼─▶ run.rs ───▶ one file
//!                                             drawing ────────┘
//!   sweep  figures of every cell and seed ─────────────────────▶ sweep.rs ─▶ one file
//! ```
//!
//! # Invariants
//!
//! - The same run, the same bytes.
//! - What a program or a command line says is escaped: a page has no markup of theirs.

mod chart;
mod distribution;
mod gather;
mod instances;
mod run;
mod series;
mod sweep;

use std::fs::{self, OpenOptions};
use std::path::Path;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::failure::Failure;
use crate::output;

pub(crate) use run::RunPage;
pub(crate) use sweep::draw as draw_sweep;

const STYLE: &str = include_str!("style.css");

/// Makes the file before a long run, so that a wrong name is told at once.
pub(crate) fn prepare(path: &Path) -> Result<(), Failure> {
    if path.extension().is_none_or(|end| end != "html") {
        return Err(Failure::Usage(format!("--report {}: the page is HTML: write out.html", path.display())));
    }
    // What is there already stays until there is something better.
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| output::cannot("write", path, &error))
}

/// Writes the page.
pub(crate) fn write(path: &Path, page: &str) -> Result<(), Failure> {
    fs::write(path, page).map_err(|error| output::cannot("write", path, &error))
}

/// A page around its sections.
fn page(title: &str, under: &str, sections: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) ": serq" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (title) }
                    p { (under) }
                }
                main { (sections) }
                footer { "serq " (env!("CARGO_PKG_VERSION")) }
            }
        }
    };
    page.into_string() + "\n"
}

/// A table: names left, numbers right.
fn table(heads: &[&str], rows: &[Vec<String>]) -> Markup {
    html! {
        div.scroll {
            table {
                thead { tr { @for head in heads { th { (head) } } } }
                tbody {
                    @for row in rows { tr { @for cell in row { td { (cell) } } } }
                }
            }
        }
    }
}

/// A chart with its title, and a mark for each curve that has a name.
fn figure(title: &str, names: &[&str], svg: &str) -> Markup {
    html! {
        figure {
            figcaption {
                b { (title) }
                @for (at, name) in names.iter().enumerate() {
                    " " span.key { i class={ "c" (at % chart::COLOURS.len()) } {} (name) }
                }
            }
            (PreEscaped(svg))
        }
    }
}

/// Remarks on the run.
fn notes(notes: &[String]) -> Markup {
    html! {
        @if !notes.is_empty() {
            section {
                h2 { "Notes" }
                ul { @for note in notes { li { (note) } } }
            }
        }
    }
}
