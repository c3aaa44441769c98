//! Where the time to the first token goes, request by request.
//!
//! A request is followed from the moment it is asked to its first token at a decode engine.
//! At every instant its session is in one place, and the place says which part the
//! instant belongs to:
//!
//! ```text
//!   asked ─ route ─ prefill queue ─ prefill ─┬─ hop ─ decode queue ─┬─ hop ─ transfer ─┐
//!                                            └──────────────────────┘                  │
//!   first token ◀─ first step ─ slot wait ◀────────────────────────────────────────────┘
//! ```
//!
//! A session that waits at a `join` is where its leg is that moved last. A leg makes no first token.
//!
//! docs/semantics.md §10 has the rules.
//!
//! # Invariants
//!
//! - A request's parts sum to its span: each instant is in one part.
//! - Leaps change nothing: a session's moves, and the end of the first step a decode is in,
//!   are the same moments with and without them.

use serq_ir::{Mode, Program};
use serq_kernel::{Code, Kernel, Move};

use crate::report;
use crate::roles::{Role, Roles};
use crate::samples::{EXACT_PARTS, Samples, Summary};

/// A part of the time to the first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Part {
    /// Until it first reaches an engine's queue.
    Route,
    /// In the queue of a prefill engine.
    PrefillQueue,
    /// Prefilling: admitted and not done.
    Prefill,
    /// On a delay: a message, the fixed part of a read.
    Hop,
    /// In the queue of a decode engine.
    DecodeQueue,
    /// On a wire or another stage that is no engine.
    Transfer,
    /// In a decode engine's queue again, inside a hold of that engine.
    SlotWait,
    /// In the decode engine's steps that end with the first token.
    FirstStep,
    /// Anything else.
    Other,
}

/// Parts.
pub const PARTS: usize = 9;

impl Part {
    /// In the order of a request's way.
    pub const ALL: [Self; PARTS] = [
        Self::Route,
        Self::PrefillQueue,
        Self::Prefill,
        Self::Hop,
        Self::DecodeQueue,
        Self::Transfer,
        Self::SlotWait,
        Self::FirstStep,
        Self::Other,
    ];

    /// As files write it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::PrefillQueue => "prefill_queue",
            Self::Prefill => "prefill",
            Self::Hop => "hop",
            Self::DecodeQueue => "decode_queue",
            Self::Transfer => "transfer",
            Self::SlotWait => "slot_wait",
            Self::FirstStep => "first_step",
            Self::Other => "other",
        }
    }
}

/// A request that had its first token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Serial number of its session.
    pub session: u64,
    /// Turns the session had begun.
    pub turn: u64,
    /// When it was asked.
    pub asked: f64,
    /// When the first token came.
    pub first_token: f64,
    /// By [`Part`].
    pub parts: [f64; PARTS],
}

impl Request {
    /// From asked to the first token.
    pub fn span(&self) -> f64 {
        self.first_token - self.asked
    }
}

/// How a session's place says where its first token comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    /// Not from here.
    None,
    /// The end of this prefill at a decode engine is one.
    RunEnd,
    /// It decodes at this stage; a step that began has it at this time.
    Step { stage: u32, due: Option<f64> },
}

/// A session that is, or was, on the way to a first token.
#[derive(Clone, Debug)]
struct Way {
    request: Request,
    answered: bool,
    /// The part it is in, and since when.
    part: Part,
    since: f64,
    token: Token,
    /// It has reached an engine's queue.
    arrived: bool,
    /// A prefill engine computed for it.
    remote: bool,
    preempted: bool,
    /// It waits for its legs.
    joins: bool,
    /// Where its leg is that moved last.
    leg_part: Part,
    /// The place of the session whose leg it is.
    leg_of: Option<u32>,
    /// Of each hold it is inside of, the role of its queue; last, that of the queue it is in.
    holds: Vec<Option<Role>>,
}

impl Way {
    fn of(session: u64, turn: u64, now: f64, holds: Vec<Option<Role>>) -> Self {
        Self {
            request: Request { session, turn, asked: now, first_token: f64::NAN, parts: [0.0; PARTS] },
            answered: false,
            part: Part::Route,
            since: now,
            token: Token::None,
            arrived: false,
            remote: false,
            preempted: false,
            joins: false,
            leg_part: Part::Other,
            leg_of: None,
            holds,
        }
    }

    /// It asks (again).
    fn ask(&mut self, turn: u64, now: f64) {
        let holds = std::mem::take(&mut self.holds);
        let leg_part = self.leg_part;
        *self = Self { leg_part, ..Self::of(self.request.session, turn, now, holds) };
    }

    /// What it did until now is over. Answers whether that made its first token.
    #[inline]
    fn leave(&mut self, now: f64, preempted: bool) -> bool {
        let token = std::mem::replace(&mut self.token, Token::None);
        if self.answered {
            return false;
        }
        let came = match token {
            Token::RunEnd if !preempted => Some(now),
            Token::Step { due: Some(due), .. } if due <= now => Some(due),
            // A run that ends has had all its steps.
            Token::Step { .. } if !preempted => Some(now),
            _ => None,
        };
        let until = came.unwrap_or(now);
        self.request.parts[self.part as usize] += until - self.since;
        self.since = now;
        if let Some(came) = came {
            self.request.first_token = came;
            self.answered = true;
        }
        self.answered
    }
}

