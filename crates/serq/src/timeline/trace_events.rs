//! A timeline as trace events, the JSON that ui.perfetto.dev and chrome://tracing open.
//!
//! ```text
//!   process "requests"   a row a session:  ▕ turn 1                                    ▏
//!                                          ▕queue▏prefill      ▏hop▏transfer▏…▏decode  ▏
//!                                                ▕chunk▏chunk ▏
//!   process "P[0]"       a row of steps, rows of leases and of moves over its wires
//! ```
//!
//! Each leg has a row of its own. A clock unit of the program is a second here; times are whole nanoseconds.
//!
//! # Invariants
//!
//! - Slices of one row are nested or apart. What may overlap (leases, moves over one wire) takes
//!   the first row that is free.
//! - A slice is written when it is over, so that only open ones are remembered.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::Serialize;
use serde_json::{Map, Value, json};
use serq_ir::{Mode, Program};
use serq_sim::record::{Move, Recorder};
use serq_sim::ttft::{Part, Request};

use super::members::{self, Kind, Member};
use super::{Pen, Span, Steps};

/// The process of the requests; instances come after it.
const REQUESTS: u32 = 1;

/// A session's row has its number, that of its n-th leg so many times n more.
const LEG_ROWS: u64 = 1_000_000_000;

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'a str,
    ph: &'a str,
    /// Microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Map::is_empty")]
    args: Map<String, Value>,
}

/// Rows for what may overlap: each takes the first free one.
#[derive(Default)]
struct Rows(Vec<Row>);

struct Row {
    tid: u64,
    taken: bool,
}

impl Rows {
    /// The first free one; `None`: one is to be made.
    fn take(&mut self) -> Option<usize> {
        let free = self.0.iter().position(|row| !row.taken)?;
        self.0[free].taken = true;
        Some(free)
    }
}

/// What a session does now.
struct Stay {
    since: f64,
    name: &'static str,
    at: String,
    part: Option<Part>,
    mode: Option<Mode>,
    work: f64,
    wires: Vec<(u32, usize)>,
}

/// A session alive.
#[derive(Default)]
struct Life {
    turn: u64,
    turn_since: f64,
    stay: Option<Stay>,
    /// Its last request's first token.
    first_token: Option<f64>,
    /// Pool, row, since, units; oldest first.
    leases: Vec<(u32, usize, f64, f64)>,
}

/// The writer.
pub(super) struct TraceEvents {
    out: Pen,
    span: Span,
    pools: Vec<Member>,
    stages: Vec<(Member, Kind)>,
    /// By instance.
    processes: BTreeMap<String, u32>,
    /// By row.
    lives: BTreeMap<u64, Life>,
    /// Most legs of a turn so far.
    legs: u64,
    /// By stage.
    steps: Vec<Option<Steps>>,
    /// By stage: of an engine, the row of its steps; of a wire, those of the moves over it.
    stage_rows: Vec<Rows>,
    /// By pool: those of its leases.
    pool_rows: Vec<Rows>,
    /// Rows outside the process of the requests so far.
    rows: u64,
    first: bool,
}

impl TraceEvents {
    pub(super) fn new(program: &Program, span: Span, out: Pen) -> Self {
        let (pools, stages) = (members::pools(program), members::stages(program));
        let mut writer = Self {
            out,
            span,
            processes: BTreeMap::new(),
            lives: BTreeMap::new(),
            legs: 0,
            steps: stages.iter().map(|_| None).collect(),
            stage_rows: stages.iter().map(|_| Rows::default()).collect(),
            pool_rows: pools.iter().map(|_| Rows::default()).collect(),
            pools,
            stages,
            rows: 0,
            first: true,
        };
        writer.out.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
        writer.name("process_name", REQUESTS, 0, "requests");
        // Stages first: an engine's pools find its process there.
        let stages = writer.stages.iter().filter(|(_, kind)| *kind != Kind::Delay).map(|(stage, _)| stage);
        let instances: Vec<String> = stages.chain(&writer.pools).map(|member| member.instance.clone()).collect();
        for instance in instances {
            let next = REQUESTS + 1 + writer.processes.len() as u32;
            if *writer.processes.entry(instance.clone()).or_insert(next) == next {
                writer.name("process_name", next, 0, &instance);
                writer.name("process_sort_index", next, 0, "");
            }
        }
        for stage in 0..writer.stages.len() as u32 {
            let (member, kind) = &writer.stages[stage as usize];
            if *kind == Kind::Engine {
                let (process, name) = (writer.processes[&member.instance], format!("{} steps", member.name));
                let row = writer.new_row(process, &name);
                writer.stage_rows[stage as usize].0.push(row);
            }
        }
        writer
    }

