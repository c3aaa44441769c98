//! Cards and ways as SVG.
//!
//! Colours are classes with two sets of values, for light and dark; nothing is fetched, no font
//! is named that need not be there, and ids are the program's names.

use std::collections::BTreeSet;

use quick_xml::Writer;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};

use super::arrow::Path;
use super::enclosure::{Glyph, What};
use super::ink;
use super::layout::{Card, LINE, MARGIN, PAD, Page, STACK, count_text, indent};
use super::network::{Kind, Network};

const STYLE: &str = include_str!("style.css");
/// A corner's radius.
const CORNER: f64 = 7.0;

/// Paints a page.
pub(super) fn paint(name: &str, network: &Network, page: &Page<'_>) -> String {
    let legend = legend(network);
    let width = page.width.max(MARGIN * 2.0 + ink::width_of_name(&ink::shown(name, ink::NAME)) * 1.3).max(260.0);
    let (entries, legend_height) = legend_places(&legend, width);
    let height = page.height + legend_height;
    let mut canvas = Canvas { writer: Writer::new_with_indent(Vec::new(), b' ', 1), ids: BTreeSet::new() };
    canvas.open(
        "svg",
        &[
            ("xmlns", "http://www.w3.org/2000/svg"),
            ("class", "serq"),
            ("width", &px(width)),
            ("height", &px(height)),
            ("viewBox", &format!("0 0 {} {}", px(width), px(height))),
            ("role", "img"),
            ("aria-labelledby", "title"),
        ],
    );
    let clean: String = name.chars().filter(|letter| !letter.is_control()).collect();
    canvas.text("title", &[("id", "title")], &format!("{clean}: the deployment as a queueing network"));
    canvas.text("style", &[], STYLE);
    canvas.rect("paper", 0.0, 0.0, width, height, 0.0);
    canvas.words("heading", MARGIN, MARGIN + 12.0, &ink::shown(name, ink::NAME));
    for path in &page.paths {
        canvas.path(path);
    }
    for card in &page.cards {
        canvas.card(card);
    }
    // Above the cards' edges, should a label come near one.
    for path in page.paths.iter().filter(|path| !path.label.is_empty()) {
        // On paper of its own, so that the line does not run through it.
        let (x, y) = path.label_at;
        let wide = ink::width(&path.label, ink::DETAIL) * 0.94 + 6.0;
        canvas.rect("paper", x - wide / 2.0, y - 10.0, wide, 13.0, 3.0);
        canvas.words("label", x, y, &path.label);
    }
    for (entry, x, y) in entries {
        canvas.legend_entry(entry, x, page.height + y);
    }
    canvas.close("svg");
    canvas.finish()
}

/// A line of the legend.
#[derive(Clone, Copy)]
enum Entry {
    Session,
    Kv,
    Queue,
    Pool,
    Stack,
}

impl Entry {
    fn words(self) -> &'static str {
        match self {
            Self::Session => "a session's way",
            Self::Kv => "KV moves",
            Self::Queue => "queue",
            Self::Pool => "pool, around what runs while it is held",
            Self::Stack => "so many alike",
        }
    }
}

fn legend(network: &Network) -> Vec<Entry> {
    fn any(parts: &[super::enclosure::Part], is: &dyn Fn(&super::enclosure::Part) -> bool) -> bool {
        parts.iter().any(|part| is(part) || any(&part.parts, is))
    }
    let mut entries = vec![Entry::Session];
    if network.arrows.iter().any(|arrow| arrow.kind == Kind::Kv) {
        entries.push(Entry::Kv);
    }
    if any(&network.places, &|part| match part.what {
        What::Pool { queue, .. } => queue,
        What::Stage { glyph, .. } => matches!(glyph, Glyph::Fifo),
        _ => false,
    }) {
        entries.push(Entry::Queue);
    }
    if any(&network.places, &|part| matches!(part.what, What::Pool { .. })) {
        entries.push(Entry::Pool);
    }
    if any(&network.places, &|part| part.count > 1) {
        entries.push(Entry::Stack);
    }
    entries
}

/// Beside each other while they fit.
fn legend_places(legend: &[Entry], width: f64) -> (Vec<(Entry, f64, f64)>, f64) {
    let (mut x, mut y) = (MARGIN, 12.0);
    let mut places = Vec::new();
    for &entry in legend {
        let wide = 38.0 + ink::width(entry.words(), ink::DETAIL) + 16.0;
        if x > MARGIN && x + wide > width - MARGIN {
            (x, y) = (MARGIN, y + 20.0);
        }
        places.push((entry, x, y));
        x += wide;
    }
    (places, y + 18.0)
}

