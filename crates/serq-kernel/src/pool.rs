//! One pool: who has how much of it, who waits.
//!
//! Amounts are counted in *quanta*: blocks where the pool has blocks, else units. A
//! count of blocks is a whole number and exact; exact units are kept in a pair of
//! doubles ([`ExactSum`]), so giving back what was taken leaves 0 and not 1e-16, on
//! which `choose` would break its ties.
//!
//! # Invariants
//!
//! - allocated = Σ open holds' shares + Σ leases, and `holders` counts them, but for the holds of who
//!   was cancelled and is shielded; where prefixes are
//!   shared ([`crate::block_pool`]), a block of several shares counts once.
//! - cached = Σ cache entries, or the blocks nobody refers to that can be found.
//! - allocated + cached ≤ cap (within 1e-9), after every fact.
//!
//! [`crate::Kernel::check`] asserts them; debug and test builds call it after facts.

use std::collections::VecDeque;

use crate::block_pool::BlockPool;
use crate::code::PoolCode;
use crate::kernel::PoolState;
use crate::lru::Lru;

/// Absolute tolerance of every comparison of amounts.
pub(crate) const TOLERANCE: f64 = 1e-9;

/// What changed of a pool since it was last looked at.
pub(crate) const USED: u8 = 1;
pub(crate) const CACHED: u8 = 2;
pub(crate) const QUEUE: u8 = 4;
pub(crate) const HOLDERS: u8 = 8;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) cap: f64,
    /// Units a quantum is.
    pub(crate) quantum: f64,
    pub(crate) blocks: bool,
    /// … without addresses, and evicted one like the other.
    pub(crate) plain_blocks: bool,
    pub(crate) used: ExactSum,
    pub(crate) holders: u32,
    /// What of it is leased.
    pub(crate) leased: ExactSum,
    pub(crate) cached: ExactSum,
    /// Its entries, in order of release.
    pub(crate) lru: Lru,
    /// Its blocks, where prefixes are shared; `used` and `cached` count them.
    pub(crate) addressed: Option<BlockPool>,
    /// Preempted holds' sessions, the first to be served in front.
    pub(crate) returning: VecDeque<u32>,
    /// The other waiters, in joining order.
    pub(crate) queue: VecDeque<u32>,
    /// Growths without room, in stall order.
    pub(crate) growers: Vec<Grower>,
    /// [`USED`] …, since the world last looked.
    pub(crate) touched: u8,
    /// Stages that refused a head for want of it, and are told when it changes.
    pub(crate) watchers: Vec<u32>,
    /// Entries are being evicted from it.
    pub(crate) evicting: bool,
    pub(crate) counts: PoolCounts,
}

/// A growth that waits for room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grower {
    pub(crate) session: u32,
    /// Quanta.
    pub(crate) amount: f64,
    /// The job of a resident that gets no token meanwhile; else a `grow` statement.
    pub(crate) job: Option<u32>,
    /// Into the session's shares.
    pub(crate) share: u32,
}

/// Whole-run counters of a pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolCounts {
    /// Holds admitted.
    pub admissions: u64,
    /// Cache entries fully evicted.
    pub evicted_entries: u64,
    /// Units evicted.
    pub evicted_units: f64,
    /// Holds preempted.
    pub preemptions: u64,
    /// Pieces spilled.
    pub spills: u64,
    /// Sessions ended because no capacity could serve them.
    pub rejected: u64,
    /// Sessions preempted without having got further.
    pub stuck: u64,
    /// Leases whose time was over before somebody took them.
    pub leases_expired: u64,
    /// Releases that came after their lease had expired.
    pub late_releases: u64,
    /// Runs that read it and failed.
    pub reads_failed: u64,
}

