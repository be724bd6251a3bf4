//! Target: a log whose records are sound and say anything.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_storage::wal::fuzz::records(
    quorate_fuzz::scratch(),
    data
));
