//! The HTTP responses, with the headers common to all responses.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap,
    HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::refusal::{Kind, Refusal};

/// An HTTP response of the console.
pub(crate) type Reply = Response<Content>;

/// Maximum length of a response that is not a stream, in bytes.
const ANSWER_BYTES_MAX: usize = 1_000_000;

/// The content-security policy: the page loads only files of the console itself, and runs no inline code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The headers of every response.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_FRAME_OPTIONS, "DENY"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The parts of a stream. An error aborts the stream.
pub(crate) type Parts = mpsc::Receiver<io::Result<Part>>;

/// A part of a stream.
#[derive(Debug)]
pub struct Part {
    pub(crate) data: Bytes,
    /// The permit for the part's bytes, which count towards the limit on bytes that the client has not read yet.
    #[expect(dead_code, reason = "dropping the part releases the permit")]
    pub(crate) space: Option<OwnedSemaphorePermit>,
}

/// The body of a response.
#[derive(Debug)]
pub enum Content {
    /// A complete body.
    Whole(Option<Bytes>),
    /// A body that is still being produced. An error aborts the response, so that the client detects that the response
    /// is incomplete.
    Stream(mpsc::Receiver<io::Result<Part>>),
}

impl Body for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Whole(content) => Poll::Ready(content.take().map(|all| Ok(Frame::data(all)))),
            Self::Stream(parts) => parts
                .poll_recv(cx)
                .map(|part| part.map(|part| part.map(|part| Frame::data(part.data)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(content) => {
                SizeHint::with_exact(content.as_ref().map_or(0, |all| all.len() as u64))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}

/// Returns a response with a complete body.
pub(crate) fn whole(content: impl Into<Bytes>) -> Reply {
    let content = content.into();
    Response::new(Content::Whole((!content.is_empty()).then_some(content)))
}

/// Returns the response to an API call.
pub(crate) fn answer(value: &Value) -> Reply {
    let content = value.to_string();
    if content.len() > ANSWER_BYTES_MAX {
        let text =
            format!("the response is too large: {} bytes, limit {ANSWER_BYTES_MAX}", content.len());
        return refusal(&Refusal::new(Kind::TooLarge, text));
    }
    typed("application/json", content)
}

/// Returns the response for an error.
pub(crate) fn refusal(refusal: &Refusal) -> Reply {
    let mut reply = typed("application/json", json!({ "error": refusal.json() }).to_string());
    *reply.status_mut() =
        StatusCode::from_u16(refusal.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    reply
}

/// Returns a stream of lines.
pub(crate) fn lines(parts: Parts) -> Reply {
    stream("application/x-ndjson", parts)
}

/// Returns a stream that the browser saves under this file name, which may contain only letters, digits, hyphens and
/// dots.
pub(crate) fn file(name: &str, parts: Parts) -> Reply {
    let mut reply = stream("application/octet-stream", parts);
    if let Ok(value) = HeaderValue::try_from(format!("attachment; filename=\"{name}\"")) {
        reply.headers_mut().insert(CONTENT_DISPOSITION, value);
    }
    reply
}

fn stream(kind: &'static str, parts: Parts) -> Reply {
    let mut reply = Response::new(Content::Stream(parts));
    never_stored(reply.headers_mut(), kind);
    reply
}

fn typed(kind: &'static str, content: String) -> Reply {
    let mut reply = whole(content);
    never_stored(reply.headers_mut(), kind);
    reply
}

fn never_stored(headers: &mut HeaderMap, kind: &'static str) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Adds the headers common to all responses.
pub(crate) fn guarded(mut reply: Reply) -> Reply {
    for (name, value) in HEADERS {
        reply.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlong_response_is_refused() {
        let of = |len: usize| answer(&Value::from("x".repeat(len))).status();
        assert_eq!(of(1000), StatusCode::OK);
        assert_eq!(of(ANSWER_BYTES_MAX), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn every_response_has_the_common_security_headers() {
        let reply = guarded(refusal(&Refusal::bad_request("x")));
        for (name, value) in HEADERS {
            assert_eq!(reply.headers()[name], value);
        }
        let policy = reply.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }
}
