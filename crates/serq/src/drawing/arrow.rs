//! The ways of arrows: straight to the next column, else through the channels between rows.
//!
//! ```text
//!        ╭──────────╮  forward over columns: above the row
//!   [ ]─▶[ ]─▶[ ]─▶[ ]
//!     ╰─────────╯     back: below the row
//! ```
//!
//! Arrows that share a channel get lanes, short ones nearest to their row, so that a short
//! one lies inside a long one. Ports on a box are ordered so that these do not cross.
//!
//! # Invariants
//!
//! - Two horizontal parts in one lane do not touch.
//! - A way never goes through a box: its vertical parts are above or below its own end's box,
//!   or in the left margin.

use std::collections::BTreeMap;
use std::ops::Range;

use super::ink;
use super::layout::{Card, MARGIN};
use super::network::{Arrow, Kind};

/// From lane to lane.
const LANE: f64 = 18.0;
/// Between a row and its first lane, for heads.
const CLEAR: f64 = 16.0;
/// Between two ports.
const PORT: f64 = 16.0;
/// Between ways in the left margin.
const GUTTER: f64 = 12.0;

/// What is drawn of an arrow.
pub(super) struct Path {
    pub(super) kind: Kind,
    /// Corners, from start to head.
    pub(super) points: Vec<(f64, f64)>,
    pub(super) label: String,
    /// The middle of the label's baseline.
    pub(super) label_at: (f64, f64),
}

/// Which part of a channel a lane is in, from above.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    /// Ways back of the row above.
    Back,
    /// Ways between rows.
    Between,
    /// Ways over columns of the row below.
    Over,
}

/// A horizontal part that needs a lane.
struct Run {
    channel: usize,
    section: Section,
    left: f64,
    right: f64,
    lane: usize,
}

/// What is taken of a lane, from left to right of each run.
type Lane = Vec<(f64, f64)>;

/// One end of an arrow on the top or bottom of a box.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    place: usize,
    top: bool,
}

/// An arrow's way before heights are known.
struct Way {
    arrow: usize,
    /// x of its ports, and the runs between them: none for a straight one.
    ports: Option<(f64, f64)>,
    runs: Vec<usize>,
    /// x in the margin, between two runs.
    margin: Option<f64>,
}

/// All ways.
pub(super) struct Ways<'n> {
    arrows: &'n [Arrow],
    ways: Vec<Way>,
    runs: Vec<Run>,
    /// Lanes of every channel's sections.
    lanes: BTreeMap<(usize, Section), usize>,
    row_of: Vec<usize>,
}

/// The row of every place.
pub(super) fn row_of(rows: &[Range<usize>]) -> Vec<usize> {
    rows.iter().enumerate().flat_map(|(row, range)| range.clone().map(move |_| row)).collect()
}

/// Room left of the rows for arrows that pass a row.
pub(super) fn gutter(arrows: &[Arrow], rows: &[Range<usize>]) -> f64 {
    let row_of = row_of(rows);
    arrows.iter().filter(|arrow| row_of[arrow.from].abs_diff(row_of[arrow.to]) > 1).count() as f64 * GUTTER
}

