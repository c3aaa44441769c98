//! Drives the kernel in virtual time: events, cost, arrivals, draws, statistics, reports.

pub mod replicate;
pub mod report;
pub mod simulation;
pub mod sweep;
pub mod trace;

pub use simulation::{Options, Outcome, RunError, Sample, simulate};
