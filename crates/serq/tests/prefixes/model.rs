//! One pool that shares prefixes and a stage where everybody is alone, played by hand: lists
//! that are looked through, no numbers of blocks, nothing kept for later.
//!
//! ```text
//! hold kv (new + more) reuse (new) {
//!   load kv (new - cached);      // only where `early`
//!   run desk (out);
//! } cache (new + more)
//! ```
//!
//! With a store, into which kv spills, what that has of the prompt is loaded from there first:
//!
//! ```text
//!   hold store (cachedin(store)) { load kv (min(cached, new - have)); } cache (cached)
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
    /// A store: how many blocks, and the tokens of each. Where there is one, it is `early`.
    pub(crate) store: Option<(usize, u64)>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Played {
    /// Of each request, in the order of admission: which, when, and the tokens it found.
    pub(crate) admitted: Vec<(usize, f64, u64)>,
    pub(crate) evicted: u64,
    /// Of each request, in the order of admission: which, when, and the tokens that the store had beyond those.
    pub(crate) stored: Vec<(usize, f64, u64)>,
    /// Blocks that went to the store, at least in part; the store's that it evicted.
    pub(crate) spilled: u64,
    pub(crate) evicted_there: u64,
    /// ∫ allocated and cached blocks over time, up to the last end.
    pub(crate) allocated: f64,
    pub(crate) cached: f64,
    pub(crate) end: f64,
}

struct Held {
    /// What is known of its blocks, in order.
    blocks: Vec<usize>,
}

/// Where somebody who goes on is.
enum At {
    /// Its hold was admitted.
    Hold,
    /// So was that of the store.
    Store,
}

struct Play<'a> {
    requests: &'a [Request],
    setting: &'a Setting,
    waiting: VecDeque<usize>,
    ready: VecDeque<(usize, At)>,
    /// Who waits for the store.
    asking: VecDeque<usize>,
    /// The store's blocks that nobody reads, the next to go first, and those that are read, by whom.
    store: Vec<Content>,
    pinned: BTreeMap<usize, Vec<Content>>,
    /// What each copy's parts hold, in the store's blocks.
    parts: BTreeMap<usize, Vec<Content>>,
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
        asking: VecDeque::new(),
        store: Vec::new(),
        pinned: BTreeMap::new(),
        parts: BTreeMap::new(),
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
        self.content_in(self.setting.block, who, at)
    }

    /// The same in blocks of another size.
    fn content_in(&self, size: u64, who: usize, at: u64) -> Content {
        let request = &self.requests[who];
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
                let copy = self.unused.remove(0);
                self.played.evicted += 1;
                self.spill(copy);
            }
            self.ready.push_back((who, At::Hold));
        }
    }

    /// An evicted copy's parts are put into the store: what is there is used now.
    fn spill(&mut self, copy: usize) {
        let Some((cap, _)) = self.setting.store else { return };
        let mut put = false;
        for part in self.parts[&copy].clone() {
            if self.pinned.values().flatten().any(|&content| content == part) {
                continue;
            }
            if let Some(at) = self.store.iter().position(|&content| content == part) {
                self.store.remove(at);
                self.store.push(part);
                continue;
            }
            if self.pinned_there().len() + self.store.len() == cap {
                if self.store.is_empty() {
                    continue;
                }
                self.store.remove(0);
                self.played.evicted_there += 1;
            }
            self.store.push(part);
            put = true;
        }
        self.played.spilled += u64::from(put);
    }

    fn pinned_there(&self) -> Vec<Content> {
        let mut all: Vec<Content> = self.pinned.values().flatten().copied().collect();
        all.sort();
        all.dedup();
        all
    }

    /// Whoever asks the store gets what it has.
    fn admit_there(&mut self) {
        let Some((_, size)) = self.setting.store else { return };
        while let Some(who) = self.asking.pop_front() {
            let pinned = self.pinned_there();
            let is_there = |content: &Content| self.store.contains(content) || pinned.contains(content);
            // What kv had is not asked for.
            let first = self.played.admitted.iter().find(|(of, ..)| *of == who).unwrap().2 / size;
            let found: Vec<Content> = (first..).map(|at| self.content_in(size, who, at)).take_while(is_there).collect();
            self.played.stored.push((who, self.now, found.len() as u64 * size));
            self.store.retain(|content| !found.contains(content));
            self.pinned.insert(who, found);
            self.ready.push_back((who, At::Store));
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
                if let Some((_, size)) = self.setting.store {
                    let parts = self.setting.block / size;
                    let parts = (at * parts..(at + 1) * parts).map(|at| self.content_in(size, who, at)).collect();
                    self.parts.insert(copy, parts);
                }
            }
        }
    }

    fn settle(&mut self) {
        loop {
            self.admit();
            self.admit_there();
            if self.ready.is_empty() {
                return;
            }
            while let Some((who, at)) = self.ready.pop_front() {
                let size = self.setting.block;
                let new = self.requests[who].new;
                if self.setting.store.is_some() && matches!(at, At::Hold) {
                    self.asking.push_back(who);
                    self.admit_there();
                    continue;
                }
                let is_own = |play: &Self, at| matches!(play.content(who, at).0, Owner::Session(_));
                let shared = (0..new / size).take_while(|&at| !is_own(self, at)).count() as u64;
                if let At::Store = at {
                    // What is loaded is found at once; then the store is given back, and whoever waits is tried.
                    let (admitted, stored) = (&self.played.admitted, &self.played.stored);
                    let of = |all: &[(usize, f64, u64)]| all.iter().find(|(of, ..)| *of == who).unwrap().2;
                    let there = new.min(of(admitted) + of(stored));
                    self.tell(who, shared.min(there / size));
                    for content in self.pinned.remove(&who).unwrap().into_iter().rev() {
                        if !self.pinned.values().flatten().any(|&other| other == content) {
                            self.store.push(content);
                        }
                    }
                    self.admit();
                    self.admit_there();
                }
                if self.setting.early {
                    self.tell(who, shared);
                }
                self.order += 1;
                self.ends.push((self.now + self.requests[who].out as f64, self.order, who));
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
