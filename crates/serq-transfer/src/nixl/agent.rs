//! An agent: its memory, its peer, and its reads under way.

// NIXL is C, and moves bytes behind the compiler's back.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use super::library::{Config, DONE, DRAM, Functions, IN_PROGRESS, Object, READ, functions};
use super::{Begun, Broken, Offer, STAGING_BYTES, Target, from_hex, hex};
use crate::memory::Region;
use crate::transport::Piece;

/// Between two looks of an agent's thread, where nothing wakes it. At 0 it would keep a core busy.
const PROGRESS_US: u64 = 1000;

/// Held while an agent is made: that it may be done twice at once, NIXL does not say.
static MAKING: Mutex<()> = Mutex::new(());

/// Loads NIXL, if that was not done before.
///
/// # Errors
///
/// A sentence: it is not there, or is of another version.
pub fn available() -> Result<(), String> {
    functions().map(|_| ())
}

/// One side of NIXL's between two processes.
pub struct Agent {
    nixl: &'static Functions,
    reads: BTreeMap<u64, Request>,
    begun: u64,
    offer: Offer,
    theirs: Option<(CString, Offer)>,
    // In the order in which they go: what belongs to the agent, the agent, and what it reads to.
    options: Owned,
    _backend: Owned,
    agent: Owned,
    memory: Arc<Region>,
    staging: Arc<Region>,
}

/// A read under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read(u64);

/// A transfer of NIXL's.
struct Request(Object);

// SAFETY: NIXL's objects belong to no thread. An agent is made for one caller at a time, which `&mut` sees to; with
// its own thread NIXL shares it under locks of its own.
unsafe impl Send for Agent {}

impl Agent {
    /// An agent whose peer can read this memory, and which reads to it. It helps its peer by a thread of its own, or when
    /// [`Agent::help`] is called.
    ///
    /// # Errors
    ///
    /// A sentence: NIXL is not there, or does not start.
    pub fn new(memory: &Arc<Region>, helps: bool) -> Result<Self, String> {
        let nixl = functions()?;
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut name = [0; 16];
        getrandom::fill(&mut name).map_err(|error| error.to_string())?;
        let name = CString::new(hex(&name)).expect("digits");
        let config = Config {
            progress_thread: helps,
            listen_thread: false,
            listen_port: 0,
            thread_sync: 0,
            workers: 1,
            progress_delay_us: PROGRESS_US,
            listen_delay_us: 0,
            telemetry: false,
        };
        let failed = |what: &str| format!("NIXL {what}; on standard error it may have said why");
        // SAFETY: name and config stand during the call.
        let agent = owned(nixl.destroy_agent, |made| unsafe {
            (nixl.create_configured_agent)(name.as_ptr(), &raw const config, made)
        });
        let agent = agent.ok_or_else(|| failed("makes no agent"))?;
        let backend = backend(nixl, &agent).ok_or_else(|| failed("does not start UCX"))?;
        // SAFETY: it makes an object and nothing else.
        let options = owned(nixl.destroy_opt_args, |made| unsafe { (nixl.create_opt_args)(made) });
        let options = options.ok_or_else(|| failed("has no memory"))?;
        // SAFETY: both objects are alive, and go before the agent.
        if unsafe { (nixl.opt_args_add_backend)(options.object, backend.object) } != DONE {
            return Err(failed("does not start UCX"));
        }
        let staging = Region::new(STAGING_BYTES as usize).map_err(|error| format!("there is no memory: {error}"))?;
        let mut made = Self {
            nixl,
            reads: BTreeMap::new(),
            begun: 0,
            offer: Offer { metadata: String::new(), address: memory.as_mut_ptr() as u64, bytes: memory.bytes() as u64 },
            theirs: None,
            options,
            _backend: backend,
            agent,
            memory: Arc::clone(memory),
            staging: Arc::new(staging),
        };
        made.register(Target::Memory).ok_or_else(|| failed("does not take the memory"))?;
        made.offer.metadata = made.metadata().ok_or_else(|| failed("says nothing of its agent"))?;
        // Of what is registered now the peer knows nothing.
        made.register(Target::Staging).ok_or_else(|| failed("does not take the memory"))?;
        Ok(made)
    }

    /// What the peer has to know.
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Where bytes can wait.
    pub fn staging(&self) -> &Arc<Region> {
        &self.staging
    }

