//! What instances evicted, kept for whoever asks for it again: in host memory, or in a file behind that.
//!
//! Which block holds what, which is pinned and which goes first is the kernel's to say
//! ([`serq_kernel::Action::Spilled`]); here are the bytes.
//!
//! ```text
//!   an instance's KV ──put──▶ memory, a checksum a block ──put──▶ a file, a checksum a block
//!          ▲                        │ read, and compared              │ read, and compared
//!          └────────────────────────┴─────────────────────────────────┘
//! ```
//!
//! # Invariants
//!
//! - A block's checksum is computed from what was put, and kept in memory. What is read has it, or is not used.
//! - What a store hands on to another one is compared first: a checksum is never made of what is wrong already.
//! - One thread, the driver's, touches a store's bytes.
//! - A file says that it is a store's, and nothing else is overwritten. What is in it is of no use to another process:
//!   names of blocks are a process's own. It is removed at the end.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serq_transfer::layout::BlockTable;

use crate::kernels::KvLayout;
use crate::kv::KvStore;
use crate::service::{Span, StoreCounts};

/// What a file begins with; the blocks follow at a page's distance.
const MARK: &[u8] = b"serq store: KV blocks of a running process\n";
const FIRST_BLOCK: u64 = 4096;

/// The blocks of a store.
pub(crate) struct Store {
    kept: Kept,
    /// By block: the checksum of what was put there, if that was written.
    sums: Vec<Option<u64>>,
    /// A block's bytes, while they are looked at.
    bytes: Vec<u8>,
    pub(crate) counts: StoreCounts,
}

enum Kept {
    Memory(KvStore),
    File(StoreFile),
}

/// Blocks in a file, one of which is in memory.
struct StoreFile {
    file: File,
    path: PathBuf,
    one: KvStore,
}

/// A block is not what was put there.
pub(crate) struct Spoiled;

impl Store {
    /// So many blocks, in memory or in a file.
    ///
    /// # Errors
    ///
    /// A sentence: the system has no such memory, or the file can't be had.
    pub(crate) fn new(layout: KvLayout, blocks: usize, file: Option<&Path>) -> Result<Self, String> {
        let kept = match file {
            None => Kept::Memory(KvStore::new(layout, blocks)?),
            Some(path) => Kept::File(StoreFile::new(layout, blocks, path)?),
        };
        Ok(Self { kept, sums: vec![None; blocks], bytes: Vec::new(), counts: StoreCounts::default() })
    }

    /// Tokens of a block.
    fn block_tokens(&self) -> usize {
        match &self.kept {
            Kept::Memory(kv) => kv.layout().block_tokens,
            Kept::File(file) => file.one.layout().block_tokens,
        }
    }

    /// What a block holds, as a block of the memory that is answered, once it was compared.
    pub(crate) fn lend(&mut self, block: u32) -> Result<(&KvStore, u32), Spoiled> {
        let Self { kept, sums, bytes, counts } = self;
        let is_there = match kept {
            Kept::Memory(kv) => {
                kv.read_block(block, bytes);
                true
            }
            Kept::File(file) => file.read(block, bytes).is_ok(),
        };
        if !is_there || sums[block as usize] != Some(checksum(bytes)) {
            counts.failures += 1;
            return Err(Spoiled);
        }
        Ok(match kept {
            Kept::Memory(kv) => (kv, block),
            Kept::File(file) => {
                file.one.write_block(0, bytes);
                (&file.one, 0)
            }
        })
    }

    /// A block is from now on what a part of another one is: the `part`-th of its size.
    pub(crate) fn put(&mut self, to: u32, source: &KvStore, block: u32, part: u32) {
        let first = part as usize * self.block_tokens();
        let tokens = first..first + self.block_tokens();
        let (kv, at) = match &self.kept {
            Kept::Memory(kv) => (kv, to),
            Kept::File(file) => (&file.one, 0),
        };
        let from = BlockTable { first_token: 0, blocks: &[block] };
        let copied = source.copy_tables(from, kv, BlockTable { first_token: first, blocks: &[at] }, tokens);
        kv.read_block(at, &mut self.bytes);
        let written = match &self.kept {
            Kept::Memory(_) => true,
            Kept::File(file) => file.write(to, &self.bytes).is_ok(),
        };
        self.sums[to as usize] = written.then(|| checksum(&self.bytes));
        self.counts.failures += u64::from(!written);
        if written {
            self.counts.puts += 1;
            self.counts.bytes_put += copied;
        }
    }

    /// A block is nothing from now on: what was to be put there is not to be had.
    pub(crate) fn put_nothing(&mut self, to: u32) {
        self.sums[to as usize] = None;
    }

