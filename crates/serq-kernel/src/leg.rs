//! Legs: what `fork` runs beside a session, and `join` waits for.
//!
//! ```text
//!   session ── fork ──────────── goes on ─────────── join ══ waits ══▶ goes on
//!                │                                              ▲
//!                └─▶ leg: a copy of its attributes ── over ─────┘
//!                    holds of its own                 │
//!                                                     └─▶ its leases are the session's
//! ```
//!
//! A leg is a session of its own, in a place of its own, with the serial number of the one that
//! forked it: so whatever queues, is served, preempted or drawn is what it is for any session. It
//! begins when those ready before it have run. It is not among the sessions that arrive, live and
//! end.
//!
//! What a session keeps cached is its legs' too: an entry belongs to the session, whoever keeps,
//! consumes or drops it.
//!
//! # Invariants
//!
//! - A leg has no legs, and ends before its session does.
//! - A session's `legs` counts those that are not over.
//! - What a leg holds is given back when it ends; what it leases goes on as the session's, behind
//!   the leases that has, with the time it had.

use crate::expression::NOBODY;
use crate::kernel::Kernel;
use crate::session::Status;
use crate::world::{Fault, Move, Result, World};

impl Kernel<'_> {
    /// The session that a leg is of; itself where it is none.
    #[inline]
    pub(crate) fn whole(&self, slot: u32) -> u32 {
        let of = self.sessions[slot as usize].leg_of;
        if of == NOBODY { slot } else { of }
    }

    /// The legs of a session that are not over, in order of their places.
    pub(crate) fn legs_of(&self, slot: u32) -> Vec<u32> {
        if self.sessions[slot as usize].legs == 0 {
            return Vec::new();
        }
        (0..self.sessions.len() as u32).filter(|&leg| self.sessions[leg as usize].leg_of == slot).collect()
    }

    /// `fork`: a leg begins at an operation.
    pub(crate) fn fork<W: World>(&mut self, world: &mut W, slot: u32, start: u32) -> Result<()> {
        let leg = self.free_slot();
        let (from, n) = (self.attributes_from(slot), self.code.attributes);
        self.attributes.copy_within(from..from + n, leg as usize * n);
        let session = &mut self.sessions[slot as usize];
        session.legs += 1;
        session.legs_forked += 1;
        let (serial, turns, number) = (session.serial, session.turns, session.legs_forked);
        let prompt = self.code.shares_prefixes.then(|| session.prompt.clone());
        let state = &mut self.sessions[leg as usize];
        state.renew(serial, start);
        (state.turns, state.leg_of, state.leg) = (turns, slot, number);
        if let Some(prompt) = prompt {
            state.prompt = prompt;
        }
        self.tell_move(world, leg, Move::Forked { of: slot, leg: number });
        self.ready(leg)
    }

    /// A leg's last statement is done.
    pub(crate) fn end_leg<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        let of = self.whole(slot);
        let mut leases = std::mem::take(&mut self.sessions[slot as usize].leases);
        for lease in &leases {
            if let Some(timer) = lease.timer {
                self.timers[timer as usize] = Some(of);
            }
        }
        self.sessions[of as usize].leases.append(&mut leases);
        let mut expired = std::mem::take(&mut self.sessions[slot as usize].expired);
        self.sessions[of as usize].expired.append(&mut expired);
        self.sessions[slot as usize].leases = leases;
        self.leave_session(world, slot);
        self.free_slots.push(slot);
        let session = &self.sessions[of as usize];
        if session.legs == 0 && session.status == Status::Joining {
            self.ready(of)?;
        }
        Ok(())
    }

    /// `join`. Answers whether the session goes on.
    pub(crate) fn await_legs<W: World>(&mut self, world: &mut W, slot: u32) -> bool {
        let session = &mut self.sessions[slot as usize];
        if session.legs == 0 {
            return true;
        }
        session.status = Status::Joining;
        session.pc += 1;
        self.tell_move(world, slot, Move::Joining);
        false
    }

    /// The session is over before its legs: they end where they are.
    #[cold]
    pub(crate) fn end_legs<W: World>(&mut self, world: &mut W, slot: u32, cancelled: bool) -> Result<()> {
        for leg in self.legs_of(slot) {
            self.withdraw(world, leg);
            while !self.sessions[leg as usize].holds.is_empty() {
                self.give_back_innermost(world, leg, None, true)?;
            }
            let lingers = self.end_leases(world, leg, cancelled)?;
            self.leave_session(world, leg);
            if !lingers {
                self.free_slots.push(leg);
            }
        }
        Ok(())
    }

    fn leave_session<W: World>(&mut self, world: &mut W, leg: u32) {
        self.tell_move(world, leg, Move::LegOver);
        let state = &mut self.sessions[leg as usize];
        state.status = Status::Over;
        let of = std::mem::replace(&mut state.leg_of, NOBODY);
        self.sessions[of as usize].legs -= 1;
    }

    /// What a session with legs, or a leg, asks for can never be served. The session ends once
    /// whoever found that is done: it may itself be about to take what that gives back.
    pub(crate) fn abandon_later(&mut self, slot: u32) -> Result<()> {
        self.sessions[slot as usize].pc = self.code.abandon;
        self.ready(slot)
    }

    /// … and here it does.
    pub(crate) fn abandon<W: World>(&mut self, world: &mut W, slot: u32) -> Result<()> {
        let of = self.whole(slot);
        self.withdraw(world, of);
        self.end_session(world, of)?;
        self.retry_pools(world)
    }

    /// Asserts that sessions count their legs, and that these have one that goes on.
    pub(crate) fn check_legs(&self) {
        let mut legs = vec![0; self.sessions.len()];
        for leg in self.sessions.iter().filter(|leg| leg.leg_of != NOBODY) {
            let of = &self.sessions[leg.leg_of as usize];
            assert!(of.status != Status::Over && of.leg_of == NOBODY, "the session of a leg goes on, and is none");
            assert!(leg.status != Status::Over, "a leg that is over is nobody's");
            legs[leg.leg_of as usize] += 1;
        }
        assert!(self.sessions.iter().map(|session| session.legs).eq(legs), "sessions count their legs");
    }

    #[cold]
    pub(crate) fn fault_legs(&self, slot: u32) -> Box<Fault> {
        let legs = match self.sessions[slot as usize].legs {
            1 => "a leg it forked runs".to_owned(),
            several => format!("{several} legs it forked run"),
        };
        self.fault_at(format!("the session ends while {legs}; write `join;` before its end"), slot)
    }
}
