//! See `sandboxd::fuzzing::catalogue`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd::fuzzing::catalogue(data));
