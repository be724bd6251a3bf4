//! Body types of requests and answers between members.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// Why a body ended early.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer, which may be an endless stream.
pub type PeerBody = UnsyncBoxBody<Bytes, BoxError>;
