//! Fuzz target: a request to the HTTP endpoints.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_edge::fuzz::request(data));
