//! The clients of a workload: when sessions come and what each brings, whoever serves them.
//!
//! All of it is a function of the program, its seed and its trace: the same clients come with the
//! same wishes to a simulated run and to real servers.

use serq_ir::{Arrive, Program};
use serq_kernel::{Arrival, Draws, Purpose, Stream, TraceTurn};

use crate::arrival::Arrivals;
use crate::trace::TraceFile;

/// A workload's clients, and the random numbers of a run.
pub struct Clients<'a> {
    draws: Draws,
    /// Of the laws that time, draws and the trace decide.
    law: Option<Arrivals<'a>>,
    trace: Option<&'a TraceFile>,
    ordered: bool,
    /// `closed`: whoever ends is replaced.
    replaces: bool,
    serial_next: u64,
}

impl<'a> Clients<'a> {
    /// Those of a program.
    ///
    /// # Errors
    ///
    /// One sentence: arrivals of a trace that says no times.
    pub fn new(program: &Program, trace: Option<&'a TraceFile>) -> Result<Self, String> {
        let draws = Draws::new(program.run.seed);
        let arrive = &program.workload.arrive;
        Ok(Self {
            law: Arrivals::new(arrive, trace, &draws)?,
            draws,
            trace,
            ordered: program.workload.trace.as_ref().is_some_and(|trace| trace.ordered)
                || matches!(arrive, Arrive::Trace(_)),
            replaces: matches!(arrive, Arrive::Closed(_)),
            serial_next: 0,
        })
    }

    /// A number in [0, 1), as [`serq_kernel::World::uniform`] wants it.
    #[inline]
    pub fn uniform(&self, stream: Stream) -> f64 {
        self.draws.uniform(stream)
    }

    /// When session `number` comes, the one before having come at `last`; infinity: nobody comes
    /// any more. `None`: the law draws its gaps, and the kernel knows them.
    ///
    /// # Errors
    ///
    /// One sentence: the pieces of the law are too short.
    pub fn next(&mut self, number: u64, last: f64) -> Option<Result<f64, String>> {
        let law = self.law.as_mut()?;
        Some(law.next(&self.draws, number, last).map(|time| time.unwrap_or(f64::INFINITY)))
    }

    /// The next session, and what it replays.
    pub fn arrival(&mut self) -> Arrival {
        let serial = self.serial_next;
        self.serial_next += 1;
        let trace_session = self.trace.map(|trace| {
            let count = u64::from(trace.sessions());
            if self.ordered {
                (serial % count) as u32
            } else {
                let stream = Stream { purpose: Purpose::TraceChoice, owner: serial, turn: 0, counter: 0 };
                (self.draws.uniform(stream) * count as f64) as u32
            }
        });
        Arrival { trace_session }
    }

    /// Who takes the place of a session that ended.
    pub fn replacement(&mut self) -> Option<Arrival> {
        self.replaces.then(|| self.arrival())
    }

    /// As [`serq_kernel::World::trace_turn`] wants it.
    pub fn trace_turn(&self, trace_session: u32, turn: u64) -> Option<TraceTurn> {
        let trace = self.trace?;
        let row = trace.turn(trace_session, turn - 1)?;
        let more = turn < u64::from(trace.turns(trace_session));
        Some(TraceTurn { new: row.new, out: row.out, think: row.think, more, forced: row.forced })
    }

    /// As [`serq_kernel::World::trace_blocks`] wants it.
    pub fn trace_blocks(&self, trace_session: u32, turn: u64, ids: &mut Vec<u64>) -> f64 {
        let Some(trace) = self.trace else { return 0.0 };
        ids.extend_from_slice(trace.blocks(trace_session, turn - 1));
        trace.block().unwrap_or(0.0)
    }

    /// Rows of the trace that were left out.
    pub fn rows_skipped(&self) -> u64 {
        self.trace.map_or(0, TraceFile::skipped)
    }
}
