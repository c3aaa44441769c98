//! A linked serq program as data: what the linker writes and the kernel runs.
//!
//! [`Program`] is closed: every name is an index, every constant is folded, every
//! queue entry, definition and `at admission` binding is written out. It says what
//! happens, not how the text said it. [`verify`] checks what the types can't say;
//! [`json`] prints a program and reads it back.
//!
//! ```text
//!   text ──serq-lang──▶ Program ──serq-kernel──▶ decisions
//!                        │  ▲
//!                        ▼  │
//!                        JSON
//! ```

pub mod json;
pub mod program;
pub mod verify;

pub use program::*;
