//! From text to IR and back.
#![no_main]

#[path = "../../crates/serq/tests/fuzzing/mod.rs"]
mod fuzzing;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    fuzzing::check_link(text);
});
