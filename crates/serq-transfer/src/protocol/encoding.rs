//! Messages as bytes.
//!
//! Little-endian, without padding or self-description: a tag, then the fields in order; a list is its length (u32)
//! and its items. Nothing is allocated on the word of a length: it is compared with the bytes that are there.

use std::fmt;

use super::identity::{Address, Epoch, Incarnation, Peer, Session, TransferId};
use super::mapping::{BlockTable, Placed};
use super::message::{End, Envelope, Message, Offer, Refusal};

/// The longest message, in bytes: a block table of 130,000 blocks.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Why bytes are no message. The connection they came on is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// Longer than [`MESSAGE_BYTES_MAX`].
    TooLong {
        /// How long.
        bytes: usize,
    },
    /// It ends inside a field, or a list says it has more items than there are bytes.
    Truncated,
    /// A tag nobody has given.
    Tag {
        /// What is tagged.
        of: &'static str,
        /// The tag.
        tag: u8,
    },
    /// Something follows the message.
    Trailing {
        /// How many bytes.
        bytes: usize,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::TooLong { bytes } => write!(f, "a message of {bytes} bytes; {MESSAGE_BYTES_MAX} is the most"),
            DecodeError::Truncated => f.write_str("the message ends inside a field"),
            DecodeError::Tag { of, tag } => write!(f, "no {of} has the tag {tag}"),
            DecodeError::Trailing { bytes } => write!(f, "{bytes} bytes follow the message"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// The bytes of a message.
#[must_use]
pub fn encode(envelope: &Envelope) -> Vec<u8> {
    let mut out = Vec::with_capacity(96);
    peer(&mut out, envelope.from);
    peer(&mut out, envelope.to);
    out.extend(envelope.session.0.to_le_bytes());
    let out = &mut out;
    match &envelope.message {
        Message::Hello { version, compatibility } => {
            out.push(0);
            out.extend(version.to_le_bytes());
            bytes(out, compatibility);
        }
        Message::Ask { id } => tagged(out, 1, *id),
        Message::Register { id, epoch, target } => {
            tagged(out, 2, *id);
            out.extend(epoch.0.to_le_bytes());
            table(out, target);
        }
        Message::Heartbeat { ids } => {
            out.push(3);
            length(out, ids.len());
            out.extend(ids.iter().flat_map(|id| id.0.to_le_bytes()));
        }
        Message::Done { id, epoch, attempt } => {
            with_epoch(out, 4, *id, *epoch);
            out.extend(attempt.to_le_bytes());
        }
        Message::Drop { id } => tagged(out, 5, *id),
        Message::Revoke { id, epoch } => with_epoch(out, 6, *id, *epoch),
        Message::Welcome { canary } => {
            out.push(7);
            bytes(out, canary);
        }
        Message::Refused { refusal } => {
            out.push(8);
            match refusal {
                Refusal::Version { source } => {
                    out.push(0);
                    out.extend(source.to_le_bytes());
                }
                Refusal::Compatibility => out.push(1),
                Refusal::Full => out.push(2),
            }
        }
        Message::Waiting { id } => tagged(out, 9, *id),
        Message::Offer { id, offer } => {
            tagged(out, 10, *id);
            peer(out, offer.source);
            out.extend(offer.epoch.0.to_le_bytes());
            table(out, &offer.table);
        }
        Message::Good { id, attempt } => {
            tagged(out, 11, *id);
            out.extend(attempt.to_le_bytes());
        }
        Message::Ended { id, end } => {
            tagged(out, 12, *id);
            let at = ENDS.iter().position(|other| other == end).expect("every end is listed");
            out.push(at as u8);
        }
        Message::Unknown { id } => tagged(out, 13, *id),
        Message::PartWritten { id, epoch, part, parts } => {
            with_epoch(out, 14, *id, *epoch);
            out.extend([*part, *parts]);
        }
        Message::WriteFailed { id, epoch } => with_epoch(out, 15, *id, *epoch),
        Message::Revoked { id, epoch } => with_epoch(out, 16, *id, *epoch),
        Message::Stale { id, epoch } => with_epoch(out, 17, *id, *epoch),
        Message::Reset => out.push(18),
        Message::SomebodyElse { meant } => {
            out.push(19);
            out.extend(meant.0.to_le_bytes());
        }
    }
    std::mem::take(out)
}

/// An end's place is its tag.
const ENDS: [End; 9] = [
    End::Consumed,
    End::LeaseOver,
    End::PrefillFailed,
    End::Aborted,
    End::Abandoned,
    End::Dropped,
    End::ReaderRestarted,
    End::Unmappable,
    End::Taken,
];

fn peer(out: &mut Vec<u8>, peer: Peer) {
    out.extend(peer.address.0.to_le_bytes());
    out.extend(peer.incarnation.0.to_le_bytes());
}

fn tagged(out: &mut Vec<u8>, tag: u8, id: TransferId) {
    out.push(tag);
    out.extend(id.0.to_le_bytes());
}

fn with_epoch(out: &mut Vec<u8>, tag: u8, id: TransferId, epoch: Epoch) {
    tagged(out, tag, id);
    out.extend(epoch.0.to_le_bytes());
}

fn length(out: &mut Vec<u8>, length: usize) {
    out.extend(u32::try_from(length).expect("a list of a message fits into 32 bits").to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    length(out, bytes.len());
    out.extend(bytes);
}

fn table(out: &mut Vec<u8>, table: &BlockTable) {
    for number in [table.block_tokens, table.first_token, table.end_token] {
        out.extend(number.to_le_bytes());
    }
    length(out, table.blocks.len());
    for placed in &table.blocks {
        out.extend(placed.block.to_le_bytes());
        out.extend(placed.first_token.to_le_bytes());
    }
}

/// The message these bytes are.
///
/// # Errors
///
/// The bytes are no message, or too many.
pub fn decode(bytes: &[u8]) -> Result<Envelope, DecodeError> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(DecodeError::TooLong { bytes: bytes.len() });
    }
    let mut rest = Rest(bytes);
    let envelope =
        Envelope { from: rest.peer()?, to: rest.peer()?, session: Session(rest.u64()?), message: rest.message()? };
    match rest.0.len() {
        0 => Ok(envelope),
        bytes => Err(DecodeError::Trailing { bytes }),
    }
}

/// What is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, DecodeError> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, DecodeError> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, DecodeError> {
        self.take().map(u64::from_le_bytes)
    }

    fn id(&mut self) -> Result<TransferId, DecodeError> {
        self.take().map(u128::from_le_bytes).map(TransferId)
    }

    fn epoch(&mut self) -> Result<Epoch, DecodeError> {
        self.u64().map(Epoch)
    }

    fn peer(&mut self) -> Result<Peer, DecodeError> {
        Ok(Peer { address: Address(self.u64()?), incarnation: Incarnation(self.u64()?) })
    }

    /// A list's length, if its items can be there.
    fn length(&mut self, item_bytes: usize) -> Result<usize, DecodeError> {
        let length = self.u32()? as usize;
        if length > self.0.len() / item_bytes { Err(DecodeError::Truncated) } else { Ok(length) }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, DecodeError> {
        let (head, rest): (&'a [u8], &'a [u8]) = {
            let length = self.length(1)?;
            self.0.split_at(length)
        };
        self.0 = rest;
        Ok(head.to_vec())
    }

    fn table(&mut self) -> Result<BlockTable, DecodeError> {
        let (block_tokens, first_token, end_token) = (self.u32()?, self.u32()?, self.u32()?);
        let length = self.length(8)?;
        let blocks = (0..length)
            .map(|_| Ok(Placed { block: self.u32()?, first_token: self.u32()? }))
            .collect::<Result<_, DecodeError>>()?;
        Ok(BlockTable { block_tokens, first_token, end_token, blocks })
    }

    fn message(&mut self) -> Result<Message, DecodeError> {
        Ok(match self.u8()? {
            0 => Message::Hello { version: self.u16()?, compatibility: self.bytes()? },
            1 => Message::Ask { id: self.id()? },
            2 => Message::Register { id: self.id()?, epoch: self.epoch()?, target: self.table()? },
            3 => {
                let length = self.length(16)?;
                Message::Heartbeat { ids: (0..length).map(|_| self.id()).collect::<Result<_, _>>()? }
            }
            4 => Message::Done { id: self.id()?, epoch: self.epoch()?, attempt: self.u64()? },
            5 => Message::Drop { id: self.id()? },
            6 => Message::Revoke { id: self.id()?, epoch: self.epoch()? },
            7 => Message::Welcome { canary: self.bytes()? },
            8 => {
                let refusal = match self.u8()? {
                    0 => Refusal::Version { source: self.u16()? },
                    1 => Refusal::Compatibility,
                    2 => Refusal::Full,
                    tag => return Err(DecodeError::Tag { of: "refusal", tag }),
                };
                Message::Refused { refusal }
            }
            9 => Message::Waiting { id: self.id()? },
            10 => {
                let id = self.id()?;
                Message::Offer { id, offer: Offer { source: self.peer()?, epoch: self.epoch()?, table: self.table()? } }
            }
            11 => Message::Good { id: self.id()?, attempt: self.u64()? },
            12 => {
                let (id, tag) = (self.id()?, self.u8()?);
                let end = *ENDS.get(usize::from(tag)).ok_or(DecodeError::Tag { of: "end", tag })?;
                Message::Ended { id, end }
            }
            13 => Message::Unknown { id: self.id()? },
            14 => Message::PartWritten { id: self.id()?, epoch: self.epoch()?, part: self.u8()?, parts: self.u8()? },
            15 => Message::WriteFailed { id: self.id()?, epoch: self.epoch()? },
            16 => Message::Revoked { id: self.id()?, epoch: self.epoch()? },
            17 => Message::Stale { id: self.id()?, epoch: self.epoch()? },
            18 => Message::Reset,
            19 => Message::SomebodyElse { meant: Incarnation(self.u64()?) },
            tag => return Err(DecodeError::Tag { of: "message", tag }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_message() -> Vec<Envelope> {
        let (id, epoch) = (TransferId(7 << 90 | 3), Epoch(9));
        let table = BlockTable::in_order(16, 5, 40, &[8, 2, 11]);
        let source = Peer { address: Address(1), incarnation: Incarnation(2) };
        let mut messages = vec![
            Message::Hello { version: 1, compatibility: vec![1, 2, 3] },
            Message::Ask { id },
            Message::Register { id, epoch, target: table.clone() },
            Message::Heartbeat { ids: vec![id, TransferId(1)] },
            Message::Done { id, epoch, attempt: 5 },
            Message::Drop { id },
            Message::Revoke { id, epoch },
            Message::Welcome { canary: vec![] },
            Message::Waiting { id },
            Message::Offer { id, offer: Offer { source, epoch, table } },
            Message::Good { id, attempt: 5 },
            Message::Unknown { id },
            Message::PartWritten { id, epoch, part: 3, parts: 64 },
            Message::WriteFailed { id, epoch },
            Message::Revoked { id, epoch },
            Message::Stale { id, epoch },
            Message::Reset,
            Message::SomebodyElse { meant: Incarnation(4) },
        ];
        messages.extend(ENDS.map(|end| Message::Ended { id, end }));
        let refusals = [Refusal::Version { source: 3 }, Refusal::Compatibility, Refusal::Full];
        messages.extend(refusals.map(|refusal| Message::Refused { refusal }));
        let to = Peer { address: Address(u64::MAX), incarnation: Incarnation::WHOEVER };
        messages.into_iter().map(|message| Envelope { from: source, to, session: Session(6), message }).collect()
    }

    #[test]
    fn every_message_is_read_back() {
        for envelope in every_message() {
            assert_eq!(decode(&encode(&envelope)), Ok(envelope));
        }
    }

    #[test]
    fn every_message_cut_anywhere_is_truncated_and_lengthened_is_trailing() {
        for envelope in every_message() {
            let mut bytes = encode(&envelope);
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), Err(DecodeError::Truncated), "{envelope:?} cut at {end}");
            }
            bytes.push(0);
            assert_eq!(decode(&bytes), Err(DecodeError::Trailing { bytes: 1 }));
        }
    }

    /// Every bit of every message flipped: an error or another message that is read back, never a panic.
    #[test]
    fn a_flipped_bit_is_an_error_or_another_message() {
        for envelope in every_message() {
            let bytes = encode(&envelope);
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = decode(&flipped) {
                    assert_ne!(other, envelope);
                    assert_eq!(decode(&encode(&other)), Ok(other));
                }
            }
        }
    }

    #[test]
    fn a_length_is_not_believed() {
        let envelope = &every_message()[3];
        let mut bytes = encode(envelope);
        let at = bytes.len() - 2 * 16 - 4;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(decode(&bytes), Err(DecodeError::Truncated));
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        assert_eq!(decode(&long), Err(DecodeError::TooLong { bytes: MESSAGE_BYTES_MAX + 1 }));
        bytes.truncate(40);
        bytes.push(99);
        assert_eq!(decode(&bytes), Err(DecodeError::Tag { of: "message", tag: 99 }));
    }
}
