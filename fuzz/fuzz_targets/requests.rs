//! See `sandboxd_launch::fuzzing::requests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd_launch::fuzzing::requests(data));
