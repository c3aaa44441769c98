//! `serq draw` through the binary, looked at as XML: what is named, what fits, what crosses what.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use expect_test::expect_file;
use roxmltree::{Document, Node};
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

struct Said {
    status: i32,
    out: String,
    err: String,
}

fn serq(arguments: &[&str]) -> Said {
    let output = Command::new(env!("CARGO_BIN_EXE_serq")).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let said = Said { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) };
    assert!(!said.err.contains("panicked"), "{arguments:?}: {}", said.err);
    said
}

fn drawn(path: &str, more: &[&str]) -> String {
    let said = serq(&[&["draw", path, "--out", "-"], more].concat());
    assert_eq!(said.status, 0, "{path}: {}", said.err);
    said.out
}

/// A program of this test's own.
fn program(name: &str, text: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("drawing");
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

fn example(name: &str) -> String {
    root().join("examples").join(name).to_str().unwrap().to_owned()
}

fn all_programs() -> Vec<String> {
    fn below(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "sq") {
                found.push(path.to_str().unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    below(&root().join("examples"), &mut found);
    below(&root().join("tests/cases"), &mut found);
    found.sort();
    assert!(found.len() > 60, "{found:?}");
    found
}

#[derive(Clone, Copy, Debug)]
struct Box {
    left: f64,
    top: f64,
    right: f64,
    bottom: f64,
}

impl Box {
    fn of(node: Node<'_, '_>) -> Self {
        let [left, top, width, height] = ["x", "y", "width", "height"].map(|name| number(node, name));
        Self { left, top, right: left + width, bottom: top + height }
    }

    fn inside(&self, outer: &Self) -> bool {
        self.left >= outer.left && self.top >= outer.top && self.right <= outer.right && self.bottom <= outer.bottom
    }

    fn apart(&self, other: &Self) -> bool {
        self.right <= other.left || other.right <= self.left || self.bottom <= other.top || other.bottom <= self.top
    }

    fn shrunk(self) -> Self {
        Self { left: self.left + 1.0, top: self.top + 1.0, right: self.right - 1.0, bottom: self.bottom - 1.0 }
    }
}

fn number(node: Node<'_, '_>, attribute: &str) -> f64 {
    node.attribute(attribute).unwrap_or_else(|| panic!("{attribute} is missing")).parse().unwrap()
}

fn class<'n>(node: Node<'n, '_>) -> &'n str {
    node.attribute("class").unwrap_or("")
}

/// Advances of DejaVu Sans, rounded up within each kind: wider than the fonts of most screens.
fn width(text: &str, size: f64, bold: bool) -> f64 {
    let em = |letter: char| match letter {
        'i' | 'l' | 'j' | 'I' | '.' | ',' | ':' | ' ' => 0.32,
        'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '-' | '/' => 0.41,
        'm' | 'M' | 'w' | 'W' | '%' => 0.98,
        '_' => 0.5,
        'A'..='Z' | '×' => 0.78,
        _ => 0.64,
    };
    text.chars().map(em).sum::<f64>() * size * if bold { 1.1 } else { 1.0 }
}

/// A box with the words on it.
struct Card {
    kind: String,
    front: Box,
    words: Vec<String>,
}

/// Everything that holds of any picture.
fn check(name: &str, picture: &str) -> Vec<Card> {
    let document = Document::parse(picture).unwrap_or_else(|error| panic!("{name}: {error}"));
    let svg = document.root_element();
    let page = Box { left: 0.0, top: 0.0, right: number(svg, "width"), bottom: number(svg, "height") };
    let mut ids: Vec<&str> = document.descendants().filter_map(|node| node.attribute("id")).collect();
    ids.sort_unstable();
    assert!(ids.windows(2).all(|pair| pair[0] != pair[1]), "{name}: an id is there twice: {ids:?}");
    assert!(ids.iter().all(|id| !id.contains(char::is_whitespace)), "{name}: {ids:?}");
    let mut cards = Vec::new();
    for group in document.descendants().filter(|node| node.has_tag_name("g") && node.attribute("id").is_some()) {
        let own = |name: &str| group.children().filter(|node| class(*node) == name).collect::<Vec<_>>();
        let front = Box::of(own("box")[0]);
        assert!(front.inside(&page), "{name}: {front:?} is not on the page {page:?}");
        if let Some(outer) = group.parent().filter(|outer| outer.attribute("id").is_some()) {
            let outer = Box::of(outer.children().find(|node| class(*node) == "box").unwrap());
            assert!(front.inside(&outer), "{name}: {front:?} is not in {outer:?}");
        }
        let mut words = Vec::new();
        let counted = own("count").iter().map(|count| width(count.text().unwrap(), 13.0, true) + 4.0).sum::<f64>();
        for text in group.children().filter(|node| node.has_tag_name("text")) {
            let said = text.text().unwrap_or("");
            let (size, bold) = if class(text) == "detail" { (11.0, false) } else { (13.0, true) };
            let (x, y, wide) = (number(text, "x"), number(text, "y"), width(said, size, bold));
            let right = if class(text) == "count" { x } else { x + wide };
            let room = if class(text) == "name" { front.right - counted } else { front.right };
            assert!(right <= room && x >= front.left, "{name}: `{said}` leaves its box");
            assert!(
                y - size >= front.top && y + 3.0 <= front.bottom,
                "{name}: `{said}` leaves its box upwards or downwards"
            );
            words.push(said.to_owned());
        }
        cards.push(Card { kind: class(group).to_owned(), front, words });
    }
    for (at, card) in cards.iter().enumerate() {
        for other in &cards[..at] {
            let (a, b) = (&card.front, &other.front);
            assert!(a.apart(b) || a.inside(b) || b.inside(a), "{name}: {:?} and {:?} overlap", card.words, other.words);
        }
    }
    for way in document.descendants().filter(|node| class(*node).starts_with("way")) {
        for part in points(way.attribute("d").unwrap()).windows(2) {
            let ((x1, y1), (x2, y2)) = (part[0], part[1]);
            let line = Box { left: x1.min(x2), top: y1.min(y2), right: x1.max(x2), bottom: y1.max(y2) };
            assert!(line.inside(&page), "{name}: a way leaves the page");
            for card in &cards {
                assert!(line.apart(&card.front.shrunk()), "{name}: a way goes through {:?}", card.words);
            }
        }
    }
    for label in document.descendants().filter(|node| class(*node) == "label") {
        let (x, y, wide) = (number(label, "x"), number(label, "y"), width(label.text().unwrap(), 11.0, false));
        let said = Box { left: x - wide / 2.0, top: y - 9.0, right: x + wide / 2.0, bottom: y + 2.0 };
        for card in &cards {
            assert!(said.apart(&card.front), "{name}: `{}` is on {:?}", label.text().unwrap(), card.words);
        }
    }
    cards
}

/// Where a path's lines and curves end.
fn points(d: &str) -> Vec<(f64, f64)> {
    let mut found = Vec::new();
    for part in d.split(['M', 'L', 'Q']) {
        let numbers: Vec<f64> = part.split_whitespace().map(|number| number.parse().unwrap()).collect();
        if let [.., x, y] = numbers[..] {
            found.push((x, y));
        }
    }
    found
}

fn named<'c>(cards: &'c [Card], kind: &str) -> Vec<&'c str> {
    let mut names: Vec<&str> = cards.iter().filter(|card| card.kind == kind).map(|card| &card.words[0][..]).collect();
    names.sort_unstable();
    names
}

#[test]
fn every_program_is_drawn_whole_and_nothing_overflows() {
    for path in all_programs() {
        let cards = check(&path, &drawn(&path, &[]));
        let contents: Value = serde_json::from_str(&serq(&["check", "--json", &path]).out).unwrap();
        for (kind, list) in [("pool", "pools"), ("stage", "stages")] {
            let mut wanted: Vec<&str> =
                contents[list].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
            wanted.sort_unstable();
            assert_eq!(named(&cards, kind), wanted, "{path}: each {kind} once");
        }
        for kind in ["arrival", "done"] {
            assert!(named(&cards, kind).len() <= 1, "{path}");
        }
    }
}

#[test]
fn prefill_and_decode_stand_around_the_link() {
    let picture = drawn(&example("pd-disaggregation/llmd_nixl_pull.sq"), &[]);
    let cards = check("pull", &picture);
    let card = |name: &str| cards.iter().find(|card| card.words[0] == name).unwrap_or_else(|| panic!("{name}"));
    let columns = ["sessions", "router", "P.reqs", "link", "D.kv"].map(card);
    assert!(columns.windows(2).all(|pair| pair[0].front.right < pair[1].front.left));
    for (inner, outer) in
        [("P", "P.kv"), ("P.kv", "P.reqs"), ("D", "D.reqs"), ("D.reqs", "D.kv"), ("P.nic", "link"), ("D.nic", "link")]
    {
        assert!(card(inner).front.inside(&card(outer).front), "{inner} in {outer}");
    }
    assert!(card("P.kv").words.iter().any(|words| words.contains("leased")));
    assert!(card("P.reqs").words.contains(&"× 2".to_owned()) && !card("P.kv").words.contains(&"× 2".to_owned()));
    assert!(card("router").words.contains(&"D: one of 2".to_owned()));
    let document = Document::parse(&picture).unwrap();
    let mut labels: Vec<&str> =
        document.descendants().filter(|node| class(*node) == "label").filter_map(|node| node.text()).collect();
    labels.sort_unstable();
    assert_eq!(labels, ["more", "not more", "not remote", "remote"]);
    // From the lease to the link, from the link to the reader, and the legend's.
    assert_eq!(document.descendants().filter(|node| class(*node) == "way kv").count(), 3);
}

#[test]
fn the_picture_in_the_readme_is_the_programs() {
    let picture = drawn(&example("pd-disaggregation/llmd_nixl_pull.sq"), &[]);
    expect_file![root().join("docs/pictures/llmd_nixl_pull.svg")].assert_eq(&picture);
}

#[test]
fn settings_are_drawn() {
    let path = example("pd-disaggregation/llmd_nixl_pull.sq");
    let cards = check("3P", &drawn(&path, &["--set", "NP=3", "--set", "blocksP=1100"]));
    let pool = |name: &str| &cards.iter().find(|card| card.words[0] == name).unwrap().words;
    assert!(pool("P.reqs").contains(&"× 3".to_owned()));
    assert!(pool("P.kv").contains(&"17 600 units, blocks of 16".to_owned()), "{:?}", pool("P.kv"));
}

#[test]
fn a_picture_is_the_same_every_time_and_from_the_ir() {
    let path = example("routing/policies.sq");
    let file = program("policies.svg", "");
    let said = serq(&["draw", &path, "--out", &file]);
    assert_eq!((said.status, &said.out[..], &said.err[..]), (0, "", ""));
    let picture = fs::read_to_string(&file).unwrap();
    assert_eq!(picture, drawn(&path, &[]));
    let ir = program("policies.json", &serq(&["ir", &path]).out);
    assert_eq!(picture, drawn(&ir, &[]));
    // Nothing is fetched.
    assert_eq!(picture.matches("http").count(), 1, "only the name of SVG itself");
    assert!(picture.contains("prefers-color-scheme: dark"));
}

#[test]
fn chances_along_nested_branches_are_multiplied() {
    let picture = drawn(&example("queueing/processor_sharing.sq"), &[]);
    assert_eq!(picture.matches(">33.3 %<").count(), 3, "{picture}");
}

#[test]
fn what_is_spilled_and_what_is_never_used_is_drawn_too() {
    let path = program(
        "evicted.sq",
        "pool gpu[2] { cap 40; block 4; spill host via bus (3) when (1); }
         pool host { cap inf; } pool spare[3] { cap 5; }
         stage bus : ps(10); stage engine[2] : fifo(4); stage idle : delay;
         workload { arrive closed(5); init { set k = ~bernoulli(0.5); } }
         session { loop { hold gpu[k] (10) { run engine[k] (~exp(1)); } cache (10) branch with (0.3) { end; } } }
         run { horizon 10; }",
    );
    let picture = drawn(&path, &[]);
    let cards = check("spill", &picture);
    assert_eq!(named(&cards, "pool"), ["gpu", "host", "spare"]);
    assert_eq!(named(&cards, "stage"), ["bus", "engine", "idle"]);
    assert_eq!(picture.matches(">spill<").count(), 2);
    assert_eq!(picture.matches(">next<").count(), 1, "a closed population comes back");
    assert!(picture.contains(">in order, 4 servers<") && picture.contains(">without end<"));
}

#[test]
fn many_stations_take_many_rows() {
    let stages: String = (0..40).map(|k| format!("stage a_longer_name_{k} : fifo;")).collect();
    let runs: String = (0..40)
        .map(|k| {
            format!("run a_longer_name_{k} (1); branch with (0.1) {{ run a_longer_name_{} (1); }}", (k * 17 + 5) % 40)
        })
        .collect();
    let text = format!("{stages} workload {{ arrive batch(1); }} session {{ loop {{ {runs} }} }} run {{ horizon 1; }}");
    let picture = drawn(&program("many.sq", &text), &[]);
    let cards = check("many", &picture);
    assert_eq!(named(&cards, "stage").len(), 40);
    let width = number(Document::parse(&picture).unwrap().root_element(), "width");
    assert!(width < 2000.0, "{width}");
}

#[test]
fn loops_in_loops_do_not_multiply() {
    // A walk that enters each loop twice would take 2^80 steps.
    let mut session = "run desk (1);".to_owned();
    for depth in 0..80 {
        session = format!("branch (x > {depth}) {{ loop {{ {session} }} }} run desk{} (1);", depth % 3);
    }
    let stages = "stage desk : fifo; stage desk0 : fifo; stage desk1 : fifo; stage desk2 : fifo;";
    let text = format!(
        "{stages} workload {{ arrive batch(1); init {{ set x = 1; }} }} session {{ {session} end; }} run {{ horizon 1; }}"
    );
    check("loops", &drawn(&program("loops.sq", &text), &[]));
}

#[test]
fn names_that_are_no_names_are_cut_and_escaped() {
    let text = "stage desk : fifo; pool kv { cap 3; }
        workload { arrive batch(1); init { set flag = 1; } }
        session { hold kv (1) { run desk (1); } branch (flag) { run desk (2); } end; } run { horizon 1; }";
    let ir = serq(&["ir", &program("odd.sq", text)]).out;
    let long = "W".repeat(1000);
    for odd in ["<b>&amp;\\\" 'x'", &long, "語語 語", "\\u0001\\u0007\\n", "", "title", "stage.kv"] {
        let named = ir.replace("\"desk\"", &format!("\"{odd}\"")).replace("\"flag\"", &format!("\"{odd}\""));
        let picture = drawn(&program("odd.json", &named), &[]);
        check(odd, &picture);
        assert!(Document::parse(&picture).unwrap().root_element().descendants().all(|node| !node.has_tag_name("b")));
    }
}

#[test]
fn what_cannot_be_drawn_or_written_is_told() {
    let desk = example("queueing/mm1.sq");
    let folder = root().join("examples");
    for (arguments, status, sentence) in [
        (&["draw", &desk][..], 2, "--out"),
        (&["draw", "no.sq", "--out", "-"], 1, "cannot read no.sq: there is no such file"),
        (&["draw", &desk, "--out", folder.to_str().unwrap()], 1, "it is a directory"),
        (&["draw", &desk, "--out", "/no/such/folder/x.svg"], 1, "there is no such file"),
        (&["draw", &desk, "--out", "-", "--set", "nothing=1"], 1, "nothing"),
    ] {
        let said = serq(arguments);
        assert_eq!((said.status, &said.out[..]), (status, ""), "{arguments:?}: {}", said.err);
        assert!(said.err.contains(sentence), "{arguments:?}: {}", said.err);
    }
}
