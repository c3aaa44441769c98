//! Two processes find out that both know the token, and who they are.
//!
//! ```text
//!   dialler                                             listener
//!           ◀─── version, nonce ─────────────────────────
//!   who I am, nonce, HMAC(token, both nonces, who I am) ▶
//!           ◀─── who I am, HMAC(token, nonces, who I am)
//! ```
//!
//! Each proves it for a number the other has just drawn: what was overheard proves nothing later. The token is
//! never sent. What is said after it is neither hidden nor sealed: where others can read or change what is on the
//! wire, the links go through a tunnel that prevents it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Of this greeting and of what is said after it.
const VERSION: &[u8; 8] = b"SERQ-KV1";
const BYTES: usize = 32;

type Nonce = [u8; BYTES];
type Proof = [u8; BYTES];

/// What all processes of a deployment know, and nobody else.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// A token that is already shared, of at least 16 bytes.
    ///
    /// # Errors
    ///
    /// It is shorter: it could be guessed.
    pub fn new(secret: impl Into<Vec<u8>>) -> Result<Self, String> {
        let secret = secret.into();
        match secret.len() {
            0..16 => Err(format!("a token of {} bytes can be guessed: at least 16 are meant", secret.len())),
            _ => Ok(Self(secret)),
        }
    }

    /// One that was just drawn.
    ///
    /// # Panics
    ///
    /// When the system has no random numbers.
    pub fn draw() -> Self {
        Self(nonce().to_vec())
    }

    /// One that was just drawn, to be given to others as text.
    ///
    /// # Panics
    ///
    /// When the system has no random numbers.
    pub fn drawn_text() -> String {
        nonce().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn proof(&self, of: &[&[u8]]) -> Hmac<Sha256> {
        let mut proof = Hmac::<Sha256>::new_from_slice(&self.0).expect("any length is a key");
        of.iter().for_each(|part| proof.update(part));
        proof
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

fn nonce() -> Nonce {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).expect("the system has random numbers");
    nonce
}

/// Who a process says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    /// Where it listens.
    pub(super) listens: SocketAddr,
    pub(super) incarnation: u64,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Messages,
    Bytes,
}

/// A connection that is greeted.
pub(super) struct Greeted {
    pub(super) who: Who,
    pub(super) purpose: Purpose,
    /// Drawn by the dialler: the two connections of a link have the same.
    pub(super) pair: u64,
}

const WHO: usize = 16 + 2 + 8;

fn who_bytes(who: Who) -> [u8; WHO] {
    let mut bytes = [0; WHO];
    let address = match who.listens.ip() {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped(),
        std::net::IpAddr::V6(address) => address,
    };
    bytes[..16].copy_from_slice(&address.octets());
    bytes[16..18].copy_from_slice(&who.listens.port().to_le_bytes());
    bytes[18..].copy_from_slice(&who.incarnation.to_le_bytes());
    bytes
}

fn who_of(bytes: &[u8; WHO]) -> Who {
    let address = std::net::Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[..16]).expect("16 bytes"));
    let port = u16::from_le_bytes([bytes[16], bytes[17]]);
    let incarnation = u64::from_le_bytes(bytes[18..].try_into().expect("8 bytes"));
    Who { listens: SocketAddr::new(address.to_canonical(), port), incarnation }
}

/// Greets a listener. All is said by `deadline`.
pub(super) fn dial(
    stream: &TcpStream,
    token: &Token,
    me: Who,
    purpose: Purpose,
    pair: u64,
    deadline: Instant,
) -> io::Result<Who> {
    let mut timed = Timed { stream, deadline };
    let (version, theirs): ([u8; 8], Nonce) = (timed.bytes_of()?, timed.bytes_of()?);
    if &version != VERSION {
        return Err(wrong("it does not speak this version of the transfer transport"));
    }
    let (me, mine) = (who_bytes(me), nonce());
    let mut said = Vec::with_capacity(128);
    said.push(match purpose {
        Purpose::Messages => 1,
        Purpose::Bytes => 2,
    });
    said.extend_from_slice(&pair.to_le_bytes());
    said.extend_from_slice(&me);
    said.extend_from_slice(&mine);
    let proof = token.proof(&[b"dialler", &theirs, &said]).finalize().into_bytes();
    said.extend_from_slice(&proof);
    timed.write_all(&said)?;
    let who: [u8; WHO] = timed.bytes_of().map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            wrong("it turned the greeting away: is the token the same?")
        }
        _ => error,
    })?;
    let proof: Proof = timed.bytes_of()?;
    match token.proof(&[b"listener", &mine, &theirs, &who]).verify_slice(&proof) {
        Ok(()) => Ok(who_of(&who)),
        Err(_) => Err(wrong("it does not know the token")),
    }
}

/// Greets a dialler. All is said by `deadline`.
pub(super) fn accept(stream: &TcpStream, token: &Token, me: Who, deadline: Instant) -> io::Result<Greeted> {
    let mut timed = Timed { stream, deadline };
    let mine = nonce();
    timed.write_all(&[&VERSION[..], &mine].concat())?;
    let said: [u8; 1 + 8 + WHO + BYTES] = timed.bytes_of()?;
    let proof: Proof = timed.bytes_of()?;
    if token.proof(&[b"dialler", &mine, &said]).verify_slice(&proof).is_err() {
        return Err(wrong("it does not know the token"));
    }
    let purpose = match said[0] {
        1 => Purpose::Messages,
        2 => Purpose::Bytes,
        _ => return Err(wrong("it wants something this version does not know")),
    };
    let me = who_bytes(me);
    let proof = token.proof(&[b"listener", &said[1 + 8 + WHO..], &mine, &me]).finalize().into_bytes();
    timed.write_all(&[&me[..], &proof].concat())?;
    let pair = u64::from_le_bytes(said[1..9].try_into().expect("8 bytes"));
    Ok(Greeted { who: who_of(said[9..9 + WHO].try_into().expect("its length")), purpose, pair })
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// A stream all of whose reads and writes are over by a deadline.
struct Timed<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            Some(left) => Ok(Some(left)),
            None => Err(io::Error::new(io::ErrorKind::TimedOut, "it took too long to say who it is")),
        }
    }

    fn bytes_of<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        let mut stream = self.stream;
        stream.read(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, "it took too long to say who it is"),
            _ => error,
        })
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        let mut stream = self.stream;
        stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
