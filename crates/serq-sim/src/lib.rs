//! Drives the kernel in virtual time: events, cost, arrivals, draws, statistics, reports.

mod arrival;
pub mod clients;
mod event;
mod leap;
mod observe;
pub mod record;
pub mod replicate;
pub mod report;
pub mod roles;
pub mod samples;
pub mod simulation;
mod statistics;
pub mod sweep;
pub mod trace;
pub mod ttft;

pub use simulation::{Options, Outcome, RunError, Sample, Steps, simulate, simulate_recorded};
