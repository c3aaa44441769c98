//! What one thread leaves for another, in order.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::transport::lock;

pub(super) struct Mailbox<T> {
    waiting: Mutex<VecDeque<T>>,
    changed: Condvar,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), changed: Condvar::new() }
    }
}

impl<T> Mailbox<T> {
    pub(super) fn put(&self, item: T) {
        lock(&self.waiting).push_back(item);
        self.changed.notify_all();
    }

    /// The next one, if there is one by then.
    pub(super) fn next(&self, by: Instant) -> Option<T> {
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(item) = waiting.pop_front() {
                return Some(item);
            }
            let left = by.checked_duration_since(Instant::now())?;
            waiting = self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
