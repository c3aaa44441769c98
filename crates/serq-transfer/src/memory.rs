//! Memory that a transport moves KV from and into, and that other processes of the host can map.
//!
//! ```text
//!   Region     this process's own: [ mark, one page ][ bytes … ]     a memfd, mapped
//!   Mapping    another process's, read only, found by its Place and known by its mark
//! ```
//!
//! Reading a region while somebody writes to it gives bytes of before and after, never anything else.
//! Who may use what was read is the protocol's to say ([`crate::protocol`]); nothing here waits.
//!
//! # Invariants
//!
//! - A range outside of the memory is refused, never touched.
//! - A mapping is of the region that its place names, not of whatever has its process and file number now:
//!   the mark says so.

// Memory other processes read is no Rust object of theirs or ours: it is reached by pointers.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::slice;

use memmap2::{MmapOptions, MmapRaw};
use serde::{Deserialize, Serialize};

/// Before the bytes: so they are aligned for every kernel, and the mark is not among them.
const PAGE: usize = 4096;

/// It keeps its size: a mapped byte that is cut off ends whoever reads it.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Ranges that are handed to the system at once.
const SLICES: usize = 64;

/// A region's name, drawn when it was made.
type Mark = [u8; 32];

/// Where a region of this host is found by other processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The host, as long as it has not been started again.
    boot: String,
    process: u32,
    file: u32,
    bytes: u64,
    mark: Mark,
}

/// Memory of this process.
pub struct Region {
    map: MmapRaw,
    place: Place,
    // The mapping outlives it, but other processes open it.
    _file: File,
}

/// Another process's memory, to be read.
pub struct Mapping {
    map: MmapRaw,
    bytes: usize,
}

impl Region {
    /// So many bytes, all 0.
    ///
    /// # Errors
    ///
    /// The system's, when it has no such memory.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let whole = bytes.checked_add(PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: the name is a C string; the call makes a new file and nothing else.
        let file = unsafe { libc::memfd_create(c"serq-kv".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the file was just made, and nobody else has its number.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(whole as u64)?;
        // SAFETY: the call looks at the file's number and nothing else.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let map = MmapOptions::new().len(whole).map_raw(&file)?;
        let mut mark = Mark::default();
        getrandom::fill(&mut mark).map_err(io::Error::other)?;
        // SAFETY: the map has a page, and nobody else knows of it yet.
        unsafe { map.as_mut_ptr().copy_from_nonoverlapping(mark.as_ptr(), mark.len()) };
        let place = Place {
            boot: boot()?,
            process: std::process::id(),
            file: file.as_raw_fd() as u32,
            bytes: bytes as u64,
            mark,
        };
        Ok(Self { map, place, _file: file })
    }

    /// How many bytes.
    pub fn bytes(&self) -> usize {
        self.map.len() - PAGE
    }

    /// Where other processes of this host find it.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The first byte, aligned to a page. Valid for [`Region::bytes`], as long as the region is.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        // SAFETY: the map is a page longer than the bytes.
        unsafe { self.map.as_mut_ptr().add(PAGE) }
    }

