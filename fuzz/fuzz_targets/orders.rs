//! See `sandbox_init::fuzzing::orders`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandbox_init::fuzzing::orders(data));
