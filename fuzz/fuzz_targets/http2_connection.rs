//! Fuzz target: an HTTP/2 connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_http2::fuzz::connection(data));
