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
    /// The text's blocks.
    pub blocks: &'a [u32],
}

/// Who computes.
pub trait Instances: Send {
    /// Begins a step of an instance, which has none running. Its end is told to `ended`: of each
    /// run the next token, where it is wanted.
    fn start(&mut self, stage: u32, runs: Vec<Run>, ended: Ended);

    /// Copies keys and values of the tokens at these places, from one pool's blocks to another's.
    /// Answers how many bytes.
    fn copy(&mut self, from: Span<'_>, to: Span<'_>, tokens: Range<usize>) -> u64;
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

/// A request's number, as its submitter calls it.
type Ticket = u64;

/// Where a request's events go.
pub type Sink = Box<dyn FnMut(Event) + Send>;

enum Told {
    Submitted { ticket: Ticket, request: Request, sink: Sink },
    GoneAway { ticket: Ticket },
    StepEnded { stage: u32, tokens: Vec<Option<Token>> },
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
}

/// What a service looks like at an instant.
#[derive(Clone, Debug)]
pub struct Look {
    /// Requests that are not over, each choice by itself.
    pub live: u64,
    /// In declaration order.
    pub pools: Vec<PoolLook>,
    /// Of each instance: its name, the runs of the running step, and steps so far.
    pub instances: Vec<(String, usize, u64)>,
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
