//! Target: requests with fields of other types than theirs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_api::fuzz::shape(data));
