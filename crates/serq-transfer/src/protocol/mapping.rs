//! Which slots of which source block go to which slots of which reader's block.
//!
//! Both sides say for each block which token its first slot is for. The copy is found by these offsets alone,
//! never by the place in a list: a reader that has the first 40 tokens cached lists fewer blocks than the
//! source, and lists aligned at the front would put the wrong KV behind HTTP 200 (vllm#48758).
//!
//! ```text
//!   source, 4 slots a block     |0 1 2 3|4 5 6 7|8 9 . .|
//!                                        ╲╲╲ ╲  │ │
//!   reader, 3 slots, from 5            |. . 5 |6 7 8|       (its first block starts at token 3)
//! ```

use std::fmt;

/// A block and the token its first slot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Placed {
    /// The block's number in its owner's pool.
    pub block: u32,
    /// The token of slot 0.
    pub first_token: u32,
}

/// The blocks that hold, or will hold, the KV of some tokens of one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockTable {
    /// Token slots a block.
    pub block_tokens: u32,
    /// The first token.
    pub first_token: u32,
    /// One more than the last token.
    pub end_token: u32,
    /// In any order.
    pub blocks: Vec<Placed>,
}

impl BlockTable {
    /// The tokens `first_token..end_token` in blocks that start at a multiple of `block_tokens`, in order.
    ///
    /// The first block is that of `first_token`, whose first slot may be for an earlier token.
    #[must_use]
    pub fn in_order(block_tokens: u32, first_token: u32, end_token: u32, blocks: &[u32]) -> BlockTable {
        let start = first_token / block_tokens * block_tokens;
        let blocks = blocks
            .iter()
            .enumerate()
            .map(|(at, &block)| Placed { block, first_token: start + at as u32 * block_tokens })
            .collect();
        BlockTable { block_tokens, first_token, end_token, blocks }
    }

    /// The blocks' numbers, as listed.
    pub fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().map(|placed| placed.block)
    }
}

/// Consecutive slots of one block that go to consecutive slots of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Run {
    /// The block that is read.
    pub source_block: u32,
    /// Its first slot.
    pub source_slot: u32,
    /// The block that is written.
    pub target_block: u32,
    /// Its first slot.
    pub target_slot: u32,
    /// How many slots.
    pub tokens: u32,
}

/// Why two tables cannot be joined. Their pairing is wrong; nothing was moved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MappingError {
    /// A token the reader wants is in no block of this side.
    Uncovered {
        /// The first such token.
        token: u32,
        /// Whose table lacks it.
        side: &'static str,
    },
    /// Blocks of no slots, a token in two blocks, or a range that ends before it starts.
    Malformed {
        /// Whose table it is.
        side: &'static str,
    },
}

impl fmt::Display for MappingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MappingError::Uncovered { token, side } => write!(f, "token {token} is in no block of the {side}"),
            MappingError::Malformed { side } => write!(f, "the block table of the {side} makes no sense"),
        }
    }
}

impl std::error::Error for MappingError {}

/// The runs that fill the target's tokens from the source's blocks, in the order of tokens.
///
/// # Errors
///
/// A token of the target that is in no block, or a table that makes no sense.
pub fn runs(source: &BlockTable, target: &BlockTable) -> Result<Vec<Run>, MappingError> {
    let from = sorted(source, "source")?;
    let to = sorted(target, "reader")?;
    let mut runs = Vec::with_capacity(to.len());
    let mut token = target.first_token;
    while token < target.end_token {
        let covered = source.first_token <= token && token < source.end_token;
        let uncovered = |side| MappingError::Uncovered { token, side };
        let read = covered.then(|| block_of(&from, source, token)).flatten().ok_or(uncovered("source"))?;
        let written = block_of(&to, target, token).ok_or(uncovered("reader"))?;
        let end = [
            u64::from(read.first_token) + u64::from(source.block_tokens),
            u64::from(written.first_token) + u64::from(target.block_tokens),
            u64::from(source.end_token),
            u64::from(target.end_token),
        ];
        let tokens = (end.into_iter().min().expect("four ends") - u64::from(token)) as u32;
        runs.push(Run {
            source_block: read.block,
            source_slot: token - read.first_token,
            target_block: written.block,
            target_slot: token - written.first_token,
            tokens,
        });
        token += tokens;
    }
    Ok(runs)
}

