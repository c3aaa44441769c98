//! The event list: what is due, in order of time, then of being scheduled.
//!
//! One slot stands in front of the heap: an engine's next step end is usually the
//! next event of all, and never touches the heap then.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::leap::StepRun;

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

    /// Schedules the end of a run's last step, if that will ever come: as of the end of the one
    /// before, when nothing else was scheduled but by the like of it, which go by their stages;
    /// of a single step, in the place kept for it.
    #[inline]
    pub(crate) fn push_step(&mut self, stage: u32, run: &StepRun) -> u64 {
        if run.last == f64::INFINITY {
            return 0;
        }
        let order = if run.steps == 1 { run.first_order } else { u64::from(stage) };
        self.sequence += 1;
        self.insert(run.end(run.steps - 1), order, run.last, What::Step(stage))
    }

    /// A place in the order of scheduling, for something scheduled later.
    pub(crate) fn reserve(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Schedules again what was taken, in its old place.
    pub(crate) fn put_back(&mut self, event: Event) {
        self.place(event);
    }

    #[inline]
    fn insert(&mut self, as_of: f64, order: u64, time: f64, what: What) -> u64 {
        let event =
            Event { time_bits: time.to_bits(), as_of_bits: as_of.to_bits(), order, sequence: self.sequence, what };
        self.place(event);
        self.sequence
    }

    #[inline]
    fn place(&mut self, event: Event) {
        match &self.front {
            Some(front) if event < *front => {
                let front = *front;
                self.heap.push(Reverse(front));
                self.front = Some(event);
            }
            None if self.heap.peek().is_none_or(|top| event < top.0) => self.front = Some(event),
            _ => self.heap.push(Reverse(event)),
        }
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

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Event> {
        match self.front.take() {
            Some(event) => Some(event),
            None => self.heap.pop().map(|top| top.0),
        }
    }
}
