//! The WebSocket handshake (RFC 6455, section 4.2) and the caller's token that it contains.
//!
//! A browser cannot set the headers of a WebSocket request. A token is therefore sent as one of the offered protocols
//! (`Sec-WebSocket-Protocol: Bearer, TOKEN`), or as the cookie `token`, which takes precedence.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT,
    SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{Method, Request, Response, StatusCode};
use sha1::{Digest as _, Sha1};

use quorate_http_pages::reply::{self, Reply};

/// The constant that is hashed with the client's key (RFC 6455, section 1.3).
const ACCEPT_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Length of a decoded handshake key, in bytes.
const KEY_BYTES: usize = 16;

/// The protocol name that precedes a token.
const BEARER: &str = "Bearer";

/// Returns whether a request asks for an upgrade to a WebSocket.
pub(crate) fn is_wanted<B>(request: &Request<B>) -> bool {
    says(request.headers(), &CONNECTION, "upgrade")
        && says(request.headers(), &UPGRADE, "websocket")
}

/// Returns whether a comma-separated header contains this word.
fn says(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    let mut words = lines.flat_map(|line| line.split(','));
    words.any(|found| found.trim().eq_ignore_ascii_case(word))
}

/// The reason why a request cannot open a WebSocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// The method is not GET.
    Method,
    /// The protocol version is not supported, or the key is invalid.
    Form,
}

impl Unfit {
    /// Returns the error response for the client, as in etcd.
    pub(crate) fn answer(self) -> Reply {
        let mut answer = match self {
            Self::Method => reply::error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed"),
            Self::Form => reply::error(StatusCode::BAD_REQUEST, "Bad Request"),
        };
        answer.headers_mut().insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        answer
    }
}

/// Returns the response that accepts the WebSocket.
pub(crate) fn accept<B>(request: &Request<B>) -> Result<Reply, Unfit> {
    let headers = request.headers();
    if request.method() != Method::GET {
        return Err(Unfit::Method);
    }
    if !says(headers, &SEC_WEBSOCKET_VERSION, "13") {
        return Err(Unfit::Form);
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).ok_or(Unfit::Form)?.as_bytes();
    if STANDARD.decode(key).ok().is_none_or(|key| key.len() != KEY_BYTES) {
        return Err(Unfit::Form);
    }
    let digest = Sha1::new().chain_update(key).chain_update(ACCEPT_SALT).finalize();
    let proof = HeaderValue::try_from(STANDARD.encode(digest)).expect("base64 is ASCII");
    let mut answer = Response::new(http_body_util::Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let said = answer.headers_mut();
    said.insert(UPGRADE, HeaderValue::from_static("websocket"));
    said.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    said.insert(SEC_WEBSOCKET_ACCEPT, proof);
    if protocols(headers).is_some_and(|protocols| protocols.starts_with(BEARER)) {
        said.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(BEARER));
    }
    Ok(answer)
}

fn protocols(headers: &HeaderMap) -> Option<&str> {
    headers.get(SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()
}

/// Returns the headers for the call, which contain only the caller's token.
pub(crate) fn forwarded(headers: &HeaderMap) -> HeaderMap {
    let mut forwarded = HeaderMap::new();
    let credentials = match (token_cookie(headers), protocols(headers)) {
        (Some(token), _) => Some(format!("{BEARER} {token}")),
        (None, Some(protocols)) => Some(match protocols.split_once("Bearer,") {
            Some((_, token)) => format!("{BEARER} {}", token.trim_matches(' ')),
            // Without `Bearer`, the token is empty and therefore invalid, as in etcd.
            None => String::new(),
        }),
        (None, None) => None,
    };
    if let Some(credentials) =
        credentials.and_then(|credentials| HeaderValue::try_from(credentials).ok())
    {
        forwarded.insert(AUTHORIZATION, credentials);
    }
    forwarded
}

fn token_cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim() == "token")?;
    let value = value.trim();
    Some(value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri("/v3/watch");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap()
    }

    const GOOD: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    #[test]
    fn the_rfc_example_handshake_receives_the_response_given_in_the_rfc() {
        let good = request("GET", &GOOD);
        assert!(is_wanted(&good));
        let answer = accept(&good).unwrap();
        assert_eq!(answer.status(), 101);
        assert_eq!(answer.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(answer.headers()["connection"], "Upgrade");
        assert!(!answer.headers().contains_key("sec-websocket-protocol"));
        let with = |protocols| {
            let fields = [&GOOD[..], &[("sec-websocket-protocol", protocols)]].concat();
            let answer = accept(&request("GET", &fields)).unwrap();
            answer.headers().get("sec-websocket-protocol").cloned()
        };
        assert_eq!(with("Bearer, abc.1").unwrap(), "Bearer");
        assert_eq!(with("chat"), None);
    }

    #[test]
    fn invalid_upgrade_requests_are_refused_or_ignored() {
        for missing in [0, 1] {
            let mut fields = GOOD.to_vec();
            fields.remove(missing);
            assert!(!is_wanted(&request("GET", &fields)));
        }
        let refused = |method: &str, fields: &[(&str, &str)]| {
            let answer = accept(&request(method, fields)).unwrap_err().answer();
            assert_eq!(answer.headers()["sec-websocket-version"], "13");
            answer.status().as_u16()
        };
        assert_eq!(refused("POST", &GOOD), 405);
        assert_eq!(refused("GET", &GOOD[..2]), 400);
        assert_eq!(refused("GET", &GOOD[..3]), 400);
        let old = [GOOD[0], GOOD[1], ("sec-websocket-version", "8"), GOOD[3]];
        assert_eq!(refused("GET", &old), 400);
        let short = [GOOD[0], GOOD[1], GOOD[2], ("sec-websocket-key", "c2hvcnQ=")];
        assert_eq!(refused("GET", &short), 400);
    }

    #[test]
    fn a_token_is_read_from_the_protocol_or_the_cookie() {
        let credentials = |fields: &[(&str, &str)]| {
            let forwarded = forwarded(request("GET", fields).headers());
            assert!(forwarded.len() <= 1);
            forwarded.get(AUTHORIZATION).map(|value| value.to_str().unwrap().to_owned())
        };
        let protocol = ("sec-websocket-protocol", "Bearer, abc.1");
        assert_eq!(credentials(&[protocol]).unwrap(), "Bearer abc.1");
        assert_eq!(
            credentials(&[("sec-websocket-protocol", "Bearer,abc.1")]).unwrap(),
            "Bearer abc.1"
        );
        assert_eq!(credentials(&[("sec-websocket-protocol", "chat")]).unwrap(), "");
        let cookie = ("cookie", "a=b; token=\"xyz.2\"; c=d");
        assert_eq!(credentials(&[protocol, cookie]).unwrap(), "Bearer xyz.2");
        assert_eq!(credentials(&[("authorization", "no"), ("cookie", "tokens=x")]), None);
    }
}
