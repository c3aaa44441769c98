//! Places and the ways between them, read from what a session does.
//!
//! A session is followed through every branch at once: `from` is the set of places it can have
//! come from, and a statement that takes it somewhere draws an arrow from each.
//!
//! # Invariants
//!
//! - Places are in the order in which a session first comes to them; what it never comes to is last.
//! - An arrow is drawn once, however often it is taken.

use std::collections::BTreeMap;

use serq_ir::{Arrive, Block, Expr, Hold, PoolRef, Program, SharePolicy, StageRef, StmtKind, each_stmt};

use super::enclosure::{self, Part, What, quantity};
use super::holding::{self, Holding};
use super::label::Label;

/// The picture's content.
pub(super) struct Network {
    pub(super) places: Vec<Part>,
    pub(super) arrows: Vec<Arrow>,
}

/// From place to place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrow {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) kind: Kind,
    /// When a session goes here, if one word says it.
    pub(super) label: String,
}

/// What goes along an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Sessions.
    Session,
    /// Bytes of KV, while the session waits.
    Kv,
}

/// Where a session can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Arrival,
    Router,
    /// By the group's least pool.
    Group(usize),
    /// By the link's least stage.
    Link(usize),
    Stage(usize),
    Done,
}

/// Places a session can come from, with the condition under which it leaves each.
type From = BTreeMap<Place, Option<Label>>;

/// Reads a program.
pub(super) fn of(program: &Program) -> Network {
    let holding = holding::of(program);
    let mut walk = Walk {
        program,
        holding: &holding,
        places: vec![Place::Arrival],
        arrows: BTreeMap::new(),
        chosen: Vec::new(),
        held: Vec::new(),
        legs: From::new(),
        loops: BTreeMap::new(),
    };
    let end = walk.block(&program.session, From::from([(Place::Arrival, None)]));
    walk.go(&end, Place::Done);
    if let Arrive::Closed(_) = program.workload.arrive {
        walk.go(&From::from([(Place::Done, Some(Label::Words("next".into())))]), Place::Arrival);
    }
    walk.spills();
    walk.never_used();
    // Done last of what is used, wherever it was first said.
    let places = walk.in_order();
    let index: BTreeMap<Place, usize> = places.iter().enumerate().map(|(at, &place)| (place, at)).collect();
    let arrows = walk
        .arrows
        .iter()
        .map(|(&(from, to, kind), label)| Arrow {
            from: index[&from],
            to: index[&to],
            kind,
            label: label.as_ref().map(Label::text).unwrap_or_default(),
        })
        .collect();
    let parts = places.iter().map(|&place| walk.part(place)).collect();
    Network { places: parts, arrows }
}

struct Walk<'p> {
    program: &'p Program,
    holding: &'p Holding,
    places: Vec<Place>,
    arrows: BTreeMap<(Place, Place, Kind), Option<Label>>,
    /// Attributes that `choose` sets, with how many there are to choose from.
    chosen: Vec<(u32, Option<f64>)>,
    held: Vec<usize>,
    /// Where legs that nobody waited for yet ended.
    legs: From,
    /// What every loop was entered with, by its body's address.
    loops: BTreeMap<usize, From>,
}

