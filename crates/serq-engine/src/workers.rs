//! The threads that compute, the caller's among them.
//!
//! [`Workers::run`] has every worker do its part of one job and returns when all are done. A
//! forward pass is a few hundred such jobs of some tens of microseconds, so a waiting worker
//! spins; after [`SPIN`] it yields between looks, because a spinning thread keeps the one it
//! waits for off a busy CPU; after [`PARK`] without a job it sleeps.
//!
//! # Invariants
//!
//! - A job is run exactly once by each worker, and by none when `run` has returned.
//! - One job at a time: `Workers` is not `Sync`, so a job cannot start another on them.
//! - Threads are pinned only where each CPU this process may use gets exactly one of them.
//!   Fewer workers may share the machine with other processes' and are left to the system.

// Two reasons. The job is borrowed for the length of `run` and the threads outlive it, so its
// lifetime is erased. And the CPUs a thread may use are asked of and told to the system.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a waiting worker only looks: longer than a barrier within a forward pass takes.
const SPIN: Duration = Duration::from_micros(20);
/// How long a worker without a job stays awake: longer than what lies between two steps.
const PARK: Duration = Duration::from_millis(2);

type Job = dyn Fn(usize) + Sync;

/// A pool of threads that run one job at a time, together with the thread that calls.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The job's number. A cell also makes the pool `!Sync`, see the module.
    epoch: Cell<u64>,
    pinned: Option<affinity::Cpus>,
}

struct Shared {
    /// Number of the newest job.
    epoch: Line<AtomicU64>,
    /// Threads that have not finished it.
    running: Line<AtomicUsize>,
    /// The newest job; none: the threads end. Written before `epoch`, read after.
    job: UnsafeCell<Option<*const Job>>,
    parked: Vec<Line<AtomicBool>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written by the pool's owner while no thread runs (`running` is 0 and the
// threads wait for `epoch`), and read by the threads after they saw the `epoch` stored next.
unsafe impl Sync for Shared {}
// SAFETY: the job it points to is `Sync`, and alive while a thread may look at it.
unsafe impl Send for Shared {}

/// Alone in its cache lines (two: they are fetched in pairs).
#[repr(align(128))]
struct Line<T>(T);

impl Workers {
    /// A pool of `count` workers: the caller, and `count - 1` threads.
    ///
    /// # Panics
    ///
    /// When `count` is 0 or the system gives no thread.
    pub fn new(count: usize) -> Self {
        assert!(count > 0, "the caller is a worker");
        let shared = Arc::new(Shared {
            epoch: Line(AtomicU64::new(0)),
            running: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            parked: (0..count).map(|_| Line(AtomicBool::new(false))).collect(),
            panic: Mutex::new(None),
        });
        let cpus = affinity::allowed().filter(|cpus| count > 1 && cpus.count() == count);
        let threads = (1..count)
            .map(|worker| {
                let (shared, cpus) = (shared.clone(), cpus.clone());
                thread::Builder::new()
                    .name(format!("worker {worker}"))
                    .spawn(move || {
                        if let Some(cpus) = cpus {
                            cpus.pin_to(worker);
                        }
                        shared.serve(worker);
                    })
                    .expect("the system has a thread left")
            })
            .collect();
        if let Some(cpus) = &cpus {
            cpus.pin_to(0);
        }
        Self { shared, threads, epoch: Cell::new(0), pinned: cpus }
    }

