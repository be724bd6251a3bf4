//! Fuzz target: the body of a gRPC request.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_edge::fuzz::body(data));
