//! See `sandboxd::fuzzing::text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd::fuzzing::text(data));
