//! Hand-overs between two processes: what arrives, and what is left when one of them goes away.
//!
//! The other process is this test's program once more ([`instance`]). A prompt's KV is a pattern in which every number
//! says whose it is, so wrong, torn and misplaced copies show.

mod chaos;
mod hand_over;
mod instance;
