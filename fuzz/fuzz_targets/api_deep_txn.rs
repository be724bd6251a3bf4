//! Fuzz target: transactions of any depth.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_api::fuzz::deep_txn(data));