    /// Copies tokens at these places of a text from the text's blocks here to those of an instance. Answers how
    /// many bytes.
    ///
    /// # Errors
    ///
    /// The blocks that do not hold what was put there; nothing that was copied is to be used.
    pub(crate) fn get(
        &mut self,
        from: Span<'_>,
        to: &KvStore,
        into: &[u32],
        tokens: Range<usize>,
    ) -> Result<u64, Vec<u32>> {
        let size = self.block_tokens();
        let (mut moved, mut spoiled) = (0, Vec::new());
        let (first, blocks) = (from.first / size, tokens.start / size..tokens.end.div_ceil(size));
        for (&block, at) in from.blocks[blocks.start - first..blocks.end - first].iter().zip(blocks) {
            let here = at * size..(at + 1) * size;
            let wanted = tokens.start.max(here.start)..tokens.end.min(here.end);
            match self.lend(block) {
                Ok((kv, block)) => {
                    let table = BlockTable { first_token: here.start, blocks: &[block] };
                    moved += kv.copy_tables(table, to, BlockTable { first_token: 0, blocks: into }, wanted);
                }
                Err(Spoiled) => spoiled.push(block),
            }
        }
        if spoiled.is_empty() {
            self.counts.tokens_read += tokens.len() as u64;
            return Ok(moved);
        }
        Err(spoiled)
    }
}

impl StoreFile {
    fn new(layout: KvLayout, blocks: usize, path: &Path) -> Result<Self, String> {
        let one = KvStore::new(layout, 1)?;
        let cannot = |error: io::Error| format!("{} can't be a store's file: {error}", path.display());
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(cannot)?;
        file.try_lock().map_err(|error| format!("{} can't be a store's file: {error}", path.display()))?;
        if !is_ours(&file).map_err(cannot)? {
            return Err(format!("{} is there and is no store's file: another name is meant", path.display()));
        }
        // It takes room as blocks are put, up to this.
        let bytes = FIRST_BLOCK + blocks as u64 * layout.block_bytes() as u64;
        file.set_len(0).and_then(|()| file.write_all_at(MARK, 0)).and_then(|()| file.set_len(bytes)).map_err(cannot)?;
        Ok(Self { file, path: path.to_owned(), one })
    }

    fn place(&self, block: u32) -> u64 {
        FIRST_BLOCK + u64::from(block) * self.one.layout().block_bytes() as u64
    }

    fn read(&self, block: u32, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.resize(self.one.layout().block_bytes(), 0);
        self.file.read_exact_at(bytes, self.place(block))
    }

    fn write(&self, block: u32, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.place(block))
    }
}

