//! What a schedule is: who there is, what they are asked for, and what goes wrong, all drawn from its seed.

use crate::protocol::reader::Mode;
use crate::protocol::{Config, Otherwise, Policy};

use super::dice::Dice;

/// One request for both legs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) arrives: u64,
    pub(crate) prefill: usize,
    pub(crate) decode: usize,
    pub(crate) mode: Mode,
    /// Both legs are dispatched at once, and reach their instances this much later: the prefill leg, the decode leg.
    /// Without, the decode leg is dispatched after the prefill's answer.
    pub(crate) concurrent: Option<(u64, u64)>,
    pub(crate) policy: Policy,
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    /// Tokens the reader has cached, whole blocks.
    pub(crate) hit: u32,
    /// The prefill fails at this token.
    pub(crate) fails_at: Option<u32>,
    /// The decode leg is refused before its scheduler sees it.
    pub(crate) rejected: bool,
}

/// Something that goes wrong at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Fault {
    /// A process dies; another one is started at its address after a while, or never.
    Crash { host: usize, down_us: Option<u64> },
    /// A process does nothing for a while. Reads of its memory may go on.
    Stall { host: usize, us: u64 },
    /// Nothing passes between two processes for a while.
    Partition { prefill: usize, decode: usize, us: u64 },
    /// A client goes away; which of the two legs hear of it.
    Abort { request: usize, prefill: bool, decode: bool },
    /// The gateway gives up on a decode leg and dispatches it once more, with the offer of the first time; whether it
    /// tells the first decoder.
    Redispatch { request: usize, decode: usize, tells: bool },
    /// A reader's scheduler takes a request's blocks away.
    Preempt { request: usize },
}

/// A process's clock beside the world's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Clock {
    pub(crate) offset: u64,
    /// In 1024ths.
    pub(crate) rate: u64,
}

impl Clock {
    pub(crate) fn local(self, global: u64) -> u64 {
        self.offset + global * self.rate / 1024
    }

    /// The earliest time of the world at which this clock shows at least that.
    pub(crate) fn global(self, local: u64) -> u64 {
        (local.saturating_sub(self.offset).saturating_mul(1024)).div_ceil(self.rate)
    }
}

/// One process's place in a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPlan {
    pub(crate) blocks: u32,
    pub(crate) block_tokens: u32,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
}

/// Everything drawn for one schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Plan {
    /// The prefill instances, then the decode instances.
    pub(crate) hosts: Vec<HostPlan>,
    pub(crate) prefills: usize,
    pub(crate) requests: Vec<Request>,
    pub(crate) faults: Vec<(u64, Fault)>,
    pub(crate) discovered: bool,
    /// Microseconds for a message, and how much longer one may take.
    pub(crate) delay_us: u64,
    pub(crate) jitter_us: u64,
    /// Per mille of messages.
    pub(crate) dropped: u64,
    pub(crate) repeated: u64,
    /// Per mille of messages that are very late.
    pub(crate) late: u64,
    /// Microseconds for a cell.
    pub(crate) cell_us: u64,
    /// Per mille of parts that fail, that hang, and whose end is not told.
    pub(crate) parts_failed: u64,
    pub(crate) parts_stuck: u64,
    pub(crate) completions_lost: u64,
    /// Reads of a stopped process's memory, and its own posted writes, go on.
    pub(crate) memory_goes_on: bool,
    /// From when on nothing goes wrong any more.
    pub(crate) calm_from: u64,
    /// Until when every request must have ended.
    pub(crate) answered_by: u64,
    /// Until when everything must be over, deferred bytes and tombstones too.
    pub(crate) end: u64,
}

