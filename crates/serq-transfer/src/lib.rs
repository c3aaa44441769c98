//! KV that moves between instances: how it lies in memory, who owns it meanwhile, and how its
//! bytes get there.

pub mod layout;
pub mod memory;
pub mod transport;
pub mod protocol;
pub mod simulated;
