//! Instances whose keys and values are the tokens themselves, and whose next token is a hash of
//! all that stands in a text's blocks. So a token is right only if every block of its text has what
//! it should: a block given away too early, copied to the wrong place or found by the wrong name
//! changes it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use serq_engine::sampler::Token;
use serq_engine::served::Served;
use serq_engine::service::{Copied, CopyError, Ended, Instances, Presence, Put, Run, Transfer};

/// In a slot nothing was written to.
const NOTHING: u32 = u32::MAX;

/// The token after these.
pub(crate) fn next_token(tokens: &[u32]) -> u32 {
    let hash = tokens.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &token| {
        (hash ^ u64::from(token)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
    });
    (hash >> 40) as u32 % 50_000
}

struct Pool {
    block: usize,
    slots: Vec<u32>,
}

/// What was put into a store's blocks, whatever they hold now.
#[derive(Default)]
struct Kept {
    blocks: BTreeMap<u32, Vec<u32>>,
}

/// What is still to end, and what is there.
#[derive(Default)]
pub(crate) struct Steps {
    running: VecDeque<(u32, Ended, Vec<Option<Token>>)>,
    copies: Vec<Copying>,
    pools: Vec<Option<Pool>>,
    /// By pool.
    stores: BTreeMap<u32, Kept>,
    /// Reads of stores, and those of blocks that did not hold what was put there.
    pub(crate) reads: (usize, usize),
    /// By stage: the pool that is its memory.
    memories: BTreeMap<u32, u32>,
    presence: Option<Presence>,
    /// Stages whose instances are gone, or of which the service does not know that they are back.
    gone: BTreeSet<u32>,
}

/// A copy that ends when the test says so.
struct Copying {
    copied: Copied,
    from: (u32, usize, Vec<u32>),
    to: (u32, Vec<u32>),
    tokens: Range<usize>,
    /// It was given up, or one of its instances is gone.
    stopped: bool,
    /// It breaks in the middle: a half of it is not what it should be.
    broken: bool,
}

/// All instances of a program.
pub(crate) struct Ledger {
    steps: Arc<Mutex<Steps>>,
    /// Steps end when the test says so; else when they begin.
    by_hand: bool,
    /// So do copies.
    far: bool,
}

impl Ledger {
    pub(crate) fn new(served: &Served, by_hand: bool) -> (Self, Arc<Mutex<Steps>>) {
        let mut pools = Vec::new();
        let mut memories = BTreeMap::new();
        for instance in served.instances() {
            let at = instance.pool as usize;
            if pools.len() <= at {
                pools.resize_with(at + 1, || None);
            }
            let memory = instance.memory;
            pools[at] = Some(Pool { block: memory.block, slots: vec![NOTHING; memory.blocks * memory.block] });
            memories.insert(instance.stage, instance.pool);
        }
        let mut stores = BTreeMap::new();
        for store in served.stores() {
            let (at, memory) = (store.pool as usize, store.memory);
            pools.resize_with(pools.len().max(at + 1), || None);
            pools[at] = Some(Pool { block: memory.block, slots: vec![NOTHING; memory.blocks * memory.block] });
            stores.insert(store.pool, Kept::default());
        }
        let steps = Arc::new(Mutex::new(Steps { pools, stores, memories, ..Steps::default() }));
        (Self { steps: Arc::clone(&steps), by_hand, far: false }, steps)
    }

    /// Copies take time too, and instances come and go.
    pub(crate) fn far(served: &Served) -> (Self, Arc<Mutex<Steps>>) {
        let (ledger, steps) = Self::new(served, true);
        (Self { far: true, ..ledger }, steps)
    }
}

impl Steps {
    fn pool(&mut self, pool: u32) -> &mut Pool {
        self.pools[pool as usize].as_mut().expect("the pool of an instance")
    }

    /// Ends the `nth` of the steps and copies that are under way.
    pub(crate) fn end(&mut self, nth: usize) {
        if nth < self.running.len() {
            let (_, ended, tokens) = self.running.remove(nth).expect("that many run");
            return ended.tell(tokens);
        }
        let Copying { copied, from, to, tokens, stopped, broken } = self.copies.remove(nth - self.running.len());
        if broken && !stopped {
            tokens.step_by(2).for_each(|at| *self.pool(to.0).slot(&to.1, at) = NOTHING);
            return copied.tell(Err("the link broke".into()));
        }
        match stopped {
            true => copied.tell(Err("it was given up".into())),
            false => copied.tell(Ok(self.copy((from.0, from.1, &from.2), (to.0, &to.1), tokens))),
        }
    }

    /// The copies that are under way break.
    pub(crate) fn break_copies(&mut self) -> usize {
        self.copies.iter_mut().for_each(|copy| copy.broken = true);
        self.copies.len()
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len() + self.copies.len()
    }

    fn copy(&mut self, from: (u32, usize, &[u32]), to: (u32, &[u32]), tokens: Range<usize>) -> u64 {
        for at in tokens.clone() {
            let token = *self.pool(from.0).slot(from.2, at - from.1);
            *self.pool(to.0).slot(to.1, at) = token;
        }
        4 * tokens.len() as u64
    }

