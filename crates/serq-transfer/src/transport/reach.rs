//! How one side of a link gets at the other's memory.
//!
//! It is agreed on before a link begins ([`super::side`]).

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::link::lock;
use super::{Piece, Way};
use crate::memory::{Mapping, Region};
use crate::nixl::{self, Agent, Begun, Broken, STAGING_BYTES, Target};

/// What is asked of NIXL at once: until it has begun, a link is not cut.
const PIECES_MOST: usize = 4096;
const BYTES_MOST: u64 = 64 << 20;
/// A read is looked after again and again for so long: what lies on this host comes within it.
const CLOSELY: Duration = Duration::from_millis(2);
/// Between two looks after that.
const PAUSE: Duration = Duration::from_micros(100);
/// For a trial's read.
const TRIAL: Duration = Duration::from_secs(2);

/// The other's memory, as one side of a link has it.
pub(super) enum Reach {
    /// It has not: bytes are sent.
    Sent,
    Mapped(Mapping),
    Read(Box<Reading>),
}

impl Reach {
    pub(super) fn way(&self) -> Way {
        match self {
            Reach::Sent => Way::Tcp,
            Reach::Mapped(_) => Way::Shm,
            Reach::Read(_) => Way::Nixl,
        }
    }

    /// By NIXL.
    pub(super) fn reading(&self) -> Option<&Reading> {
        match self {
            Reach::Read(reading) => Some(reading),
            _ => None,
        }
    }

    /// Whether there is one: bytes are got, not sent.
    pub(super) fn is_there(&self) -> bool {
        !matches!(self, Reach::Sent)
    }

    /// When this returns nothing is read any more.
    pub(super) fn end(&self) {
        if let Some(reading) = self.reading() {
            *lock(&reading.agent) = None;
        }
    }
}

/// A link's agent. Its threads read with it in turns, until the link is over.
pub(super) struct Reading {
    /// `None`: it is over.
    agent: Mutex<Option<Agent>>,
    staging: Arc<Region>,
    theirs: nixl::Offer,
}

impl Reading {
    /// Joins an agent to its peer.
    pub(super) fn new(mut agent: Agent, theirs: &nixl::Offer) -> Result<Self, String> {
        agent.join(theirs)?;
        let staging = Arc::clone(agent.staging());
        Ok(Self { agent: Mutex::new(Some(agent)), staging, theirs: theirs.clone() })
    }

    /// Whether the peer's memory can be read.
    pub(super) fn reads(&self) -> bool {
        let (byte, until) = (Piece { here: 0, there: 0, bytes: 1 }, Instant::now() + TRIAL);
        self.get(&[byte], Target::Staging, Some(until)).is_ok()
    }