    /// How many workers run a job, the caller among them.
    pub fn count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` once on every worker, with the worker's number from 0 (the caller) on.
    /// Returns when all have finished.
    ///
    /// # Panics
    ///
    /// When the job panicked on a worker, with its panic, after all have finished.
    pub fn run(&self, job: &(dyn Fn(usize) + Sync)) {
        if self.threads.is_empty() {
            return job(0);
        }
        // SAFETY: only the lifetime changes. The pointer is followed by threads counted in
        // `running`, and this function waits for all of them, also when its own part panics.
        let erased: *const Job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job) };
        self.shared.running.0.store(self.threads.len(), Ordering::Relaxed);
        self.start(Some(erased));
        let own = panic::catch_unwind(AssertUnwindSafe(|| job(0)));
        wait(|| self.shared.running.0.load(Ordering::Acquire) == 0, None);
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(theirs) {
            panic::resume_unwind(panic);
        }
    }

    fn start(&self, job: Option<*const Job>) {
        // SAFETY: no thread looks at it before the next epoch, see `Shared`.
        unsafe { *self.shared.job.get() = job };
        self.epoch.set(self.epoch.get() + 1);
        // Sequentially consistent, as in `serve`: either the thread sees the epoch before it
        // sleeps, or it is seen here to be about to.
        self.shared.epoch.0.store(self.epoch.get(), Ordering::SeqCst);
        for (parked, thread) in self.shared.parked[1..].iter().zip(&self.threads) {
            if parked.0.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.start(None);
        }
        for thread in self.threads.drain(..) {
            // It ends without a panic: those of jobs are caught.
            let _ = thread.join();
        }
        if let Some(cpus) = &self.pinned {
            cpus.unpin();
        }
    }
}

impl Shared {
    /// A thread's life.
    fn serve(&self, worker: usize) {
        for epoch in 1.. {
            let come = || self.epoch.0.load(Ordering::Acquire) >= epoch;
            while !wait(come, Some(PARK)) {
                self.parked[worker].0.store(true, Ordering::SeqCst);
                if self.epoch.0.load(Ordering::SeqCst) < epoch {
                    thread::park();
                }
                self.parked[worker].0.store(false, Ordering::SeqCst);
            }
            // SAFETY: the epoch has come, see `Shared`.
            let Some(job) = (unsafe { *self.job.get() }) else { return };
            // SAFETY: `run` waits for this thread before the job's borrow ends.
            let job = unsafe { &*job };
            if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| job(worker))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.running.0.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Waits until `done`, or for about `limit`; whether it is done.
fn wait(done: impl Fn() -> bool, limit: Option<Duration>) -> bool {
    let mut since = None;
    loop {
        for _ in 0..64 {
            if done() {
                return true;
            }
            hint::spin_loop();
        }
        let waited = since.get_or_insert_with(Instant::now).elapsed();
        if limit.is_some_and(|limit| waited > limit) {
            return done();
        }
        if waited > SPIN {
            thread::yield_now();
        }
    }
}

#[cfg(target_os = "linux")]
mod affinity {
    //! The CPUs a thread may use.

    use std::mem;

    /// A set of CPUs.
    #[derive(Clone)]
    pub(super) struct Cpus(libc::cpu_set_t);

    /// Those the calling thread may use, if the system tells.
    pub(super) fn allowed() -> Option<Cpus> {
        // SAFETY: a set of bits, for which zeros are a value; the call writes no more than it.
        unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            (libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0).then_some(Cpus(set))
        }
    }

    impl Cpus {
        pub(super) fn count(&self) -> usize {
            self.numbers().count()
        }

        /// Keeps the calling thread on the set's CPU `index`. A system that refuses is as slow
        /// as it wants: nothing depends on it.
        pub(super) fn pin_to(&self, index: usize) {
            if let Some(number) = self.numbers().nth(index) {
                // SAFETY: as in `allowed`; the number is below the set's size.
                let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
                unsafe { libc::CPU_SET(number, &mut set) };
                Self(set).apply();
            }
        }

        /// Lets the calling thread use the whole set again.
        pub(super) fn unpin(&self) {
            self.apply();
        }

        fn apply(&self) {
            // SAFETY: the call reads the set only.
            unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
        }

        fn numbers(&self) -> impl Iterator<Item = usize> {
            // SAFETY: the number is below the set's size.
            (0..libc::CPU_SETSIZE as usize).filter(|&number| unsafe { libc::CPU_ISSET(number, &self.0) })
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod affinity {
    //! Threads stay where the system puts them.

    #[derive(Clone)]
    pub(super) struct Cpus;

    pub(super) fn allowed() -> Option<Cpus> {
        None
    }

    impl Cpus {
        pub(super) fn count(&self) -> usize {
            0
        }

        pub(super) fn pin_to(&self, _: usize) {}

        pub(super) fn unpin(&self) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_job_once() {
        for count in [1, 2, 3, 5] {
            let workers = Workers::new(count);
            assert_eq!(workers.count(), count);
            let ran: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for job in 0..1000 {
                if job % 400 == 399 {
                    thread::sleep(2 * PARK); // They sleep, and are woken.
                }
                workers.run(&|worker| {
                    ran[worker].fetch_add(1, Ordering::Relaxed);
                });
                assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == job + 1));
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let workers = Workers::new(3);
        for unlucky in 0..3 {
            let run = || workers.run(&|worker| assert!(worker != unlucky, "unlucky {worker}"));
            let panic = panic::catch_unwind(AssertUnwindSafe(run)).expect_err("one panicked");
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("unlucky {unlucky}")));
            workers.run(&|_| ());
        }
    }
}
