//! Fuzz target: the HTTP response that carries a stream from another member.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_peer::fuzz::response(data));
