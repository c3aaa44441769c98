//! One kernel, told what really happens, and instances that do what it answers.
//!
//! ```text
//!   requests ──▶ ┌──────────────────────┐ ── StartStep: whose tokens, which blocks ──▶ instances
//!   clients  ──▶ │ facts ─▶ kernel ─▶   │ ── StartFlow: which blocks to which ────────▶ bytes
//!   go away      │          actions     │ ◀── tokens, at the end of a step ────────────
//!                └──────────────────────┘ ── WakeAt ─▶ the wall clock
//! ```
//!
//! Everything that decides is the kernel's. Here stands what it cannot know: the tokens, how far
//! each share of a request has been computed, when the model says stop, and the wall clock.
//!
//! # Invariants
//!
//! - One thread tells the kernel; an action is done before the next fact is told.
//! - A step computes tokens that are known and not yet computed in its request's blocks. Where the
//!   program asks for more than there are, the last is computed again.
//! - A request whose step runs is cancelled when the step is over: nobody gets blocks that are
//!   being written.
//! - A request is finished exactly once, and its tokens' order is the order of its events.
//! - So is one whose blocks are copied: a copy is stopped, and over, before its blocks are anybody's. A lease's time
//!   is over no earlier than a copy that reads it.
//! - Who had anything at an instance that is gone is routed again, with the tokens there are: what comes of it is
//!   what would have come.
//! - What a store's block is found not to hold is forgotten, and who was to read it is routed again, as often as it takes.
//! - When nobody is left, all blocks are free or cached: `left` is 0.

pub mod clock;
mod driver;
mod live;

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use serq_kernel::PoolCounts;

use crate::decisions::Decisions;
use crate::request::{Event, Request};
use crate::sampler::{Sampling, Token};
use crate::served::Served;
use driver::drive;

/// A piece of a request that an instance computes.
#[derive(Clone, Debug)]
pub struct Run {
    /// The tokens to compute, one after another.
    pub tokens: Vec<u32>,
    /// The place of the first of them in its text.
    pub start: usize,
    /// Where the text's keys and values are: token t in `blocks[t / block]`.
    pub blocks: Vec<u32>,
    /// The token after the last of them is wanted.
    pub next: Option<Next>,
}

/// How the token after a run is chosen.
#[derive(Clone, Debug)]
pub struct Next {
    /// As the request says.
    pub sampling: Arc<Sampling>,
    /// Its place in the answer, from 0.
    pub nth: usize,
    /// The prompt and the answer so far, where the choice depends on them.
    pub before: Option<(Vec<u32>, Vec<u32>)>,
}

/// Tokens in blocks of a pool.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// Member of a pool.
    pub pool: u32,
    /// The place in the text of the first block's first token.
    pub first: usize,
    /// The text's blocks from there on.
    pub blocks: &'a [u32],
}

impl<'a> Span<'a> {
    fn of(held: &serq_kernel::Held<'a>) -> Self {
        Self { pool: held.pool, first: held.first as usize, blocks: held.blocks }
    }
}

/// Keys and values on their way.
#[derive(Clone, Debug)]
pub struct Transfer<'a> {
    /// Where they are.
    pub from: Span<'a>,
    /// Where they go.
    pub to: Span<'a>,
    /// Whose: the tokens' places in the text.
    pub tokens: Range<usize>,
    /// The source writes them; otherwise the target reads.
    pub pushed: bool,
}

/// A block that is evicted, and where what it holds goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Member of a pool, …
    pub pool: u32,
    /// … its block, …
    pub block: u32,
    /// … and which part of it, in the store's blocks, from 0.
    pub part: u32,
    /// The store, a member of a pool, …
    pub into: u32,
    /// … and its block.
    pub to: u32,
}

/// Why a copy brought nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyError {
    /// It failed, for this reason.
    Failed(String),
    /// These blocks of the store it reads do not hold what was put there.
    Spoiled(Vec<u32>),
}

/// What a store has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounts {
    /// Blocks put.
    pub puts: u64,
    /// Bytes of these.
    pub bytes_put: u64,
    /// Tokens read.
    pub tokens_read: u64,
    /// Blocks that did not hold what was put there, or could not be written or read.
    pub failures: u64,
}

/// Who computes.
pub trait Instances: Send {
    /// Begins a step of an instance, which has none running. Its end is told to `ended`: of each
    /// run the next token, where it is wanted.
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended);

    /// Copies keys and values from one pool's blocks to another's. Answers how many bytes, where it is done; else its end is told to `copied`.
    fn copy(&mut self, transfer: Transfer<'_>, copied: Copied) -> Option<u64>;

    /// A block is about to be evicted: what it holds goes to a store, before anything else that is asked later.
    fn put(&mut self, put: Put);

    /// What a store has done since the start.
    fn store_counts(&self, _pool: u32) -> StoreCounts {
        StoreCounts::default()
    }

    /// Whether a copy takes time, so that it is worth to begin it before all of it is there.
    fn takes_time(&self) -> bool {
        false
    }

    /// A copy that was begun is not wanted any more. Its end is told all the same, as soon as nothing of it
    /// reads or writes.
    fn stop_copy(&mut self, _copy: u64) {}

    /// How often a request is routed again whose instance is gone, or whose copy failed. Then it fails.
    fn retries(&self) -> u32 {
        0
    }

    /// An instance that took no new work has none left: nobody needs it any more.
    fn dismiss(&mut self, _stage: u32) {}

    /// The kernel knows that an instance is there (again), as told by [`Presence::back`]. Until it does, steps and copies
    /// that are asked of it were meant for what it was before.
    fn welcome(&mut self, _stage: u32, _times: u64) {}

    /// Where instances come and go: to whom that is told, from now on. At first all are there.
    fn watch(&mut self, _presence: Presence) {}
}