    /// Knows its peer from now on.
    ///
    /// # Errors
    ///
    /// A sentence: NIXL makes nothing of the offer.
    pub fn join(&mut self, theirs: &Offer) -> Result<(), String> {
        let wrong = || "NIXL makes nothing of what the peer says of its agent".to_owned();
        let metadata = from_hex(&theirs.metadata).ok_or_else(wrong)?;
        let mut name: *mut c_char = ptr::null_mut();
        let (bytes, length) = (metadata.as_ptr().cast::<c_void>(), metadata.len());
        // SAFETY: the bytes stand during the call; the agent is alive.
        let status = unsafe { (self.nixl.load_remote_md)(self.agent.object, bytes, length, &raw mut name) };
        if status != DONE || name.is_null() {
            return Err(wrong());
        }
        // SAFETY: it is a C string, made by `strdup` for who called.
        let owned = unsafe { CStr::from_ptr(name) }.to_owned();
        // SAFETY: as said; nobody uses it after this.
        unsafe { libc::free(name.cast()) };
        self.theirs = Some((owned, theirs.clone()));
        Ok(())
    }

    /// Begins to read pieces of the peer's memory to their places.
    ///
    /// # Errors
    ///
    /// The peer cannot be read.
    pub fn begin(&mut self, pieces: &[Piece], target: Target) -> Result<Begun, Broken> {
        let (name, theirs) = self.theirs.as_ref().ok_or(Broken)?;
        let here = self.memory_of(target);
        if !pieces.iter().all(|piece| here.has(piece.here, piece.bytes) && theirs.has(piece.there, piece.bytes)) {
            return Ok(Begun::Refused);
        }
        let pieces = coalesced(pieces);
        if pieces.is_empty() {
            return Ok(Begun::Landed);
        }
        let first = here.as_mut_ptr() as usize;
        let to = self.list(pieces.iter().map(|piece| (first + piece.here as usize, piece.bytes))).ok_or(Broken)?;
        let first = theirs.address as usize;
        let from = self.list(pieces.iter().map(|piece| (first + piece.there as usize, piece.bytes))).ok_or(Broken)?;
        let mut request = ptr::null_mut();
        // SAFETY: agent, lists, options and name are alive during the call, which keeps none of the lists. What is
        // read to is this side's, and goes after the agent.
        let status = unsafe {
            (self.nixl.create_xfer_req)(
                self.agent.object,
                READ,
                to.object,
                from.object,
                name.as_ptr(),
                &raw mut request,
                self.options.object,
            )
        };
        if status != DONE || request.is_null() {
            return Err(Broken);
        }
        let request = Request(request);
        // SAFETY: the request is this agent's, just made.
        match unsafe { (self.nixl.post_xfer_req)(self.agent.object, request.0, self.options.object) } {
            IN_PROGRESS => {
                self.begun += 1;
                self.reads.insert(self.begun, request);
                Ok(Begun::UnderWay(Read(self.begun)))
            }
            status => {
                self.release(request);
                if status == DONE { Ok(Begun::Landed) } else { Err(Broken) }
            }
        }
    }

    /// Whether a read has landed; if not, it is under way. Of one that is over nothing is known any more.
    ///
    /// # Errors
    ///
    /// It will not land; the peer cannot be read.
    pub fn look(&mut self, read: Read) -> Result<bool, Broken> {
        let Some(request) = self.reads.get(&read.0) else { return Err(Broken) };
        // SAFETY: the request is this agent's, and not released.
        let status = unsafe { (self.nixl.get_xfer_status)(self.agent.object, request.0) };
        if status == IN_PROGRESS {
            return Ok(false);
        }
        let request = self.reads.remove(&read.0).expect("it was there");
        self.release(request);
        if status == DONE { Ok(true) } else { Err(Broken) }
    }

    /// Answers what the peer's library has asked so far.
    pub fn help(&mut self) {
        // SAFETY: it makes an object and nothing else.
        let notes = owned(self.nixl.destroy_notif_map, |made| unsafe { (self.nixl.create_notif_map)(made) });
        if let Some(notes) = notes {
            // SAFETY: all three are alive during the call. What peers note here is dropped with the object.
            unsafe { (self.nixl.get_notifs)(self.agent.object, notes.object, self.options.object) };
        }
    }

    fn memory_of(&self, target: Target) -> &Region {
        match target {
            Target::Memory => &self.memory,
            Target::Staging => &self.staging,
        }
    }

