//! KV that moves between instances: how it lies in memory, who owns it meanwhile, and how its
//! bytes get there.

pub mod connector;
pub mod layout;
pub mod memory;
pub mod nixl;
pub mod protocol;
pub mod simulated;
pub mod transport;