impl Pool {
    pub(crate) fn new(code: &PoolCode) -> Self {
        Self {
            cap: code.cap,
            quantum: code.block.unwrap_or(1.0),
            blocks: code.block.is_some(),
            plain_blocks: code.block.is_some() && !code.share_prefixes && code.evict.is_none() && code.spill.is_none(),
            used: ExactSum::default(),
            holders: 0,
            leased: ExactSum::default(),
            cached: ExactSum::default(),
            lru: Lru::default(),
            addressed: code.share_prefixes.then(|| BlockPool::spilling(code.parts)),
            returning: VecDeque::new(),
            queue: VecDeque::new(),
            growers: Vec::new(),
            touched: 0,
            watchers: Vec::new(),
            evicting: false,
            counts: PoolCounts::default(),
        }
    }

    /// The least number of quanta that hold `units`.
    #[inline]
    pub(crate) fn quanta(&self, units: f64) -> f64 {
        if self.blocks { ceil(units / self.quantum) } else { units }
    }

    /// The most quanta that `units` fill.
    pub(crate) fn quanta_within(&self, units: f64) -> f64 {
        if self.blocks { (units / self.quantum).floor() } else { units }
    }

    pub(crate) fn units(&self, quanta: f64) -> f64 {
        quanta * self.quantum
    }

    pub(crate) fn used_units(&self) -> f64 {
        self.units(self.used.value())
    }

    pub(crate) fn free_units(&self) -> f64 {
        self.cap - self.used_units()
    }

    pub(crate) fn cached_units(&self) -> f64 {
        self.units(self.cached.value())
    }

    /// Whether this many further quanta fit; cached ones make room.
    pub(crate) fn fits(&self, quanta: f64) -> bool {
        self.units(self.used.value() + quanta) <= self.cap + TOLERANCE
    }

    /// Units by which what is allocated and cached, and `extra` quanta more, pass the cap.
    #[inline]
    pub(crate) fn over_cap(&self, extra: f64) -> f64 {
        self.units(self.used.value() + self.cached.value() + extra) - self.cap
    }

    pub(crate) fn state(&self) -> PoolState {
        PoolState {
            used: self.used_units(),
            cached: self.cached_units(),
            queue: self.waiting() as u32,
            holders: self.holders,
        }
    }

    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.returning.len() + self.queue.len()
    }
}

/// A sum of doubles that takes back exactly what it was given, to 2⁻¹⁰⁶ of its size.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExactSum {
    high: f64,
    low: f64,
}

impl ExactSum {
    pub(crate) fn of(x: f64) -> Self {
        Self { high: x, low: 0.0 }
    }

    #[inline]
    pub(crate) fn add(&mut self, x: f64) {
        if self.low == 0.0 && whole(x) && whole(self.high) {
            // Whole numbers add up exactly.
            self.high += x;
            return;
        }
        self.add_exactly(x);
    }

    /// The same of a whole number to a sum of whole numbers.
    #[inline]
    pub(crate) fn add_whole(&mut self, x: f64) {
        if self.low == 0.0 && self.high.abs() < WHOLE_MAX {
            self.high += x;
        } else {
            self.add_exactly(x);
        }
    }

    #[inline(never)]
    fn add_exactly(&mut self, x: f64) {
        if x.is_infinite() || self.high.is_infinite() {
            // Endless work is endless; the error terms below would make it NaN.
            self.high += x;
            return;
        }
        // Knuth's two-sum, twice.
        let sum = self.high + x;
        let back = sum - self.high;
        let error = (self.high - (sum - back)) + (x - back);
        let low = self.low + error;
        self.high = sum + low;
        self.low = low - (self.high - sum);
    }

    #[inline]
    pub(crate) fn subtract(&mut self, x: f64) {
        self.add(-x);
    }

    pub(crate) fn value(self) -> f64 {
        self.high
    }
}

/// Whole numbers up to this are added to exactly.
const WHOLE_MAX: f64 = (1_u64 << 52) as f64;

/// A whole number below 2³¹ in size.
#[inline(always)]
fn whole(x: f64) -> bool {
    f64::from(x as i32) == x
}

/// The least whole number that is not below `x`, without a call where it is small.
#[inline(always)]
fn ceil(x: f64) -> f64 {
    let down = f64::from(x as i32);
    if (x - down).abs() < 1.0 { if down < x { down + 1.0 } else { down } } else { x.ceil() }
}