fn config(dice: &mut Dice) -> Config {
    let lease_us = dice.one_of(&[20_000, 60_000, 300_000]);
    Config {
        lease_us,
        extension_us: lease_us * 2 / 3,
        heartbeat_us: lease_us / 6,
        resend_us: dice.one_of(&[4_000, 10_000]),
        connect_us: dice.one_of(&[40_000, 100_000]),
        wait_us: dice.one_of(&[60_000, 400_000]),
        transfer_us: dice.one_of(&[20_000, 100_000]),
        confirm_us: dice.one_of(&[10_000, 50_000]),
        quarantine_us: dice.one_of(&[30_000, 100_000]),
        tombstone_us: dice.one_of(&[50_000, 400_000]),
        part_runs: dice.between(1, 3) as usize,
        window: dice.between(1, 3) as u32,
        transfers_max: dice.one_of(&[64, 64, 64, 2]),
        tombstones_max: dice.one_of(&[64, 64, 2]),
        peers_max: dice.one_of(&[8, 8, 2]),
    }
}

/// How long all requests can take after it has become calm: all deadlines of all loads one after the other, on the
/// slowest clock, after whatever was cut or stopped last.
fn longest(hosts: &[HostPlan], requests: &[Request], faults: &[(u64, Fault)]) -> u64 {
    let most = |of: fn(&Config) -> u64| hosts.iter().map(|host| of(&host.config)).max().unwrap_or(0);
    let once = most(|config| config.wait_us) + most(|config| config.transfer_us);
    let around = most(|config| config.connect_us)
        + most(|config| config.confirm_us)
        + most(|config| config.quarantine_us)
        + most(|config| config.lease_us);
    let loads = requests.iter().map(|request| once * (1 + u64::from(request.policy.retries)) + around).sum::<u64>();
    let cut = faults.iter().map(|(_, fault)| match fault {
        Fault::Stall { us, .. } | Fault::Partition { us, .. } => *us,
        Fault::Crash { down_us, .. } => down_us.unwrap_or(0),
        Fault::Abort { .. } | Fault::Redispatch { .. } | Fault::Preempt { .. } => 0,
    });
    (loads + cut.sum::<u64>()) * 1024 / 900
}

