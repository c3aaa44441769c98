//! What every way of moving bytes promises, between two processes.
//!
//! The other process is this test's program once more ([`peer`]): it does what it is told on its standard input
//! and answers on its standard output. What has landed is compared by a sum that each side makes of its own memory.

mod conformance;
mod hostile;
mod peer;
