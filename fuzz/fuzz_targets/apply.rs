//! Fuzz target: log entries, applied to two states and to a model.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_state::apply::fuzz::entries(
    quorate_fuzz::scratch(),
    data
));
