//! Fuzz target: the field section of a request.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_net::listen::fuzz::field_section(data));