impl Walk<'_> {
    fn block(&mut self, block: &Block, mut from: From) -> From {
        for statement in block {
            match &statement.kind {
                StmtKind::Hold(hold) => from = self.hold(hold, from),
                StmtKind::Run(run) => {
                    let stages: Vec<usize> = run.stages.iter().map(|stage| stage.stage as usize).collect();
                    from = self.run(&stages, from);
                }
                StmtKind::Choose { attribute, count, .. } => {
                    if !self.chosen.iter().any(|(known, _)| known == attribute) {
                        self.chosen.push((*attribute, number(count)));
                    }
                    from = self.go(&from, Place::Router);
                }
                StmtKind::Branch { test, chance, then, otherwise } => {
                    let (yes, no) = self.conditions(test, *chance);
                    let mut out = self.block(then, labelled(&from, yes));
                    for (place, label) in self.block(otherwise, labelled(&from, no)) {
                        let either = match out.get(&place) {
                            Some(then) => Label::or(then.as_ref(), label.as_ref()),
                            None => label,
                        };
                        out.insert(place, either);
                    }
                    from = out;
                }
                StmtKind::Loop { body } => {
                    self.repeat(body, from);
                    return From::new();
                }
                StmtKind::Shielded { body } => from = self.block(body, from),
                StmtKind::Fork { body } => {
                    let around = std::mem::take(&mut self.held);
                    let leg = self.block(body, from.clone());
                    self.held = around;
                    merge(&mut self.legs, labelled(&leg, None));
                }
                StmtKind::Join => from = self.join(from),
                StmtKind::End | StmtKind::Fail => {
                    self.go(&from, Place::Done);
                    return From::new();
                }
                _ => {}
            }
        }
        from
    }

    /// Where the session's legs ended, it goes on: they come to where it waits for them.
    fn join(&mut self, from: From) -> From {
        let legs = std::mem::take(&mut self.legs);
        match from.iter().next() {
            Some((&place, _)) if from.len() == 1 => {
                self.go(&legs, place);
                from
            }
            _ => {
                let mut all = from;
                merge(&mut all, legs);
                all
            }
        }
    }

    /// Once more from where the body ends, until that adds nothing. What a loop was already
    /// entered with is remembered: loops in loops would otherwise multiply.
    fn repeat(&mut self, body: &Block, from: From) {
        let key = std::ptr::from_ref(body) as usize;
        let mut more = from;
        loop {
            let known = self.loops.entry(key).or_default();
            if !merge(known, more) {
                return;
            }
            let enter = known.clone();
            more = self.block(body, enter);
        }
    }

    fn hold(&mut self, hold: &Hold, from: From) -> From {
        let pools: Vec<usize> = hold.grabs.iter().map(|grab| grab.pool.pool as usize).collect();
        let Some(&first) = pools.first() else { return self.block(&hold.body, from) };
        let from = self.go(&from, Place::Group(self.holding.group[first]));
        let before = self.held.len();
        self.held.extend(pools);
        let from = self.block(&hold.body, from);
        self.held.truncate(before);
        from
    }

    fn run(&mut self, stages: &[usize], from: From) -> From {
        let Some(&first) = stages.first() else { return from };
        let place = self.place_of(first);
        let link = matches!(place, Place::Link(_));
        match self.held.last() {
            // The session stays where its blocks are, and bytes come to it.
            Some(&pool) if link => {
                let reader = self.holding.group[pool];
                self.see_before(place, Place::Group(reader));
                self.arrows.insert((place, Place::Group(reader), Kind::Kv), None);
                let mut leased: Vec<usize> = self.holding.leased.iter().map(|&pool| self.holding.group[pool]).collect();
                leased.dedup();
                for source in leased.into_iter().filter(|&source| source != reader) {
                    self.arrows.insert((Place::Group(source), place, Kind::Kv), None);
                }
                from
            }
            _ => self.go(&from, place),
        }
    }

    /// Draws arrows to a place, and is there. Where it already is, it stays.
    fn go(&mut self, from: &From, to: Place) -> From {
        self.see(to);
        for (&from, label) in from {
            if from == to {
                continue;
            }
            // Two ways with two conditions are one way without.
            let known = self.arrows.entry((from, to, Kind::Session)).or_insert_with(|| label.clone());
            if known != label {
                *known = None;
            }
        }
        match from.get(&to) {
            // It has not left, and why it will is not forgotten.
            Some(label) if from.len() == 1 => From::from([(to, label.clone())]),
            _ if from.is_empty() => From::new(),
            _ => From::from([(to, None)]),
        }
    }

    fn see(&mut self, place: Place) {
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    fn see_before(&mut self, place: Place, next: Place) {
        if !self.places.contains(&place) {
            let at = self.places.iter().position(|&known| known == next).unwrap_or(self.places.len());
            self.places.insert(at, place);
        }
    }

    fn place_of(&self, stage: usize) -> Place {
        if let Some(&link) = self.holding.link.get(&stage) {
            return Place::Link(link);
        }
        match self.holding.inside.get(&stage).and_then(|pools| pools.first()) {
            Some(&pool) => Place::Group(self.holding.group[pool]),
            None => Place::Stage(stage),
        }
    }

    fn conditions(&self, test: &Expr, chance: bool) -> (Option<Label>, Option<Label>) {
        match test {
            Expr::Attribute(attribute) if !chance => {
                let name = &self.program.attributes[*attribute as usize].name;
                (Some(Label::Words(name.clone())), Some(Label::Words(format!("not {name}"))))
            }
            Expr::Number(yes) if chance => (Some(Label::Chance(yes.0)), Some(Label::Chance(1.0 - yes.0))),
            _ => (None, None),
        }
    }

    /// What a pool writes elsewhere when it evicts.
    fn spills(&mut self) {
        for (pool, of_pool) in self.program.pools.iter().enumerate() {
            let Some(spill) = &of_pool.spill else { continue };
            let source = Place::Group(self.holding.group[pool]);
            let target = Place::Group(self.holding.group[spill.pool.pool as usize]);
            let by = self.place_of(spill.stage.stage as usize);
            for place in [source, by, target] {
                self.see(place);
            }
            for (from, to) in [(source, by), (by, target)] {
                if from != to {
                    self.arrows.entry((from, to, Kind::Kv)).or_insert_with(|| Some(Label::Words("spill".into())));
                }
            }
        }
    }

    fn never_used(&mut self) {
        for pool in 0..self.program.pools.len() {
            self.see(Place::Group(self.holding.group[pool]));
        }
        for stage in 0..self.program.stages.len() {
            self.see(self.place_of(stage));
        }
    }

    fn in_order(&self) -> Vec<Place> {
        let done = |place: &&Place| **place == Place::Done;
        let mut places: Vec<Place> = self.places.iter().filter(|place| !done(place)).copied().collect();
        places.extend(self.places.iter().find(done));
        places
    }

    fn part(&self, place: Place) -> Part {
        let plain = |what: What, lines: Vec<String>| Part { what, count: 1, lines, parts: Vec::new() };
        match place {
            Place::Arrival => plain(What::Arrival, self.arrival()),
            Place::Router => plain(What::Router, self.router()),
            Place::Group(group) => enclosure::group(self.program, self.holding, group),
            Place::Stage(stage) => enclosure::stage(self.program, stage),
            Place::Done => plain(What::Done, vec!["done".into()]),
            Place::Link(link) => {
                let share = match self.program.share {
                    Some(SharePolicy::Bottleneck) => "one flow, shared by bottleneck",
                    _ => "one flow, max-min shared",
                };
                let mut part = plain(What::Link, vec!["link".into(), share.into()]);
                let stages = self.holding.stages.iter().filter(|stage| self.holding.link.get(stage) == Some(&link));
                part.parts = stages.map(|&stage| enclosure::stage(self.program, stage)).collect();
                part
            }
        }
    }

    fn arrival(&self) -> Vec<String> {
        let workload = &self.program.workload;
        let law = match &workload.arrive {
            Arrive::None => "none arrive".to_owned(),
            Arrive::Poisson(rate) => format!("poisson, rate {}", quantity(rate.0)),
            Arrive::Steps { .. } => "poisson, rate by the clock".into(),
            Arrive::Bursts { .. } => "poisson, in bursts".into(),
            Arrive::Trace(_) => "when the trace's came".into(),
            Arrive::Renewal(_) => "at drawn intervals".into(),
            Arrive::Closed(count) => format!("{count} at all times"),
            Arrive::Batch(count) => format!("{count} at time 0"),
        };
        let traced = workload.trace.as_ref().map(|_| "turns of a trace".to_owned());
        ["sessions".to_owned(), law].into_iter().chain(traced).collect()
    }

    fn router(&self) -> Vec<String> {
        let mut lines = vec!["router".to_owned()];
        for &(attribute, count) in &self.chosen {
            let of = count.map_or_else(|| "one of them".to_owned(), |count| format!("one of {}", quantity(count)));
            // What the chosen number is an index of.
            let mut family = Family { attribute, name: None };
            family.block(self.program, &self.program.session);
            let whose = family.name.unwrap_or_else(|| self.program.attributes[attribute as usize].name.clone());
            let line = format!("{whose}: {of}");
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        lines
    }
}

/// The first family that a session enters or runs with an attribute as its index.
struct Family {
    attribute: u32,
    name: Option<String>,
}

impl Family {
    fn block(&mut self, program: &Program, block: &Block) {
        each_stmt(block, &mut |statement| match &statement.kind {
            StmtKind::Hold(hold) => {
                for PoolRef { pool, member } in hold.grabs.iter().map(|grab| &grab.pool) {
                    self.look(member.as_deref(), &program.pools[*pool as usize].name);
                }
            }
            StmtKind::Run(run) => {
                for StageRef { stage, member } in &run.stages {
                    self.look(member.as_deref(), &program.stages[*stage as usize].name);
                }
            }
            _ => {}
        });
    }

    fn look(&mut self, member: Option<&Expr>, name: &str) {
        if self.name.is_none() && matches!(member, Some(Expr::Attribute(attribute)) if *attribute == self.attribute) {
            // A queue's part is the queue's.
            self.name = Some(name.split('.').next().unwrap_or(name).to_owned());
        }
    }
}

fn number(expression: &Expr) -> Option<f64> {
    if let Expr::Number(number) = expression { Some(number.0) } else { None }
}

fn labelled(from: &From, label: Option<Label>) -> From {
    from.iter().map(|(&place, before)| (place, Label::and(before.as_ref(), label.clone()))).collect()
}

/// Adds places and forgets conditions on which two ways differ; whether that changed anything.
fn merge(into: &mut From, more: From) -> bool {
    let mut changed = false;
    for (place, label) in more {
        match into.get_mut(&place) {
            None => {
                into.insert(place, label);
                changed = true;
            }
            Some(known) if known.is_some() && *known != label => {
                *known = None;
                changed = true;
            }
            Some(_) => {}
        }
    }
    changed
}
