//! What tokens a block holds, as a name: equal names are equal tokens, from the first up to the
//! block's last.
//!
//! A name is given to (the name of what comes before, the tokens of the block), and compared by
//! the tokens themselves: no two contents share one, as they could if it were a hash. The first
//! block of a text comes after [`BEGINNING`], or after a name of its own where it shares nothing.
//!
//! # Invariants
//!
//! - A name means one content for as long as the process lives.
//! - What was not asked for in a long time is forgotten, and has another name when it is asked for
//!   again: blocks known by the old one are then found by nobody, and evicted in their time.

use std::collections::HashMap;

/// What the first block of a text comes after.
pub const BEGINNING: u64 = 0;

/// Names given so far.
#[derive(Debug)]
pub struct Contents {
    block: usize,
    names: HashMap<(u64, Box<[u32]>), Name>,
    next: u64,
    asked: u64,
    most: usize,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    name: u64,
    /// When it was asked for last.
    asked: u64,
}

impl Contents {
    /// Names of blocks of so many tokens, `most` of them.
    pub fn new(block: usize, most: usize) -> Self {
        assert!(block > 0);
        Self { block, names: HashMap::new(), next: BEGINNING, asked: 0, most: most.max(1) }
    }

    /// Tokens of a block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// A name nothing has yet.
    pub fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The names of the whole blocks of `tokens`, which come after `before`.
    pub fn name(&mut self, mut before: u64, tokens: &[u32], names: &mut Vec<u64>) {
        for block in tokens.chunks_exact(self.block) {
            before = self.name_of(before, block);
            names.push(before);
        }
        self.forget();
    }

    fn name_of(&mut self, before: u64, block: &[u32]) -> u64 {
        self.asked += 1;
        let next = self.next + 1;
        let name = self.names.entry((before, block.into())).or_insert(Name { name: next, asked: 0 });
        name.asked = self.asked;
        self.next = self.next.max(name.name);
        name.name
    }

    /// The half that was not asked for lately goes, once there are too many.
    fn forget(&mut self) {
        if self.names.len() > self.most {
            let mut asked: Vec<u64> = self.names.values().map(|name| name.asked).collect();
            let middle = asked.len() / 2;
            let (_, &mut since, _) = asked.select_nth_unstable(middle);
            self.names.retain(|_, name| name.asked >= since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(contents: &mut Contents, before: u64, tokens: &[u32]) -> Vec<u64> {
        let mut names = Vec::new();
        contents.name(before, tokens, &mut names);
        names
    }

    #[test]
    fn equal_beginnings_have_equal_names_and_nothing_else_has() {
        let mut contents = Contents::new(2, 100);
        let first = names(&mut contents, BEGINNING, &[1, 2, 3, 4, 5]);
        assert_eq!(first.len(), 2, "the last block is not whole");
        assert_eq!(names(&mut contents, BEGINNING, &[1, 2, 3, 4]), first);
        let other = names(&mut contents, BEGINNING, &[9, 2, 3, 4]);
        assert!(first.iter().all(|name| !other.contains(name)), "the same tokens after others are another content");
        let own = contents.fresh();
        assert!(names(&mut contents, own, &[1, 2]).iter().all(|name| !first.contains(name)));
    }

    #[test]
    fn what_is_forgotten_gets_a_name_nothing_ever_had() {
        let mut contents = Contents::new(1, 8);
        let mut seen: Vec<u64> = Vec::new();
        for token in 0..100 {
            let name = names(&mut contents, BEGINNING, &[token])[0];
            assert!(!seen.contains(&name), "{token}");
            seen.push(name);
            assert!(contents.names.len() <= 8);
        }
        assert!(!seen.contains(&names(&mut contents, BEGINNING, &[0])[0]));
    }
}
