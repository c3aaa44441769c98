//! Text to token ids and back, by the model's own tokenizer.
//!
//! ```text
//!   text ─markers cut out─▶ pieces ─merged by rank─▶ ids        tokenizers crate
//!   ids ─▶ bytes ─▶ text, as soon as its characters are whole   here
//! ```
//!
//! Only byte-level tokenizers are known: a token is some bytes, whatever stands beside it. So
//! decoding is putting bytes together, and a [`Decoder`] needs to keep at most three of them.
//!
//! # Invariants
//!
//! - What a [`Decoder`] emits, joined, is [`Tokenizer::decode`] of all its ids.
//! - No text makes encoding fail, and no ids make decoding fail.

mod build;
mod decoder;

use std::sync::OnceLock;

pub use decoder::Decoder;

use crate::weights::{Checkpoint, WeightsError};

/// A model's tokenizer.
pub struct Tokenizer {
    pairs: Pairs,
    tokens: Tokens,
    bos: Option<u32>,
}

/// How text becomes ids.
enum Pairs {
    /// A byte is its own id.
    Bytes,
    /// Byte pairs are merged by rank; and the same without special tokens, made when it is asked for.
    Merged { reading: Box<tokenizers::Tokenizer>, plain: OnceLock<Box<tokenizers::Tokenizer>> },
}

/// Each id's bytes, one after another, and which ids are special.
#[derive(Default)]
struct Tokens {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    special: Vec<bool>,
}

/// What the texts of special tokens mean inside a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Markers {
    /// They are those tokens. For what a chat template wrote.
    Read,
    /// They are text like any other. For what a stranger wrote.
    Plain,
}

/// Whether special tokens show in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// As their texts.
    Shown,
    /// Not at all.
    Hidden,
}

impl Tokenizer {
    /// The tokenizer in a model's files; of the built-in model, bytes.
    pub fn of(model: &Checkpoint) -> Result<Self, WeightsError> {
        build::tokenizer(model)
    }

    /// A text's ids, and nothing before or after them.
    pub fn encode(&self, text: &str, markers: Markers) -> Vec<u32> {
        match &self.pairs {
            Pairs::Bytes => self.encode_bytes(text, markers),
            Pairs::Merged { reading, plain } => {
                let tokenizer = match markers {
                    Markers::Read => reading,
                    Markers::Plain => plain.get_or_init(|| {
                        let mut plain = reading.clone();
                        plain.set_encode_special_tokens(true);
                        plain
                    }),
                };
                // Neither a byte-level split nor merges without an unknown token can fail.
                let encoding = tokenizer.encode_fast(text, false).expect("every text is bytes");
                encoding.get_ids().to_vec()
            }
        }
    }

    /// A prompt's ids: what the model wants at a text's beginning, if it is not there already, and
    /// the text's with markers read.
    pub fn prompt(&self, text: &str) -> Vec<u32> {
        let ids = self.encode(text, Markers::Read);
        match self.bos {
            Some(bos) if ids.first() != Some(&bos) => [&[bos], &ids[..]].concat(),
            _ => ids,
        }
    }

    fn encode_bytes(&self, text: &str, markers: Markers) -> Vec<u32> {
        let specials: Vec<u32> = (0..self.tokens.len()).filter(|&id| self.is_special(id)).collect();
        let mut ids = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some(&byte) = rest.first() {
            let here = |&&id: &&u32| rest.starts_with(self.bytes(id));
            match specials.iter().find(here).filter(|_| markers == Markers::Read) {
                Some(&id) => {
                    ids.push(id);
                    rest = &rest[self.bytes(id).len()..];
                }
                None => {
                    ids.push(byte.into());
                    rest = &rest[1..];
                }
            }
        }
        ids
    }

    /// The text of some ids. Bytes that are no text become U+FFFD.
    pub fn decode(&self, ids: &[u32], specials: Specials) -> String {
        let mut decoder = Decoder::new(specials);
        let mut text: String = ids.iter().map(|&id| decoder.push(self, id)).collect();
        text += &decoder.finish();
        text
    }

    /// An id's bytes; none of an id without a token.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.bytes(id)
    }

    /// Whether an id marks something instead of being text.
    pub fn is_special(&self, id: u32) -> bool {
        self.tokens.special.get(id as usize).is_some_and(|&special| special)
    }

    /// The special token with a text.
    pub fn special(&self, text: &str) -> Option<u32> {
        (0..self.tokens.len()).find(|&id| self.is_special(id) && self.bytes(id) == text.as_bytes())
    }

    /// What a prompt begins with, if the model wants that.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// Ids with a token are below this.
    pub fn vocabulary(&self) -> usize {
        self.tokens.ends.len()
    }
}

impl Tokens {
    fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    fn push(&mut self, bytes: &[u8], special: bool) {
        self.bytes.extend(bytes);
        self.ends.push(self.bytes.len());
        self.special.push(special);
    }

    fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }
}
