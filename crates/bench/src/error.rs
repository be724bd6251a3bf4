//! Errors that prevent or end a benchmark.

use std::io;

use crate::wire::WireError;

/// An error that ends the run without a result. A call refused by the server is not such an error, because refused
/// calls are counted in the report.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    #[error("{0}")]
    Usage(String),
    #[error("cannot reach {endpoint}: {source}")]
    Connect { endpoint: String, source: io::Error },
    #[error("the connection failed: {0}")]
    Socket(#[from] io::Error),
    #[error("the server closed the connection")]
    Closed,
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the server sent nothing for {0} seconds")]
    Stalled(u64),
    #[error("{endpoint} could not be reached for {seconds} seconds: {source}")]
    Unreachable { endpoint: String, seconds: u64, source: Box<Self> },
    #[error("the server no longer accepts the token")]
    TokenRefused,
    #[error("the run was interrupted before the response arrived")]
    Interrupted,
    #[error("setup failed: {call}: {message} (gRPC code {code})")]
    Refused { call: &'static str, code: u16, message: String },
    #[error("the response to {0} cannot be decoded: {1}")]
    Answer(&'static str, prost::DecodeError),
    #[error("cannot read CPU time and memory of process {pid}: {source}")]
    Process { pid: u32, source: io::Error },
}