    /// What a process or a row is called, or where it stands.
    fn name(&mut self, what: &str, pid: u32, tid: u64, name: &str) {
        let args = if name.is_empty() { json!({ "sort_index": pid }) } else { json!({ "name": name }) };
        let args = args.as_object().cloned().unwrap_or_default();
        self.write(&Event { name: what, cat: "", ph: "M", ts: 0.0, dur: None, pid, tid, args });
    }

    fn write(&mut self, event: &Event<'_>) {
        let text = serde_json::to_string(event).expect("names and numbers");
        self.out.write(if std::mem::take(&mut self.first) { "\n" } else { ",\n" });
        self.out.write(&text);
    }

    fn slice(&mut self, (pid, tid): (u32, u64), name: &str, cat: &str, (from, to): (f64, f64), args: Value) {
        if !self.span.meets(from, to) {
            return;
        }
        let (start, end) = (nanoseconds(from), nanoseconds(to));
        // Most waits are none.
        if start == end {
            return;
        }
        let args = args.as_object().cloned().unwrap_or_default();
        let microseconds = |ns: i64| ns as f64 / 1000.0;
        let (ts, dur) = (microseconds(start), Some(microseconds(end - start)));
        self.write(&Event { name, cat, ph: "X", ts, dur, pid, tid, args });
    }

    /// A row more in a process.
    fn new_row(&mut self, process: u32, name: &str) -> Row {
        self.rows += 1;
        let tid = self.rows;
        self.name("thread_name", process, tid, name);
        Row { tid, taken: true }
    }

    fn take_wire(&mut self, stage: u32) -> Option<usize> {
        let (member, kind) = &self.stages[stage as usize];
        if *kind != Kind::Wire {
            return None;
        }
        let (process, name) = (self.processes[&member.instance], member.name.clone());
        self.stage_rows[stage as usize].take().or_else(|| {
            let at = self.stage_rows[stage as usize].0.len();
            let row = self.new_row(process, &format!("{name} {}", at + 1));
            self.stage_rows[stage as usize].0.push(row);
            Some(at)
        })
    }

    fn take_lease(&mut self, pool: u32) -> usize {
        let Member { name, instance, .. } = &self.pools[pool as usize];
        let (process, name) = (self.processes[instance], name.clone());
        self.pool_rows[pool as usize].take().unwrap_or_else(|| {
            let at = self.pool_rows[pool as usize].0.len();
            let row = self.new_row(process, &format!("{name} lease {}", at + 1));
            self.pool_rows[pool as usize].0.push(row);
            at
        })
    }

    /// Writes what a session did until now.
    fn leave(&mut self, now: f64, session: u64) {
        let Some(life) = self.lives.get_mut(&session) else { return };
        let (stay, token) = (life.stay.take(), life.first_token);
        let Some(Stay { since, name, at, part, work, wires, .. }) = stay else { return };
        for (stage, row) in wires {
            let row = &mut self.stage_rows[stage as usize].0[row];
            row.taken = false;
            let tid = row.tid;
            let process = self.processes[&self.stages[stage as usize].0.instance];
            let name = who(session);
            self.slice((process, tid), &name, "wire", (since, now), json!({ "units": work }));
        }
        let args = if work > 0.0 { json!({ "at": at, "work": work }) } else { json!({ "at": at }) };
        let tid = session + 1;
        let Some(part) = part else {
            self.slice((REQUESTS, tid), name, "", (since, now), args);
            return;
        };
        // The rest of a run behind its first token is the answer's.
        let until = token.filter(|&token| token >= since && token < now).unwrap_or(now);
        self.slice((REQUESTS, tid), &words(part), part.word(), (since, until), args.clone());
        if until < now {
            self.slice((REQUESTS, tid), name, "", (until, now), args);
        }
    }