    fn register(&self, target: Target) -> Option<()> {
        let memory = self.memory_of(target);
        // SAFETY: it makes an object and nothing else.
        let list = owned(self.nixl.destroy_reg_dlist, |made| unsafe { (self.nixl.create_reg_dlist)(DRAM, made) })?;
        let (address, bytes) = (memory.as_mut_ptr() as usize, memory.bytes());
        // SAFETY: the list is alive; the memory is this side's, and goes after the agent.
        let added = unsafe { (self.nixl.reg_dlist_add_desc)(list.object, address, bytes, 0, ptr::null(), 0) };
        // SAFETY: all three are alive during the call.
        let status = unsafe { (self.nixl.register_mem)(self.agent.object, list.object, self.options.object) };
        (added == DONE && status == DONE).then_some(())
    }

    fn metadata(&self) -> Option<String> {
        let (mut data, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the agent is alive.
        let status = unsafe { (self.nixl.get_local_md)(self.agent.object, &raw mut data, &raw mut length) };
        if status != DONE || data.is_null() {
            return None;
        }
        // SAFETY: it is that long, made by `malloc` for who called.
        let digits = hex(unsafe { slice::from_raw_parts(data.cast::<u8>(), length) });
        // SAFETY: as said; nobody uses it after this.
        unsafe { libc::free(data) };
        Some(digits)
    }

    /// A list of (address, bytes).
    fn list(&self, ranges: impl Iterator<Item = (usize, u64)>) -> Option<Owned> {
        // SAFETY: it makes an object and nothing else.
        let list = owned(self.nixl.destroy_xfer_dlist, |made| unsafe { (self.nixl.create_xfer_dlist)(DRAM, made) })?;
        for (address, bytes) in ranges {
            // SAFETY: the list is alive; numbers are only numbers until a request is made of them.
            if unsafe { (self.nixl.xfer_dlist_add_desc)(list.object, address, bytes as usize, 0) } != DONE {
                return None;
            }
        }
        Some(list)
    }

    /// Gives a request back. One that NIXL does not take back goes with the agent.
    fn release(&self, request: Request) {
        // SAFETY: the request is this agent's, and was not released before.
        if unsafe { (self.nixl.release_xfer_req)(self.agent.object, request.0) } == DONE {
            // SAFETY: it is released, and nobody has it any more.
            unsafe { (self.nixl.destroy_xfer_req)(request.0) };
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for request in std::mem::take(&mut self.reads).into_values() {
            self.release(request);
        }
        // The agent goes now, and the memories after it.
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("offer", &self.offer).field("reads", &self.reads.len()).finish_non_exhaustive()
    }
}

/// UCX, as the agent's way to its peer.
fn backend(nixl: &'static Functions, agent: &Owned) -> Option<Owned> {
    let (mut kinds, mut parameters) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the agent is alive; the two are made for who called.
    let status =
        unsafe { (nixl.get_plugin_params)(agent.object, c"UCX".as_ptr(), &raw mut kinds, &raw mut parameters) };
    if status != DONE {
        return None;
    }
    let _kinds = Owned { object: kinds, destroy: nixl.destroy_mem_list };
    let parameters = Owned { object: parameters, destroy: nixl.destroy_params };
    // SAFETY: agent and parameters are alive during the call.
    owned(nixl.destroy_backend, |made| unsafe {
        (nixl.create_backend)(agent.object, c"UCX".as_ptr(), parameters.object, made)
    })
}

/// An object of NIXL's that is destroyed with this.
struct Owned {
    object: Object,
    destroy: unsafe extern "C" fn(Object) -> c_int,
}

fn owned(destroy: unsafe extern "C" fn(Object) -> c_int, make: impl FnOnce(*mut Object) -> c_int) -> Option<Owned> {
    let mut object = ptr::null_mut();
    (make(&raw mut object) == DONE && !object.is_null()).then(|| Owned { object, destroy })
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: nobody else destroys it, nor uses it after this.
        unsafe { (self.destroy)(self.object) };
    }
}

/// The same bytes in fewer pieces: those that lie together on both sides are one, and empty ones none.
fn coalesced(pieces: &[Piece]) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::with_capacity(pieces.len());
    for &piece in pieces.iter().filter(|piece| piece.bytes > 0) {
        match all.last_mut() {
            Some(last) if last.here + last.bytes == piece.here && last.there + last.bytes == piece.there => {
                last.bytes += piece.bytes;
            }
            _ => all.push(piece),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_that_lie_together_on_both_sides_become_one() {
        let piece = |here, there, bytes| Piece { here, there, bytes };
        let pieces = [piece(0, 100, 10), piece(10, 110, 5), piece(15, 200, 5), piece(7, 7, 0), piece(20, 205, 1)];
        assert_eq!(coalesced(&pieces), [piece(0, 100, 15), piece(15, 200, 6)]);
        assert_eq!(coalesced(&[piece(3, 3, 0)]), []);
    }
}
