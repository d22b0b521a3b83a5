//! See `sandboxd_launch::fuzzing::layers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd_launch::fuzzing::layers(data));
