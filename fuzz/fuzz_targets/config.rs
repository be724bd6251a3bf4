//! Fuzz target: a command line, an environment and a configuration file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_config::fuzz::any(data));