    /// Copies bytes out; `None`: there are no such bytes.
    pub fn read(&self, from: u64, into: &mut [u8]) -> Option<()> {
        let at = range(self.bytes(), from, into.len() as u64)?;
        // SAFETY: the range is the region's; `into` is the caller's alone. Bytes that are written meanwhile
        // are read as before or after.
        unsafe { self.as_mut_ptr().add(at.start).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Some(())
    }

    /// Copies bytes in; `None`: there are no such bytes.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Option<()> {
        let at = range(self.bytes(), to, bytes.len() as u64)?;
        // SAFETY: as in `read`; who else writes there breaks what the protocol says of blocks, not of memory.
        unsafe { self.as_mut_ptr().add(at.start).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Some(())
    }

    /// Copies bytes of another memory of this process in; `None`: one of the two has no such bytes.
    pub fn copy_from(&self, to: u64, other: &Self, from: u64, bytes: u64) -> Option<()> {
        let (to, from) = (range(self.bytes(), to, bytes)?, range(other.bytes(), from, bytes)?);
        // SAFETY: both ranges are checked, and may be one memory's.
        unsafe { self.as_mut_ptr().add(to.start).copy_from(other.as_mut_ptr().add(from.start), to.len()) };
        Some(())
    }

    /// Copies bytes of another process in; `None`: one of the two has no such bytes.
    pub fn write_from(&self, to: u64, mapping: &Mapping, from: u64, bytes: u64) -> Option<()> {
        let (to, from) = (range(self.bytes(), to, bytes)?, range(mapping.bytes, from, bytes)?);
        // SAFETY: both ranges are checked; two maps are two places, also of one file where they do not overlap.
        unsafe {
            let from = mapping.map.as_mut_ptr().add(PAGE + from.start);
            self.as_mut_ptr().add(to.start).copy_from(from, to.len());
        }
        Some(())
    }

    /// Whether there are such bytes.
    pub fn has(&self, from: u64, bytes: u64) -> bool {
        range(self.bytes(), from, bytes).is_some()
    }

    /// Reads bytes straight to their place; `None`: there is no such place, and nothing was read.
    ///
    /// # Errors
    ///
    /// The reader's. Some bytes may be there.
    pub fn fill(&self, to: u64, bytes: u64, reader: &mut impl Read) -> Option<io::Result<()>> {
        let at = range(self.bytes(), to, bytes)?;
        // SAFETY: the range is the region's, and nobody has a reference into it: it is reached by pointers. Who
        // else writes there breaks what the protocol says of blocks, not of memory.
        Some(reader.read_exact(unsafe { slice::from_raw_parts_mut(self.as_mut_ptr().add(at.start), at.len()) }))
    }

    /// Writes ranges of (place, bytes) out, one after another.
    ///
    /// # Errors
    ///
    /// The writer's; or there are no such bytes.
    pub fn drain(&self, ranges: impl Iterator<Item = (u64, u64)>, writer: &mut impl Write) -> io::Result<()> {
        let mut ranges = ranges.peekable();
        while ranges.peek().is_some() {
            let mut slices = Vec::with_capacity(SLICES);
            for (from, bytes) in ranges.by_ref().take(SLICES) {
                let at = range(self.bytes(), from, bytes).ok_or(io::ErrorKind::InvalidInput)?;
                // SAFETY: as in `fill`; what is written meanwhile goes out as before or after.
                slices.push(IoSlice::new(unsafe { slice::from_raw_parts(self.as_mut_ptr().add(at.start), at.len()) }));
            }
            let mut rest = &mut slices[..];
            IoSlice::advance_slices(&mut rest, 0);
            while !rest.is_empty() {
                match writer.write_vectored(rest) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(count) => IoSlice::advance_slices(&mut rest, count),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Mapping {
    /// Maps a region of another process, or of this one.
    ///
    /// # Errors
    ///
    /// The system's; or it is of another host, is not there any more, or may not be opened.
    pub fn new(place: &Place) -> io::Result<Self> {
        let gone = |why: &str| io::Error::new(io::ErrorKind::NotFound, why);
        if place.boot != boot()? {
            return Err(gone("the memory is another host's"));
        }
        let path = format!("/proc/{}/fd/{}", place.process, place.file);
        // Whatever file it is by now: opening it neither waits nor changes it.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
        let (kind, bytes) = (file.metadata()?.mode() & libc::S_IFMT, place.bytes as usize);
        let whole = bytes.checked_add(PAGE).ok_or_else(|| gone("there is no memory of that size"))?;
        // SAFETY: as in `Region::new`.
        let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if kind != libc::S_IFREG || sealed < 0 || sealed & SEALS != SEALS || file.metadata()?.len() != whole as u64 {
            return Err(gone("the process has no such memory any more"));
        }
        let map = MmapOptions::new().len(whole).map_raw_read_only(&file)?;
        let mut mark = Mark::default();
        // SAFETY: the map has a page, and the mark is never written again.
        unsafe { map.as_ptr().copy_to_nonoverlapping(mark.as_mut_ptr(), mark.len()) };
        match mark == place.mark {
            true => Ok(Self { map, bytes }),
            false => Err(gone("the process has other memory there now")),
        }
    }
}

fn range(all: usize, from: u64, bytes: u64) -> Option<Range<usize>> {
    let end = from.checked_add(bytes).filter(|&end| end <= all as u64)?;
    Some(from as usize..end as usize)
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
