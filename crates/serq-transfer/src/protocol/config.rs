//! Durations and limits of both machines.
//!
//! The lease's three numbers are vLLM's NIXL connector's: 30 s, 20 s more at each heartbeat, one every 5 s
//! (vllm#41383). The others are judgement: they bound waits that had no bound where requests hung for ever.

/// How long things last, in microseconds of one's own clock, and how many there may be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// A lease without a heartbeat.
    pub lease_us: u64,
    /// What is left of a lease after a heartbeat, at least.
    pub extension_us: u64,
    /// From one heartbeat of a reader to the next.
    pub heartbeat_us: u64,
    /// A message that wants an answer is sent again after this.
    pub resend_us: u64,
    /// How long a reader tries to be greeted.
    pub connect_us: u64,
    /// From reserved blocks to the start of the read, or to the last part written. Holds the prefill where the legs are
    /// dispatched at once.
    pub wait_us: u64,
    /// A read's or a write's longest time; then the peer is fenced.
    pub transfer_us: u64,
    /// From the end of a read to the source's word on it.
    pub confirm_us: u64,
    /// Blocks of a load that is over, held for what may still land; then the peer is fenced.
    pub quarantine_us: u64,
    /// How long it is known how a transfer ended.
    pub tombstone_us: u64,
    /// A transfer's runs of one part, at least; there are at most [`PARTS_MAX`](super::parts::PARTS_MAX) parts.
    pub part_runs: usize,
    /// Parts of one write in flight at a time. The registration is looked at again before each.
    pub window: u32,
    /// Transfers alive.
    pub transfers_max: usize,
    /// Transfers of which it is known how they ended.
    pub tombstones_max: usize,
    /// Peers one is connected with.
    pub peers_max: usize,
}

impl Default for Config {
    fn default() -> Config {
        const SECOND: u64 = 1_000_000;
        Config {
            lease_us: 30 * SECOND,
            extension_us: 20 * SECOND,
            heartbeat_us: 5 * SECOND,
            resend_us: SECOND,
            connect_us: 30 * SECOND,
            wait_us: 300 * SECOND,
            transfer_us: 60 * SECOND,
            confirm_us: 10 * SECOND,
            // Not less than the peer's lease, so that who comes back in time is not cut off.
            quarantine_us: 40 * SECOND,
            tombstone_us: 120 * SECOND,
            part_runs: 16,
            window: 4,
            transfers_max: 65_536,
            tombstones_max: 65_536,
            peers_max: 1_024,
        }
    }
}

/// What was counted since the start. Not part of the state: two machines that differ in this only are equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Messages about a transfer that is not known.
    pub unknown: u64,
    /// Transfers named by a heartbeat that have no lease here.
    pub unmatched: u64,
    /// Messages meant for another incarnation, or another address.
    pub misaddressed: u64,
    /// Messages of a connection that is over.
    pub stale: u64,
    /// Facts and messages about what is over; nothing is wrong with them.
    pub late: u64,
    /// Leases that ran out.
    pub leases_expired: u64,
    /// Peers that were fenced.
    pub fences: u64,
}

impl PartialEq for Counters {
    fn eq(&self, _: &Counters) -> bool {
        true
    }
}

impl std::hash::Hash for Counters {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}
