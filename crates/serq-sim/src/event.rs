//! The event list: what is due, in order of time, then of being scheduled.
//!
//! One slot stands in front of the heap: an engine's next step end is usually the
//! next event of all, and never touches the heap then.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What is due.
#[derive(Clone, Copy, Debug)]
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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    time_bits: u64,
    /// When it was scheduled.
    as_of_bits: u64,
    /// Its place among those scheduled then: the sequence number, or the stage of a leap.
    order: u64,
    /// Unique: by it its owner knows it.
    pub(crate) sequence: u64,
    pub(crate) what: What,
}

impl Event {
    pub(crate) fn time(self) -> f64 {
        f64::from_bits(self.time_bits)
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |event: &Self| (event.time_bits, event.as_of_bits, event.order);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Event {}

#[derive(Debug, Default)]
pub(crate) struct EventList {
    front: Option<Event>,
    heap: BinaryHeap<Reverse<Event>>,
    sequence: u64,
}

impl EventList {
    /// Schedules now, and answers the event's sequence number.
    pub(crate) fn push(&mut self, now: f64, time: f64, what: What) -> u64 {
        self.sequence += 1;
        self.insert(now, self.sequence, time, what)
    }

    /// Schedules as if at `as_of`, when nothing else was scheduled but by the like of it, which
    /// go by their `order`.
    pub(crate) fn push_as_of(&mut self, as_of: f64, order: u64, time: f64, what: What) -> u64 {
        self.sequence += 1;
        self.insert(as_of, order, time, what)
    }

    /// A place in the order of scheduling, for something scheduled later.
    pub(crate) fn reserve(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn insert(&mut self, as_of: f64, order: u64, time: f64, what: What) -> u64 {
        let event =
            Event { time_bits: time.to_bits(), as_of_bits: as_of.to_bits(), order, sequence: self.sequence, what };
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

    /// Whether the first event, stale or not, is at this time.
    #[inline]
    pub(crate) fn due(&self, time: f64) -> bool {
        let first = self.front.as_ref().or_else(|| self.heap.peek().map(|top| &top.0));
        first.is_some_and(|event| event.time_bits == time.to_bits())
    }

    #[inline]
    pub(crate) fn peek(&self) -> Option<Event> {
        self.front.or_else(|| self.heap.peek().map(|top| top.0))
    }

    pub(crate) fn pop(&mut self) -> Option<Event> {
        self.front.take().or_else(|| self.heap.pop().map(|top| top.0))
    }
}
