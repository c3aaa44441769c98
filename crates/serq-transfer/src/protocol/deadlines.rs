//! What is due when: at most one deadline a key, the earliest first.
//!
//! # Invariants
//!
//! - A key has one deadline or none: to set it again replaces it, so there are never more than keys.
//! - Whatever is due comes out, in the order of time, however it went in.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::Time;

/// Deadlines by key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Deadlines<K> {
    order: BTreeSet<(Time, K)>,
    of: BTreeMap<K, Time>,
}

impl<K: Copy + Ord> Deadlines<K> {
    pub(crate) fn new() -> Deadlines<K> {
        Deadlines { order: BTreeSet::new(), of: BTreeMap::new() }
    }

    /// Replaces the key's deadline.
    pub(crate) fn set(&mut self, key: K, time: Time) {
        self.clear(key);
        self.of.insert(key, time);
        self.order.insert(entry(time, key));
    }

    /// Moves the key's deadline to a later time.
    pub(crate) fn prolong(&mut self, key: K, time: Time) {
        if self.of.get(&key).is_some_and(|before| *before < time) {
            self.set(key, time);
        }
    }

    /// The key has no deadline any more.
    pub(crate) fn clear(&mut self, key: K) {
        if let Some(time) = self.of.remove(&key) {
            self.order.remove(&entry(time, key));
        }
    }

    pub(crate) fn is_set(&self, key: K) -> bool {
        self.of.contains_key(&key)
    }

    /// The earliest.
    pub(crate) fn earliest(&self) -> Option<Time> {
        self.order.first().map(|(_, key)| self.of[key])
    }

    /// Takes the earliest out if it is due.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<K> {
        let &(_, key) = self.order.first()?;
        if self.of[&key] > now {
            return None;
        }
        self.clear(key);
        Some(key)
    }

    /// Whether something is due that was not taken out.
    pub(crate) fn is_overdue(&self, now: Time) -> bool {
        self.of.values().any(|time| *time <= now)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.of.keys().copied()
    }
}

/// Where a deadline stands in the order.
fn entry<K>(time: Time, key: K) -> (Time, K) {
    (time, key)
}

#[cfg(test)]
mod tests {
    use super::{Deadlines, Time};

    #[test]
    fn what_is_due_comes_out_however_it_went_in() {
        let mut deadlines = Deadlines::new();
        for (key, time) in [(1, 50), (2, 10), (3, 30), (4, 20)] {
            deadlines.set(key, Time(time));
        }
        deadlines.set(2, Time(60));
        deadlines.clear(4);
        let mut due = Vec::new();
        while let Some(key) = deadlines.take_due(Time(55)) {
            due.push(key);
        }
        assert_eq!(due, [3, 1]);
        assert_eq!(deadlines.earliest(), Some(Time(60)));
    }
}
