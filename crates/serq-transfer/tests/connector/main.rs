//! Hand-overs between two instances: what arrives, and what is left when one of them goes away.
//!
//! The other one is this test's program once more ([`instance`]), or a thread where connectors are of one process. A
//! prompt's KV is a pattern in which every number says whose it is, so wrong, torn and misplaced copies show.

mod chaos;
mod hand_over;
mod instance;
