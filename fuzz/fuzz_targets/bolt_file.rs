//! Fuzz target: a backend file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_storage::bolt::fuzz::file(
    quorate_fuzz::scratch(),
    data
));