/// To whom the end of a step is told.
pub struct Ended {
    told: Sender<Told>,
    stage: u32,
}

impl Ended {
    /// The step is over.
    pub fn tell(self, tokens: Vec<Option<Token>>) {
        // Who is not there any more need not know.
        let _ = self.told.send(Told::StepEnded { stage: self.stage, tokens });
    }
}

/// To whom the end of a copy is told.
pub struct Copied {
    told: Sender<Told>,
    copy: u64,
}

impl Copied {
    /// Its number, for [`Instances::stop_copy`].
    pub fn copy(&self) -> u64 {
        self.copy
    }

    /// The copy is over: so many bytes arrived whole, or why they did not.
    pub fn tell(self, moved: Result<u64, String>) {
        self.tell_all(moved.map_err(CopyError::Failed));
    }

    /// The same, where blocks of a store may be the reason.
    pub fn tell_all(self, moved: Result<u64, CopyError>) {
        // Who is not there any more need not know.
        let _ = self.told.send(Told::Copied { copy: self.copy, moved });
    }
}

/// To whom it is told which instances are there.
#[derive(Clone)]
pub struct Presence {
    told: Sender<Told>,
}

impl Presence {
    /// An instance is gone, with all that its memory held and a step that runs.
    pub fn gone(&self, stage: u32, why: String) {
        let _ = self.told.send(Told::Gone { stage, why });
    }

    /// It takes no new work.
    pub fn draining(&self, stage: u32) {
        let _ = self.told.send(Told::Draining { stage });
    }

    /// It is there again, empty, for the so-manieth time.
    pub fn back(&self, stage: u32, times: u64) {
        let _ = self.told.send(Told::Back { stage, times });
    }
}

/// A request's number, as its submitter calls it.
type Ticket = u64;

/// Where a request's events go.
pub type Sink = Box<dyn FnMut(Event) + Send>;

enum Told {
    Submitted { ticket: Ticket, request: Request, sink: Sink },
    GoneAway { ticket: Ticket },
    StepEnded { stage: u32, tokens: Vec<Option<Token>> },
    Copied { copy: u64, moved: Result<u64, CopyError> },
    Gone { stage: u32, why: String },
    Back { stage: u32, times: u64 },
    Draining { stage: u32 },
    Look { answer: Sender<Look> },
    Closed,
}

/// What an instance's memory and queue look like.
#[derive(Clone, Debug)]
pub struct PoolLook {
    /// As in the program: `P.kv[0]`.
    pub name: String,
    /// Units it has.
    pub cap: f64,
    /// Units allocated.
    pub used: f64,
    /// Units cached.
    pub cached: f64,
    /// Sessions waiting in its queue.
    pub waiting: u32,
    /// Holds and leases.
    pub holders: u32,
    /// Units owned by nobody alive.
    pub left: f64,
    /// Whole-run counters.
    pub counts: PoolCounts,
    /// Where it is a store.
    pub store: Option<StoreCounts>,
}

/// What an instance does.
#[derive(Clone, Debug)]
pub struct InstanceLook {
    /// As in the program: `P[0]`.
    pub name: String,
    /// Which of [`Look::pools`] its memory is.
    pub memory: usize,
    /// Runs of the running step.
    pub running: usize,
    /// Steps begun.
    pub steps: u64,
}

/// What a service looks like at an instant.
#[derive(Clone, Debug)]
pub struct Look {
    /// Requests that are not over, each choice by itself.
    pub live: u64,
    /// In declaration order.
    pub pools: Vec<PoolLook>,
    /// Likewise.
    pub instances: Vec<InstanceLook>,
}

/// Instances that serve a program.
pub struct Service {
    told: Sender<Told>,
    thread: Option<thread::JoinHandle<()>>,
    tickets: std::sync::atomic::AtomicU64,
}

impl Service {
    /// Starts to serve. `decisions`, where given, gets every fact and action.
    pub fn start(served: Served, instances: Box<dyn Instances>, decisions: Option<Decisions>) -> Self {
        Self::spawn(move |told, facts| drive::<false>(&served, Some(instances), decisions, told, facts))
    }

    /// The same with instances that take the time the program's costs say, and compute nothing: an
    /// answer says its prompt again.
    pub fn modelled(served: Served, decisions: Option<Decisions>) -> Self {
        Self::spawn(move |told, facts| drive::<true>(&served, None, decisions, told, facts))
    }

    fn spawn(drive: impl FnOnce(&Sender<Told>, &Receiver<Told>) + Send + 'static) -> Self {
        let (told, facts) = mpsc::channel();
        let back = told.clone();
        let thread = thread::Builder::new()
            .name("serq-kernel".into())
            .spawn(move || drive(&back, &facts))
            .expect("a thread can be started");
        Self { told, thread: Some(thread), tickets: Default::default() }
    }

    /// A request comes. Dropping the ticket takes it back.
    pub fn submit(&self, request: Request, sink: Sink) -> Submitted {
        let ticket = self.tickets.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let _ = self.told.send(Told::Submitted { ticket, request, sink });
        Submitted { ticket, told: self.told.clone() }
    }

    /// Whether it still hears.
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// What it looks like now; `None` if it is gone.
    pub fn look(&self) -> Option<Look> {
        let (answer, asked) = mpsc::channel();
        self.told.send(Told::Look { answer }).ok()?;
        asked.recv().ok()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.told.send(Told::Closed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A request that was submitted. Dropped, it is cancelled, if it is not over.
pub struct Submitted {
    ticket: Ticket,
    told: Sender<Told>,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        let _ = self.told.send(Told::GoneAway { ticket: self.ticket });
    }
}
