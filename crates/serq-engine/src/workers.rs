//! The threads that compute, the caller's among them.
//!
//! [`Workers::run`] has the parts of one job done, each by whichever worker comes first, and
//! returns when all are. A forward pass is a few hundred such jobs of some tens of
//! microseconds, so a waiting worker spins; after [`SPIN`] it yields between looks, because a
//! spinning thread keeps the one it waits for off a busy CPU; after [`PARK`] without a job it
//! sleeps.
//!
//! ```text
//!   caller    opens the gate ── takes parts until none is left ── closes it ── waits for those inside
//!   others              ╰─▶ enter ── take parts ── leave
//! ```
//!
//! A worker whose CPU is busy otherwise does not enter, and nobody waits for it: the caller
//! alone would do all.
//!
//! # Invariants
//!
//! - A job's part is run exactly once, and none when `run` has returned.
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

/// How long a waiting worker only looks: longer than what lies between two jobs of a step.
const SPIN: Duration = Duration::from_micros(20);
/// How long a worker without a job stays awake: longer than what lies between two steps.
const PARK: Duration = Duration::from_millis(2);

/// A pool of threads that run one job at a time, together with the thread that calls.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The newest job's number. A cell also makes the pool `!Sync`, see the module.
    number: Cell<u64>,
    pinned: Option<affinity::Cpus>,
}

struct Shared {
    /// The newest job's number << 32, [`CLOSED`], and how many threads entered it.
    gate: Line<AtomicU64>,
    /// How many left it.
    left: Line<AtomicU64>,
    /// Its next part to be taken.
    next: Line<AtomicUsize>,
    /// The job itself; none: the threads end.
    job: UnsafeCell<Option<Job>>,
    parked: Vec<Line<AtomicBool>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Set in a gate when nobody may enter any more.
const CLOSED: u64 = 1 << 31;

#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize, usize) + Sync),
    parts: usize,
}

// SAFETY: `job` is written by the pool's owner while the gate is closed and all who entered
// have left, and read by threads that entered through the gate opened next.
unsafe impl Sync for Shared {}
// SAFETY: the job it points to is `Sync`, and alive while a thread is inside.
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
            gate: Line(AtomicU64::new(CLOSED)),
            left: Line(AtomicU64::new(0)),
            next: Line(AtomicUsize::new(0)),
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
        Self { shared, threads, number: Cell::new(0), pinned: cpus }
    }

    /// How many workers run a job, the caller among them.
    pub fn count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Runs `job` with (a worker's number, a part's) once for each of `parts` parts. A worker
    /// takes parts one after the other, so what is kept per worker is used by one at a time;
    /// the caller is worker 0. Returns when all parts are done.
    ///
    /// # Panics
    ///
    /// When the job panicked, with its panic, after all workers have left it; parts may not
    /// have been run then.
    pub fn run(&self, parts: usize, job: &(dyn Fn(usize, usize) + Sync)) {
        if self.threads.is_empty() || parts < 2 {
            return (0..parts).for_each(|part| job(0, part));
        }
        // SAFETY: only the lifetime changes. The pointer is followed by threads that entered,
        // and this function waits until they have left, also when a part panics.
        let erased = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const (dyn Fn(usize, usize) + Sync)>(job)
        };
        self.open(Some(Job { run: erased, parts }));
        let own = panic::catch_unwind(AssertUnwindSafe(|| self.shared.take_parts(parts, |part| job(0, part))));
        let entered = self.shared.gate.0.fetch_or(CLOSED, Ordering::AcqRel) & (CLOSED - 1);
        wait(|| self.shared.left.0.load(Ordering::Acquire) == entered, None);
        let theirs = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = own.err().or(theirs) {
            panic::resume_unwind(panic);
        }
    }

    fn open(&self, job: Option<Job>) {
        // SAFETY: nobody is inside and the gate is closed, see `Shared`.
        unsafe { *self.shared.job.get() = job };
        self.shared.left.0.store(0, Ordering::Relaxed);
        self.shared.next.0.store(0, Ordering::Relaxed);
        self.number.set(self.number.get() + 1);
        // Sequentially consistent, as in `serve`: either a thread sees the gate open before it
        // sleeps, or it is seen here to be about to.
        self.shared.gate.0.store(self.number.get() << 32, Ordering::SeqCst);
        for (parked, thread) in self.shared.parked[1..].iter().zip(&self.threads) {
            if parked.0.load(Ordering::SeqCst) {
                thread.thread().unpark();
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.open(None);
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
        // The job it entered last.
        let mut number = 0;
        loop {
            let gate = self.gate.0.load(Ordering::SeqCst);
            if !enters(gate, number) {
                if !wait(|| enters(self.gate.0.load(Ordering::Relaxed), number), Some(PARK)) {
                    self.parked[worker].0.store(true, Ordering::SeqCst);
                    if !enters(self.gate.0.load(Ordering::SeqCst), number) {
                        thread::park();
                    }
                    self.parked[worker].0.store(false, Ordering::SeqCst);
                }
                continue;
            }
            if self.gate.0.compare_exchange(gate, gate + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            number = gate >> 32;
            // SAFETY: it entered, see `Shared`.
            let Some(job) = (unsafe { *self.job.get() }) else { return };
            // SAFETY: `run` waits for this thread to leave before the job's borrow ends.
            let run = unsafe { &*job.run };
            let taken = || self.take_parts(job.parts, |part| run(worker, part));
            if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(taken)) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.left.0.fetch_add(1, Ordering::Release);
        }
    }

    /// Runs parts until all are taken.
    fn take_parts(&self, parts: usize, run: impl Fn(usize)) {
        loop {
            let part = self.next.0.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            run(part);
        }
    }
}

/// Whether a thread that entered job `number` last may enter the gate.
fn enters(gate: u64, number: u64) -> bool {
    gate & CLOSED == 0 && gate >> 32 > number
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
            return false;
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
    fn every_part_is_run_once() {
        for count in [1, 2, 3, 5] {
            let workers = Workers::new(count);
            assert_eq!(workers.count(), count);
            for job in 0..1000 {
                if job % 400 == 399 {
                    thread::sleep(2 * PARK); // They sleep, and are woken.
                }
                let ran: Vec<AtomicUsize> = (0..job % 7).map(|_| AtomicUsize::new(0)).collect();
                workers.run(ran.len(), &|worker, part| {
                    assert!(worker < count);
                    ran[part].fetch_add(1, Ordering::Relaxed);
                });
                assert!(ran.iter().all(|ran| ran.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn workers_take_part() {
        let workers = Workers::new(3);
        // Each part waits for the others to have begun.
        let begun = AtomicUsize::new(0);
        workers.run(3, &|_, _| {
            begun.fetch_add(1, Ordering::Relaxed);
            while begun.load(Ordering::Relaxed) < 3 {
                thread::yield_now();
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let workers = Workers::new(3);
        for unlucky in 0..3 {
            let run = || workers.run(3, &|_, part| assert!(part != unlucky, "unlucky {part}"));
            let panic = panic::catch_unwind(AssertUnwindSafe(run)).expect_err("one panicked");
            assert_eq!(panic.downcast_ref::<String>(), Some(&format!("unlucky {unlucky}")));
            workers.run(3, &|_, _| ());
        }
    }
}
