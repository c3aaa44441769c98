//! The pool against a model that keeps lists and looks through them, after every operation.

use super::{BlockPool, Source, Stretch};

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Content {
    source: Source,
    at: u32,
}

/// A block of the model: it is one by being in this place of `all`.
#[derive(Clone, Debug, Default)]
struct Copy {
    holds: Option<Content>,
    /// Copies that were told before it.
    told: usize,
    /// In how many tables.
    references: usize,
    /// What its halves hold, where blocks are halved on their way to a store.
    halves: Vec<Content>,
}

#[derive(Default)]
struct Model {
    all: Vec<Copy>,
    told: usize,
    tables: Vec<Option<Vec<usize>>>,
    /// Cached copies, the next to be evicted first.
    unused: Vec<usize>,
}

impl Model {
    fn find(&self, content: Content) -> Option<usize> {
        let copies = self.all.iter().enumerate().filter(|(_, copy)| copy.holds == Some(content));
        copies.min_by_key(|(_, copy)| copy.told).map(|(at, _)| at)
    }

    fn refer(&mut self, table: usize, copy: usize) {
        self.unused.retain(|&c| c != copy);
        self.all[copy].references += 1;
        self.tables[table].as_mut().unwrap().push(copy);
    }

    fn allocate(&mut self, table: usize) {
        self.all.push(Copy { references: 1, ..Copy::default() });
        self.tables[table].as_mut().unwrap().push(self.all.len() - 1);
    }

    fn tell(&mut self, table: usize, content: Content) {
        let copy = self.tables[table].as_ref().unwrap()[content.at as usize];
        if self.all[copy].holds.is_some() {
            return;
        }
        self.told += 1;
        (self.all[copy].holds, self.all[copy].told) = (Some(content), self.told);
    }

    fn forget(&mut self, copy: usize) {
        self.unused.retain(|&c| c != copy);
        self.all[copy].holds = None;
    }

    fn close(&mut self, table: usize, kept: usize) {
        let blocks = self.tables[table].take().unwrap();
        for (at, copy) in blocks.into_iter().enumerate().rev() {
            self.all[copy].references -= 1;
            if self.all[copy].references == 0 {
                match self.all[copy].holds {
                    Some(Content { source: Source::Own(_), .. }) if at >= kept => self.all[copy].holds = None,
                    Some(_) => self.unused.push(copy),
                    None => {}
                }
            }
        }
    }

    /// A content is put from outside: it is used now, or a new copy.
    fn put(&mut self, content: Content) -> bool {
        if let Some(copy) = self.find(content) {
            if self.all[copy].references == 0 {
                self.unused.retain(|&c| c != copy);
                self.unused.push(copy);
            }
            return false;
        }
        self.told += 1;
        self.all.push(Copy { holds: Some(content), told: self.told, ..Copy::default() });
        self.unused.push(self.all.len() - 1);
        true
    }

    fn evict(&mut self) -> Option<Content> {
        let copy = *self.unused.first()?;
        let held = self.all[copy].holds;
        self.forget(copy);
        held
    }
}

/// The two side by side; a table's number in the model is its place in `tables`.
struct Pair {
    pool: BlockPool,
    model: Model,
    tables: Vec<u32>,
}

impl Pair {
    /// What the pool's block holds.
    fn holds(&self, block: u32) -> Option<Content> {
        let place = self.pool.blocks[block as usize].place?;
        let key = self.pool.contents.key(place);
        Some(Content { source: key.source, at: key.start + place.at })
    }

    fn new(pool: BlockPool) -> Self {
        Self { pool, model: Model::default(), tables: Vec::new() }
    }

    /// A table that begins with what is there of these stretches. Answers how many blocks that is.
    fn open(&mut self, stretches: Vec<Stretch>) -> usize {
        self.tables.push(self.pool.open());
        self.model.tables.push(Some(Vec::new()));
        let table = self.tables.len() - 1;
        for stretch in stretches {
            let found: Vec<usize> = contents(&stretch).map_while(|content| self.model.find(content)).collect();
            found.iter().for_each(|&copy| self.model.refer(table, copy));
            assert_eq!(self.pool.refer(self.tables[table], &stretch), found.len());
            if found.len() < stretch.places.len() {
                break;
            }
        }
        self.pool.table(self.tables[table]).len()
    }