impl Plan {
    /// The schedule of a seed.
    pub(crate) fn drawn(seed: u64) -> Plan {
        let mut dice = Dice::new(seed);
        let dice = &mut dice;
        let prefills = dice.between(1, 3) as usize;
        let decodes = dice.between(1, 3) as usize;
        let spread = config(dice);
        // Whether things go wrong at all, and how much: most trouble is seen best alone.
        let trouble = dice.one_of(&[0, 1, 1, 2, 4]);
        let skewed = dice.chance(500);
        let mut hosts = Vec::new();
        for _ in 0..prefills + decodes {
            let rate = if skewed { dice.between(900, 1150) } else { 1024 };
            let clock = Clock { offset: dice.between(0, 1 << 40), rate };
            let config = if dice.chance(300) { config(dice) } else { spread.clone() };
            let block_tokens = dice.between(2, 4) as u32;
            hosts.push(HostPlan { blocks: 0, block_tokens, clock, config });
        }
        let count = dice.between(1, 8) as usize;
        let span = dice.one_of(&[2_000, 20_000, 100_000]);
        let same_mode = dice.chance(700).then(|| dice.one_of(&[Mode::Pull, Mode::Push]));
        let mut requests = Vec::new();
        for _ in 0..count {
            let prefill = dice.between(0, prefills as u64 - 1) as usize;
            let decode = prefills + dice.between(0, decodes as u64 - 1) as usize;
            let prompt = dice.between(1, 20) as u32;
            let block = hosts[decode].block_tokens;
            let hit = if dice.chance(300) { dice.between(0, u64::from(prompt / block)) as u32 * block } else { 0 };
            let drawn = dice.one_of(&[Mode::Pull, Mode::Push]);
            requests.push(Request {
                arrives: dice.between(0, span),
                prefill,
                decode,
                mode: same_mode.unwrap_or(drawn),
                concurrent: dice.chance(500).then(|| dice.one_of(&[(0, 0), (0, 2_000), (10_000, 0), (40_000, 0)])),
                policy: Policy {
                    retries: dice.one_of(&[0, 0, 1, 3]),
                    otherwise: dice.one_of(&[Otherwise::Recompute, Otherwise::Error]),
                },
                prompt,
                output: dice.between(1, 6) as u32,
                hit,
                fails_at: (trouble > 0 && dice.chance(60)).then(|| dice.between(0, u64::from(prompt)) as u32),
                rejected: trouble > 0 && dice.chance(40),
            });
        }
        for (at, host) in hosts.iter_mut().enumerate() {
            let blocks = |request: &Request| (request.prompt + request.output).div_ceil(host.block_tokens);
            let mine = requests.iter().filter(|request| request.prefill == at || at >= prefills);
            let largest = mine.map(blocks).max().unwrap_or(1);
            host.blocks = largest + dice.one_of(&[0, 1, largest, 4 * largest]);
        }
        let calm_from = span + dice.one_of(&[20_000, 200_000]);
        let mut faults = Vec::new();
        for _ in 0..trouble {
            let fault = match dice.between(0, 6) {
                0 => Fault::Crash {
                    host: dice.between(0, hosts.len() as u64 - 1) as usize,
                    down_us: dice.one_of(&[Some(0), Some(1_000), Some(30_000), None]),
                },
                1 => Fault::Stall {
                    host: dice.between(0, hosts.len() as u64 - 1) as usize,
                    us: dice.one_of(&[2_000, 30_000, 300_000]),
                },
                2 => Fault::Partition {
                    prefill: dice.between(0, prefills as u64 - 1) as usize,
                    decode: prefills + dice.between(0, decodes as u64 - 1) as usize,
                    us: dice.one_of(&[2_000, 30_000, 300_000]),
                },
                3 => Fault::Preempt { request: dice.between(0, count as u64 - 1) as usize },
                4 => Fault::Redispatch {
                    request: dice.between(0, count as u64 - 1) as usize,
                    decode: prefills + dice.between(0, decodes as u64 - 1) as usize,
                    tells: dice.chance(500),
                },
                _ => Fault::Abort {
                    request: dice.between(0, count as u64 - 1) as usize,
                    prefill: dice.chance(700),
                    decode: dice.chance(700),
                },
            };
            // Most things go on while requests are young.
            let time = match fault {
                Fault::Abort { request, .. } | Fault::Redispatch { request, .. } | Fault::Preempt { request }
                    if dice.chance(700) =>
                {
                    let young = dice.one_of(&[1_000, 10_000, 40_000]);
                    requests[request].arrives + dice.between(0, young)
                }
                _ => {
                    let most = dice.one_of(&[span + 5_000, calm_from]);
                    dice.between(0, most)
                }
            };
            faults.push((time, fault));
        }
        let answered_by = calm_from + longest(&hosts, &requests, &faults);
        let intense = |dice: &mut Dice, rates: &[u64]| if trouble > 0 { dice.one_of(rates) } else { 0 };
        Plan {
            prefills,
            requests,
            faults,
            discovered: dice.chance(500),
            delay_us: dice.one_of(&[50, 500]),
            jitter_us: dice.one_of(&[0, 100, 3_000]),
            dropped: intense(dice, &[0, 0, 30, 200]),
            repeated: intense(dice, &[0, 0, 30, 200]),
            late: intense(dice, &[0, 30, 100, 300]),
            cell_us: dice.one_of(&[1, 50, 400, 3_000]),
            parts_failed: intense(dice, &[0, 0, 0, 50, 200]),
            parts_stuck: intense(dice, &[0, 0, 0, 30, 100]),
            completions_lost: intense(dice, &[0, 0, 0, 30, 100]),
            memory_goes_on: dice.chance(500),
            calm_from,
            answered_by,
            // The latest bytes are 5 s late.
            end: answered_by + 10_000_000,
            hosts,
        }
    }
}
