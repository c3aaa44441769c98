//! How transfers ended, for a while: so that a question asked again gets the same answer.
//!
//! # Invariants
//!
//! - Never more than the limit: the oldest goes first. An answer that is forgotten becomes "unknown", which
//!   fails a load and never makes a bad one good.

use std::collections::{BTreeMap, VecDeque};

use super::identity::{Time, TransferId};

/// Endings by transfer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tombstones<V> {
    endings: BTreeMap<TransferId, V>,
    /// In the order of expiry, which is the order of ending: all last equally long.
    order: VecDeque<(Time, TransferId)>,
    limit: usize,
    duration_us: u64,
}

impl<V> Tombstones<V> {
    pub(crate) fn new(limit: usize, duration_us: u64) -> Tombstones<V> {
        Tombstones { endings: BTreeMap::new(), order: VecDeque::new(), limit, duration_us }
    }

    /// A transfer ended. The first ending counts.
    pub(crate) fn bury(&mut self, now: Time, id: TransferId, ending: V) {
        if self.limit == 0 || self.endings.contains_key(&id) {
            return;
        }
        while self.endings.len() >= self.limit {
            let (_, oldest) = self.order.pop_front().expect("every ending is in the order");
            self.endings.remove(&oldest);
        }
        self.endings.insert(id, ending);
        self.order.push_back((now.after(self.duration_us), id));
    }

    pub(crate) fn get(&self, id: TransferId) -> Option<&V> {
        self.endings.get(&id)
    }

    pub(crate) fn expire(&mut self, now: Time) {
        while let Some(&(until, id)) = self.order.front()
            && until <= now
        {
            self.order.pop_front();
            self.endings.remove(&id);
        }
    }

    pub(crate) fn earliest(&self) -> Option<Time> {
        self.order.front().map(|(until, _)| *until)
    }

    pub(crate) fn len(&self) -> usize {
        self.endings.len()
    }

    pub(crate) fn check(&self) {
        assert_eq!(self.endings.len(), self.order.len(), "every ending has its expiry");
        assert!(self.endings.len() <= self.limit, "tombstones are bounded");
    }
}

#[cfg(test)]
mod tests {
    use super::{Time, Tombstones, TransferId};

    #[test]
    fn the_oldest_ending_makes_room_and_time_takes_the_rest() {
        let mut tombstones = Tombstones::new(2, 100);
        for id in 1..=3 {
            tombstones.bury(Time(id as u64), TransferId(id), id);
        }
        tombstones.check();
        assert_eq!(tombstones.get(TransferId(1)), None);
        tombstones.bury(Time(50), TransferId(3), 9);
        assert_eq!(tombstones.get(TransferId(3)), Some(&3));
        tombstones.expire(Time(102));
        assert_eq!((tombstones.len(), tombstones.earliest()), (1, Some(Time(103))));
    }
}