impl<'n> Ways<'n> {
    /// Finds ways for cards whose x are known.
    pub(super) fn of(arrows: &'n [Arrow], rows: &[Range<usize>], cards: &[Card<'_>]) -> Self {
        let row_of = row_of(rows);
        let mut this = Self { arrows, ways: Vec::new(), runs: Vec::new(), lanes: BTreeMap::new(), row_of };
        let ports = this.ports(cards);
        let mut in_margin = 0.0;
        for (index, arrow) in arrows.iter().enumerate() {
            if this.straight(arrow) {
                this.ways.push(Way { arrow: index, ports: None, runs: Vec::new(), margin: None });
                continue;
            }
            let (start, end) = (ports[&(index, true)], ports[&(index, false)]);
            let (from, to) = (this.row_of[arrow.from], this.row_of[arrow.to]);
            let mut runs = Vec::new();
            let mut margin = None;
            let mut run = |channel, section, a: f64, b: f64| {
                runs.push(this.runs.len());
                this.runs.push(Run { channel, section, left: a.min(b), right: a.max(b), lane: 0 });
            };
            if from == to && arrow.from < arrow.to {
                run(from, Section::Over, start, end);
            } else if from == to {
                run(from + 1, Section::Back, start, end);
            } else if from.abs_diff(to) == 1 {
                run(from.max(to), Section::Between, start, end);
            } else {
                in_margin += GUTTER;
                let x = MARGIN + in_margin - GUTTER;
                let (leave, arrive) = if from < to { (from + 1, to) } else { (from, to + 1) };
                run(leave, Section::Between, start, x);
                run(arrive, Section::Between, x, end);
                margin = Some(x);
            }
            this.ways.push(Way { arrow: index, ports: Some((start, end)), runs, margin });
        }
        this.give_lanes();
        this
    }

    /// To the next column of the row.
    fn straight(&self, arrow: &Arrow) -> bool {
        arrow.to == arrow.from + 1 && self.row_of[arrow.from] == self.row_of[arrow.to]
    }

    /// Whether an arrow's start (or end) is on its box's top.
    fn on_top(&self, arrow: &Arrow, start: bool) -> bool {
        let (from, to) = (self.row_of[arrow.from], self.row_of[arrow.to]);
        match from.cmp(&to) {
            std::cmp::Ordering::Equal => arrow.from < arrow.to,
            std::cmp::Ordering::Less => !start,
            std::cmp::Ordering::Greater => start,
        }
    }

    /// The x of every end, by arrow and whether it is its start.
    fn ports(&self, cards: &[Card<'_>]) -> BTreeMap<(usize, bool), f64> {
        let middle = |place: usize| cards[place].x + cards[place].width / 2.0;
        let mut sides: BTreeMap<Port, Vec<(bool, f64, usize, bool)>> = BTreeMap::new();
        for (index, arrow) in self.arrows.iter().enumerate().filter(|(_, arrow)| !self.straight(arrow)) {
            for start in [true, false] {
                let (place, other) = if start { (arrow.from, arrow.to) } else { (arrow.to, arrow.from) };
                let away = middle(other) - middle(place);
                // Leftward ones left, the nearest first; rightward ones right, the farthest first.
                let order = -away;
                let port = Port { place, top: self.on_top(arrow, start) };
                sides.entry(port).or_default().push((away >= 0.0, order, index, start));
            }
        }
        let mut ports = BTreeMap::new();
        for (port, mut ends) in sides {
            ends.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
            let width = cards[port.place].width;
            let apart = PORT.min((width - 16.0) / ends.len() as f64);
            // Tops and bottoms are not above each other, nor are their verticals.
            let skew = if port.top { 0.0 } else { 5.0 };
            for (at, &(_, _, arrow, start)) in ends.iter().enumerate() {
                let from_middle = (at as f64 - (ends.len() as f64 - 1.0) / 2.0) * apart;
                ports.insert((arrow, start), middle(port.place) + from_middle + skew);
            }
        }
        ports
    }

    fn give_lanes(&mut self) {
        let mut order: Vec<usize> = (0..self.runs.len()).collect();
        order.sort_by(|&a, &b| {
            let length = |run: &Run| run.right - run.left;
            length(&self.runs[a]).total_cmp(&length(&self.runs[b])).then(a.cmp(&b))
        });
        let mut taken: BTreeMap<(usize, Section), Vec<Lane>> = BTreeMap::new();
        for index in order {
            let run = &mut self.runs[index];
            let lanes = taken.entry((run.channel, run.section)).or_default();
            let clear =
                |lane: &Lane| lane.iter().all(|&(left, right)| run.right + PORT < left || right + PORT < run.left);
            run.lane = lanes.iter().position(clear).unwrap_or(lanes.len());
            if run.lane == lanes.len() {
                lanes.push(Vec::new());
            }
            lanes[run.lane].push((run.left, run.right));
        }
        self.lanes = taken.into_iter().map(|(section, lanes)| (section, lanes.len())).collect();
    }

    fn lanes_in(&self, channel: usize, section: Section) -> f64 {
        self.lanes.get(&(channel, section)).map_or(0.0, |&lanes| lanes as f64)
    }

    /// What a channel needs.
    pub(super) fn channel_height(&self, channel: usize) -> f64 {
        let lanes: f64 =
            [Section::Back, Section::Between, Section::Over].iter().map(|&s| self.lanes_in(channel, s)).sum();
        if lanes == 0.0 { CLEAR } else { 2.0 * CLEAR + lanes * LANE }
    }

    /// Draws, with the channels' tops.
    pub(super) fn paths(&self, cards: &[Card<'_>], channels: &[f64]) -> Vec<Path> {
        let mut paths: Vec<Path> = self.ways.iter().map(|way| self.path(way, cards, channels)).collect();
        for index in 0..paths.len() {
            if let Some(at) = place_for_label(&paths, index) {
                paths[index].label_at = at;
            }
        }
        paths
    }

    fn path(&self, way: &Way, cards: &[Card<'_>], channels: &[f64]) -> Path {
        let arrow = &self.arrows[way.arrow];
        let (from, to) = (&cards[arrow.from], &cards[arrow.to]);
        let label = ink::shown(&arrow.label, ink::DETAIL);
        let Some((start, end)) = way.ports else {
            // Two arrows of two kinds are one above the other.
            let twin = self.arrows.iter().any(|a| (a.from, a.to) == (arrow.from, arrow.to) && a.kind != arrow.kind);
            let aside = if twin { 10.0 } else { 0.0 };
            let y = (from.top() + from.bottom()) / 2.0 + if arrow.kind == Kind::Kv { aside } else { -aside };
            let points = vec![(from.right(), y), (to.x, y)];
            let middle = (from.right() + to.x) / 2.0 - 3.0;
            return Path { kind: arrow.kind, points, label, label_at: (middle, y - 6.0) };
        };
        let edge = |card: &Card<'_>, top: bool| if top { card.top() } else { card.bottom() };
        let mut points = vec![(start, edge(from, self.on_top(arrow, true)))];
        let mut x = start;
        for (at, &run) in way.runs.iter().enumerate() {
            let y = self.lane_y(&self.runs[run], channels);
            let next = if at + 1 == way.runs.len() { end } else { way.margin.unwrap_or(end) };
            points.push((x, y));
            points.push((next, y));
            x = next;
        }
        points.push((end, edge(to, self.on_top(arrow, false))));
        Path { kind: arrow.kind, points, label, label_at: (0.0, 0.0) }
    }

    fn lane_y(&self, run: &Run, channels: &[f64]) -> f64 {
        let back = self.lanes_in(run.channel, Section::Back);
        let between = self.lanes_in(run.channel, Section::Between);
        let over = self.lanes_in(run.channel, Section::Over);
        let lane = run.lane as f64;
        let from_top = match run.section {
            Section::Back => lane,
            Section::Between => back + lane,
            // The first is the nearest to the row below.
            Section::Over => back + between + over - 1.0 - lane,
        };
        channels[run.channel] + CLEAR + (from_top + 0.5) * LANE
    }
}

/// On the first horizontal part of a way that has corners: near its start, where ways part, and
/// where nothing crosses, if there is such a place.
fn place_for_label(paths: &[Path], index: usize) -> Option<(f64, f64)> {
    let path = &paths[index];
    let &[_, (start, y), (end, _), ..] = path.points.as_slice() else { return None };
    let half = ink::width(&path.label, ink::DETAIL) / 2.0 + 8.0;
    let direction = (end - start).signum();
    let free = (end - start).abs() - 2.0 * half;
    let at = |along: f64| start + direction * along;
    if path.label.is_empty() || free <= 0.0 {
        return Some((at((end - start).abs() / 2.0), y + 4.0));
    }
    // What is near the line at all: where it is, and how far from it the label's middle must be.
    let mut near: Vec<(f64, f64)> = Vec::new();
    for other in paths.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, other)| other) {
        let across = |part: &&[(f64, f64)]| {
            let (y1, y2) = (part[0].1, part[1].1);
            part[0].0 == part[1].0 && y1.min(y2) <= y + 8.0 && y1.max(y2) >= y - 8.0
        };
        near.extend(other.points.windows(2).filter(across).map(|part| (part[0].0, half)));
        let (label_x, label_y) = other.label_at;
        if !other.label.is_empty() && (label_y - y - 4.0).abs() < 12.0 {
            near.push((label_x, half + ink::width(&other.label, ink::DETAIL) / 2.0));
        }
    }
    let crossed = |x: f64| near.iter().any(|&(at, apart)| (at - x).abs() < apart);
    let steps = (free / 6.0) as usize;
    let x = (0..=steps).map(|step| at(half + step as f64 * 6.0)).find(|&x| !crossed(x)).unwrap_or(at(half));
    Some((x, y + 4.0))
}
