//! A place in a file's header that moves on as values are read.

use super::super::error::Trouble;

/// A place in bytes.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the first byte.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes passed.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The next so many bytes.
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Trouble> {
        match self.bytes[self.at..].get(..count) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => Err(Trouble::Damaged(format!(
                "the file ends at byte {}, inside its header, which asks for {count} more bytes at {}",
                self.bytes.len(),
                self.at
            ))),
        }
    }

    /// Passes so many bytes.
    pub(super) fn skip(&mut self, count: usize) -> Result<(), Trouble> {
        self.take(count).map(drop)
    }

    /// A number of 4 bytes.
    pub(super) fn u32(&mut self) -> Result<u32, Trouble> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    /// A number of 8 bytes.
    pub(super) fn u64(&mut self) -> Result<u64, Trouble> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    /// A number of 8 bytes that counts or places something in memory.
    pub(super) fn size(&mut self) -> Result<usize, Trouble> {
        let number = self.u64()?;
        usize::try_from(number).map_err(|_| Trouble::Damaged(format!("a size in the header is {number}")))
    }

    /// A text: its length, then its bytes.
    pub(super) fn text(&mut self) -> Result<&'a str, Trouble> {
        let length = self.size()?;
        let at = self.at;
        std::str::from_utf8(self.take(length)?)
            .map_err(|_| Trouble::Damaged(format!("the text at byte {at} of the header is not UTF-8")))
    }
}
