//! Fuzz target: a log that consists of arbitrary bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_storage::wal::fuzz::bytes(
    quorate_fuzz::scratch(),
    data
));
