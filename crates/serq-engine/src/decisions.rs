//! The log of what a kernel was told and what it answered, and the kernel driven by it again.
//!
//! One JSON value a line: the program first, then each fact, followed by what was decided, and at
//! the end how many lines there are. A kernel that is told the same facts decides the same, to the
//! block; [`replay`] tells where it does not.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serq_ir::Program;
use serq_kernel::{Action, Flow, Kernel, Move};

use crate::outside::{Outside, tell};
use crate::served::Served;

/// What happened. Times are seconds since the service began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// A request came.
    Arrived {
        /// When.
        time: f64,
        /// How long its prompt is.
        prompt_tokens: f64,
        /// How long its answer gets at most.
        max_tokens: f64,
        /// Tokens of each block that has a name.
        block: f64,
        /// Their names.
        names: Vec<u64>,
    },
    /// A step is over.
    StepEnded {
        /// When.
        time: f64,
        /// Member of a stage.
        stage: u32,
    },
    /// Work of another stage is over.
    WorkEnded {
        /// When.
        time: f64,
        /// As in [`Decision::Work`] or [`Decision::Flow`].
        job: u32,
    },
    /// A read that may fail did.
    ReadFailed {
        /// When.
        time: f64,
        /// As in [`Decision::Flow`].
        job: u32,
    },
    /// A lease's time is over.
    Woken {
        /// When.
        time: f64,
        /// As in [`Decision::WakeAt`].
        timer: u32,
    },
    /// A client went away.
    Cancelled {
        /// When.
        time: f64,
        /// Whose request.
        session: u64,
    },
    /// The token of the running step is the last.
    Stopped {
        /// Of which request.
        session: u64,
        /// Tokens it has got.
        answer: f64,
    },
    /// A request's further blocks have these names.
    Content {
        /// Which.
        session: u64,
        /// Tokens of each.
        block: f64,
        /// Their names.
        names: Vec<u64>,
    },
    /// An instance is gone, and what its memory held.
    Gone {
        /// When.
        time: f64,
        /// Member of a stage.
        stage: u32,
    },
    /// An instance takes no new work.
    Draining {
        /// When.
        time: f64,
        /// Member of a stage.
        stage: u32,
    },
    /// It is there again, its memory empty.
    Back {
        /// When.
        time: f64,
        /// Member of a stage.
        stage: u32,
    },
    /// A block of a store does not hold what was put there.
    Spoiled {
        /// When.
        time: f64,
        /// Member of a pool.
        pool: u32,
        /// Its block.
        block: u32,
    },
    /// Nothing else happened at this instant: engines may be planned.
    Due,
    /// The program had stopped; a kernel nobody has come to goes on.
    Restarted,
}

/// What a kernel answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// An instance begins a step.
    Step {
        /// Member of a stage.
        stage: u32,
        /// Who computes in it, in serve order.
        runs: Vec<StepRun>,
    },
    /// A read begins.
    Flow {
        /// To be told back.
        job: u32,
        /// Of which request; `None`: it moves no blocks.
        session: Option<u64>,
        /// The lease's blocks.
        from: Vec<u32>,
        /// The hold's.
        to: Vec<u32>,
        /// How many tokens.
        tokens: f64,
    },
    /// What an evicted block holds goes to a store.
    Spill {
        /// Member of a pool.
        pool: u32,
        /// Its block.
        block: u32,
        /// Which part of it, in the store's blocks.
        part: u32,
        /// The store, a member of a pool.
        into: u32,
        /// Its block.
        to: u32,
    },
    /// Other work begins.
    Work {
        /// To be told back.
        job: u32,
    },
    /// A lease is to be looked at later.
    WakeAt {
        /// To be told back.
        timer: u32,
    },
    /// A hold was admitted.
    Admitted {
        /// Of which request.
        session: u64,
        /// Member of a pool.
        pool: u32,
    },
    /// A request lost its blocks.
    Preempted {
        /// Which.
        session: u64,
        /// Member of a pool.
        pool: u32,
    },
    /// A request is over.
    Ended {
        /// Which.
        session: u64,
    },
}

/// A request's part of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRun {
    /// Which request.
    pub session: u64,
    /// How many tokens.
    pub tokens: f64,
    /// Where the kernel has them begin.
    pub position: f64,
    /// The request's blocks.
    pub blocks: Vec<u32>,
}

impl Decision {
    /// What a job moves.
    fn flow(kernel: &Kernel<'_>, job: u32) -> Option<Self> {
        let Flow { session, from, to, tokens } = kernel.flow(job)?;
        let (from, to) = (from.blocks.to_vec(), to.blocks.to_vec());
        Some(Self::Flow { job, session: Some(session), from, to, tokens })
    }

