//! Words as messages of a link: those that are longer than a message go in pieces.

use std::collections::HashMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serq_transfer::transport::{LinkId, Node};

/// Of a piece, behind its first byte, which says whether more follow.
const PIECE: usize = (1 << 20) - 1;
/// A word's bytes, at most: a step of 65,536 tokens in texts of a million is shorter.
const WORD_MOST: usize = 64 << 20;

pub(super) fn say(node: &Node, link: LinkId, word: &impl Serialize) {
    let bytes = postcard::to_allocvec(word).expect("words are plain data");
    let last = bytes.len().div_ceil(PIECE).max(1) - 1;
    for (nth, piece) in (0..=last).map(|nth| (nth, &bytes[nth * PIECE..bytes.len().min((nth + 1) * PIECE)])) {
        let mut message = Vec::with_capacity(piece.len() + 1);
        message.push(u8::from(nth < last));
        message.extend_from_slice(piece);
        node.send(link, message);
    }
}

/// Words that have not come whole.
#[derive(Default)]
pub(super) struct Pieces {
    begun: HashMap<LinkId, Vec<u8>>,
}

impl Pieces {
    /// A word, if its last piece has come.
    ///
    /// # Errors
    ///
    /// A sentence: it is none.
    pub(super) fn hear<W: DeserializeOwned>(&mut self, link: LinkId, message: &[u8]) -> Result<Option<W>, String> {
        let (&more, piece) = message.split_first().ok_or("an empty message")?;
        let whole = match (more, self.begun.remove(&link)) {
            (0, None) => return read(piece).map(Some),
            (0 | 1, begun) => {
                let mut whole = begun.unwrap_or_default();
                whole.extend_from_slice(piece);
                whole
            }
            _ => return Err("a message of another protocol".into()),
        };
        if whole.len() > WORD_MOST {
            return Err(format!("a message of more than {} MiB", WORD_MOST >> 20));
        }
        if more == 0 {
            return read(&whole).map(Some);
        }
        self.begun.insert(link, whole);
        Ok(None)
    }

    pub(super) fn forget(&mut self, link: LinkId) {
        self.begun.remove(&link);
    }
}

fn read<W: DeserializeOwned>(bytes: &[u8]) -> Result<W, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((word, [])) => Ok(word),
        Ok(_) => Err("a message with something behind it".into()),
        Err(error) => Err(format!("a message that cannot be read: {error}")),
    }
}
