//! The project's chores: `cargo xtask --help` lists them.
//!
//! What a chore checks it can also check from a test (`xtask/tests/`), so nothing here is
//! only run by hand. A chore answers with the text it prints, or with what is wrong.

pub mod bench;
pub mod chaos;
pub mod citations;
pub mod differential;
pub mod faults;
pub mod fingerprint;
pub mod identity;
pub mod layers;
pub mod marks;
pub mod mutate;
pub mod oracle;
pub mod ordered;
pub mod parallel;
pub mod program;
pub mod schema;
pub mod seed;
pub mod tables;
pub mod versions;
