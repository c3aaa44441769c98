//! What goes over a link's two connections.
//!
//! ```text
//!   messages   [ length: u32 ][ bytes ]
//!   bytes      [ kind: u8 ][ post: u64 ][ window: u64 ][ pieces: u32 ]  then, by kind:
//!     READ     pieces × [ there ][ bytes ]            is answered by DATA or NONE
//!     DATA     the bytes of that read's pieces, one after another
//!     NONE     nothing: there are no such bytes
//!     WRITE    pieces × [ there ][ bytes ], then the bytes; is answered by WROTE
//!     FETCH    pieces × [ there ][ bytes ][ here ]: a write of bytes that the addressee has mapped
//!     WROTE    window is 1 if all landed, 0 if not
//! ```
//!
//! `there` is a place in the addressee's memory, `here` one in the sender's. Numbers are little-endian.

use std::io::{self, Read, Write};

use super::Piece;

/// The longest message.
pub(super) const MESSAGE_BYTES_MOST: usize = 1 << 20;
/// The most pieces of one read or write.
pub(super) const PIECES_MOST: usize = 1 << 16;

/// What a header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Data,
    None,
    Write,
    Fetch,
    Wrote,
}

const KINDS: [Kind; 6] = [Kind::Read, Kind::Data, Kind::None, Kind::Write, Kind::Fetch, Kind::Wrote];
const HEADER: usize = 1 + 8 + 8 + 4;

/// The beginning of whatever goes over the connection for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) post: u64,
    pub(super) window: u64,
    pub(super) pieces: usize,
}

impl Header {
    pub(super) fn write(self, to: &mut Vec<u8>) {
        let kind = KINDS.iter().position(|&kind| kind == self.kind).expect("every kind is there");
        to.push(kind as u8);
        to.extend_from_slice(&self.post.to_le_bytes());
        to.extend_from_slice(&self.window.to_le_bytes());
        to.extend_from_slice(&(self.pieces as u32).to_le_bytes());
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut bytes = [0; HEADER];
        from.read_exact(&mut bytes)?;
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let kind = *KINDS.get(usize::from(bytes[0])).ok_or_else(|| broken("it sent something that is nothing"))?;
        let pieces = u32::from_le_bytes(bytes[17..].try_into().expect("4 bytes")) as usize;
        if pieces > PIECES_MOST {
            return Err(broken("it asked for too many pieces at once"));
        }
        Ok(Self { kind, post: number(1), window: number(9), pieces })
    }
}

/// Pieces as their sender has them; with `here`, where the addressee fetches them.
pub(super) fn write_pieces(pieces: &[Piece], here: bool, to: &mut Vec<u8>) {
    for piece in pieces {
        to.extend_from_slice(&piece.there.to_le_bytes());
        to.extend_from_slice(&piece.bytes.to_le_bytes());
        if here {
            to.extend_from_slice(&piece.here.to_le_bytes());
        }
    }
}

/// Pieces as their addressee has them: what is `there` for the sender is `here`.
pub(super) fn read_pieces(from: &mut impl Read, count: usize, here: bool) -> io::Result<Vec<Piece>> {
    let each = if here { 24 } else { 16 };
    let mut bytes = vec![0; count * each];
    from.read_exact(&mut bytes)?;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    Ok(bytes
        .chunks_exact(each)
        .map(|one| Piece {
            here: number(&one[..8]),
            bytes: number(&one[8..16]),
            there: if here { number(&one[16..]) } else { 0 },
        })
        .collect())
}

/// A message, with its length before it.
pub(super) fn write_message(to: &mut impl Write, message: &[u8]) -> io::Result<()> {
    let mut framed = Vec::with_capacity(4 + message.len());
    framed.extend_from_slice(&(message.len() as u32).to_le_bytes());
    framed.extend_from_slice(message);
    to.write_all(&framed)
}

/// The next message.
pub(super) fn read_message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MESSAGE_BYTES_MOST {
        return Err(broken("it sent a message that is too long"));
    }
    // As it comes: who only announces a long one takes no memory.
    let mut message = Vec::with_capacity(length.min(4096));
    from.take(length as u64).read_to_end(&mut message)?;
    match message.len() == length {
        true => Ok(message),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A peer that breaks the rules.
pub(super) fn broken(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
