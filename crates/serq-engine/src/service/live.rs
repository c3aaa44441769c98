//! Requests that are not over, and what a step computes of them.

use std::ops::Range;
use std::sync::Arc;

use serq_kernel::Held;

use super::{Ticket, Transfer};
use crate::request::{Figures, Finish, Stops, Voice};
use crate::sampler::{Sampling, Token};

/// A request that is not over.
pub(super) struct Live {
    pub(super) ticket: Ticket,
    pub(super) choice: usize,
    pub(super) prompt: usize,
    /// The prompt's and the answer's.
    pub(super) tokens: Vec<u32>,
    /// How many of the answer's were there when its session came.
    pub(super) known: usize,
    pub(super) max_tokens: usize,
    pub(super) sampling: Arc<Sampling>,
    pub(super) voice: Box<dyn Voice>,
    pub(super) stops: Stops,
    /// What its first block's name follows; the name of the last block that has one, and how many have.
    pub(super) before: u64,
    pub(super) name: u64,
    pub(super) named: usize,
    pub(super) shares: Vec<Share>,
    /// Instances whose steps compute tokens of it: several where legs are beside each other.
    pub(super) running: Vec<u32>,
    /// The one of them whose step draws the next token.
    pub(super) draws: Option<u32>,
    pub(super) finish: Option<Finish>,
    pub(super) gone_away: bool,
    /// Its session is over, and another one comes.
    pub(super) again: bool,
    /// … once somebody is there, if that is by then; and for whom it waits.
    pub(super) waits: bool,
    pub(super) waits_until: Option<f64>,
    pub(super) why: String,
    pub(super) started: bool,
    pub(super) figures: Figures,
}

impl Live {
    /// A step of an instance is over, or lost.
    pub(super) fn has_run(&mut self, stage: u32) {
        self.running.retain(|&running| running != stage);
        self.draws.take_if(|draws| *draws == stage);
    }

    pub(super) fn answer(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    fn share(&mut self, held: &Held<'_>) -> &mut Share {
        let (pool, admission) = (held.pool, held.admission);
        let at = self.shares.iter().position(|share| (share.pool, share.admission) == (pool, admission));
        let at = at.unwrap_or_else(|| {
            // An earlier hold of the same pool is over.
            self.shares.retain(|share| share.pool != pool);
            let computed = (held.found as usize).min(self.tokens.len());
            self.shares.push(Share { pool, admission, computed, brought: held.found });
            self.shares.len() - 1
        });
        &mut self.shares[at]
    }

    /// Tokens of a share that are computed or were copied there, those that were found among them.
    pub(super) fn computed(&mut self, held: &Held<'_>) -> usize {
        self.share(held).computed
    }

    /// How far the kernel may have a share's position: what was found, copied, and run, some of it again.
    pub(super) fn brought(&mut self, held: &Held<'_>) -> f64 {
        self.share(held).brought
    }

    /// A step computed a share's tokens up to this one; for the kernel its position `grows`.
    pub(super) fn has_computed(&mut self, pool: u32, admission: u64, upto: usize, grows: f64) {
        let share = self.shares.iter_mut().find(|share| (share.pool, share.admission) == (pool, admission));
        if let Some(share) = share {
            share.computed = share.computed.max(upto);
            share.brought += grows;
        }
    }

    /// The kernel has a share at this position, whatever else was copied there: the rest is computed.
    pub(super) fn goes_on_from(&mut self, held: &Held<'_>) {
        let share = self.share(held);
        share.computed = share.computed.min(held.position as usize);
    }

    /// A share's tokens up to this one were copied there.
    pub(super) fn has_copied(&mut self, pool: u32, admission: u64, upto: usize) {
        let share = self.shares.iter_mut().find(|share| (share.pool, share.admission) == (pool, admission));
        if let Some(share) = share {
            share.brought += (upto - share.computed.min(upto)) as f64;
            share.computed = upto;
        }
    }
}

/// What is in a request's blocks of one pool.
pub(super) struct Share {
    pool: u32,
    admission: u64,
    computed: usize,
    brought: f64,
}

/// A copy under way.
pub(super) struct Copying {
    pub(super) session: u64,
    /// Pools whose blocks it reads, and writes.
    pub(super) pools: [u32; 2],
    /// Of the hold it writes to.
    pub(super) admission: u64,
    pub(super) tokens: Range<usize>,
    /// The kernel's read, which it is for; `None`: it began before that.
    pub(super) job: Option<u32>,
    /// What it reads was given away meanwhile.
    pub(super) spoiled: bool,
}

impl Copying {
    pub(super) fn of(session: u64, transfer: &Transfer<'_>, admission: u64, job: Option<u32>) -> Self {
        let pools = [transfer.from.pool, transfer.to.pool];
        Self { session, pools, admission, tokens: transfer.tokens.clone(), job, spoiled: false }
    }

    /// Whether it reads or writes an instance's memory.
    pub(super) fn touches(&self, memory: Option<u32>) -> bool {
        self.pools.iter().any(|&pool| Some(pool) == memory)
    }
}

/// One that came with others, and waits for the first of them to have the prompt computed.
pub(super) struct Follower {
    pub(super) live: Live,
    pub(super) first: u64,
}

/// What a step computes of one request.
pub(super) struct Computing {
    pub(super) session: u64,
    pub(super) pool: u32,
    pub(super) admission: u64,
    pub(super) upto: usize,
    /// By how much the kernel's position grows.
    pub(super) grows: f64,
    /// The next token, where nothing computes it: the prompt is said again.
    pub(super) said: Option<Token>,
}
