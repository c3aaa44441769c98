//! Memory that kernels read and write.

use std::ops::{Deref, DerefMut};
use std::slice;

/// Bytes that begin with a cache line.
#[derive(Default)]
pub(super) struct Aligned {
    lines: Vec<Line>,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    /// Makes it at least `bytes` long. What is new is zeros.
    pub(super) fn grow(&mut self, bytes: usize) {
        if self.lines.len() < bytes.div_ceil(64) {
            self.lines.resize(bytes.div_ceil(64), Line([0; 64]));
        }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: lines are bytes, one after the other.
        unsafe { slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * 64) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len() * 64) }
    }
}

/// A buffer that workers write, each its own part.
pub(super) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: it is followed in unsafe code only, which says why parts are disjoint.
unsafe impl<T: Send> Send for Shared<T> {}
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(super) fn new(buffer: &mut [T]) -> Self {
        Self(buffer.as_mut_ptr())
    }

    /// The address of number `index`, which is in the buffer.
    pub(super) unsafe fn at(self, index: usize) -> *mut T {
        // SAFETY: the caller says that it is in the buffer.
        unsafe { self.0.add(index) }
    }
}