    fn end_turn(&mut self, now: f64, session: u64) {
        let Some(life) = self.lives.get(&session) else { return };
        let (turn, since) = (life.turn, life.turn_since);
        // A session's first turn usually begins as it comes: then there is nothing before it.
        if turn > 0 || since < now {
            let name = if turn > 0 { format!("turn {turn}") } else { "session".into() };
            self.slice((REQUESTS, session + 1), &name, "turn", (since, now), json!({ "session": session }));
        }
    }

    fn end_lease(&mut self, now: f64, session: u64, pool: u32) {
        let Some(life) = self.lives.get_mut(&session) else { return };
        let Some(at) = life.leases.iter().position(|lease| lease.0 == pool) else { return };
        let (_, row, since, units) = life.leases.remove(at);
        let row = &mut self.pool_rows[pool as usize].0[row];
        row.taken = false;
        let tid = row.tid;
        let process = self.processes[&self.pools[pool as usize].instance];
        let name = who(session);
        self.slice((process, tid), &name, "lease", (since, now), json!({ "units": units }));
    }

    /// Which of a session's rows, its legs' among them, is on an engine.
    fn row_at(&self, session: u64, stage: u32) -> u64 {
        let name = &self.stages[stage as usize].0.name;
        let is_there = |row: &u64| {
            let stay = self.lives.get(row).and_then(|life| life.stay.as_ref());
            stay.is_some_and(|stay| stay.mode.is_some() && stay.at == *name)
        };
        (0..=self.legs).map(|leg| session + leg * LEG_ROWS).find(is_there).unwrap_or(session)
    }

    fn end_steps(&mut self, now: f64, stage: u32, taken: u64) {
        let Some(Steps { since, cost, jobs }) = self.steps[stage as usize].take() else { return };
        let (mut prefilled, mut decodes) = (0.0, 0u64);
        for (session, tokens) in &jobs {
            let row = self.row_at(*session, stage);
            let stay = self.lives.get(&row).and_then(|life| life.stay.as_ref());
            if stay.is_some_and(|stay| stay.mode == Some(Mode::Prefill)) {
                prefilled += tokens;
                self.slice((REQUESTS, row + 1), "chunk", "chunk", (since, now), json!({ "tokens": tokens }));
            } else {
                decodes += 1;
            }
        }
        let (process, at) =
            (self.processes[&self.stages[stage as usize].0.instance], self.stage_rows[stage as usize].0[0].tid);
        let kind = match (prefilled > 0.0, decodes > 0) {
            (true, true) => "mixed",
            (true, false) => "prefill",
            (false, true) => "decode",
            (false, false) => "empty",
        };
        let name = if taken == 1 { kind.to_owned() } else { format!("{kind} ×{taken}") };
        let args = json!({ "steps": taken, "cost": cost, "prefilled": prefilled, "decodes": decodes });
        self.slice((process, at), &name, "step", (since, now), args);
    }
}

