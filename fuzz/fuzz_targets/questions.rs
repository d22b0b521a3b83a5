//! See `sandboxd::fuzzing::questions`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd::fuzzing::questions(data));
