//! Bodies of the requests and answers that members exchange.

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;

/// Why a body ends before its time.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer, which may be a stream without end.
pub type PeerBody = UnsyncBoxBody<Bytes, BoxError>;
