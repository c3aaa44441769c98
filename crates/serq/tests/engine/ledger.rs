//! Instances whose keys and values are the tokens themselves, and whose next token is a hash of
//! all that stands in a text's blocks. So a token is right only if every block of its text has what
//! it should: a block given away too early, copied to the wrong place or found by the wrong name
//! changes it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use serq_engine::sampler::Token;
use serq_engine::served::Served;
use serq_engine::service::{Ended, Instances, Run, Span};

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

/// What is still to end.
#[derive(Default)]
pub(crate) struct Steps {
    running: VecDeque<(Ended, Vec<Option<Token>>)>,
}

/// All instances of a program.
pub(crate) struct Ledger {
    pools: Vec<Option<Pool>>,
    steps: Arc<Mutex<Steps>>,
    /// Steps end when the test says so; else when they begin.
    by_hand: bool,
}

impl Ledger {
    pub(crate) fn new(served: &Served, by_hand: bool) -> (Self, Arc<Mutex<Steps>>) {
        let mut pools = Vec::new();
        for instance in served.instances() {
            let at = instance.pool as usize;
            if pools.len() <= at {
                pools.resize_with(at + 1, || None);
            }
            let memory = instance.memory;
            pools[at] = Some(Pool { block: memory.block, slots: vec![NOTHING; memory.blocks * memory.block] });
        }
        let steps = Arc::default();
        (Self { pools, steps: Arc::clone(&steps), by_hand }, steps)
    }

    fn pool(&mut self, pool: u32) -> &mut Pool {
        self.pools[pool as usize].as_mut().expect("the pool of an instance")
    }
}

impl Steps {
    /// Ends the `nth` of the steps that run.
    pub(crate) fn end(&mut self, nth: usize) {
        let (ended, tokens) = self.running.remove(nth).expect("that many run");
        ended.tell(tokens);
    }

    pub(crate) fn running(&self) -> usize {
        self.running.len()
    }
}

impl Pool {
    fn slot(&mut self, blocks: &[u32], token: usize) -> &mut u32 {
        &mut self.slots[blocks[token / self.block] as usize * self.block + token % self.block]
    }
}

/// The memory of an instance, by its stage.
pub(crate) fn pool_of(served: &Served) -> impl Fn(u32) -> u32 + Send + use<> {
    let pools: Vec<(u32, u32)> = served.instances().iter().map(|i| (i.stage, i.pool)).collect();
    move |stage| pools.iter().find(|(of, _)| *of == stage).expect("a step of an instance").1
}

/// A ledger that knows which stage has which memory.
pub(crate) struct Books<F> {
    pub(crate) ledger: Ledger,
    pub(crate) pool_of: F,
}

impl<F: Fn(u32) -> u32 + Send> Instances for Books<F> {
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended) {
        let pool = self.ledger.pool((self.pool_of)(stage));
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
        if self.ledger.by_hand {
            self.ledger.steps.lock().unwrap().running.push_back((ended, tokens));
        } else {
            ended.tell(tokens);
        }
    }

    fn copy(&mut self, from: Span<'_>, to: Span<'_>, tokens: Range<usize>) -> u64 {
        let mut bytes = 0;
        for at in tokens {
            let token = *self.ledger.pool(from.pool).slot(from.blocks, at);
            *self.ledger.pool(to.pool).slot(to.blocks, at) = token;
            bytes += 4;
        }
        bytes
    }
}