    fn pick_open(&self, random: &mut Random) -> Option<usize> {
        let open: Vec<usize> = (0..self.tables.len()).filter(|&t| self.model.tables[t].is_some()).collect();
        (!open.is_empty()).then(|| open[random.below(open.len())])
    }

    fn evict(&mut self) -> Option<Content> {
        let evicted = self.model.evict();
        assert_eq!(self.pool.evict(1), u32::from(evicted.is_some_and(|content| content.at == 0)));
        evicted
    }

    /// What is evicted next goes to a store of so many blocks first, where it is not there already.
    fn spill_into(&mut self, store: &mut Self, room: usize) -> usize {
        let mut put = 0;
        let (Some(block), Some(&copy)) = (self.pool.oldest(), self.model.unused.first()) else { return 0 };
        let copy = &self.model.all[copy];
        let parts = if self.pool.parts() == 1 { vec![copy.holds.unwrap()] } else { copy.halves.clone() };
        assert_eq!(self.pool.parts() as usize, parts.len());
        for (part, &content) in (0..).zip(&parts) {
            let ours = self.pool.content(block, part).expect("it has a name");
            assert_eq!(Content { source: ours.key.source, at: ours.key.start + ours.at }, content);
            assert_eq!(store.pool.touch(ours), store.model.find(content).is_some());
            if store.model.find(content).is_none() {
                if (store.pool.referenced() + store.pool.cached()) as usize == room && store.evict().is_none() {
                    continue;
                }
                store.pool.take_in(ours);
                put += 1;
            }
            store.model.put(content);
        }
        put
    }

    fn compare(&self, stretches: fn(usize) -> Vec<Stretch>) {
        self.pool.check();
        let referenced = self.model.all.iter().filter(|copy| copy.references > 0).count();
        assert_eq!(self.pool.referenced() as usize, referenced);
        assert_eq!(self.pool.cached() as usize, self.model.unused.len());
        // Cached blocks in the order of eviction.
        for (at, &copy) in self.pool.lru.walk(&self.pool.links).zip(&self.model.unused) {
            assert_eq!(self.holds(at), self.model.all[copy].holds);
        }
        for stretch in (0..PROMPTS).flat_map(stretches) {
            let there = stretch.places.clone().map_while(|at| self.model.find(Content { source: stretch.source, at }));
            let there: Vec<usize> = there.collect();
            let here = self.pool.found(&stretch);
            assert_eq!(here.len(), there.len(), "{stretch:?}");
            for (&block, &copy) in here.iter().zip(&there) {
                assert_eq!(self.pool.is_referenced(block), self.model.all[copy].references > 0, "{stretch:?}");
            }
        }
        // Two places of tables have one block in both or in neither.
        let mut numbers: Vec<(u32, usize)> = Vec::new();
        for (&table, blocks) in self.tables.iter().zip(&self.model.tables) {
            let Some(blocks) = blocks else { continue };
            assert_eq!(self.pool.table(table).len(), blocks.len());
            numbers.extend(self.pool.table(table).iter().copied().zip(blocks.iter().copied()));
        }
        for &(number, copy) in &numbers {
            assert!(numbers.iter().all(|&(n, c)| (n == number) == (c == copy)), "block {number} is copy {copy}");
        }
    }
}

/// A linear congruential generator (Knuth, TAOCP 2, 3.3.4).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

const PROMPTS: usize = 6;

/// Blocks of a prompt, at most.
const LENGTH: u32 = 8;

/// One of a few prompts: some begin alike, for so many blocks, and go on by themselves.
fn stretches(prompt: usize) -> Vec<Stretch> {
    let own = Source::Own(prompt as u64);
    let (group, trace) = ((Source::Group(7), 0..3), (Source::Trace(3), 3..5));
    let stretches = match prompt % 4 {
        0 => vec![group, (own, 3..LENGTH)],
        1 | 2 => vec![group, trace, (own, 5..LENGTH)],
        _ => vec![(own, 0..LENGTH)],
    };
    stretches.into_iter().map(|(source, places)| Stretch { source, places }).collect()
}

/// Those of its first blocks.
fn first_stretches(prompt: usize, upto: u32) -> Vec<Stretch> {
    let cut = |Stretch { source, places }| Stretch { source, places: places.start..upto.min(places.end) };
    stretches(prompt).into_iter().map(cut).filter(|stretch| !stretch.places.is_empty()).collect()
}

