//! The check of the `Host` header of HTTP/1 requests, as in Go's server.
//!
//! All services on HTTP/1 connections depend on this check. Without it, two programs could take different headers of
//! the same request for its host.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use http_body_util::Full;

/// Returns the response to an HTTP/1 request without exactly one valid `Host` header. HTTP/1.0 does not require the
/// header.
pub(super) fn refuse_bad_host<B>(request: &Request<B>) -> Option<Response<Full<Bytes>>> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let text = match (hosts.next(), hosts.next()) {
        (None, _) if request.version() != Version::HTTP_11 => return None,
        (None, _) if request.uri().authority().is_some() => return None,
        (None, _) => "400 Bad Request: missing required Host header",
        (Some(_), Some(_)) => "400 Bad Request",
        (Some(host), None) if is_host(host.as_bytes()) => return None,
        (Some(_), None) => "400 Bad Request: malformed Host header",
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    let plain_text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain_text);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Some(response)
}

/// Returns whether all bytes of a `Host` header may occur in a host and port (RFC 3986).
fn is_host(header: &[u8]) -> bool {
    header.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=@[]_~".contains(byte))
}
