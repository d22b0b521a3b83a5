//! See `sandboxd::fuzzing::replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd::fuzzing::replies(data));