    /// What an action decides, while the kernel is as it was when it answered; `None`: nothing
    /// that is looked at.
    pub(crate) fn of(kernel: &Kernel<'_>, action: &Action) -> Option<Self> {
        Some(match *action {
            Action::StartStep { stage, .. } => {
                let run = |run: serq_kernel::Run<'_>| StepRun {
                    session: run.session,
                    tokens: run.tokens,
                    position: run.at.position,
                    blocks: run.at.blocks.to_vec(),
                };
                Self::Step { stage, runs: kernel.runs(stage).map(run).collect() }
            }
            Action::StartFlow { job } => Self::flow(kernel, job).unwrap_or_else(|| Self::Flow {
                job,
                session: None,
                from: Vec::new(),
                to: Vec::new(),
                tokens: 0.0,
            }),
            Action::StartWork { job, .. } => Self::flow(kernel, job).unwrap_or(Self::Work { job }),
            Action::Spilled { pool, block, part, into, to } => Self::Spill { pool, block, part, into, to },
            Action::WakeAt { timer, .. } => Self::WakeAt { timer },
            Action::Session { session, what: Move::Admitted { pool }, .. } => Self::Admitted { session, pool },
            Action::Session { session, what: Move::Preempted { pool }, .. } => Self::Preempted { session, pool },
            Action::Ended { session } => Self::Ended { session },
            _ => return None,
        })
    }
}

/// A line of the log.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Program {
        /// Steps took the time the program's costs say.
        modelled: bool,
        program: Box<Program>,
    },
    Fact(Fact),
    Decision(Decision),
    /// The service ended, and so does its log.
    End {
        /// Before this one.
        lines: u64,
    },
}

/// Where facts and decisions are written to.
pub struct Decisions {
    to: Box<dyn Write + Send>,
    lines: u64,
    /// A line could not be written; those after it would not follow from what is there.
    broken: bool,
}

impl Decisions {
    /// Begins a log of instances that compute, or whose time is `modelled`. What `to` fails to take is
    /// not told on: its owner knows.
    pub fn new(served: &Served, modelled: bool, to: Box<dyn Write + Send>) -> Self {
        let mut decisions = Self { to, lines: 0, broken: false };
        decisions.line(&Line::Program { modelled, program: Box::new(served.program.clone()) });
        decisions
    }

    fn line(&mut self, line: &Line) {
        if !self.broken {
            let written = serde_json::to_writer(&mut self.to, line).map_err(std::io::Error::from);
            self.broken = written.and_then(|()| self.to.write_all(b"\n")).is_err();
            self.lines += 1;
        }
    }

    pub(crate) fn fact(&mut self, fact: &Fact) {
        self.line(&Line::Fact(fact.clone()));
    }

    pub(crate) fn decision(&mut self, decision: Decision) {
        self.line(&Line::Decision(decision));
    }

    /// Nothing more will be told.
    pub(crate) fn close(mut self) {
        self.line(&Line::End { lines: self.lines });
        // Who gave the writer knows what became of it.
        let _ = self.to.flush();
    }
}

/// A kernel that is told facts, and nothing else.
pub struct Told<'s, const MODELLED: bool> {
    kernel: Kernel<'s>,
    world: Outside<MODELLED>,
}

impl<'s, const MODELLED: bool> Told<'s, MODELLED> {
    /// A kernel nobody has come to.
    pub fn new(served: &'s Served) -> Self {
        Self { kernel: Kernel::new(&served.code, false), world: Outside::new(served.program.run.seed) }
    }

    /// What it decides when it is told a fact.
    ///
    /// # Errors
    ///
    /// What stops the program.
    pub fn tell(&mut self, fact: &Fact) -> Result<Vec<Decision>, String> {
        let (decided, stopped) = self.decide(fact);
        stopped.map_or(Ok(decided), Err)
    }

    /// The same, with what it decided before it stopped.
    fn decide(&mut self, fact: &Fact) -> (Vec<Decision>, Option<String>) {
        let stopped = tell(&mut self.kernel, &mut self.world, fact).err().map(|fault| fault.message);
        let Self { kernel, world } = self;
        (world.actions.drain(..).filter_map(|action| Decision::of(kernel, &action)).collect(), stopped)
    }

    /// Sessions alive.
    pub fn live(&self) -> u64 {
        self.kernel.live()
    }

