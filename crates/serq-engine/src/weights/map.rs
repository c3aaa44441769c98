//! A file as memory.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use super::error::{Trouble, WeightsError};

/// Maps a file. Its bytes are read from the disk when they are first looked at.
pub(crate) fn map(path: &Path) -> Result<Arc<Mmap>, WeightsError> {
    let open = || {
        let file = File::open(path)?;
        // A folder opens, and maps with a riddle for an error.
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("it is no file"));
        }
        // SAFETY: a mapped file must not change. Model files are written once, under another name
        // until they are whole; who edits one in service breaks the model in any engine. The bytes
        // are only ever read as numbers and checked text, for which any content is sound.
        #[allow(unsafe_code)]
        unsafe {
            Mmap::map(&file)
        }
    };
    open().map(Arc::new).map_err(|cause| Trouble::Unreadable(cause).of(path))
}
