//! Errors that prevent or end a benchmark.

use std::io;

use crate::wire::WireError;

/// An error that ends the run without a result. Calls that the server refuses are no such error; the report
/// counts them.
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
    #[error("nothing came from the server for {0} seconds")]
    Stalled(u64),
    #[error("{endpoint} could not be reached for {seconds} seconds: {source}")]
    Unreachable { endpoint: String, seconds: u64, source: Box<Self> },
    #[error("the server does not know the token any more")]
    TokenRefused,
    #[error("the run was interrupted before the answer came")]
    Interrupted,
    #[error("setting up failed: {call}: {message} (gRPC code {code})")]
    Refused { call: &'static str, code: u16, message: String },
    #[error("the answer to {0} cannot be decoded: {1}")]
    Answer(&'static str, prost::DecodeError),
    #[error("cannot read the figures of process {pid}: {source}")]
    Process { pid: u32, source: io::Error },
}