/// Whether a move is to another place, as the parts have it.
#[inline(always)]
pub(crate) fn matters(what: Move) -> bool {
    !matches!(
        what,
        Move::Admitted { .. } | Move::Leased { .. } | Move::LeaseOver { .. } | Move::Serving { also: true, .. }
    )
}

/// All requests of a run, in a program with prefill and decode engines.
#[derive(Debug)]
pub(crate) struct Breakdown {
    /// By member.
    pools: Vec<Option<Role>>,
    /// … and whether it is a delay.
    stages: Vec<(Option<Role>, bool)>,
    /// By slot.
    ways: Vec<Way>,
    /// By stage: slots whose first token is one of its next steps'.
    awaited: Vec<Vec<u32>>,
    spans: Spans,
}

/// The times of all requests.
#[derive(Debug)]
struct Spans {
    warmup: f64,
    total: Samples,
    parts: [Samples; PARTS],
}

impl Spans {
    fn count(&mut self, request: &Request) {
        if request.first_token >= self.warmup {
            self.total.push(request.span());
            for (samples, &part) in self.parts.iter_mut().zip(&request.parts) {
                samples.push(part);
            }
        }
    }
}

impl Breakdown {
    pub(crate) fn new(program: &Program, code: &Code, kernel: &Kernel<'_>, exact: bool) -> Option<Self> {
        let roles = Roles::of(program)?;
        let stages: Vec<_> = code
            .stage_members()
            .enumerate()
            .map(|(id, (_, family, _))| (roles.stage(family), kernel.stage_kind(id as u32) == "delay"))
            .collect();
        Some(Self {
            pools: code.pool_members().map(|(_, family, _)| roles.pool(family)).collect(),
            awaited: vec![Vec::new(); stages.len()],
            stages,
            ways: Vec::new(),
            spans: Spans {
                warmup: program.run.warmup.0,
                total: Samples::new(exact),
                parts: std::array::from_fn(|_| Samples::up_to(EXACT_PARTS, exact)),
            },
        })
    }

    /// Something befell a session. `told` is called with a request that has had its first token.
    pub(crate) fn session(&mut self, now: f64, slot: u32, session: u64, what: Move, told: impl FnOnce(&Request)) {
        let at = slot as usize;
        if self.ways.len() <= at {
            self.ways.resize_with(at + 1, || Way::of(u64::MAX, 0, 0.0, Vec::new()));
        }
        let way = &mut self.ways[at];
        if way.request.session != session {
            let holds = std::mem::take(&mut way.holds);
            *way = Way::of(session, 0, now, holds);
        }
        if !matters(what) {
            return;
        }
        if let Token::Step { stage, due: None } = way.token {
            self.awaited[stage as usize].retain(|&s| s != slot);
        }
        if let Move::Prefilled { stage } = what {
            if self.stages[stage as usize].0 != Some(Role::Decode) {
                return;
            }
            // Whoever was preempted meanwhile has it too.
            way.token = Token::RunEnd;
        }
        if way.leave(now, matches!(what, Move::Preempted { .. } | Move::Cancelled)) {
            told(&way.request);
            self.spans.count(&way.request);
        }
        way.joins = false;
        match what {
            Move::Joining => {
                way.joins = true;
                way.part = way.leg_part;
            }
            Move::Turned => way.ask(way.request.turn + 1, now),
            Move::Preempted { .. } => way.preempted = true,
            Move::Queued { pool, holds } => {
                let role = self.pools[pool as usize];
                let again = std::mem::take(&mut way.preempted);
                if way.answered && role.is_some() && holds == 0 && !again {
                    way.ask(way.request.turn, now);
                }
                way.holds.resize(holds as usize, None);
                let inside = way.holds.contains(&Some(Role::Decode));
                way.holds.push(role);
                way.arrived |= role.is_some();
                way.part = match role {
                    Some(Role::Prefill) => Part::PrefillQueue,
                    Some(Role::Decode) if inside => Part::SlotWait,
                    Some(Role::Decode) => Part::DecodeQueue,
                    None => Part::Other,
                };
            }
            Move::Serving { stage, mode, .. } => {
                let (role, delays) = self.stages[stage as usize];
                if way.answered && role == Some(Role::Prefill) {
                    way.ask(way.request.turn, now);
                }
                way.arrived |= role.is_some();
                way.remote |= role == Some(Role::Prefill);
                way.part = match (role, mode) {
                    (Some(Role::Prefill), _) => Part::Prefill,
                    (Some(Role::Decode), Some(Mode::Prefill)) if !way.remote => Part::Prefill,
                    (Some(Role::Decode), _) => Part::FirstStep,
                    (None, Some(_)) => Part::Other,
                    (None, None) if delays => Part::Hop,
                    (None, None) => Part::Transfer,
                };
                way.token = match (role, mode) {
                    _ if way.answered => Token::None,
                    (Some(Role::Decode), Some(Mode::Prefill)) => Token::RunEnd,
                    (Some(Role::Decode), Some(Mode::Decode)) => {
                        self.awaited[stage as usize].push(slot);
                        Token::Step { stage, due: None }
                    }
                    _ => Token::None,
                };
            }
            _ => way.part = Part::Other,
        }
        if !way.arrived {
            way.part = Part::Route;
        }
    }

