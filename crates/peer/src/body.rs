//! Body types of requests and responses between members.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// Why a body ended early.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response, which may be an endless stream.
pub type PeerBody = UnsyncBoxBody<Bytes, BoxError>;