/// The same prompts in blocks of half the size: of some blocks the halves come from two sources.
fn half_stretches(prompt: usize) -> Vec<Stretch> {
    let own = Source::Own(prompt as u64);
    let (group, trace) = ((Source::Group(7), 0..7), (Source::Trace(3), 7..11));
    let stretches = match prompt % 4 {
        0 => vec![group, (own, 7..2 * LENGTH)],
        1 | 2 => vec![group, trace, (own, 11..2 * LENGTH)],
        _ => vec![(own, 0..2 * LENGTH)],
    };
    stretches.into_iter().map(|(source, places)| Stretch { source, places }).collect()
}

/// What a stretch's blocks hold.
fn contents(stretch: &Stretch) -> impl Iterator<Item = Content> {
    let source = stretch.source;
    stretch.places.clone().map(move |at| Content { source, at })
}

#[test]
fn after_every_operation_it_is_what_the_model_is() {
    let (mut hits, mut evictions, mut duplicates) = (0, 0, 0);
    for seed in 0..40 {
        let mut random = Random(seed);
        let room = 8 + random.below(24);
        let mut pair = Pair::new(BlockPool::default());
        let mut prompts: Vec<usize> = Vec::new();
        for _ in 0..600 {
            let open: Vec<usize> = (0..pair.tables.len()).filter(|&t| pair.model.tables[t].is_some()).collect();
            let pick = |random: &mut Random| open[random.below(open.len())];
            match random.below(20) {
                // A hold: what is there of its prompt, and more where there is room.
                0..=2 => {
                    let prompt = random.below(PROMPTS);
                    prompts.push(prompt);
                    hits += pair.open(first_stretches(prompt, random.below(LENGTH as usize + 1) as u32));
                }
                3..=8 if !open.is_empty() => {
                    let table = pick(&mut random);
                    let length = pair.pool.table(pair.tables[table]).len();
                    let more = random.below(4).min(LENGTH as usize - length);
                    let there = (pair.pool.referenced() + pair.pool.cached()) as usize;
                    for _ in room..there + more {
                        evictions += usize::from(pair.evict().is_some());
                    }
                    let more = more.min(room - pair.pool.referenced() as usize - pair.pool.cached() as usize);
                    pair.pool.allocate(pair.tables[table], more as u32);
                    (0..more).for_each(|_| pair.model.allocate(table));
                }
                9..=13 if !open.is_empty() => {
                    let table = pick(&mut random);
                    let length = pair.pool.table(pair.tables[table]).len();
                    for stretch in first_stretches(prompts[table], random.below(length + 1) as u32) {
                        duplicates += pair.pool.found(&stretch).len();
                        pair.pool.tell(pair.tables[table], &stretch);
                        contents(&stretch).for_each(|content| pair.model.tell(table, content));
                    }
                }
                14..=17 if !open.is_empty() => {
                    let table = pick(&mut random);
                    let kept = random.below(LENGTH as usize + 1);
                    pair.pool.close(pair.tables[table], kept);
                    pair.model.close(table, kept);
                }
                18 => {
                    let all = stretches(random.below(PROMPTS));
                    let stretch = &all[random.below(all.len())];
                    let found: Vec<usize> = contents(stretch).map_while(|content| pair.model.find(content)).collect();
                    pair.pool.forget_cached(stretch);
                    for copy in found.into_iter().rev() {
                        if pair.model.all[copy].references == 0 {
                            pair.model.forget(copy);
                        }
                    }
                }
                // Any cached block, so that what is there has gaps.
                19 if !pair.model.unused.is_empty() => {
                    let nth = random.below(pair.model.unused.len());
                    let block = pair.pool.lru.walk(&pair.pool.links).nth(nth).expect("it is cached here too");
                    pair.pool.forget(block);
                    pair.model.forget(pair.model.unused[nth]);
                }
                _ => {}
            }
            pair.compare(stretches);
            // A pool's memory is its room's, however much went through it.
            assert!(pair.pool.blocks.len() <= room);
        }
    }
    assert!(hits > 1_000 && evictions > 150 && duplicates > 1_000, "{hits} {evictions} {duplicates}");
}

