//! NIXL's C functions, found in a library that is loaded at run time.
//!
//! Names and signatures are those of `wrapper.h` in NIXL 1.5's Rust bindings. Objects are pointers that only NIXL looks
//! behind; every function answers a status.

// C functions are called by whoever knows what they want.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Names the folder with the library.
const FOLDER: &str = "SERQ_NIXL";
const FILE: &str = "libnixl_capi.so";

/// What a pointer of NIXL's points to is NIXL's business.
pub(super) type Object = *mut c_void;

/// It has happened.
pub(super) const DONE: c_int = 0;
/// It has begun.
pub(super) const IN_PROGRESS: c_int = 1;
/// Ordinary memory.
pub(super) const DRAM: c_int = 0;
/// A transfer towards who asks for it.
pub(super) const READ: c_int = 0;

/// How an agent runs: `nixl_capi_agent_config_s`.
#[repr(C)]
pub(super) struct Config {
    pub(super) progress_thread: bool,
    pub(super) listen_thread: bool,
    pub(super) listen_port: c_int,
    pub(super) thread_sync: c_int,
    pub(super) workers: c_uint,
    pub(super) progress_delay_us: u64,
    pub(super) listen_delay_us: u64,
    pub(super) telemetry: bool,
}

macro_rules! functions {
    ($($name:ident($($argument:ty),* $(,)?);)*) => {
        /// One field a function, named as it is, without `nixl_capi_`.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            ///
            /// The library's functions have these signatures.
            unsafe fn find(library: Object) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: a symbol of this name is a function, of this signature, as the caller says.
                    $($name: unsafe { mem::transmute::<Object, unsafe extern "C" fn($($argument),*) -> c_int>(
                        symbol(library, concat!("nixl_capi_", stringify!($name)))?,
                    ) },)*
                })
            }
        }
    };
}

functions! {
    create_configured_agent(*const c_char, *const Config, *mut Object);
    destroy_agent(Object);
    get_local_md(Object, *mut *mut c_void, *mut usize);
    load_remote_md(Object, *const c_void, usize, *mut *mut c_char);
    get_plugin_params(Object, *const c_char, *mut Object, *mut Object);
    destroy_mem_list(Object);
    destroy_params(Object);
    create_backend(Object, *const c_char, Object, *mut Object);
    destroy_backend(Object);
    create_opt_args(*mut Object);
    destroy_opt_args(Object);
    opt_args_add_backend(Object, Object);
    create_reg_dlist(c_int, *mut Object);
    reg_dlist_add_desc(Object, usize, usize, u64, *const c_void, usize);
    destroy_reg_dlist(Object);
    register_mem(Object, Object, Object);
    create_notif_map(*mut Object);
    get_notifs(Object, Object, Object);
    destroy_notif_map(Object);
    create_xfer_dlist(c_int, *mut Object);
    xfer_dlist_add_desc(Object, usize, usize, u64);
    destroy_xfer_dlist(Object);
    create_xfer_req(Object, c_int, Object, Object, *const c_char, *mut Object, Object);
    post_xfer_req(Object, Object, Object);
    get_xfer_status(Object, Object);
    release_xfer_req(Object, Object);
    destroy_xfer_req(Object);
}

/// The library, loaded the first time it is wanted and never unloaded: its threads and what it leaves for the
/// process's end stay.
///
/// # Errors
///
/// A sentence: it is not there, or is of another version.
pub(super) fn functions() -> Result<&'static Functions, String> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Functions, String> {
    let path = std::env::var_os(FOLDER).map_or_else(|| PathBuf::from(FILE), |folder| Path::new(&folder).join(FILE));
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{FOLDER} is no path"))?;
    // SAFETY: the name is a C string. What the library does when it is loaded is as trusted as this program: who
    // sets the environment chose both.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(format!("NIXL is not there: {}", why()));
    }
    // SAFETY: the library calls itself NIXL's C interface, whose signatures these are.
    unsafe { Functions::find(library) }
}

/// # Safety
///
/// The library is one that was loaded.
unsafe fn symbol(library: Object, name: &str) -> Result<Object, String> {
    let name = CString::new(name).expect("a name without zeros");
    // SAFETY: the library is loaded, and the name a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    match found.is_null() {
        true => Err(format!("NIXL is of another version than 1.5: {}", why())),
        false => Ok(found),
    }
}

/// What the system says of the last library or symbol that it did not find.
fn why() -> String {
    // SAFETY: the answer is null, or a C string that stands until this thread's next such call.
    let text = unsafe { libc::dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
    text.map_or_else(|| "the system does not say why".to_owned(), |text| text.to_string_lossy().into_owned())
}
