//! A timeline in words: time, who, what; a line an event, in the order of time.
//!
//! ```text
//!   1.000000  P          took a step of 1 since 0.000000: prefill of session 0 (10)
//!   1.000000  session 0  waits at D.kv
//! ```
//!
//! A step is told when it is over, and what went on in it: several equal ones as one line.

use std::collections::BTreeSet;
use std::fmt::Write;

use serq_ir::{Mode, Program};
use serq_sim::record::{Move, Recorder};
use serq_sim::ttft::{Part, Request};

use super::members::{self, Kind, Member};
use super::{Pen, Span, Steps};
use crate::number::{count, significant};

/// The words.
pub(super) struct Words {
    out: Pen,
    span: Span,
    pools: Vec<Member>,
    stages: Vec<(Member, Kind)>,
    /// Of the time and of who.
    widths: (usize, usize),
    /// Said next: a flow's further wires are added to its line.
    pending: Option<(f64, String, String)>,
    /// A first token that is told with what its session does next.
    token: Option<(u64, String)>,
    /// Sessions that prefill now.
    prefilling: BTreeSet<u64>,
    /// By stage.
    steps: Vec<Option<Steps>>,
}

impl Words {
    pub(super) fn new(program: &Program, span: Span, out: Pen) -> Self {
        let stages = members::stages(program);
        let who = stages.iter().map(|(stage, _)| stage.name.len()).chain([10]).max().unwrap_or(10);
        let time = format!("{:.6}", program.run.horizon.0).len();
        Self {
            out,
            span,
            pools: members::pools(program),
            pending: None,
            token: None,
            prefilling: BTreeSet::new(),
            steps: stages.iter().map(|_| None).collect(),
            stages,
            widths: (time, who),
        }
    }

    fn line(&self, time: f64, who: &str, what: &str) {
        if self.span.meets(time, time) {
            let (wide, who_wide) = self.widths;
            self.out.write(&format!("{time:wide$.6}  {who:who_wide$}  {what}\n"));
        }
    }

    /// Says what is pending.
    fn flush(&mut self) {
        if let Some((time, who, what)) = self.pending.take() {
            self.line(time, &who, &what);
        }
    }

    fn tell_token(&mut self, now: f64) {
        if let Some((session, what)) = self.token.take() {
            self.line(now, &format!("session {session}"), &what);
        }
    }

    fn tell_steps(&mut self, end: f64, stage: u32, steps: u64) {
        self.flush();
        let Some(Steps { since, cost, jobs }) = self.steps[stage as usize].take() else { return };
        let many = if steps == 1 { "a step".into() } else { format!("{steps} steps") };
        let list = |what: &str, prefill: bool| {
            let jobs = jobs.iter().filter(|(session, _)| self.prefilling.contains(session) == prefill);
            let each = |(session, tokens): &(u64, f64)| {
                if prefill { format!("{session} ({})", short(*tokens)) } else { session.to_string() }
            };
            let jobs: Vec<String> = jobs.map(each).collect();
            if jobs.is_empty() { String::new() } else { format!("{what} {}", jobs.join(", ")) }
        };
        let mut jobs = [list("prefill of session", true), list("decode of session", false)].join("; ");
        if jobs.len() == 2 {
            jobs = "nobody".into();
        }
        let jobs = jobs.trim_matches([';', ' ']);
        let what = format!("took {many} of {} since {since:.6}: {jobs}", short(cost));
        self.line(end, &self.stages[stage as usize].0.name, &what);
    }
}

impl Words {
    /// Something befell a session, or a leg of it.
    fn befalls(&mut self, now: f64, session: u64, who: &str, what: Move) {
        if let (Move::Serving { stage, also: true, .. }, Some((_, _, before))) = (what, &mut self.pending) {
            let _ = write!(before, ", {}", self.stages[stage as usize].0.name);
            return;
        }
        if let Move::Prefilled { .. } = what {
            // Its decode or its end is told at once.
            return;
        }
        self.flush();
        self.tell_token(now);
        match what {
            Move::Serving { mode: Some(Mode::Prefill), .. } => {
                self.prefilling.insert(session);
            }
            Move::Leased { .. } | Move::LeaseOver { .. } | Move::Joining => {}
            _ => {
                self.prefilling.remove(&session);
            }
        }
        let pool = |pool: u32| &self.pools[pool as usize].name[..];
        let what = match what {
            Move::Turned => "begins a turn".into(),
            Move::Queued { pool: at, holds: 0 } => format!("waits at {}", pool(at)),
            Move::Queued { pool: at, holds } => {
                format!("waits at {}, inside of {}", pool(at), count(u64::from(holds), "hold"))
            }
            Move::Admitted { pool: at } => format!("is admitted at {}", pool(at)),
            Move::Growing { pool: at } => format!("waits for room to grow in {}", pool(at)),
            Move::Serving { stage, mode, work, .. } => {
                let (member, kind) = &self.stages[stage as usize];
                let (name, work) = (&member.name, short(work));
                match (mode, kind) {
                    (Some(Mode::Prefill), _) => format!("prefills {work} at {name}"),
                    (Some(Mode::Decode), _) => format!("decodes {work} at {name}"),
                    (None, Kind::Delay) => format!("is on {name} for {work}"),
                    (None, _) => format!("moves {work} over {name}"),
                }
            }
            Move::Preempted { pool: at } => format!("is preempted at {}", pool(at)),
            Move::Leased { pool: at, units } => format!("leases {} of {}", short(units), pool(at)),
            Move::LeaseOver { pool: at } => format!("has its lease of {} ended", pool(at)),
            Move::Prefilled { .. } => unreachable!("it is not told"),
            Move::Cancelled => "has lost its client".into(),
            Move::Failed => "has failed".into(),
            Move::Ended => "ends".into(),
            Move::Joining => "waits for its legs".into(),
            Move::Forked { .. } => "begins".into(),
            Move::LegOver => "is over".into(),
        };
        self.pending = Some((now, who.to_owned(), what));
    }
}

impl Recorder for Words {
    fn session(&mut self, now: f64, session: u64, what: Move, _part: Option<Part>) {
        self.befalls(now, session, &format!("session {session}"), what);
    }

    fn leg(&mut self, now: f64, session: u64, leg: u32, what: Move) {
        self.befalls(now, session, &format!("session {session}, leg {leg}"), what);
    }

    fn first_token(&mut self, request: &Request) {
        let mut what =
            format!("had its first token at {:.6}, {} after asking:", request.first_token, short(request.span()));
        let mut parts =
            Part::ALL.iter().map(|&part| (part, request.parts[part as usize])).filter(|(_, time)| *time != 0.0);
        if let Some((part, time)) = parts.next() {
            let _ = write!(what, " {} {}", part.word().replace('_', " "), short(time));
        }
        for (part, time) in parts {
            let _ = write!(what, ", {} {}", part.word().replace('_', " "), short(time));
        }
        self.flush();
        self.tell_token(request.first_token);
        self.token = Some((request.session, what));
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn steps_started(&mut self, now: f64, stage: u32, cost: f64, jobs: &mut dyn Iterator<Item = (u64, f64)>) {
        self.steps[stage as usize] = Some(Steps { since: now, cost, jobs: jobs.collect() });
    }

    fn steps_ended(&mut self, now: f64, stage: u32, steps: u64) {
        self.tell_steps(now, stage, steps);
    }

    fn finished(&mut self, end: f64) {
        self.flush();
        self.tell_token(end);
    }
}

fn short(value: f64) -> String {
    significant(value, 6)
}
