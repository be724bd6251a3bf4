//! Fuzz target: requests whose fields have wrong wire types.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_api::fuzz::shape(data));