    /// Something befell a leg.
    pub(crate) fn leg(&mut self, now: f64, slot: u32, what: Move) {
        let at = slot as usize;
        if self.ways.len() <= at {
            self.ways.resize_with(at + 1, || Way::of(u64::MAX, 0, 0.0, Vec::new()));
        }
        let (stage_role, pool_role) = (|stage: u32| self.stages[stage as usize], |pool: u32| self.pools[pool as usize]);
        let way = &mut self.ways[at];
        let mut remote = false;
        let part = match what {
            Move::Forked { of, .. } => {
                // Whoever has the place next is another one.
                *way = Way { leg_of: Some(of), ..Way::of(u64::MAX, 0, now, Vec::new()) };
                Part::Other
            }
            Move::Queued { pool, holds } => {
                way.holds.resize(holds as usize, None);
                let inside = way.holds.contains(&Some(Role::Decode));
                way.holds.push(pool_role(pool));
                match pool_role(pool) {
                    Some(Role::Prefill) => Part::PrefillQueue,
                    Some(Role::Decode) if inside => Part::SlotWait,
                    Some(Role::Decode) => Part::DecodeQueue,
                    None => Part::Other,
                }
            }
            Move::Serving { stage, mode, also: false, .. } => {
                let (role, delays) = stage_role(stage);
                remote = role == Some(Role::Prefill);
                match (role, mode) {
                    (Some(_), Some(Mode::Prefill)) | (Some(Role::Prefill), _) => Part::Prefill,
                    (None, None) if delays => Part::Hop,
                    (None, None) => Part::Transfer,
                    _ => Part::Other,
                }
            }
            what if matters(what) => Part::Other,
            _ => return,
        };
        let Some(of) = way.leg_of else { return };
        let session = &mut self.ways[of as usize];
        session.leg_part = part;
        session.remote |= remote;
        if session.joins {
            session.leave(now, false);
            session.part = part;
        }
    }

    /// The part a session is in, on its way to a first token.
    pub(crate) fn part(&self, slot: u32) -> Option<Part> {
        let way = self.ways.get(slot as usize)?;
        (!way.answered).then_some(way.part)
    }

    /// Whether somebody's first token may be in a step this stage begins.
    pub(crate) fn awaits(&self, stage: u32) -> bool {
        !self.awaited[stage as usize].is_empty()
    }

    /// The stage begins a step with these sessions, that ends at `end`.
    pub(crate) fn step_started(&mut self, stage: u32, end: f64, jobs: impl Iterator<Item = (u64, f64)>) {
        let mut awaited = std::mem::take(&mut self.awaited[stage as usize]);
        for (session, _) in jobs {
            awaited.retain(|&slot| {
                let way = &mut self.ways[slot as usize];
                let mine = way.request.session == session;
                if mine {
                    way.token = Token::Step { stage, due: Some(end) };
                }
                !mine
            });
        }
        self.awaited[stage as usize] = awaited;
    }

    /// Requests whose first token came while they decode still.
    pub(crate) fn finish(&mut self, end: f64, told: &mut dyn FnMut(&Request)) {
        let mut ways = std::mem::take(&mut self.ways);
        for way in &mut ways {
            if let Token::Step { due: Some(due), .. } = way.token
                && due <= end
                && way.leave(end, false)
            {
                self.spans.count(&way.request);
                told(&way.request);
            }
        }
    }

    pub(crate) fn report(&self) -> report::Ttft {
        let row = |samples: &Samples| {
            let summary = samples.summarise();
            let [p50, p90, p95, p99] = summary.quantiles;
            let part = report::TtftPart { mean: summary.mean, ci: summary.ci, share: f64::NAN, p50, p90, p95, p99 };
            (summary, part)
        };
        let (Summary { count, .. }, total) = row(&self.spans.total);
        let mut sketched = false;
        let parts = Part::ALL
            .iter()
            .zip(&self.spans.parts)
            .map(|(part, samples)| {
                let (summary, row) = row(samples);
                sketched |= summary.sketched;
                (part.word(), report::TtftPart { share: row.mean / total.mean, ..row })
            })
            .collect();
        // The whole of nothing is no whole.
        let share = if total.mean > 0.0 { 1.0 } else { f64::NAN };
        report::Ttft { count, sketched, total: report::TtftPart { share, ..total }, parts }
    }
}