fn sorted(table: &BlockTable, side: &'static str) -> Result<Vec<Placed>, MappingError> {
    let mut blocks = table.blocks.clone();
    blocks.sort_unstable_by_key(|placed| placed.first_token);
    let apart = blocks.windows(2).all(|pair| pair[1].first_token - pair[0].first_token >= table.block_tokens);
    let mut numbers: Vec<u32> = table.numbers().collect();
    numbers.sort_unstable();
    let distinct = numbers.windows(2).all(|pair| pair[0] != pair[1]);
    match table.block_tokens > 0 && apart && distinct && table.first_token <= table.end_token {
        true => Ok(blocks),
        false => Err(MappingError::Malformed { side }),
    }
}

fn block_of(sorted: &[Placed], table: &BlockTable, token: u32) -> Option<Placed> {
    let after = sorted.partition_point(|placed| placed.first_token <= token);
    let placed = *sorted.get(after.checked_sub(1)?)?;
    (token - placed.first_token < table.block_tokens).then_some(placed)
}

#[cfg(test)]
mod tests {
    use super::{BlockTable, MappingError, Placed, runs};

    /// [vllm#48758]: every hit of the reader, every pair of block sizes, every prompt, any order of the lists:
    /// each token lands in the slot that is for it, and no slot else is written.
    #[test]
    fn every_token_lands_in_its_slot_for_every_hit_and_block_size() {
        for (source_size, target_size) in [(1, 1), (4, 4), (4, 3), (3, 4), (16, 4), (5, 16)] {
            for prompt in 1..40_u32 {
                for hit in 0..=prompt {
                    let numbers = |count: u32, from: u32| (from..from + count).collect::<Vec<u32>>();
                    let mut source =
                        BlockTable::in_order(source_size, 0, prompt, &numbers(prompt.div_ceil(source_size), 100));
                    let count = prompt.div_ceil(target_size) - hit / target_size;
                    let mut target = BlockTable::in_order(target_size, hit, prompt, &numbers(count, 500));
                    source.blocks.reverse();
                    let turn = target.blocks.len() / 2;
                    target.blocks.rotate_left(turn);
                    let mut slots = std::collections::BTreeMap::new();
                    for run in runs(&source, &target).unwrap() {
                        for at in 0..run.tokens {
                            let token = (run.source_block - 100) * source_size + run.source_slot + at;
                            assert!(slots.insert((run.target_block, run.target_slot + at), token).is_none());
                        }
                    }
                    let start = hit / target_size * target_size;
                    let expected = (hit..prompt)
                        .map(|t| ((500 + (t - start) / target_size, (t - start) % target_size), t))
                        .collect();
                    assert_eq!(slots, expected, "sizes {source_size} to {target_size}, {hit} of {prompt} cached");
                }
            }
        }
    }

    /// [LMCache#4614]: the last token is computed again, so n − 1 are loaded, wherever the block ends.
    #[test]
    fn the_last_token_is_not_loaded_for_any_alignment() {
        for prompt in [1_u32, 4, 7, 8, 9] {
            for hit in [0, 4, prompt - 1].into_iter().filter(|hit| *hit < prompt) {
                let blocks: Vec<u32> = (0..prompt.div_ceil(4)).collect();
                let source = BlockTable::in_order(4, 0, prompt, &blocks);
                let target = BlockTable::in_order(4, hit, prompt - 1, &blocks[(hit / 4) as usize..]);
                let loaded: u32 = runs(&source, &target).unwrap().iter().map(|run| run.tokens).sum();
                assert_eq!(loaded, prompt - 1 - hit);
            }
        }
    }

    #[test]
    fn a_token_the_source_does_not_have_is_named() {
        let source = BlockTable::in_order(4, 0, 6, &[0, 1]);
        let target = BlockTable::in_order(4, 0, 8, &[0, 1]);
        assert_eq!(runs(&source, &target), Err(MappingError::Uncovered { token: 6, side: "source" }));
    }

    #[test]
    fn a_slot_for_two_tokens_is_refused() {
        let source = BlockTable::in_order(4, 0, 8, &[0, 1]);
        let twice = |second| BlockTable {
            block_tokens: 4,
            first_token: 0,
            end_token: 8,
            blocks: vec![Placed { block: 5, first_token: 0 }, second],
        };
        let malformed = Err(MappingError::Malformed { side: "reader" });
        assert_eq!(runs(&source, &twice(Placed { block: 5, first_token: 4 })), malformed);
        assert_eq!(runs(&source, &twice(Placed { block: 6, first_token: 3 })), malformed);
        let huge = BlockTable { block_tokens: u32::MAX, ..twice(Placed { block: 6, first_token: u32::MAX }) };
        assert_eq!(runs(&source, &huge).map(|runs| runs.len()), Ok(2));
    }
}
