//! What is between the kernel and whoever drives it.
//!
//! The driver tells facts ([`crate::Kernel`]'s `tell_…` methods, each with its
//! time) and implements [`World`]: it performs the actions the kernel answers
//! with, and answers the draws the kernel needs.

/// The driver, as the kernel sees it.
pub trait World {
    /// Whether the kernel should evaluate `cost`, the rates of `ps` stages and of
    /// flows. The simulator does; on a real machine time is measured.
    const MODELS_TIME: bool;

    /// Whether it moves something with a flow, and is told when one starts.
    const MOVES_FLOWS: bool = !Self::MODELS_TIME;

    /// A number in [0, 1), a function of the stream and its counter alone.
    fn uniform(&mut self, stream: Stream) -> f64;

    /// What turn `turn` (from 1) of a trace session brings; `None` past its last.
    fn trace_turn(&mut self, trace_session: u32, turn: u64) -> Option<TraceTurn>;

    /// The names of that turn's prompt blocks, appended to `ids`, and the tokens of each; none
    /// where the trace has none.
    fn trace_blocks(&mut self, _trace_session: u32, _turn: u64, _ids: &mut Vec<u64>) -> f64 {
        0.0
    }

    /// A session ended: whether another one takes its place (`closed`), and its trace session.
    fn replacement(&mut self) -> Option<Arrival>;

    /// How many of a stage's started steps have ended, the one whose end is being told among
    /// them. A world that takes one step at a time: 1 while it tells the end, else 0.
    fn steps_ended(&mut self, stage: u32) -> u64;

    /// When the `steps`-th of them ended.
    fn step_end(&mut self, stage: u32, steps: u64) -> f64;

    /// Performs an action.
    fn act(&mut self, action: Action);
}

/// Which random numbers are meant. Equal streams and counters give equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    /// What they are for.
    pub purpose: Purpose,
    /// The session's serial number, or the member of a machine.
    pub owner: u64,
    /// The turn, for [`Purpose::Turn`]; for [`Purpose::Leg`] that and 2³² times which leg of it;
    /// else 0.
    pub turn: u64,
    /// How many were drawn before.
    pub counter: u64,
}

/// What random numbers are for. Each purpose has its own, so that one setting changed
/// leaves the others' draws alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Gaps between arrivals.
    Arrivals,
    /// `init` (turn 0) and `turn` blocks.
    Turn,
    /// A session's statements.
    Session,
    /// Those of a leg.
    Leg,
    /// Costs, budgets and rates of a stage.
    Stage,
    /// Eviction keys and spills of a pool.
    Pool,
    /// Which trace session an arrival replays.
    TraceChoice,
}

/// A session to come.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// The trace session it replays.
    pub trace_session: Option<u32>,
}

/// What a trace says of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceTurn {
    /// New prompt tokens.
    pub new: f64,
    /// Output tokens.
    pub out: f64,
    /// Think time.
    pub think: f64,
    /// Whether further turns follow.
    pub more: bool,
    /// Sixth column.
    pub forced: f64,
}

