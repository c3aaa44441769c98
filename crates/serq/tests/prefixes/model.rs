//! One pool that shares prefixes and a stage where everybody is alone, played by hand: lists
//! that are looked through, no numbers of blocks, nothing kept for later.
//!
//! ```text
//! hold kv (new + more) reuse (new) {
//!   load kv (new - cached);      // only where `early`
//!   run desk (out);
//! } cache (new + more)
//! ```

use std::collections::{BTreeMap, VecDeque};

/// What a block holds: whose it is, and its place.
pub(crate) type Content = (Owner, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Session(usize),
    Trace(u64),
    Group(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: f64,
    pub(crate) new: u64,
    pub(crate) out: u64,
    /// Of 512 tokens each.
    pub(crate) ids: Vec<u64>,
    /// A group and how many tokens its prompts begin with, in the place of the ids.
    pub(crate) group: Option<(u64, u64)>,
}

pub(crate) struct Setting {
    /// Blocks.
    pub(crate) cap: u64,
    pub(crate) block: u64,
    pub(crate) more: u64,
    pub(crate) early: bool,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Played {
    /// Of each request, in the order of admission: which, when, and the tokens it found.
    pub(crate) admitted: Vec<(usize, f64, u64)>,
    pub(crate) evicted: u64,
    /// ∫ allocated and cached blocks over time, up to the last end.
    pub(crate) allocated: f64,
    pub(crate) cached: f64,
    pub(crate) end: f64,
}

struct Held {
    /// What is known of its blocks, in order.
    blocks: Vec<usize>,
}

struct Play<'a> {
    requests: &'a [Request],
    setting: &'a Setting,
    waiting: VecDeque<usize>,
    ready: VecDeque<usize>,
    held: BTreeMap<usize, Held>,
    /// Blocks that were ever computed or are being: what each holds, and when that was told.
    copies: Vec<(Option<Content>, u64)>,
    told: u64,
    /// Nobody's, the next to go first.
    unused: Vec<usize>,
    /// (time, order, who) of those at the desk.
    ends: Vec<(f64, u64, usize)>,
    order: u64,
    now: f64,
    played: Played,
}

pub(crate) fn play(requests: &[Request], setting: &Setting) -> Played {
    let mut play = Play {
        requests,
        setting,
        waiting: VecDeque::new(),
        ready: VecDeque::new(),
        held: BTreeMap::new(),
        copies: Vec::new(),
        told: 0,
        unused: Vec::new(),
        ends: Vec::new(),
        order: 0,
        now: 0.0,
        played: Played::default(),
    };
    let mut next = 0;
    loop {
        let end = play.ends.iter().copied().min_by(|a, b| a.partial_cmp(b).unwrap());
        let comes = requests.get(next).map(|request| request.at);
        match (end, comes) {
            (Some((time, order, who)), comes) if comes.is_none_or(|comes| time < comes) => {
                play.pass(time);
                play.ends.retain(|&(_, o, _)| o != order);
                play.give_back(who);
            }
            (_, Some(comes)) => {
                play.pass(comes);
                play.waiting.push_back(next);
                next += 1;
            }
            _ => break,
        }
        play.settle();
    }
    play.played.end = play.now;
    play.played
}

impl Play<'_> {
    fn pass(&mut self, time: f64) {
        let elapsed = time - self.now;
        self.played.allocated += elapsed * self.allocated() as f64;
        self.played.cached += elapsed * self.unused.len() as f64;
        self.now = time;
    }

    /// What the request's block at a place holds.
    fn content(&self, who: usize, at: u64) -> Content {
        let (request, size) = (&self.requests[who], self.setting.block);
        let last = (at + 1) * size - 1;
        let owner = match request.group {
            Some((group, tokens)) if last < tokens => Owner::Group(group),
            Some(_) => Owner::Session(who),
            None if last < request.new && last / 512 < request.ids.len() as u64 => {
                Owner::Trace(request.ids[(last / 512) as usize])
            }
            None => Owner::Session(who),
        };
        (owner, at)
    }

    /// The copy that is found: of those that are there, the one that was told first.
    fn find(&self, content: Content) -> Option<usize> {
        let there = |copy: &&usize| self.copies[**copy].0 == Some(content);
        let held = self.held.values().flat_map(|held| &held.blocks);
        held.chain(&self.unused).filter(there).min_by_key(|copy| self.copies[**copy].1).copied()
    }

    fn is_held(&self, copy: usize) -> bool {
        self.held.values().any(|held| held.blocks.contains(&copy))
    }

    /// Copies somebody has.
    fn allocated(&self) -> u64 {
        let mut copies: Vec<usize> = self.held.values().flat_map(|held| held.blocks.iter().copied()).collect();
        copies.sort();
        copies.dedup();
        copies.len() as u64
    }

    fn admit(&mut self) {
        while let Some(&who) = self.waiting.front() {
            let request = &self.requests[who];
            let wanted = (request.new + self.setting.more).div_ceil(self.setting.block);
            let mut found = Vec::new();
            for at in 0..wanted.min(request.new / self.setting.block) {
                let Some(copy) = self.find(self.content(who, at)) else { break };
                found.push(copy);
            }
            let shared = found.iter().filter(|&&copy| self.is_held(copy)).count() as u64;
            if self.allocated() + wanted - shared > self.setting.cap {
                return;
            }
            self.waiting.pop_front();
            self.unused.retain(|copy| !found.contains(copy));
            self.played.admitted.push((who, self.now, found.len() as u64 * self.setting.block));
            let mut blocks = found;
            while blocks.len() < wanted as usize {
                blocks.push(self.copies.len());
                self.copies.push((None, 0));
            }
            self.held.insert(who, Held { blocks });
            while self.allocated() + self.unused.len() as u64 > self.setting.cap {
                self.unused.remove(0);
                self.played.evicted += 1;
            }
            self.ready.push_back(who);
        }
    }

    /// The first blocks are computed: whoever looks finds them.
    fn tell(&mut self, who: usize, upto: u64) {
        for at in 0..upto {
            let content = self.content(who, at);
            let copy = self.held[&who].blocks[at as usize];
            if self.copies[copy].0.is_none() {
                self.told += 1;
                self.copies[copy] = (Some(content), self.told);
            }
        }
    }

    fn settle(&mut self) {
        loop {
            self.admit();
            if self.ready.is_empty() {
                return;
            }
            while let Some(who) = self.ready.pop_front() {
                let request = &self.requests[who];
                if self.setting.early {
                    let shared = (0..request.new / self.setting.block)
                        .take_while(|&at| !matches!(self.content(who, at).0, Owner::Session(_)))
                        .count();
                    self.tell(who, shared as u64);
                }
                self.order += 1;
                self.ends.push((self.now + request.out as f64, self.order, who));
            }
        }
    }

    fn give_back(&mut self, who: usize) {
        let request = &self.requests[who];
        let computed = if self.setting.early { request.new } else { request.new + self.setting.more };
        self.tell(who, computed / self.setting.block);
        for copy in self.held.remove(&who).unwrap().blocks.into_iter().rev() {
            if self.copies[copy].0.is_some() && !self.is_held(copy) {
                self.unused.push(copy);
            }
        }
        self.admit();
    }
}
