//! A program that links runs to its end or to a typed error.
#![no_main]

#[path = "../../crates/serq/tests/fuzzing/mod.rs"]
mod fuzzing;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(program) = fuzzing::check_link(text) {
        fuzzing::check_simulation(&program);
    }
});
