//! Fuzz target: the head of a gRPC request.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| quorate_grpc::fuzz::head(data));
