//! Memory that kernels read and write.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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

/// Bytes of packed weights, that begin with a cache line. They are parts of large allocations
/// in the system's large pages: a decode step reads every weight once, and without them takes
/// a third longer (bf16, one token at a time, `kernel_bench` on a Zen 4).
pub(super) struct Weights {
    start: *mut u8,
    bytes: usize,
    /// Keeps the memory.
    _slab: Arc<Slab>,
}

/// An allocation that is given out from its start to its end.
struct Slab {
    start: *mut u8,
    layout: Layout,
    taken: Mutex<usize>,
}

/// The slab that weights are taken from now.
static SLAB: Mutex<Weak<Slab>> = Mutex::new(Weak::new());
/// Bytes of a slab that several matrices share.
const SLAB_BYTES: usize = 32 << 20;
/// Bytes of a large page on the machines we know.
const LARGE_PAGE: usize = 2 << 20;

// SAFETY: a slab's parts are disjoint, and each has one owner.
unsafe impl Send for Slab {}
unsafe impl Sync for Slab {}
// SAFETY: they are bytes.
unsafe impl Send for Weights {}
unsafe impl Sync for Weights {}

impl Weights {
    /// As many zeros.
    pub(super) fn zeros(bytes: usize) -> Self {
        let mut current = SLAB.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = current.upgrade().and_then(|slab| Some((slab.take(bytes)?, slab)));
        let (start, slab) = taken.unwrap_or_else(|| {
            let slab = Arc::new(Slab::new(bytes.max(SLAB_BYTES)));
            *current = Arc::downgrade(&slab);
            (slab.take(bytes).expect("a new slab has room"), slab)
        });
        // SAFETY: they are this value's alone.
        unsafe { start.write_bytes(0, bytes) };
        Self { start, bytes, _slab: slab }
    }
}

impl Deref for Weights {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: zeroed, alive as long as the slab is, and this value's alone.
        unsafe { slice::from_raw_parts(self.start, self.bytes) }
    }
}

impl DerefMut for Weights {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Slab {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.next_multiple_of(LARGE_PAGE), LARGE_PAGE).expect("a size of memory");
        // SAFETY: it is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        #[cfg(target_os = "linux")]
        // SAFETY: advice on memory just allocated. A system that does not follow it is slower.
        unsafe {
            libc::madvise(start.cast(), layout.size(), libc::MADV_HUGEPAGE);
        }
        Self { start, layout, taken: Mutex::new(0) }
    }

    /// The next `bytes` bytes, if there are as many.
    fn take(&self, bytes: usize) -> Option<*mut u8> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let first = *taken;
        if first + bytes > self.layout.size() {
            return None;
        }
        *taken = (first + bytes).next_multiple_of(64).min(self.layout.size());
        // SAFETY: within the allocation.
        Some(unsafe { self.start.add(first) })
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: allocated so; what was taken is dropped, for it keeps the slab.
        unsafe { dealloc(self.start, self.layout) };
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
