//! The event list: what is due, in order of time, then of being scheduled.
//!
//! One slot stands in front of the heap: an engine's next step end is usually the
//! next event of all, and never touches the heap then. The heap has four branches: half
//! as deep as with two, and those of one place lie side by side.

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
    /// A client goes away, by its place in the options.
    Cancel(u32),
    /// What it was for will not happen any more.
    Void,
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

    /// Whether it comes first.
    #[inline(always)]
    fn before(&self, other: &Self) -> bool {
        if self.time_bits != other.time_bits {
            return self.time_bits < other.time_bits;
        }
        (self.as_of_bits, self.order) < (other.as_of_bits, other.order)
    }
}

/// Of a place in the heap.
const BRANCHES: usize = 4;

/// An event passes in fields, not as a whole: what was just written field by field is slow
/// to read in one piece.
#[derive(Debug)]
pub(crate) struct EventList {
    /// The first of all, where there is one.
    front: Event,
    in_front: bool,
    /// The others: at `at` one that is before those at 4 × at + 1 and the three after.
    heap: Vec<Event>,
    sequence: u64,
}

impl Default for EventList {
    fn default() -> Self {
        let front = Event { time_bits: 0, as_of_bits: 0, order: 0, sequence: 0, what: What::Warmup };
        Self { front, in_front: false, heap: Vec::new(), sequence: 0 }
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
            Some(first) if first.before(&event) => self.push_behind(event),
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
        let mut at = self.heap.len();
        self.heap.push(event);
        while at > 0 {
            let above = (at - 1) / BRANCHES;
            if self.heap[above].before(&event) {
                break;
            }
            self.heap[at] = self.heap[above];
            at = above;
        }
        self.heap[at] = event;
    }

    /// The first event, stale or not.
    #[inline]
    pub(crate) fn first(&self) -> Option<&Event> {
        if self.in_front { Some(&self.front) } else { self.heap.first() }
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

    /// The last one takes the place of the first, and sinks.
    #[inline(never)]
    fn remove_behind(&mut self) {
        let Some(event) = self.heap.pop() else { return };
        let count = self.heap.len();
        if count == 0 {
            return;
        }
        let mut at = 0;
        loop {
            let below = BRANCHES * at + 1;
            let Some(branches) = self.heap.get(below..count.min(below + BRANCHES)) else { break };
            let Some(mut first) = branches.first() else { break };
            let mut branch = 0;
            for (other, candidate) in branches.iter().enumerate().skip(1) {
                if candidate.before(first) {
                    (first, branch) = (candidate, other);
                }
            }
            if event.before(first) {
                break;
            }
            self.heap[at] = *first;
            at = below + branch;
        }
        self.heap[at] = event;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Taken one by one, in between pushed, events come in order: of time, then of being scheduled.
    #[test]
    fn events_come_in_order() {
        let (mut list, mut pending, mut taken) = (EventList::default(), 0, Vec::new());
        let mut number = 1_u64;
        let mut take = |list: &mut EventList| {
            let first = *list.first().expect("something is pending");
            list.remove_first();
            taken.push((first.time(), first.sequence));
        };
        for _ in 0..20_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let now = list.first().map_or(0.0, Event::time);
            if number >> 61 < 5 {
                list.push(now, now + ((number >> 40) % 97) as f64, What::Arrival);
                pending += 1;
            } else if pending > 0 {
                take(&mut list);
                pending -= 1;
            }
        }
        (0..pending).for_each(|_| take(&mut list));
        assert!(list.first().is_none());
        assert!(taken.len() > 10_000 && taken.is_sorted());
    }
}