    /// The blocks of a store that these tokens are read from and that do not hold what was put there.
    fn spoiled(&mut self, from: (u32, usize, &[u32]), tokens: &Range<usize>) -> Vec<u32> {
        let Some(kept) = self.stores.get(&from.0) else { return Vec::new() };
        let pool = self.pools[from.0 as usize].as_ref().expect("the pool of a store");
        let first = from.1 / pool.block;
        let blocks = &from.2[tokens.start / pool.block - first..tokens.end.div_ceil(pool.block) - first];
        let holds = |block: u32| &pool.slots[block as usize * pool.block..][..pool.block];
        let spoiled: Vec<u32> = blocks
            .iter()
            .copied()
            .filter(|block| kept.blocks.get(block).map(Vec::as_slice) != Some(holds(*block)))
            .collect();
        self.reads.0 += 1;
        self.reads.1 += usize::from(!spoiled.is_empty());
        spoiled
    }

    /// A slot of a store is something else from now on.
    pub(crate) fn spoil(&mut self, nth: usize) {
        let at = nth % self.stores.len();
        let &store = self.stores.keys().nth(at).expect("it has stores");
        let pool = self.pool(store);
        let slot = nth % pool.slots.len();
        pool.slots[slot] ^= 1;
    }

    /// An instance ends, with its step and all it knows; at once or later another one is there.
    pub(crate) fn lose(&mut self, nth: usize, back: bool) {
        let (&stage, &memory) = self.memories.iter().nth(nth % self.memories.len()).expect("it has instances");
        let presence = self.presence.clone().expect("somebody watches");
        if self.gone.insert(stage) {
            self.running.retain(|(of, ..)| *of != stage);
            self.pool(memory).slots.fill(NOTHING);
            let touched = self.copies.iter_mut().filter(|copy| copy.from.0 == memory || copy.to.0 == memory);
            touched.for_each(|copy| copy.stopped = true);
            presence.gone(stage, "it ended".into());
        }
        if back {
            presence.back(stage, 0);
        }
    }

    /// All instances are there again.
    pub(crate) fn all_back(&mut self) {
        for &stage in &self.gone {
            self.presence.as_ref().expect("somebody watches").back(stage, 0);
        }
    }
}

impl Pool {
    fn slot(&mut self, blocks: &[u32], token: usize) -> &mut u32 {
        &mut self.slots[blocks[token / self.block] as usize * self.block + token % self.block]
    }
}

impl Instances for Ledger {
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended) {
        let mut steps = self.steps.lock().unwrap();
        if steps.gone.contains(&stage) {
            return;
        }
        let memory = steps.memories[&stage];
        let pool = steps.pool(memory);
        // All are written before any is read, as a model does layer by layer.
        for run in &runs {
            for (nth, &token) in run.tokens.iter().enumerate() {
                *pool.slot(&run.blocks, run.start + nth) = token;
            }
        }
        let tokens = runs.iter().map(|run| {
            let all: Vec<u32> = (0..run.start + run.tokens.len()).map(|at| *pool.slot(&run.blocks, at)).collect();
            run.next.as_ref().map(|_| Token { id: next_token(&all), logprobs: None })
        });
        let tokens = tokens.collect();
        if self.by_hand {
            steps.running.push_back((stage, ended, tokens));
        } else {
            ended.tell(tokens);
        }
    }

    fn copy(&mut self, Transfer { from, to, tokens, .. }: Transfer<'_>, copied: Copied) -> Option<u64> {
        let mut steps = self.steps.lock().unwrap();
        let spoiled = steps.spoiled((from.pool, from.first, from.blocks), &tokens);
        if !spoiled.is_empty() {
            copied.tell_all(Err(CopyError::Spoiled(spoiled)));
            return None;
        }
        if !self.far {
            return Some(steps.copy((from.pool, from.first, from.blocks), (to.pool, to.blocks), tokens));
        }
        let lost =
            [from.pool, to.pool].iter().any(|pool| steps.gone.iter().any(|stage| steps.memories[stage] == *pool));
        let from = (from.pool, from.first, from.blocks.to_vec());
        let to = (to.pool, to.blocks.to_vec());
        steps.copies.push(Copying { copied, from, to, tokens, stopped: lost, broken: false });
        None
    }

    fn put(&mut self, Put { pool, block, part, into, to }: Put) {
        let mut steps = self.steps.lock().unwrap();
        let size = steps.pool(into).block;
        let first = part as usize * size;
        // What is wrong already stays wrong.
        let lost = !steps.spoiled((pool, 0, &[block]), &(first..first + size)).is_empty();
        let from = steps.pool(pool);
        let at = block as usize * from.block + first;
        assert!(first + size <= from.block, "it is a part of the block");
        let tokens = from.slots[at..at + size].to_vec();
        steps.pool(into).slots[to as usize * size..][..size].copy_from_slice(&tokens);
        let blocks = &mut steps.stores.get_mut(&into).expect("it is a store").blocks;
        if lost {
            blocks.remove(&to)
        } else {
            blocks.insert(to, tokens)
        };
    }

    fn takes_time(&self) -> bool {
        self.far
    }

    fn stop_copy(&mut self, copy: u64) {
        let mut steps = self.steps.lock().unwrap();
        steps.copies.iter_mut().filter(|of| of.copied.copy() == copy).for_each(|of| of.stopped = true);
    }

    fn retries(&self) -> u32 {
        1_000
    }

    fn welcome(&mut self, stage: u32, _: u64) {
        self.steps.lock().unwrap().gone.remove(&stage);
    }

    fn watch(&mut self, presence: Presence) {
        self.steps.lock().unwrap().presence = Some(presence);
    }
}