impl TraceEvents {
    /// Something befell who has a row.
    fn befalls(&mut self, now: f64, session: u64, what: Move, part: Option<Part>) {
        if let Entry::Vacant(place) = self.lives.entry(session) {
            place.insert(Life { turn_since: now, ..Life::default() });
            if now <= self.span.to {
                self.name("thread_name", REQUESTS, session + 1, &who(session));
            }
        }
        let stay = |name: &'static str, at: &str, mode: Option<Mode>, work: f64| Stay {
            since: now,
            name,
            at: at.to_owned(),
            part,
            mode,
            work,
            wires: Vec::new(),
        };
        match what {
            Move::Serving { stage, also: true, .. } => {
                let Some(row) = self.take_wire(stage) else { return };
                let name = self.stages[stage as usize].0.name.clone();
                if let Some(stay) = self.lives.get_mut(&session).and_then(|life| life.stay.as_mut()) {
                    stay.at = format!("{}, {name}", stay.at);
                    stay.wires.push((stage, row));
                }
                return;
            }
            Move::Leased { pool, units } => {
                let row = self.take_lease(pool);
                if let Some(life) = self.lives.get_mut(&session) {
                    life.leases.push((pool, row, now, units));
                }
                return;
            }
            Move::LeaseOver { pool } => return self.end_lease(now, session, pool),
            Move::Admitted { .. } | Move::Prefilled { .. } => return,
            _ => self.leave(now, session),
        }
        let next = match what {
            Move::Queued { pool, .. } => Some(stay("wait", &self.pools[pool as usize].name, None, 0.0)),
            Move::Growing { pool } => Some(stay("grow", &self.pools[pool as usize].name, None, 0.0)),
            Move::Serving { stage, mode, work, .. } => {
                let name = match (mode, self.stages[stage as usize].1) {
                    (Some(Mode::Prefill), _) => "prefill",
                    (Some(Mode::Decode), _) => "decode",
                    (None, Kind::Delay) => "delay",
                    (None, _) => "move",
                };
                let wires = self.take_wire(stage).map(|row| (stage, row)).into_iter().collect();
                Some(Stay { wires, ..stay(name, &self.stages[stage as usize].0.name, mode, work) })
            }
            Move::Joining => Some(stay("join", "", None, 0.0)),
            _ => None,
        };
        match what {
            Move::Turned => {
                self.end_turn(now, session);
                if let Some(life) = self.lives.get_mut(&session) {
                    life.turn += 1;
                    life.turn_since = now;
                }
            }
            Move::Ended => {
                self.end_turn(now, session);
                self.lives.remove(&session);
                return;
            }
            Move::LegOver => {
                // What it leases is its session's from now on.
                let leases = self.lives.remove(&session).map(|life| life.leases).unwrap_or_default();
                if let Some(life) = self.lives.get_mut(&(session % LEG_ROWS)) {
                    life.leases.extend(leases);
                }
                return;
            }
            _ => {}
        }
        if let Some(life) = self.lives.get_mut(&session) {
            life.stay = next;
        }
    }
}

impl Recorder for TraceEvents {
    fn session(&mut self, now: f64, session: u64, what: Move, part: Option<Part>) {
        self.befalls(now, session, what, part);
    }

    fn leg(&mut self, now: f64, session: u64, leg: u32, what: Move) {
        self.legs = self.legs.max(leg.into());
        self.befalls(now, session + u64::from(leg) * LEG_ROWS, what, None);
    }

    fn first_token(&mut self, request: &Request) {
        if let Some(life) = self.lives.get_mut(&request.session) {
            life.first_token = Some(request.first_token);
        }
        let parts: Map<String, Value> =
            Part::ALL.iter().map(|&part| (part.word().to_owned(), json!(request.parts[part as usize]))).collect();
        if self.span.meets(request.first_token, request.first_token) {
            let ts = nanoseconds(request.first_token) as f64 / 1000.0;
            let tid = request.session + 1;
            let event =
                Event { name: "first token", cat: "token", ph: "i", ts, dur: None, pid: REQUESTS, tid, args: parts };
            self.write(&event);
        }
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn steps_started(&mut self, now: f64, stage: u32, cost: f64, jobs: &mut dyn Iterator<Item = (u64, f64)>) {
        self.steps[stage as usize] = Some(Steps { since: now, cost, jobs: jobs.collect() });
    }

    fn steps_ended(&mut self, now: f64, stage: u32, steps: u64) {
        self.end_steps(now, stage, steps);
    }

    fn finished(&mut self, end: f64) {
        // What goes on at the end is cut there.
        for stage in 0..self.steps.len() as u32 {
            let taken =
                self.steps[stage as usize].as_ref().map_or(1.0, |steps| ((end - steps.since) / steps.cost).ceil());
            self.end_steps(end, stage, (taken as u64).max(1));
        }
        let open: Vec<u64> = self.lives.keys().copied().collect();
        for session in open {
            self.leave(end, session);
            while let Some(&(pool, ..)) = self.lives.get(&session).and_then(|life| life.leases.first()) {
                self.end_lease(end, session, pool);
            }
            self.end_turn(end, session);
        }
        self.out.write("\n]}\n");
    }
}

/// Whose row it is.
fn who(row: u64) -> String {
    match row / LEG_ROWS {
        0 => format!("session {row}"),
        leg => format!("session {}, leg {leg}", row % LEG_ROWS),
    }
}

fn words(part: Part) -> String {
    part.word().replace('_', " ")
}

fn nanoseconds(time: f64) -> i64 {
    (time * 1e9).round() as i64
}