/// What the driver is to do, or to know.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Begin the planned iteration of a step stage ([`crate::Kernel::planned`] lists it).
    StartStep {
        /// Member of a stage.
        stage: u32,
        /// Its duration; 0 when the world does not model time.
        cost: f64,
        /// Decode jobs in it.
        decoders: u32,
        /// How many such steps may run before the kernel must be told: a leap. The world may
        /// take fewer.
        steps: u64,
    },
    /// A leap is to end with the step that runs now.
    CutLeap {
        /// Member of a step stage.
        stage: u32,
    },
    /// That many further steps of a leap have begun, each like the one before, and tokens of it came.
    StepsLeapt {
        /// Member of a step stage.
        stage: u32,
        /// The duration of each, and each token's gap after its session's previous one.
        cost: f64,
        /// Decode jobs in each.
        decoders: u32,
        /// How many.
        steps: u64,
        /// How many tokens.
        tokens: u64,
    },
    /// Serve a job of a `fifo` or `delay` stage for `work` clock units.
    StartWork {
        /// To be told back.
        job: u32,
        /// Clock units.
        work: f64,
    },
    /// A flow starts ([`crate::Kernel::flow`]). A world that does not model time moves what it moves
    /// and tells when that is done; to others [`Action::NextFinish`] says when it ends.
    StartFlow {
        /// To be told back.
        job: u32,
    },
    /// A block that is about to be evicted goes to another pool, before anything else is written to either of the
    /// two blocks.
    Spilled {
        /// Member of a pool, …
        pool: u32,
        /// … its block, …
        block: u32,
        /// … and which part of it, in the other pool's blocks, from 0.
        part: u32,
        /// Member of a pool.
        into: u32,
        /// Its block.
        to: u32,
    },
    /// A job is gone before its end: its session was preempted.
    StopWork {
        /// As in `StartWork`.
        job: u32,
    },
    /// When the next job of a `ps` stage, or the next flow, is due; what was said before
    /// about that stage or the flows is void.
    NextFinish {
        /// Member of a stage, or `None` for the flows.
        stage: Option<u32>,
        /// The job and its time; `None` when nothing will finish.
        next: Option<(u32, f64)>,
    },
    /// Tell when this lease's time is over.
    WakeAt {
        /// To be told back.
        timer: u32,
        /// Clock.
        time: f64,
    },
    /// That lease ended earlier.
    StopWake {
        /// As in `WakeAt`.
        timer: u32,
    },
    /// A lease began or ended: so much of its pool is leased from now on.
    Leased {
        /// Member of a pool.
        pool: u32,
        /// Units, of all its leases.
        units: f64,
    },
    /// A job ended.
    JobEnded {
        /// Member of a stage; a flow tells each of its stages.
        stage: u32,
        /// Joining to service.
        wait: f64,
        /// Service to end.
        service: f64,
    },
    /// Tokens came, each `gap` after its session's previous one.
    Tokens {
        /// Where they fell.
        stage: u32,
        /// Clock units.
        gap: f64,
        /// How many.
        count: u64,
    },
    /// A hold was admitted whose first pool is `pool`.
    Admitted {
        /// Member of a pool.
        pool: u32,
        /// Since joining its queue.
        wait: f64,
    },
    /// A sample of an observation.
    Observed {
        /// Index into the program's observes.
        observe: u32,
        /// Serial number.
        session: u64,
        /// Its turn_no.
        turn: f64,
        /// The sample.
        value: f64,
    },
    /// A turn began.
    Turned,
    /// Something befell a session, or it waits or is served somewhere from now on. For records
    /// of single sessions only: nothing is to be done.
    Session {
        /// Its place among live sessions, another one's when it has ended.
        slot: u32,
        /// Serial number.
        session: u64,
        /// What.
        what: Move,
    },
    /// A session ended.
    Ended {
        /// Serial number.
        session: u64,
    },
}

/// What befalls a session. `Queued`, `Growing`, `Serving` and `Joining` last until the next of them, a
/// preemption, a turn or the session's end; the others take no time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// A turn began.
    Turned,
    /// It waits in a pool's queue.
    Queued {
        /// Member of a pool.
        pool: u32,
        /// Holds it is inside of.
        holds: u32,
    },
    /// Its hold was admitted.
    Admitted {
        /// The pool whose queue it was in.
        pool: u32,
    },
    /// A `grow` waits for room.
    Growing {
        /// Member of a pool.
        pool: u32,
    },
    /// It has a job.
    Serving {
        /// Member of a stage.
        stage: u32,
        /// On a step stage.
        mode: Option<serq_ir::Mode>,
        /// Units of the stage.
        work: f64,
        /// A further stage of the flow told of just before.
        also: bool,
    },
    /// Its prefill, which goes on as a decode, is over.
    Prefilled {
        /// Member of a step stage.
        stage: u32,
    },
    /// It was taken out of wherever it was; its hold on the pool starts anew.
    Preempted {
        /// Member of a pool.
        pool: u32,
    },
    /// A hold's share outlives it.
    Leased {
        /// Member of a pool.
        pool: u32,
        /// Units.
        units: f64,
    },
    /// That lease is over.
    LeaseOver {
        /// Member of a pool.
        pool: u32,
    },
    /// Its client went away; it ends now, or at the end of what it is shielded in.
    Cancelled,
    /// Its program says that it failed; it ends now.
    Failed,
    /// It is over.
    Ended,
    /// A leg of a session begins, in the place this is told of.
    Forked {
        /// The session's place.
        of: u32,
        /// The so manieth of its turn, from 1.
        leg: u32,
    },
    /// That leg is over.
    LegOver,
    /// It waits for its legs.
    Joining,
}

/// Why a program cannot go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// One sentence, with the values read.
    pub message: String,
    /// The statement, where there is one.
    pub at: Option<serq_ir::Place>,
    /// The session's serial number, where one is concerned.
    pub session: Option<u64>,
    /// When.
    pub time: f64,
}

/// What the kernel's calls answer.
pub type Result<T> = std::result::Result<T, Box<Fault>>;
