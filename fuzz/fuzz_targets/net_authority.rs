//! Fuzz target: a connection whose requests have any authority.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_net::listen::fuzz::authority(data));
