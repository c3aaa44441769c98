//! The IR reader; what it takes is run.
#![no_main]

#[path = "../../crates/serq/tests/fuzzing/mod.rs"]
mod fuzzing;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Some(program) = fuzzing::check_ir(text) {
        fuzzing::check_simulation(&program);
    }
});
