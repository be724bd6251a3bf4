//! Fuzz target: the record of a key.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_api::fuzz::record(data));