    /// Units of each pool that are allocated, and those of them that nobody alive owns.
    pub fn units(&self) -> Vec<(f64, f64)> {
        let used = |pool| self.kernel.pool_state(pool).used;
        self.kernel.left().into_iter().enumerate().map(|(pool, left)| (used(pool as u32), left)).collect()
    }
}

/// What was in a log that was decided again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Facts told.
    pub facts: u64,
    /// Decisions compared.
    pub decisions: u64,
    /// Requests that came.
    pub requests: u64,
    /// Preemptions among the decisions.
    pub preemptions: u64,
    /// Blocks evicted, by the pools' counters.
    pub evicted: u64,
    /// The log says that it ends there. One that does not was cut, or its writer was stopped.
    pub ended: bool,
}

/// Tells a fresh kernel the facts of a log, and compares what it decides.
///
/// # Errors
///
/// One sentence: the line that can't be read, or the first decision that differs.
pub fn replay(log: impl BufRead) -> Result<Replayed, String> {
    let mut written = log.lines().enumerate().peekable();
    let mut lines = std::iter::from_fn(|| {
        let (number, line) = written.next()?;
        let line = line.map_err(|error| format!("line {}: {error}", number + 1));
        match line.map(|line| serde_json::from_str(&line)) {
            Ok(Ok(line)) => Some(Ok::<(usize, Line), String>((number + 1, line))),
            // Its writer was killed while it wrote this line.
            Ok(Err(error)) if number > 0 && error.is_eof() && written.peek().is_none() => None,
            Ok(Err(error)) => Some(Err(format!("line {}: {error}", number + 1))),
            Err(error) => Some(Err(error)),
        }
    });
    let Some(Line::Program { modelled, program }) = lines.next().transpose()?.map(|(_, line)| line) else {
        return Err("this is no log of decisions: it does not begin with its program".into());
    };
    serq_ir::verify::verify(&program).map_err(|why| format!("the log's program is not sound: {why}"))?;
    let served = Served::new(*program)?;
    match modelled {
        true => decide_again::<true>(&served, lines),
        false => decide_again::<false>(&served, lines),
    }
}

fn decide_again<const MODELLED: bool>(
    served: &Served,
    lines: impl Iterator<Item = Result<(usize, Line), String>>,
) -> Result<Replayed, String> {
    let mut told: Told<'_, MODELLED> = Told::new(served);
    let mut replayed = Replayed::default();
    let mut stopped = None;
    let mut decided = std::collections::VecDeque::new();
    for line in lines {
        let (number, line) = line?;
        let show = |decision: &Decision| serde_json::to_string(decision).expect("a decision is plain data");
        if replayed.ended {
            return Err(format!("line {number}: the log goes on after its end"));
        }
        match line {
            Line::End { lines } if lines + 1 == number as u64 => replayed.ended = true,
            Line::End { lines } => return Err(format!("line {number}: {lines} lines were written before this one")),
            Line::Program { .. } => return Err(format!("line {number}: a second program")),
            Line::Fact(fact) => {
                if let Some(more) = decided.front() {
                    return Err(format!("before line {number} the kernel decides {} and the log does not", show(more)));
                }
                replayed.facts += 1;
                replayed.requests += u64::from(matches!(fact, Fact::Arrived { .. }));
                if fact == Fact::Restarted {
                    (told, stopped) = (Told::new(served), None);
                    continue;
                }
                if let Some(why) = stopped {
                    return Err(why);
                }
                let (found, why) = told.decide(&fact);
                decided.extend(found);
                stopped = why.map(|why| format!("line {number}: the program stops: {why}"));
            }
            Line::Decision(logged) => {
                replayed.decisions += 1;
                replayed.preemptions += u64::from(matches!(logged, Decision::Preempted { .. }));
                match decided.pop_front() {
                    Some(now) if now == logged => {}
                    Some(now) => {
                        return Err(format!(
                            "line {number} decided {}\nthe kernel decides {}",
                            show(&logged),
                            show(&now)
                        ));
                    }
                    None => return Err(format!("line {number} decided {}\nthe kernel decides nothing", show(&logged))),
                }
            }
        }
    }
    // One that was cut may end within what a fact led to.
    if let Some(more) = decided.front().filter(|_| replayed.ended) {
        return Err(format!("the log ends before {}", serde_json::to_string(more).expect("a decision is plain data")));
    }
    let kernel = &told.kernel;
    replayed.evicted = (0..kernel.pools()).map(|pool| kernel.pool_counts(pool).evicted_units as u64).sum();
    Ok(replayed)
}
