//! A served program.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `serq up --modelled` at a port that is free.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(path: &Path, more: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_serq"))
            .args(["up", path.to_str().unwrap(), "--modelled", "--port", "0"])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.map_while(Result::ok).find_map(|line| line.trim().strip_prefix("serving ").map(str::to_owned));
        Self { child, url: url.expect("it says where it serves") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
