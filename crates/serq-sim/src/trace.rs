//! A trace of sessions: when each came, what each of its turns brings, and which prefixes
//! they share.
//!
//! `reader` reads the formats; this module holds what was read, in a few long lists:
//!
//! ```text
//!   rows        in file order: new, out, think, forced
//!   starts      session s has the turns starts[s] … starts[s + 1]
//!   order       of each turn its row; empty where sessions stand in file order anyway
//!   arrivals    of each session its time; empty where the file has none
//!   block_ends  of each row the end of its block ids in `blocks`; empty where the file has none
//! ```
//!
//! # Invariants
//!
//! - There is a session at least, and each has a turn at least.
//! - Sessions are numbered by their first row; a session's turns are in file order.
//! - Arrival times are finite, at least 0, and never fall.

mod format;
mod reader;

pub use reader::{BadRows, TraceError};

/// Tokens of a block of a Mooncake trace [Qin FAST'25 §4].
const MOONCAKE_BLOCK: f64 = 512.0;

/// Sessions in order of their first row; each its turns in file order.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceFile {
    rows: Vec<TraceTurn>,
    starts: Vec<u32>,
    order: Vec<u32>,
    arrivals: Vec<f64>,
    blocks: Vec<u64>,
    block_ends: Vec<usize>,
    format: Format,
    skipped: u64,
}

/// One row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceTurn {
    /// New prompt tokens.
    pub new: f64,
    /// Output tokens.
    pub out: f64,
    /// Think time after the answer.
    pub think: f64,
    /// Sixth column; 0 when absent.
    pub forced: f64,
}

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `session,turn,new,out,think[,forced[,at]]`: sessions of turns.
    Turns,
    /// A JSON object a line: `timestamp` in ms, `input_length`, `output_length`, `hash_ids`.
    Mooncake,
    /// `TIMESTAMP,ContextTokens,GeneratedTokens`.
    Azure,
}

impl TraceFile {
    /// How many sessions there are.
    pub fn sessions(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// How many turns a session has. Sessions are numbered from 0.
    pub fn turns(&self, session: u32) -> u32 {
        self.starts[session as usize + 1] - self.starts[session as usize]
    }

    /// How many rows were read, skipped ones left out.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// What a turn brings; turns are numbered from 0. `None` past the last.
    pub fn turn(&self, session: u32, turn: u64) -> Option<TraceTurn> {
        (turn < u64::from(self.turns(session))).then(|| self.rows[self.row(session, turn as u32)])
    }

    /// When each session came, never falling; `None` where the file does not say.
    ///
    /// Seconds from the first row where the file has timestamps (Mooncake, Azure); the clock's
    /// time as it stands in the column `at`.
    pub fn arrivals(&self) -> Option<&[f64]> {
        (!self.arrivals.is_empty()).then_some(&self.arrivals[..])
    }

    /// The identities of a turn's prompt blocks of [`TraceFile::block`] tokens, in order: equal ids are
    /// equal prefixes up to and with that block. The last may be filled in part. Empty where the
    /// file has none, and past the last turn.
    pub fn blocks(&self, session: u32, turn: u64) -> &[u64] {
        if self.block_ends.is_empty() || turn >= u64::from(self.turns(session)) {
            return &[];
        }
        let row = self.row(session, turn as u32);
        let start = row.checked_sub(1).map_or(0, |before| self.block_ends[before]);
        &self.blocks[start..self.block_ends[row]]
    }

    /// How many tokens a block has, where the file names blocks.
    pub fn block(&self) -> Option<f64> {
        (self.format == Format::Mooncake).then_some(MOONCAKE_BLOCK)
    }

    /// How the file was written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Wrong rows that were left out ([`BadRows::Skip`]).
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn row(&self, session: u32, turn: u32) -> usize {
        let at = (self.starts[session as usize] + turn) as usize;
        self.order.get(at).map_or(at, |&row| row as usize)
    }
}
