//! Interprets a serq program one fact at a time: pools, stages, sessions, leases, flows.
//!
//! One machine, whatever drives it: the simulator tells it facts in virtual time, an
//! engine those of real steps and transfers. See [`Kernel`] for the contract,
//! [`World`] for the other side of it, [`Code`] for a program made ready.

mod absence;
mod asynchronous;
mod block_pool;
mod cache;
mod choice;
mod code;
mod draws;
mod expression;
mod flow;
mod gauge;
mod hold;
mod index_set;
mod kernel;
mod leap;
mod lease;
mod leg;
mod lru;
mod operation;
mod pool;
mod preemption;
mod prefix;
mod reading;
mod roofline;
mod service;
mod session;
mod stage;
mod step;
mod world;

pub use code::Code;
pub use draws::Draws;
pub use kernel::{Kernel, OverCap, PoolState, StageState};
pub use leap::GoesOn;
pub use pool::PoolCounts;
pub use service::{Begins, Flow, Held, Run};
pub use world::{Action, Arrival, Fault, Move, Purpose, Result, Stream, TraceTurn, World};
