//! Fuzz target: the bytes that a client sends over a WebSocket.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_edge::fuzz::frames(data));
