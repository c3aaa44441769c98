//! The command as its users run it.

use std::process::Command;

/// Runs `serq`: its status, and what it said on standard output and standard error.
pub(crate) fn serq(arguments: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_serq")).args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}
