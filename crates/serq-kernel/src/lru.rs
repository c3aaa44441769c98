//! A list in order of use, threaded through the items it lists.
//!
//! What is used goes to the end, so the first is the least recently used. The items
//! stand in a slice of their owner's and carry a [`Link`] each: appending and taking
//! out of the middle are constant time and allocate nothing (vLLM's free queue is
//! threaded through its blocks in the same way).
//!
//! # Invariants
//!
//! - From the first on, each item's neighbours name it back, up to the last.
//! - An item is on one list at most; a link off every list says nothing.
//! - A list knows how many items it has.
//!
//! [`Lru::walk`] asserts the first.

/// No item.
const NONE: u32 = u32::MAX;

/// An item's neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    previous: u32,
    next: u32,
}

impl Link {
    /// Of an item on no list.
    pub(crate) const LOOSE: Self = Self { previous: NONE, next: NONE };

    /// The item used after this one.
    pub(crate) fn next(self) -> Option<u32> {
        item(self.next)
    }
}

/// What can be on a list.
pub(crate) trait Linked {
    fn link(&self) -> Link;
    fn link_mut(&mut self) -> &mut Link;
}

/// Items that keep their links beside them.
impl Linked for Link {
    fn link(&self) -> Link {
        *self
    }

    fn link_mut(&mut self) -> &mut Link {
        self
    }
}

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lru {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl Lru {
    /// The item used longest ago.
    pub(crate) fn first(&self) -> Option<u32> {
        item(self.first)
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Puts an item that is on no list at the end.
    pub(crate) fn append(&mut self, items: &mut [impl Linked], at: u32) {
        self.append_all(items, std::iter::once(at));
    }

    /// Puts items that are on no list at the end, one after the other.
    pub(crate) fn append_all(&mut self, items: &mut [impl Linked], all: impl Iterator<Item = u32>) {
        let mut last = self.last;
        for at in all {
            match last {
                NONE => self.first = at,
                last => items[last as usize].link_mut().next = at,
            }
            *items[at as usize].link_mut() = Link { previous: last, next: NONE };
            self.len += 1;
            last = at;
        }
        self.last = last;
    }

    /// Takes an item of this list out of it.
    pub(crate) fn unlink(&mut self, items: &mut [impl Linked], at: u32) {
        self.len -= 1;
        self.join(items, items[at as usize].link().previous, items[at as usize].link().next);
    }

    /// Takes items of this list out of it. Those that follow each other in it as here go at once.
    pub(crate) fn unlink_all(&mut self, items: &mut [impl Linked], all: impl Iterator<Item = u32>) {
        let mut all = all.peekable();
        while let Some(first) = all.next() {
            let mut last = first;
            self.len -= 1;
            while let Some(next) = all.next_if_eq(&items[last as usize].link().next) {
                last = next;
                self.len -= 1;
            }
            self.join(items, items[first as usize].link().previous, items[last as usize].link().next);
        }
    }

    /// Takes so many from the first on out of it, or all, and adds them to `taken` in their order.
    pub(crate) fn take_first(&mut self, items: &mut [impl Linked], count: u32, taken: &mut Vec<u32>) {
        let count = count.min(self.len);
        let mut first = self.first;
        for _ in 0..count {
            taken.push(first);
            first = items[first as usize].link().next;
        }
        self.len -= count;
        self.join(items, NONE, first);
    }

    /// Makes two items neighbours, or one of them an end.
    fn join(&mut self, items: &mut [impl Linked], previous: u32, next: u32) {
        match previous {
            NONE => self.first = next,
            previous => items[previous as usize].link_mut().next = next,
        }
        match next {
            NONE => self.last = previous,
            next => items[next as usize].link_mut().previous = previous,
        }
    }

    /// The items from the first to the last; for checks.
    pub(crate) fn walk<I: Linked>(self, items: &[I]) -> impl Iterator<Item = u32> {
        let (mut previous, mut at) = (NONE, self.first);
        std::iter::from_fn(move || {
            if at == NONE {
                assert_eq!(previous, self.last, "the list ends at its last");
                return None;
            }
            let link = items[at as usize].link();
            assert_eq!(link.previous, previous, "the list goes both ways");
            previous = std::mem::replace(&mut at, link.next);
            Some(previous)
        })
    }
}

fn item(at: u32) -> Option<u32> {
    (at != NONE).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_again_goes_to_the_end() {
        let mut items = [Link::LOOSE; 5];
        let mut lru = Lru::default();
        let mut model = Vec::new();
        assert_eq!(lru.first(), None);
        // Each of the first four, again the first, one of the middle and the last; then all but one out.
        for at in [3, 0, 4, 1, 3, 4, 4, 2] {
            if model.contains(&at) {
                model.retain(|&other| other != at);
                lru.unlink(&mut items, at);
            }
            model.push(at);
            lru.append(&mut items, at);
            assert_eq!(lru.walk(&items).collect::<Vec<_>>(), model);
            assert_eq!(lru.first(), model.first().copied());
        }
        assert_eq!(model, [0, 1, 3, 4, 2]);
        for (at, left) in [(3, &[0, 1, 4, 2][..]), (2, &[0, 1, 4]), (0, &[1, 4]), (4, &[1]), (1, &[])] {
            lru.unlink(&mut items, at);
            assert_eq!(lru.walk(&items).collect::<Vec<_>>(), left);
        }
        assert_eq!(lru.first(), None);
        assert_eq!(items[1].next(), None);
    }

    #[test]
    fn many_go_as_they_would_one_by_one() {
        let mut items = [Link::LOOSE; 9];
        let mut lru = Lru::default();
        let mut list = |out: &[u32], more: &[u32]| {
            lru.unlink_all(&mut items, out.iter().copied());
            lru.append_all(&mut items, more.iter().copied());
            assert_eq!(lru.walk(&items).count() as u32, lru.len());
            lru.walk(&items).collect::<Vec<_>>()
        };
        assert_eq!(list(&[], &[4, 2, 6, 0, 5, 1, 3, 7]), [4, 2, 6, 0, 5, 1, 3, 7]);
        // Neighbours, one that is beside them on the other side, and the last.
        assert_eq!(list(&[6, 0, 2, 7], &[2, 8]), [4, 5, 1, 3, 2, 8]);
        // The first and the last with their neighbours, against the order.
        assert_eq!(list(&[4, 5, 8, 2], &[]), [1, 3]);
        assert!(list(&[1, 3], &[]).is_empty());
        assert_eq!(list(&[], &[6, 1, 3]), [6, 1, 3]);
        let mut taken = vec![0];
        lru.take_first(&mut items, 2, &mut taken);
        assert_eq!((taken.as_slice(), lru.walk(&items).collect::<Vec<_>>()), (&[0, 6, 1][..], vec![3]));
        lru.take_first(&mut items, 2, &mut taken);
        assert_eq!((taken.as_slice(), lru.first(), lru.len()), (&[0, 6, 1, 3][..], None, 0));
    }
}
