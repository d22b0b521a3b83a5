//! See `sandboxd::fuzzing::files`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd::fuzzing::files(data));