/// A pool that spills what it evicts, whole or in halves, into a store where it is pinned, and lost at times.
#[test]
fn what_is_spilled_is_in_the_store_until_the_store_evicts_it() {
    let (mut put, mut pinned, mut lost) = (0, 0, 0);
    for seed in 0..60 {
        let mut random = Random(seed);
        let halves = seed % 2 == 1;
        let (room, room_there) = (8 + random.below(12), 4 + random.below(30));
        let mut pair = Pair::new(BlockPool::spilling(1 + u32::from(halves)));
        let mut store = Pair::new(BlockPool::default());
        let there: fn(usize) -> Vec<Stretch> = if halves { half_stretches } else { stretches };
        for _ in 0..400 {
            match random.below(10) {
                // A hold, computed and given back at once.
                0..=5 => {
                    let prompt = random.below(PROMPTS);
                    let wanted = random.below(LENGTH as usize) as u32 + 1;
                    let found = pair.open(first_stretches(prompt, wanted));
                    let table = pair.tables.len() - 1;
                    let more = wanted as usize - found;
                    while (pair.pool.referenced() + pair.pool.cached()) as usize + more > room {
                        put += pair.spill_into(&mut store, room_there);
                        store.compare(there);
                        pair.evict();
                    }
                    pair.pool.allocate(pair.tables[table], more as u32);
                    (0..more).for_each(|_| pair.model.allocate(table));
                    for stretch in first_stretches(prompt, wanted) {
                        pair.pool.tell(pair.tables[table], &stretch);
                        contents(&stretch).for_each(|content| pair.model.tell(table, content));
                    }
                    if halves {
                        let parts: Vec<_> =
                            half_stretches(prompt).iter().flat_map(|stretch| stretch.contents(0)).collect();
                        pair.pool.tell_parts(pair.tables[table], found, parts[2 * found..].iter().copied());
                        let parts: Vec<Content> = half_stretches(prompt).iter().flat_map(contents).collect();
                        let copies = pair.model.tables[table].clone().unwrap();
                        for (at, copy) in copies.into_iter().enumerate().skip(found) {
                            pair.model.all[copy].halves = parts[2 * at..2 * at + 2].to_vec();
                        }
                    }
                    pair.pool.close(pair.tables[table], wanted as usize);
                    pair.model.close(table, wanted as usize);
                }
                // What the store has of a prompt is pinned, and let go.
                6 => pinned += store.open(there(random.below(PROMPTS))),
                7 | 8 => {
                    if let Some(table) = store.pick_open(&mut random) {
                        let all = store.pool.table(store.tables[table]).len();
                        store.pool.close(store.tables[table], all);
                        store.model.close(table, all);
                    }
                }
                // One of its blocks is not what it was.
                _ => {
                    let stretch = there(random.below(PROMPTS)).swap_remove(0);
                    let found = store.pool.found(&stretch).to_vec();
                    if !found.is_empty() {
                        let at = random.below(found.len());
                        let content = contents(&stretch).nth(at).unwrap();
                        let copy = store.model.find(content).unwrap();
                        lost += usize::from(store.model.all[copy].references > 0);
                        store.pool.lose(found[at]);
                        store.model.forget(copy);
                    }
                }
            }
            pair.compare(stretches);
            store.compare(there);
            assert!(store.pool.blocks.len() <= room_there);
        }
    }
    assert!(put > 10_000 && pinned > 1_000 && lost > 20, "{put} {pinned} {lost}");
}

/// A request's blocks are freed tail first, so its tail goes before its head; the block taken
/// again stays.
#[test]
fn the_tail_of_what_was_used_longest_ago_goes_first() {
    let mut pool = BlockPool::default();
    let own = |conversation, blocks| Stretch { source: Source::Own(conversation), places: 0..blocks };
    for (conversation, blocks) in [(1, 3), (2, 2)] {
        let table = pool.open();
        pool.allocate(table, blocks);
        pool.tell(table, &own(conversation, blocks));
        pool.close(table, blocks as usize);
    }
    // 1's head is used again, and comes behind 2.
    let again = pool.open();
    assert_eq!(pool.refer(again, &own(1, 1)), 1);
    pool.close(again, 1);
    let left = |pool: &BlockPool| [1, 2].map(|conversation| pool.found(&own(conversation, 3)).len());
    let mut order = vec![left(&pool)];
    while pool.cached() > 0 {
        pool.evict(1);
        order.push(left(&pool));
    }
    assert_eq!(order, [[3, 2], [2, 2], [1, 2], [1, 1], [1, 0], [0, 0]]);
}
