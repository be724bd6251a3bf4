//! Fuzz target: a log of well-formed records with arbitrary contents.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_storage::wal::fuzz::records(
    quorate_fuzz::scratch(),
    data
));
