//! What is to be told at a time.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// What is due, by time and then in the order in which it was said.
pub struct Clock<Due> {
    due: BTreeMap<(u64, u64), Due>,
    places: HashMap<Due, (u64, u64)>,
    said: u64,
}

impl<Due> Default for Clock<Due> {
    fn default() -> Self {
        Self { due: BTreeMap::new(), places: HashMap::new(), said: 0 }
    }
}

impl<Due: Copy + Eq + Hash> Clock<Due> {
    /// It is due then, and not when it was before. At infinity: never.
    pub fn set(&mut self, what: Due, time: f64) {
        self.stop(what);
        if time.is_finite() {
            self.said += 1;
            let place = (time.max(0.0).to_bits(), self.said);
            self.due.insert(place, what);
            self.places.insert(what, place);
        }
    }

    /// It is not due any more.
    pub fn stop(&mut self, what: Due) {
        if let Some(place) = self.places.remove(&what) {
            self.due.remove(&place);
        }
    }

    /// When something is due.
    pub fn first(&self) -> Option<f64> {
        self.due.first_key_value().map(|(&(time, _), _)| f64::from_bits(time))
    }

    /// The first that is due by now, and since when.
    pub fn take(&mut self, now: f64) -> Option<(f64, Due)> {
        let time = self.first().filter(|&time| time <= now)?;
        let (_, what) = self.due.pop_first()?;
        self.places.remove(&what);
        Some((time, what))
    }
}