    /// Whether a mark of the peer's comes, though nothing may tell that all of it has.
    pub(super) fn reads_alone(&self, mark: u64) -> bool {
        let (mark, until) = (mark.to_le_bytes(), Instant::now() + TRIAL);
        let piece = Piece { here: 8, there: 0, bytes: 8 };
        let Ok(begun) = self.with(|agent| agent.begin(&[piece], Target::Staging)) else { return false };
        loop {
            let mut came = [0; 8];
            self.staging.read(piece.here, &mut came).expect("staging is longer");
            let looked = match begun {
                Begun::UnderWay(read) => self.with(|agent| agent.look(read)),
                _ => Ok(false),
            };
            match looked {
                _ if came == mark => return true,
                Err(Broken) => return false,
                Ok(_) if until <= Instant::now() => return false,
                Ok(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// Does what the peer's library waits for.
    pub(super) fn help(&self) {
        if let Some(agent) = lock(&self.agent).as_mut() {
            agent.help();
        }
    }

    /// Bytes that wait for their place.
    pub(super) fn staging(&self) -> &Region {
        &self.staging
    }

    /// Reads pieces straight to their places: whether there are such.
    pub(super) fn read(&self, memory: &Region, pieces: &[Piece]) -> Result<bool, Broken> {
        if !self.has(memory, pieces) {
            return Ok(false);
        }
        for batch in Batches::new(pieces, BYTES_MOST, BYTES_MOST) {
            self.get(&batch, Target::Memory, None)?;
        }
        Ok(true)
    }

    /// Reads pieces to staging, and lands each, in parts: `there` is its place in staging then. Whether there are
    /// such, and all have landed.
    pub(super) fn stage(
        &self,
        memory: &Region,
        pieces: &[Piece],
        part_most: u64,
        land: impl Fn(Piece) -> bool,
    ) -> Result<bool, Broken> {
        if !self.has(memory, pieces) {
            return Ok(false);
        }
        for batch in Batches::new(pieces, part_most, STAGING_BYTES) {
            let mut staged = 0;
            let place = |piece: &Piece| {
                staged += piece.bytes;
                Piece { here: staged - piece.bytes, ..*piece }
            };
            let waiting: Vec<Piece> = batch.iter().map(place).collect();
            self.get(&waiting, Target::Staging, None)?;
            let mut places = batch.iter().zip(&waiting);
            if !places.all(|(piece, waiting)| land(Piece { there: waiting.here, ..*piece })) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn has(&self, memory: &Region, pieces: &[Piece]) -> bool {
        pieces.iter().all(|piece| memory.has(piece.here, piece.bytes) && self.theirs.has(piece.there, piece.bytes))
    }

    /// Waits until pieces that are there have landed.
    fn get(&self, pieces: &[Piece], target: Target, until: Option<Instant>) -> Result<(), Broken> {
        let read = match self.with(|agent| agent.begin(pieces, target))? {
            Begun::UnderWay(read) => read,
            Begun::Landed => return Ok(()),
            Begun::Refused => return Err(Broken),
        };
        let closely = Instant::now() + CLOSELY;
        while !self.with(|agent| agent.look(read))? {
            let now = Instant::now();
            match now < closely {
                true => thread::yield_now(),
                false if until.is_some_and(|until| until <= now) => return Err(Broken),
                false => thread::sleep(PAUSE),
            }
        }
        Ok(())
    }

    fn with<T>(&self, what: impl FnOnce(&mut Agent) -> Result<T, Broken>) -> Result<T, Broken> {
        lock(&self.agent).as_mut().ok_or(Broken).and_then(what)
    }
}

/// Pieces in lists of bounded size, in their order; long ones in parts.
struct Batches<'p> {
    pieces: &'p [Piece],
    /// Of the first piece, these bytes are through.
    through: u64,
    part_most: u64,
    bytes_most: u64,
}

impl<'p> Batches<'p> {
    fn new(pieces: &'p [Piece], part_most: u64, bytes_most: u64) -> Self {
        Self { pieces, through: 0, part_most, bytes_most }
    }
}

impl Iterator for Batches<'_> {
    type Item = Vec<Piece>;

    fn next(&mut self) -> Option<Vec<Piece>> {
        let (mut batch, mut room) = (Vec::new(), self.bytes_most);
        while let Some(first) = self.pieces.first().filter(|_| room > 0 && batch.len() < PIECES_MOST) {
            let bytes = (first.bytes - self.through).min(self.part_most).min(room);
            if bytes > 0 {
                batch.push(Piece { here: first.here + self.through, there: first.there + self.through, bytes });
            }
            (self.through, room) = (self.through + bytes, room - bytes);
            if self.through == first.bytes {
                (self.pieces, self.through) = (&self.pieces[1..], 0);
            }
        }
        (!batch.is_empty()).then_some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_every_byte_once_and_in_order() {
        let piece = |here, there, bytes| Piece { here, there, bytes };
        let pieces = [piece(0, 100, 3), piece(50, 7, 0), piece(10, 200, 12), piece(90, 0, 1), piece(60, 7, 0)];
        let batches: Vec<Vec<Piece>> = Batches::new(&pieces, 4, 10).collect();
        assert_eq!(
            batches,
            [
                vec![piece(0, 100, 3), piece(10, 200, 4), piece(14, 204, 3)],
                vec![piece(17, 207, 4), piece(21, 211, 1), piece(90, 0, 1)],
            ]
        );
        let many = vec![piece(0, 0, 1); 2 * PIECES_MOST + 1];
        assert_eq!(Batches::new(&many, 4, 1 << 20).map(|batch| batch.len()).collect::<Vec<_>>(), [4096, 4096, 1]);
        assert_eq!(Batches::new(&[], 4, 10).count(), 0);
    }
}
