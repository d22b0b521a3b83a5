//! See `sandboxd::fuzzing::manifests`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sandboxd::fuzzing::manifests(data));
