//! Responses with the same status, headers and body as the responses of Go's HTTP server, byte for byte.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;

/// A response with a complete body.
pub type Reply = Response<Full<Bytes>>;

/// The content type of plain text.
pub const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

/// Returns a response without a body.
pub fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Full::default());
    *reply.status_mut() = status;
    reply
}

/// Returns a 200 response with this content type.
pub fn typed(content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// Returns an error response: the text, a line break, and a header that stops browsers from guessing the content type.
pub fn error(status: StatusCode, text: &str) -> Reply {
    let mut reply = typed(PLAIN_TEXT, format!("{text}\n"));
    *reply.status_mut() = status;
    reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}

/// Returns the response for an unknown path.
pub fn not_found() -> Reply {
    error(StatusCode::NOT_FOUND, "404 page not found")
}

/// Returns the response for a method other than GET, if only GET is allowed.
pub fn method_not_allowed() -> Reply {
    let mut reply = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    reply
}

/// Redirects the client to `path`, the cleaned form of the request's path.
pub fn redirect<B>(request: &Request<B>, path: &str) -> Reply {
    let mut location = encode_path(path);
    if let Some(query) = request.uri().query() {
        location.push('?');
        location.push_str(query);
    }
    let Ok(header) = HeaderValue::from_str(&location) else {
        return error(StatusCode::BAD_REQUEST, "400 Bad Request");
    };
    let has_body = request.method() == Method::GET || request.method() == Method::HEAD;
    let mut reply = if has_body {
        let target = escape_html(&location);
        let text = format!("<a href=\"{target}\">Temporary Redirect</a>.\n\n");
        typed("text/html; charset=utf-8", text)
    } else {
        empty(StatusCode::TEMPORARY_REDIRECT)
    };
    *reply.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    reply.headers_mut().insert(LOCATION, header);
    reply
}

/// Encodes a JSON string like Go's encoder, which also escapes HTML characters.
pub fn json(text: &str) -> String {
    let plain = serde_json::Value::from(text).to_string();
    plain.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

fn encode_path(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => encoded.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'/' | b'$' | b'&' | b'+' | b',' | b':' | b';' | b'='
            | b'@' => encoded.push(char::from(byte)),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&#34;")
        .replace('\'', "&#39;")
}
