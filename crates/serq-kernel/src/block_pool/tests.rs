//! The pool against a model that keeps lists and looks through them, after every operation.

use super::{BlockPool, Identity, Source};

/// A block of the model: it is one by being in this place of `all`.
#[derive(Clone, Debug, Default)]
struct Copy {
    holds: Option<Identity>,
    /// Copies that were told before it.
    told: usize,
    /// In how many tables.
    references: usize,
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
    fn find(&self, identity: Identity) -> Option<usize> {
        let copies = self.all.iter().enumerate().filter(|(_, copy)| copy.holds == Some(identity));
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

    fn tell(&mut self, table: usize, identity: Identity) {
        let copy = self.tables[table].as_ref().unwrap()[identity.at as usize];
        if self.all[copy].holds.is_some() {
            return;
        }
        self.told += 1;
        (self.all[copy].holds, self.all[copy].told) = (Some(identity), self.told);
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
                    Some(Identity { source: Source::Own(_), .. }) if at >= kept => self.all[copy].holds = None,
                    Some(_) => self.unused.push(copy),
                    None => {}
                }
            }
        }
    }

    fn evict(&mut self) -> Option<Identity> {
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
    /// Identities that may be found.
    known: Vec<Identity>,
}

impl Pair {
    fn compare(&self) {
        self.pool.check();
        let referenced = self.model.all.iter().filter(|copy| copy.references > 0).count();
        assert_eq!(self.pool.referenced() as usize, referenced);
        assert_eq!(self.pool.cached() as usize, self.model.unused.len());
        // Cached blocks in the order of eviction.
        for (at, &copy) in self.pool.lru.walk(&self.pool.blocks).zip(&self.model.unused) {
            assert_eq!(self.pool.blocks[at as usize].identity, self.model.all[copy].holds);
        }
        for &identity in &self.known {
            let (here, there) = (self.pool.find(identity), self.model.find(identity));
            assert_eq!(here.is_some(), there.is_some(), "{identity:?}");
            if let (Some(here), Some(there)) = (here, there) {
                assert_eq!(self.pool.is_referenced(here), self.model.all[there].references > 0, "{identity:?}");
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

/// One of a few prompts: some begin alike, for so many blocks, and go on by themselves.
fn content(prompt: usize, at: u32) -> Identity {
    let source = match (prompt % 4, at) {
        (0..=2, 0..3) => Source::Group(7),
        (1..=2, 3..5) => Source::Trace(u64::from(at)),
        _ => Source::Own(prompt as u64),
    };
    Identity { source, at }
}

#[test]
fn after_every_operation_it_is_what_the_model_is() {
    let (mut hits, mut evictions, mut duplicates) = (0, 0, 0);
    for seed in 0..40 {
        let mut random = Random(seed);
        let room = 8 + random.below(24);
        let known = (0..6).flat_map(|prompt| (0..8).map(move |at| content(prompt, at))).collect();
        let mut pair = Pair { pool: BlockPool::default(), model: Model::default(), tables: Vec::new(), known };
        let mut prompts: Vec<usize> = Vec::new();
        for _ in 0..600 {
            let open: Vec<usize> = (0..pair.tables.len()).filter(|&t| pair.model.tables[t].is_some()).collect();
            let pick = |random: &mut Random| open[random.below(open.len())];
            match random.below(7) {
                // A hold: what is there of its prompt, and more where there is room.
                0 | 1 => {
                    let prompt = random.below(6);
                    pair.tables.push(pair.pool.open());
                    pair.model.tables.push(Some(Vec::new()));
                    prompts.push(prompt);
                    let table = pair.tables.len() - 1;
                    for at in 0..random.below(9) as u32 {
                        let identity = content(prompt, at);
                        let Some(block) = pair.pool.find(identity) else { break };
                        pair.pool.refer(pair.tables[table], block);
                        let copy = pair.model.find(identity).expect("the model has it too");
                        pair.model.refer(table, copy);
                        hits += 1;
                    }
                }
                2 if !open.is_empty() => {
                    let table = pick(&mut random);
                    let length = pair.pool.table(pair.tables[table]).len();
                    for _ in length..(length + random.below(4)).min(8) {
                        if (pair.pool.referenced() + pair.pool.cached()) as usize == room {
                            assert_eq!(pair.pool.evict(), pair.model.evict());
                            evictions += 1;
                        }
                        if ((pair.pool.referenced() + pair.pool.cached()) as usize) < room {
                            pair.pool.allocate(pair.tables[table]);
                            pair.model.allocate(table);
                        }
                    }
                }
                3 | 4 if !open.is_empty() => {
                    let table = pick(&mut random);
                    let length = pair.pool.table(pair.tables[table]).len() as u32;
                    for at in 0..random.below(length as usize + 1) as u32 {
                        let identity = content(prompts[table], at);
                        duplicates += u32::from(pair.pool.find(identity).is_some());
                        pair.pool.tell(pair.tables[table], identity);
                        pair.model.tell(table, identity);
                    }
                }
                5 if !open.is_empty() => {
                    let table = pick(&mut random);
                    let kept = random.below(9);
                    pair.pool.close(pair.tables[table], kept);
                    pair.model.close(table, kept);
                }
                6 => {
                    let identity = content(random.below(6), random.below(8) as u32);
                    if let Some(block) = pair.pool.find(identity).filter(|&block| !pair.pool.is_referenced(block)) {
                        pair.pool.vacate(block);
                        let copy = pair.model.find(identity).expect("the model has it too");
                        pair.model.forget(copy);
                    }
                }
                _ => {}
            }
            pair.compare();
            // A pool's memory is its room's, however much went through it.
            assert!(pair.pool.blocks.len() <= room);
        }
    }
    assert!(hits > 1_000 && evictions > 500 && duplicates > 1_000, "{hits} {evictions} {duplicates}");
}

/// A request's blocks are freed tail first, so its tail goes before its head; the block taken
/// again stays.
#[test]
fn the_tail_of_what_was_used_longest_ago_goes_first() {
    let mut pool = BlockPool::default();
    let first = |pool: &mut BlockPool, conversation, blocks: u32| {
        let table = pool.open();
        for at in 0..blocks {
            pool.allocate(table);
            pool.tell(table, Identity { source: Source::Own(conversation), at });
        }
        pool.close(table, blocks as usize);
    };
    first(&mut pool, 1, 3);
    first(&mut pool, 2, 2);
    // 1's head is used again, and comes behind 2.
    let again = pool.open();
    let head = pool.find(Identity { source: Source::Own(1), at: 0 }).unwrap();
    pool.refer(again, head);
    pool.close(again, 1);
    let mut order = Vec::new();
    while let Some(Identity { source: Source::Own(conversation), at }) = pool.evict() {
        order.push((conversation, at));
    }
    assert_eq!(order, [(1, 2), (1, 1), (2, 1), (2, 0), (1, 0)]);
}
