//! Which parts of a transfer have ended.
//!
//! Told by number, never counted: a notice that comes twice is one part.

/// Most parts of a transfer: they are bits of a word.
pub const PARTS_MAX: u8 = 64;

/// The parts of a transfer that have landed, and those in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Parts {
    total: u8,
    posted: u64,
    landed: u64,
    failed: u64,
}

impl Parts {
    pub(crate) fn new(total: u8) -> Parts {
        assert!((1..=PARTS_MAX).contains(&total), "a transfer has 1 to {PARTS_MAX} parts, not {total}");
        Parts { total, posted: 0, landed: 0, failed: 0 }
    }

    pub(crate) fn total(self) -> u8 {
        self.total
    }

    /// The first part that was not posted.
    pub(crate) fn next(self) -> Option<u8> {
        let next = self.posted.trailing_ones() as u8;
        (next < self.total).then_some(next)
    }

    pub(crate) fn post(&mut self, part: u8) {
        self.posted |= 1 << part;
    }

    /// A part has landed; whether that is news.
    pub(crate) fn land(&mut self, part: u8) -> bool {
        let bit = if part < self.total { 1 << part } else { 0 };
        let news = bit & !(self.landed | self.failed) != 0;
        self.landed |= bit & !self.failed;
        news
    }

    /// A part has failed; whether that is news.
    pub(crate) fn fail(&mut self, part: u8) -> bool {
        let bit = if part < self.total { 1 << part } else { 0 };
        let news = bit & !(self.landed | self.failed) != 0;
        self.failed |= bit & !self.landed;
        news
    }

    pub(crate) fn in_flight(self) -> u32 {
        (self.posted & !(self.landed | self.failed)).count_ones()
    }

    pub(crate) fn has_failed(self) -> bool {
        self.failed != 0
    }

    pub(crate) fn are_all_landed(self) -> bool {
        self.landed.count_ones() == u32::from(self.total)
    }

    pub(crate) fn landed(self) -> impl Iterator<Item = u8> {
        (0..self.total).filter(move |part| self.landed >> part & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::Parts;

    #[test]
    fn a_part_that_is_told_twice_counts_once() {
        let mut parts = Parts::new(2);
        for part in [0, 1] {
            assert_eq!(parts.next(), Some(part));
            parts.post(part);
        }
        assert_eq!((parts.next(), parts.in_flight()), (None, 2));
        assert!(parts.land(0));
        assert!(!parts.land(0) && !parts.land(7) && !parts.fail(0));
        assert!(!parts.are_all_landed());
        assert!(parts.land(1) && parts.are_all_landed() && !parts.has_failed());
        assert_eq!((parts.in_flight(), parts.landed().collect::<Vec<_>>()), (0, vec![0, 1]));
    }

    #[test]
    fn sixty_four_parts_fit() {
        let mut parts = Parts::new(64);
        while let Some(part) = parts.next() {
            parts.post(part);
            parts.land(part);
        }
        assert!(parts.are_all_landed());
    }
}
