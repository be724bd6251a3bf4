//! Fuzz target: a `.snap` file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_storage::snap::fuzz::file(
    quorate_fuzz::scratch(),
    data
));
