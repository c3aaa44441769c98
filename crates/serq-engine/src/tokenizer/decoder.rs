//! Ids to text, a piece at a time.

use super::{Specials, Tokenizer};

/// Ids to text as they come: whole characters only.
pub struct Decoder {
    specials: Specials,
    /// The beginning of a character whose end has not come: three bytes at most.
    begun: Vec<u8>,
}

impl Decoder {
    /// Before the first id.
    pub fn new(specials: Specials) -> Self {
        Self { specials, begun: Vec::new() }
    }

    /// The text that an id completes.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if self.specials == Specials::Hidden && tokenizer.is_special(id) {
            return String::new();
        }
        self.begun.extend(tokenizer.bytes(id));
        let mut text = String::new();
        let mut rest = &self.begun[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    text += whole;
                    self.begun.clear();
                    return text;
                }
                Err(error) => {
                    let (whole, after) = rest.split_at(error.valid_up_to());
                    text += std::str::from_utf8(whole).expect("valid up to there");
                    match error.error_len() {
                        Some(length) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &after[length..];
                        }
                        None => {
                            self.begun = after.to_vec();
                            return text;
                        }
                    }
                }
            }
        }
    }

    /// What is left when no id comes any more: a character that was never whole.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.begun).into_owned()
    }
}
