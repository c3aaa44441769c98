//! One module a command.

pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod draw;
pub(crate) mod explain;
pub(crate) mod explain_error;
pub(crate) mod fmt;
pub(crate) mod gateway;
pub(crate) mod instance;
pub(crate) mod ir;
pub(crate) mod load;
pub(crate) mod model;
pub(crate) mod oracle;
pub(crate) mod plan;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod sweep;
pub(crate) mod up;

use serq_sim::replicate::Figures;

use crate::failure::Failure;

/// Many runs that were reported are a failure if sessions were preempted for ever in one of them.
fn refuse_stuck<'a>(runs: impl IntoIterator<Item = &'a Figures>) -> Result<(), Failure> {
    let stuck: Vec<bool> = runs.into_iter().map(|run| run.stuck).collect();
    match stuck.iter().filter(|&&stuck| stuck).count() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("sessions are stuck in {count} of {} runs", stuck.len()))),
    }
}