struct Canvas {
    writer: Writer<Vec<u8>>,
    /// Ids given, so that two names that become one stay apart.
    ids: BTreeSet<String>,
}

impl Canvas {
    fn event(&mut self, event: Event<'_>) {
        self.writer.write_event(event).expect("memory takes every write");
    }

    fn open(&mut self, tag: &str, attributes: &[(&str, &str)]) {
        self.event(Event::Start(BytesStart::new(tag).with_attributes(attributes.iter().copied())));
    }

    fn close(&mut self, tag: &str) {
        self.event(Event::End(BytesEnd::new(tag)));
    }

    fn empty(&mut self, tag: &str, attributes: &[(&str, &str)]) {
        self.event(Event::Empty(BytesStart::new(tag).with_attributes(attributes.iter().copied())));
    }

    fn text(&mut self, tag: &str, attributes: &[(&str, &str)], words: &str) {
        self.open(tag, attributes);
        self.event(Event::Text(BytesText::new(words)));
        self.close(tag);
    }

    fn finish(self) -> String {
        let mut text = String::from_utf8(self.writer.into_inner()).expect("texts were written");
        text.push('\n');
        text
    }

    fn words(&mut self, class: &str, x: f64, y: f64, words: &str) {
        self.text("text", &[("class", class), ("x", &px(x)), ("y", &px(y))], words);
    }

    fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64, corner: f64) {
        self.empty(
            "rect",
            &[
                ("class", class),
                ("x", &px(x)),
                ("y", &px(y)),
                ("width", &px(width)),
                ("height", &px(height)),
                ("rx", &px(corner)),
            ],
        );
    }

    fn card(&mut self, card: &Card<'_>) {
        let (class, kind) = match card.part.what {
            What::Arrival => ("arrival", ""),
            What::Router => ("router", ""),
            What::Done => ("done", ""),
            What::Link => ("link", ""),
            What::Pool { .. } => ("pool", "pool."),
            What::Stage { .. } => ("stage", "stage."),
        };
        let name = &card.part.lines[0];
        let id = if kind.is_empty() { self.id(class) } else { self.id(&format!("{kind}{name}")) };
        self.open("g", &[("id", &id), ("class", class)]);
        let round = if matches!(card.part.what, What::Arrival | What::Router | What::Done) {
            card.height / 2.0
        } else {
            CORNER
        };
        let round = round.min(18.0);
        for back in (1..=card.behind).rev() {
            let shift = f64::from(back) * STACK;
            self.rect("box behind", card.x + shift, card.y - shift, card.width, card.height, round);
        }
        self.rect("box", card.x, card.y, card.width, card.height, round);
        self.lines(card);
        match card.part.what {
            What::Stage { glyph, .. } => {
                self.server(glyph, card.x + PAD + indent(card.part.what), card.y + card.height / 2.0)
            }
            What::Pool { queue: true, .. } => self.queue(card.x + PAD, card.y + 9.0),
            _ => {}
        }
        for inner in &card.cards {
            self.card(inner);
        }
        self.close("g");
    }

    fn lines(&mut self, card: &Card<'_>) {
        let stage = matches!(card.part.what, What::Stage { .. });
        let text_height = LINE * card.part.lines.len() as f64;
        // A server's words are beside its sign, in the middle; a pool's at the top.
        let top = if stage { card.y + (card.height - text_height) / 2.0 - 3.0 } else { card.y + 6.0 };
        let x = card.x + PAD + indent(card.part.what);
        for (line, words) in card.part.lines.iter().enumerate() {
            let (class, size) = if line == 0 { ("name", ink::NAME) } else { ("detail", ink::DETAIL) };
            self.words(class, x, top + LINE * (line as f64 + 1.0), &ink::shown(words, size));
        }
        if card.behind > 0 {
            let right = px(card.x + card.width - PAD);
            let y = px(top + LINE);
            self.text("text", &[("class", "count"), ("x", &right), ("y", &y)], &count_text(card.part.count));
        }
    }

    /// What waits, then who serves; left of `right`.
    fn server(&mut self, glyph: Glyph, right: f64, y: f64) {
        let middle = right - 22.0;
        if matches!(glyph, Glyph::Fifo) {
            self.queue(middle - 30.0, y - 7.0);
        }
        if matches!(glyph, Glyph::Step) {
            // A batch: who is in the step, side by side.
            self.rect("sign", middle - 15.0, y - 12.0, 30.0, 24.0, 4.0);
            for row in 0..3 {
                let y = y - 6.5 + f64::from(row) * 6.5;
                self.empty("path", &[("class", "sign"), ("d", &format!("M{} {}h20", px(middle - 10.0), px(y)))]);
            }
            return;
        }
        let (cx, cy) = (px(middle), px(y));
        self.empty("circle", &[("class", "sign"), ("cx", &cx), ("cy", &cy), ("r", "12")]);
        let mark = match glyph {
            // Shares of one whole.
            Glyph::Ps => format!("M{cx} {}V{cy}l10.4 6M{cx} {cy}l-10.4 6", px(y - 12.0)),
            // A clock.
            Glyph::Delay => format!("M{cx} {}V{cy}h6", px(y - 7.0)),
            Glyph::Fifo | Glyph::Step => return,
        };
        self.empty("path", &[("class", "sign"), ("d", &mark)]);
    }

    /// Bars, open to where they come from.
    fn queue(&mut self, x: f64, y: f64) {
        let d = format!("M{} {}h16v14h-16m11 0v-14m-5 0v14", px(x), px(y));
        self.empty("path", &[("class", "sign"), ("d", &d)]);
    }

    fn path(&mut self, path: &Path) {
        let class = match path.kind {
            Kind::Session => "way",
            Kind::Kv => "way kv",
        };
        self.way(class, &path.points);
    }

    fn way(&mut self, class: &str, points: &[(f64, f64)]) {
        let [.., before, head] = points else { return };
        // The line ends where the head begins.
        let (dx, dy) = ((head.0 - before.0).signum(), (head.1 - before.1).signum());
        let along = if (head.0 - before.0).abs() > (head.1 - before.1).abs() { (dx, 0.0) } else { (0.0, dy) };
        let neck = (head.0 - along.0 * 8.0, head.1 - along.1 * 8.0);
        let mut line = points.to_vec();
        line.pop();
        line.push(neck);
        self.empty("path", &[("class", class), ("d", &rounded(&line))]);
        let side = (along.1 * 4.5, along.0 * 4.5);
        let corners = [*head, (neck.0 + side.0, neck.1 + side.1), (neck.0 - side.0, neck.1 - side.1)];
        let corners: Vec<String> = corners.iter().map(|&(x, y)| format!("{},{}", px(x), px(y))).collect();
        self.empty("polygon", &[("class", &class.replace("way", "head")), ("points", &corners.join(" "))]);
    }

    fn legend_entry(&mut self, entry: Entry, x: f64, y: f64) {
        self.open(
            "g",
            &[(
                "class",
                match entry {
                    Entry::Pool => "pool",
                    Entry::Stack => "plain",
                    _ => "legend",
                },
            )],
        );
        match entry {
            Entry::Session => self.way("way", &[(x, y), (x + 30.0, y)]),
            Entry::Kv => self.way("way kv", &[(x, y), (x + 30.0, y)]),
            Entry::Queue => self.queue(x + 8.0, y - 7.0),
            Entry::Pool => self.rect("box", x + 4.0, y - 7.0, 24.0, 14.0, 4.0),
            Entry::Stack => {
                self.rect("box behind", x + 9.0, y - 8.0, 20.0, 12.0, 3.0);
                self.rect("box", x + 5.0, y - 5.0, 20.0, 12.0, 3.0);
            }
        }
        self.words("detail", x + 38.0, y + 4.0, entry.words());
        self.close("g");
    }

    /// A name as an id: no spaces, none twice.
    fn id(&mut self, name: &str) -> String {
        let plain = |letter: char| if letter.is_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
        let mut id: String = name.chars().map(plain).collect();
        while !self.ids.insert(id.clone()) {
            id.push('_');
        }
        id
    }
}

/// A line with its corners rounded.
fn rounded(points: &[(f64, f64)]) -> String {
    let mut d = format!("M{} {}", px(points[0].0), px(points[0].1));
    for at in 1..points.len() {
        let here = points[at];
        let Some(&next) = points.get(at + 1) else {
            d += &format!("L{} {}", px(here.0), px(here.1));
            break;
        };
        let before = points[at - 1];
        let length = |a: (f64, f64), b: (f64, f64)| (a.0 - b.0).abs() + (a.1 - b.1).abs();
        let radius = CORNER.min(length(before, here) / 2.0).min(length(here, next) / 2.0);
        let toward = |end: (f64, f64)| {
            let far = length(here, end).max(1e-9);
            (here.0 + (end.0 - here.0) / far * radius, here.1 + (end.1 - here.1) / far * radius)
        };
        let (enter, leave) = (toward(before), toward(next));
        d += &format!("L{} {}Q{} {} {} {}", px(enter.0), px(enter.1), px(here.0), px(here.1), px(leave.0), px(leave.1));
    }
    d
}

/// A length with one decimal, if it needs one.
fn px(value: f64) -> String {
    let rounded = (value * 10.0).round() / 10.0 + 0.0;
    format!("{rounded}")
}
