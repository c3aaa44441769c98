//! What is to be told at a time.

use std::collections::{BTreeMap, HashMap};

/// What is to be told at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Due {
    /// A lease's time is over.
    Lease(u32),
    /// A modelled step is.
    Step(u32),
    /// Modelled work is.
    Work(u32),
    /// The next job of a stage whose jobs share a rate, or the next read.
    Next(Option<u32>),
}

/// What is due, by time and then in the order in which it was said.
#[derive(Default)]
pub(super) struct Clock {
    due: BTreeMap<(u64, u64), Due>,
    places: HashMap<Due, (u64, u64)>,
    said: u64,
}

impl Clock {
    pub(super) fn set(&mut self, what: Due, time: f64) {
        self.stop(what);
        if time.is_finite() {
            self.said += 1;
            let place = (time.max(0.0).to_bits(), self.said);
            self.due.insert(place, what);
            self.places.insert(what, place);
        }
    }

    pub(super) fn stop(&mut self, what: Due) {
        if let Some(place) = self.places.remove(&what) {
            self.due.remove(&place);
        }
    }

    pub(super) fn first(&self) -> Option<f64> {
        self.due.first_key_value().map(|(&(time, _), _)| f64::from_bits(time))
    }

    pub(super) fn take(&mut self, now: f64) -> Option<(f64, Due)> {
        let time = self.first().filter(|&time| time <= now)?;
        let (_, what) = self.due.pop_first()?;
        self.places.remove(&what);
        Some((time, what))
    }
}
