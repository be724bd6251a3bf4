//! Why a server with `--engine` does not start.

use quorate_engine::{EngineError, UrlError};

/// Why a server on a database did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineStartError {
    #[error("--engine: {0}")]
    Url(#[from] UrlError),
    #[error("--engine: {0}")]
    Engine(#[from] EngineError),
    #[error(
        "--engine: not supported for an embedded member, which keeps its data in its own files"
    )]
    Embedded,
    #[error("failed to get random bytes: {0}")]
    Random(#[source] std::io::Error),
}
