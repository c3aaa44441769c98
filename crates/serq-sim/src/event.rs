//! The event list: what is due, in order of time, then of being scheduled.
//!
//! One slot stands in front of the heap: an engine's next step end is usually the
//! next event of all, and never touches the heap then.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    Warmup,
    Arrival,
    /// Iteration of a step stage.
    Step(u32),
    /// Job of a `fifo` or `delay` stage.
    Work(u32),
    /// The next finish of a `ps` stage.
    Stage(u32),
    /// The next finish of all flows.
    Flows,
    /// A lease's time.
    Timer(u32),
}

/// An event. Times are never negative, so their bits order as they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    time_bits: u64,
    /// Position in scheduling order; unique.
    pub(crate) sequence: u64,
    pub(crate) what: What,
}

impl Event {
    pub(crate) fn time(self) -> f64 {
        f64::from_bits(self.time_bits)
    }
}

#[derive(Debug, Default)]
pub(crate) struct EventList {
    front: Option<Event>,
    heap: BinaryHeap<Reverse<Event>>,
    sequence: u64,
}

impl EventList {
    /// Schedules and answers the event's sequence number, by which its owner knows it.
    pub(crate) fn push(&mut self, time: f64, what: What) -> u64 {
        self.sequence += 1;
        let event = Event { time_bits: time.to_bits(), sequence: self.sequence, what };
        match self.front {
            Some(front) if event < front => {
                self.heap.push(Reverse(front));
                self.front = Some(event);
            }
            None if self.heap.peek().is_none_or(|top| event < top.0) => self.front = Some(event),
            _ => self.heap.push(Reverse(event)),
        }
        self.sequence
    }

    pub(crate) fn peek(&self) -> Option<Event> {
        self.front.or_else(|| self.heap.peek().map(|top| top.0))
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.front.take().or_else(|| self.heap.pop().map(|top| top.0))
    }
}
