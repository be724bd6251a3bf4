//! Fuzz target: a message from another member.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_peer::fuzz::message(data));