impl Drop for StoreFile {
    fn drop(&mut self) {
        // One that can't be removed is written over by the next process.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether a file is new or a store's.
fn is_ours(file: &File) -> io::Result<bool> {
    let mut begins = vec![0; MARK.len()];
    match file.read_exact_at(&mut begins, 0) {
        Ok(()) => Ok(begins == MARK),
        Err(_) => Ok(file.metadata()?.len() == 0),
    }
}

/// A number that any change within one of the four lanes changes: each step of a lane maps different values to
/// different ones, and so does each step that joins the lanes. Other changes go unseen with a chance of 2⁻⁶⁴.
fn checksum(bytes: &[u8]) -> u64 {
    // Odd, so that to multiply by it loses nothing; as in splitmix64 [Steele OOPSLA'14].
    const ODD: u64 = 0xbf58_476d_1ce4_e5b9;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(ODD).rotate_left(29);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight of them"));
    let mut lanes = [1_u64, 2, 3, 4];
    let mut chunks = bytes.chunks_exact(32);
    for chunk in &mut chunks {
        for (lane, eight) in lanes.iter_mut().zip(chunk.chunks_exact(8)) {
            *lane = step(*lane, word(eight));
        }
    }
    let rest = chunks.remainder().iter().fold(bytes.len() as u64, |sum, &byte| step(sum, byte.into()));
    lanes.into_iter().fold(rest, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Element;

    fn layout(block_tokens: usize) -> KvLayout {
        KvLayout { block_tokens, layers: 2, kv_heads: 1, head_dim: 3, element: Element::F32 }
    }

    fn filled(block_tokens: usize, blocks: usize, mark: u8) -> KvStore {
        let kv = KvStore::new(layout(block_tokens), blocks).unwrap();
        for block in 0..blocks {
            let bytes = layout(block_tokens).block_bytes();
            let filled: Vec<u8> = (0..bytes).map(|at| (at * 7 + block * 131) as u8 ^ mark).collect();
            kv.write_block(block as u32, &filled);
        }
        kv
    }

    fn span(blocks: &[u32]) -> Span<'_> {
        Span { pool: 0, first: 0, blocks }
    }

    fn all(kv: &KvStore) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        let block = |block| {
            kv.read_block(block, &mut bytes);
            bytes.clone()
        };
        (0..kv.blocks() as u32).map(block).collect()
    }

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("serq-store-test-{}-{name}", std::process::id()))
    }

    /// Blocks of six tokens go to a store of smaller ones, from there to a file of smaller ones still, and both give
    /// back what there was.
    #[test]
    fn what_is_put_in_parts_comes_back_whole_from_memory_and_from_a_file() {
        let path = file("parts");
        for (size, cold_size) in [(6, 6), (6, 3), (3, 3), (3, 1), (2, 2), (2, 1)] {
            let source = filled(6, 2, 0);
            let (parts, cold_parts) = (6 / size, size / cold_size);
            let mut store = Store::new(layout(size), 2 * parts, None).unwrap();
            let mut cold = Store::new(layout(cold_size), 2 * parts * cold_parts, Some(&path)).unwrap();
            for at in 0..2 * parts {
                store.put(at as u32, &source, (at / parts) as u32, (at % parts) as u32);
                for part in 0..cold_parts {
                    let (kv, block) = store.lend(at as u32).ok().unwrap();
                    cold.put((at * cold_parts + part) as u32, kv, block, part as u32);
                }
            }
            for from in [&mut store, &mut cold] {
                let target = filled(6, 2, 0xff);
                let table: Vec<u32> = (0..(12 / from.block_tokens()) as u32).collect();
                assert!(from.get(span(&table), &target, &[0, 1], 0..12).is_ok());
                assert_eq!(all(&target), all(&source), "blocks of {size} and {cold_size}");
                assert_eq!((from.counts.tokens_read, from.counts.failures), (12, 0));
                // Blocks that begin with the seventh token.
                let target = filled(6, 2, 0xff);
                let behind = Span { pool: 0, first: 6, blocks: &table[table.len() / 2..] };
                assert!(from.get(behind, &target, &[0, 1], 6..12).is_ok());
                assert_eq!(all(&target)[1], all(&source)[1]);
                assert_eq!(all(&target)[0], all(&filled(6, 2, 0xff))[0]);
            }
            let bytes = all(&source).concat().len() as u64;
            assert_eq!((store.counts.bytes_put, cold.counts.bytes_put), (bytes, bytes));
        }
        assert!(!path.exists(), "it is removed");
    }

    /// Every bit of a block: it is not given out, nor handed on; the other blocks are.
    #[test]
    fn a_block_with_one_bit_flipped_is_not_what_was_put() {
        let path = file("bits");
        for named in [None, Some(path.as_path())] {
            let source = filled(2, 3, 0);
            let mut store = Store::new(layout(2), 3, named).unwrap();
            (0..3).for_each(|block| store.put(block, &source, block, 0));
            let target = filled(2, 3, 0xff);
            for bit in 0..8 * layout(2).block_bytes() {
                let flip = |store: &mut Store| {
                    let mut bytes = Vec::new();
                    match &store.kept {
                        Kept::Memory(kv) => {
                            kv.read_block(1, &mut bytes);
                            bytes[bit / 8] ^= 1 << (bit % 8);
                            kv.write_block(1, &bytes);
                        }
                        Kept::File(file) => {
                            file.read(1, &mut bytes).unwrap();
                            bytes[bit / 8] ^= 1 << (bit % 8);
                            file.write(1, &bytes).unwrap();
                        }
                    }
                };
                flip(&mut store);
                assert_eq!(store.get(span(&[0, 1, 2]), &target, &[0, 1, 2], 0..6), Err(vec![1]), "bit {bit}");
                assert!(store.lend(1).is_err());
                flip(&mut store);
            }
            assert!(store.get(span(&[0, 1, 2]), &target, &[0, 1, 2], 0..6).is_ok());
            // One to which nothing was put is nothing.
            store.put_nothing(2);
            assert_eq!(store.get(span(&[0, 1, 2]), &target, &[0, 1, 2], 0..6), Err(vec![2]));
        }
    }

    #[test]
    fn a_file_that_is_no_stores_is_left_alone() {
        let path = file("other");
        std::fs::write(&path, "a letter that somebody wrote and that is longer than a mark").unwrap();
        let why = Store::new(layout(2), 3, Some(&path)).err().unwrap();
        assert!(why.ends_with("is there and is no store's file: another name is meant"), "{why}");
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("a letter"));
        // One that was left behind is taken, and one that is in use is not.
        std::fs::write(&path, [MARK, b"what was there"].concat()).unwrap();
        let store = Store::new(layout(2), 3, Some(&path)).unwrap();
        assert!(Store::new(layout(2), 3, Some(&path)).is_err());
        drop(store);
        assert!(!path.exists());
    }
}
