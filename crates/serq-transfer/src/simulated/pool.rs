//! A pool of KV blocks whose cells can be seen: which token of which request was written where.
//!
//! A transfer copies cell by cell, so a copy of blocks that change meanwhile is torn, and visibly so. What is given
//! back is overwritten at once and handed out first: whoever still reads or writes it is seen.
//!
//! # Invariants
//!
//! - Every block is free or has one owner; only its owner writes it and only its owner gives it back.

/// A token slot: the request and the token whose KV it holds.
pub(crate) type Cell = u32;

/// What a slot holds whose block was given back, or that a process left when it died.
pub(crate) const GARBAGE: Cell = u32::MAX;

/// The KV of a token of a request.
pub(crate) fn cell(request: usize, token: u32) -> Cell {
    (request as u32) << 16 | token
}

/// Whose a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    Free,
    /// A request of the scheduler's.
    Request(usize),
    /// Lent to the protocol, for a request.
    Transfer(usize),
}

/// The blocks of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pool {
    pub(crate) block_tokens: u32,
    owners: Vec<Owner>,
    cells: Vec<Cell>,
    /// The one given back last is taken first.
    free: Vec<u32>,
}

impl Pool {
    pub(crate) fn new(blocks: u32, block_tokens: u32) -> Pool {
        Pool {
            block_tokens,
            owners: vec![Owner::Free; blocks as usize],
            cells: vec![GARBAGE; (blocks * block_tokens) as usize],
            free: (0..blocks).rev().collect(),
        }
    }

    pub(crate) fn take(&mut self, count: usize, owner: Owner) -> Option<Vec<u32>> {
        let rest = self.free.len().checked_sub(count)?;
        let mut blocks = self.free.split_off(rest);
        blocks.reverse();
        for &block in &blocks {
            self.owners[block as usize] = owner;
        }
        Some(blocks)
    }

    /// The block goes from one owner to the next; `Free` gives it back.
    pub(crate) fn pass(&mut self, block: u32, from: Owner, to: Owner) -> Result<(), String> {
        let owner = &mut self.owners[block as usize];
        if *owner != from {
            return Err(format!("block {block} is passed from {from:?} to {to:?}, but its owner is {owner:?}"));
        }
        *owner = to;
        if to == Owner::Free {
            let start = (block * self.block_tokens) as usize;
            self.cells[start..start + self.block_tokens as usize].fill(GARBAGE);
            self.free.push(block);
        }
        Ok(())
    }

    pub(crate) fn owner(&self, block: u32) -> Owner {
        self.owners[block as usize]
    }

    pub(crate) fn read(&self, block: u32, slot: u32) -> Cell {
        self.cells[(block * self.block_tokens + slot) as usize]
    }

    pub(crate) fn write(&mut self, block: u32, slot: u32, cell: Cell, writer: Owner) -> Result<(), String> {
        let owner = self.owner(block);
        if owner != writer {
            return Err(format!("block {block} of {owner:?} is written by {writer:?}"));
        }
        self.cells[(block * self.block_tokens + slot) as usize] = cell;
        Ok(())
    }

    /// Blocks that are not free.
    pub(crate) fn left(&self) -> usize {
        self.owners.len() - self.free.len()
    }
}
