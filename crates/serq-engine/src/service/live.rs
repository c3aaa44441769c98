//! Requests that are not over, and what a step computes of them.

use std::sync::Arc;

use serq_kernel::Held;

use super::Ticket;
use crate::request::{Figures, Finish, Stops, Voice};
use crate::sampler::{Sampling, Token};

/// A request that is not over.
pub(super) struct Live {
    pub(super) ticket: Ticket,
    pub(super) choice: usize,
    pub(super) prompt: usize,
    /// The prompt's and the answer's.
    pub(super) tokens: Vec<u32>,
    pub(super) max_tokens: usize,
    pub(super) sampling: Arc<Sampling>,
    pub(super) voice: Box<dyn Voice>,
    pub(super) stops: Stops,
    /// The name of the last block that has one, and how many have.
    pub(super) name: u64,
    pub(super) named: usize,
    /// How far each of its shares is computed: (pool, admission, tokens).
    pub(super) computed: Vec<(u32, u64, usize)>,
    /// A step computes tokens of it.
    pub(super) running: Option<u32>,
    pub(super) finish: Option<Finish>,
    pub(super) gone_away: bool,
    pub(super) started: bool,
    pub(super) figures: Figures,
}

impl Live {
    pub(super) fn answer(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Tokens of a share that are computed or were copied there, those that were found among them.
    pub(super) fn computed(&mut self, held: &Held<'_>) -> &mut usize {
        let (pool, admission) = (held.pool, held.admission);
        let at = self.computed.iter().position(|&(of, when, _)| (of, when) == (pool, admission));
        let at = at.unwrap_or_else(|| {
            // An earlier hold of the same pool is over.
            self.computed.retain(|&(of, _, _)| of != pool);
            self.computed.push((pool, admission, (held.found as usize).min(self.tokens.len())));
            self.computed.len() - 1
        });
        &mut self.computed[at].2
    }
}

/// One that came with others, and waits for the first of them to have the prompt computed.
pub(super) struct Follower {
    pub(super) live: Live,
    pub(super) names: Vec<u64>,
    pub(super) first: u64,
}

/// What a step computes of one request.
pub(super) struct Computing {
    pub(super) session: u64,
    pub(super) pool: u32,
    pub(super) admission: u64,
    pub(super) upto: usize,
    /// The next token, where nothing computes it: the prompt is said again.
    pub(super) said: Option<Token>,
}
