//! KV on its way from one request's blocks to its others: the kernel's reads, and what goes before they begin.

use std::ops::Range;

use serq_kernel::Held;

use super::super::live::Copying;
use super::super::{Copied, CopyError, Span, Told, Transfer};
use super::losses::{Going, Loss};
use super::{Driver, Fact};
use crate::served::Served;

/// A read of the kernel's.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) job: u32,
    /// When it began, and how many tokens it was to bring then.
    pub(super) began: f64,
    pub(super) tokens: f64,
}

/// From a share to another one of the same text.
fn transfer<'a>(served: &Served, from: &Held<'a>, to: &Held<'a>, tokens: Range<usize>) -> Transfer<'a> {
    Transfer { from: Span::of(from), to: Span::of(to), tokens, pushed: served.pushes(from.pool) }
}

impl<const MODELLED: bool> Driver<'_, MODELLED> {
    /// A read: its bytes are copied, or where time is modelled only counted. Answers whether that is done.
    pub(super) fn start_flow(&mut self, job: u32) -> bool {
        let Some(flow) = self.kernel.flow(job) else {
            // What may fail has failed by then, and the kernel knows.
            let late = self.kernel.comes_late(job).filter(|_| !MODELLED && !self.kernel.may_fail(job));
            let Some(session) = late else { return true };
            self.mark_lost(session, "what it was to read was given away first", Loss { spent: true, waits: false });
            self.late.push(session);
            return false;
        };
        let session = flow.session;
        // For the kernel its rest gets less as time goes by.
        let read = *self.reads.entry(session).or_insert(Read { job, began: self.time, tokens: flow.tokens });
        if self.copying.values().any(|copying| copying.session == session) {
            // What began before this is in its way, and does a part of it.
            return false;
        }
        self.reads.remove(&session);
        let Some(live) = self.live.get_mut(&session) else { return true };
        let from_computed = live.computed(&flow.from);
        let start = live.computed(&flow.to);
        let upto = (start + read.tokens.ceil() as usize).min(from_computed);
        let upto = upto.min(self.served.room(&flow.from)).min(self.served.room(&flow.to));
        if start >= upto || start < flow.from.first as usize {
            live.figures.transfer_wait += self.time - read.began;
            return true;
        }
        let transfer = transfer(self.served, &flow.from, &flow.to, start..upto);
        let copying = Copying::of(session, &transfer, flow.to.admission, Some(job));
        let Some(instances) = &mut self.instances else {
            self.count_copied(&copying, 0);
            return true;
        };
        self.copies += 1;
        let lost = self.going.iter().find(|(stage, _)| copying.touches(self.served.instances[**stage as usize]));
        let moved = match lost {
            Some((_, Going { why, .. })) => {
                self.heard.push_back(Told::Copied { copy: self.copies, moved: Err(CopyError::Failed(why.clone())) });
                None
            }
            None => instances.copy(transfer, Copied { told: self.told.clone(), copy: self.copies }),
        };
        match moved {
            Some(bytes) => self.count_copied(&copying, bytes),
            None => {
                self.reads.insert(session, read);
                self.copying.insert(self.copies, copying);
            }
        }
        moved.is_some()
    }

    /// A leg's prefill got further, and its session waits for it with blocks of its own: what is computed goes there
    /// while the rest is computed.
    pub(super) fn copy_early(&mut self, session: u64, pool: u32) {
        if self.copying.values().any(|copying| copying.session == session) {
            return;
        }
        let (Some(to), Some(from)) = (self.kernel.awaiting(session), self.kernel.held_by_leg(session, pool)) else {
            return;
        };
        let (Some(live), Some(instances)) = (self.live.get_mut(&session), &mut self.instances) else { return };
        if to.pool == pool || live.gone_away || live.again {
            return;
        }
        let (start, computed) = (live.computed(&to), live.computed(&from));
        let upto = computed.min(self.served.room(&from)).min(self.served.room(&to));
        let absent = self.going.keys().chain(self.gone.keys());
        let mut absent = absent.filter_map(|&stage| self.served.instances[stage as usize]);
        if start >= upto || absent.any(|memory| memory == pool || memory == to.pool) {
            return;
        }
        self.copies += 1;
        let transfer = transfer(self.served, &from, &to, start..upto);
        let copying = Copying::of(session, &transfer, to.admission, None);
        match instances.copy(transfer, Copied { told: self.told.clone(), copy: self.copies }) {
            Some(bytes) => self.count_copied(&copying, bytes),
            None => drop(self.copying.insert(self.copies, copying)),
        }
    }

    pub(super) fn count_copied(&mut self, copying: &Copying, bytes: u64) {
        let Some(live) = self.live.get_mut(&copying.session) else { return };
        live.figures.kv_bytes_moved += bytes;
        live.figures.tokens_moved += copying.tokens.len();
        if copying.job.is_none() {
            live.figures.tokens_early += copying.tokens.len();
        }
        live.has_copied(copying.pools[1], copying.admission, copying.tokens.end);
    }

    /// A copy is over, and nothing of it touches a block any more.
    pub(super) fn end_copy(&mut self, copy: u64, moved: Result<u64, CopyError>) {
        let Some(copying) = self.copying.remove(&copy) else { return };
        let session = copying.session;
        let time = self.now();
        match (moved, copying.job) {
            _ if self.live.get(&session).is_some_and(|live| live.gone_away || live.again) => self.cancel(session),
            (Ok(bytes), Some(job)) => {
                self.count_copied(&copying, bytes);
                if let Some(Read { began, .. }) = self.reads.remove(&session)
                    && let Some(live) = self.live.get_mut(&session)
                {
                    live.figures.transfer_wait += time - began;
                }
                self.tell(Fact::WorkEnded { time, job });
            }
            // The program says what is done then, where it is still there to do it.
            (Err(why), Some(job)) if self.kernel.may_fail(job) && !self.is_going(copying.pools[1]) => {
                self.fail_read(session, job, copying.pools[0], why);
            }
            // Who had anything there is routed again with everybody else.
            (Err(_), Some(_)) if copying.pools.iter().any(|&pool| self.is_going(pool)) => {}
            // They are found no more, so what comes again asks for less.
            (Err(CopyError::Spoiled(blocks)), Some(_)) => {
                self.forget(copying.pools[0], blocks);
                if let Some(live) = self.live.get_mut(&session) {
                    (live.again, live.waits) = (true, false);
                }
                self.cancel(session);
            }
            (Err(CopyError::Failed(why)), Some(_)) => {
                self.mistrust(copying.pools[0]);
                self.mark_lost(session, &why, Loss { spent: true, waits: false });
                self.cancel(session);
            }
            (moved, None) => {
                // What it did not bring is a part of the read.
                if let Some(bytes) = moved.ok().filter(|_| !copying.spoiled) {
                    self.count_copied(&copying, bytes);
                }
                if let Some(&Read { job, .. }) = self.reads.get(&session)
                    && self.start_flow(job)
                {
                    self.done.push_back(job);
                }
            }
        }
        for timer in std::mem::take(&mut self.overdue) {
            let time = self.now();
            match self.is_read(timer) {
                true => self.overdue.push(timer),
                false => self.tell(Fact::Woken { time, timer }),
            }
        }
    }

    /// Blocks of a store do not hold what was put there.
    fn forget(&mut self, pool: u32, blocks: Vec<u32>) {
        for block in blocks {
            let time = self.now();
            self.tell(Fact::Spoiled { time, pool, block });
        }
    }

    /// A read did not bring what it was to bring.
    fn fail_read(&mut self, session: u64, job: u32, from: u32, why: CopyError) {
        let why = match why {
            CopyError::Failed(why) => {
                self.mistrust(from);
                why
            }
            CopyError::Spoiled(blocks) => {
                self.forget(from, blocks);
                "what a store has is not what was put there".to_owned()
            }
        };
        self.reads.remove(&session);
        if let Some(live) = self.live.get_mut(&session) {
            if let Some(flow) = self.kernel.flow(job) {
                live.goes_on_from(&flow.to);
            }
            live.why = why;
        }
        let time = self.now();
        self.tell(Fact::ReadFailed { time, job });
    }

    /// Whether the instance with this memory is gone, and the kernel is to be told.
    fn is_going(&self, pool: u32) -> bool {
        self.going.keys().any(|&stage| self.served.instances[stage as usize] == Some(pool))
    }

    /// Whether the blocks of a timer's lease are being copied.
    pub(super) fn is_read(&self, timer: u32) -> bool {
        let session = self.kernel.session_of_timer(timer);
        self.copying.values().any(|copying| Some(copying.session) == session)
    }

    /// Somebody's blocks are others' from now on.
    pub(super) fn preempt(&mut self, session: u64, pool: u32) {
        // Nobody else has anything of the pool.
        if self.kernel.pool_state(pool).used == 0.0 {
            self.preempted.push((session, pool));
        }
        self.copying
            .values_mut()
            .filter(|copying| copying.session == session)
            .for_each(|copying| copying.spoiled = true);
        self.stop_copies(|copying| copying.session == session);
    }

    /// Those copies are not wanted any more. Answers whether there are such.
    pub(super) fn stop_copies(&mut self, which: impl Fn(&Copying) -> bool) -> bool {
        let mut any = false;
        for (&copy, _) in self.copying.iter().filter(|(_, copying)| which(copying)) {
            any = true;
            if let Some(instances) = &mut self.instances {
                instances.stop_copy(copy);
            }
        }
        any
    }
}
