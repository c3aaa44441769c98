//! `serq replay`: a log of decisions, decided again.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;

use clap::Args;
use serq_engine::decisions::{Replayed, replay};

use crate::failure::Failure;
use crate::number::count;
use crate::output;

/// Tell a fresh kernel what a log says happened, and compare what it decides
#[derive(Args)]
pub(crate) struct Replay {
    /// What `serq up --decisions` wrote
    #[arg(value_name = "LOG")]
    log: PathBuf,
}

impl Replay {
    pub(crate) fn execute(self) -> Result<(), Failure> {
        let log = File::open(&self.log).map_err(|error| output::cannot("read", &self.log, &error))?;
        if log.metadata().is_ok_and(|log| log.is_dir()) {
            return Err(output::cannot("read", &self.log, &io::ErrorKind::IsADirectory.into()));
        }
        let replayed =
            replay(BufReader::new(log)).map_err(|why| Failure::Failed(format!("{}: {why}", self.log.display())))?;
        let Replayed { facts, decisions, requests, preemptions, evicted, ended } = replayed;
        let (facts, decisions) = (count(facts, "fact"), count(decisions, "decision"));
        let (requests, preemptions) = (count(requests, "request"), count(preemptions, "preemption"));
        let evicted = count(evicted, "token");
        output::print(&format!(
            "{decisions} after {facts}, all as logged: {requests}, {preemptions}, {evicted} evicted\n"
        ))?;
        if !ended {
            output::tell("note: the log has no end: it was cut, or the server that wrote it was killed");
        }
        Ok(())
    }
}
