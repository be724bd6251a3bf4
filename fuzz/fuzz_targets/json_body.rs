//! Fuzz target: bodies of requests to the JSON gateway.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_json::fuzz::body(data));
