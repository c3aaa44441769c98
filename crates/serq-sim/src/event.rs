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
    pub(crate) fn time(&self) -> f64 {
        f64::from_bits(self.time_bits)
    }
}

impl Ord for Event {
    #[inline(always)]
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |event: &Self| (event.time_bits, event.as_of_bits, event.order);
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Event {
    #[inline(always)]
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

/// An event passes in fields, not as a whole: what was just written field by field is slow
/// to read in one piece.
#[derive(Debug)]
pub(crate) struct EventList {
    /// The first of all, where there is one.
    front: Event,
    in_front: bool,
    heap: BinaryHeap<Reverse<Event>>,
    sequence: u64,
}

impl Default for EventList {
    fn default() -> Self {
        let front = Event { time_bits: 0, as_of_bits: 0, order: 0, sequence: 0, what: What::Warmup };
        Self { front, in_front: false, heap: BinaryHeap::new(), sequence: 0 }
    }
}

impl EventList {
    /// Schedules now, and answers the event's sequence number.
    pub(crate) fn push(&mut self, now: f64, time: f64, what: What) -> u64 {
        let order = self.reserve();
        self.insert(now, order, time, what)
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

    #[inline(always)]
    fn insert(&mut self, as_of: f64, order: u64, time: f64, what: What) -> u64 {
        let sequence = self.sequence;
        let event = Event { time_bits: time.to_bits(), as_of_bits: as_of.to_bits(), order, sequence, what };
        match self.first() {
            Some(first) if event > *first => self.push_behind(event),
            _ => {
                if self.in_front {
                    self.push_behind(self.front);
                }
                self.front = event;
                self.in_front = true;
            }
        }
        sequence
    }

    #[inline(never)]
    fn push_behind(&mut self, event: Event) {
        self.heap.push(Reverse(event));
    }

    /// The first event, stale or not.
    #[inline]
    pub(crate) fn first(&self) -> Option<&Event> {
        if self.in_front { Some(&self.front) } else { self.heap.peek().map(|top| &top.0) }
    }

    /// Whether the first event, stale or not, is at this time.
    #[inline]
    pub(crate) fn due(&self, time: f64) -> bool {
        self.first().is_some_and(|event| event.time_bits == time.to_bits())
    }

    #[inline]
    pub(crate) fn remove_first(&mut self) {
        if self.in_front {
            self.in_front = false;
        } else {
            self.remove_behind();
        }
    }

    #[inline(never)]
    fn remove_behind(&mut self) {
        self.heap.pop();
    }
}
