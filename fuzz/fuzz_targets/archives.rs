//! See `sandboxd::fuzzing::archives`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd::fuzzing::archives(data));
