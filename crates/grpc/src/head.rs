//! Checks the headers of a request before anything else is processed, as grpc-go's server does.
//!
//! A request that fails several checks is refused with the error of the first failed check. Therefore not only the
//! codes and texts but also the order of the checks are grpc-go's: host, content type, values with a fixed format, HTTP
//! method, remaining time, gRPC method, compression.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;

use quorate_gotext::quote::go_quote_bytes;

use crate::methods::{Kind, Route, Service, route};
use crate::status::with_grpc_gos_text;

// Names of headers that are looked up in each request. They are constants because a string would be parsed at each
// lookup.

/// The header by which a client requires that the member has a leader.
pub const HAS_LEADER: HeaderName = HeaderName::from_static("hasleader");

/// Minimum timeout. A shorter timeout would expire before the call can be processed.
const TIMEOUT_MIN: Duration = Duration::from_micros(1);

/// Memory overhead of a header in bytes, in addition to its text.
pub const FIELD_BYTES: usize = 128;

/// A call as described by the headers of its request.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The position of the service in the list of services.
    pub service: usize,
    /// The position of the method in its service.
    pub method: usize,
    /// Which sides of the call send a stream of messages.
    pub kind: Kind,
    /// The client's timeout.
    pub timeout: Option<Duration>,
    /// Whether the messages in the request may be compressed.
    pub is_compressed: bool,
    /// Memory occupied by the headers, in bytes.
    pub bytes: u64,
}

impl Call {
    /// Parses the headers of a request to one of these services, in grpc-go's order: the required headers, the gRPC
    /// method, the compression. Removes an empty compression header, which means that messages are uncompressed,
    /// because the library refuses an empty value.
    pub fn read<B>(services: &[Service], request: &mut Request<B>) -> Result<Self, Refusal> {
        let Head { timeout, encoding, bytes } = Head::read(request)?;
        // The query is part of the path, so a path with a query matches no method.
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        let route = route(services, path);
        let Route::Method { service, method, kind } = route else {
            return Err(Status::unimplemented(route.refusal().unwrap_or_default()).into());
        };
        let is_compressed = match encoding {
            Encoding::Unsaid => false,
            Encoding::Gzip => true,
            Encoding::Identity => {
                request.headers_mut().remove(ENCODING);
                false
            }
            Encoding::Unknown(name) => {
                let name = go_quote_bytes(name.as_bytes());
                let text = format!("grpc: Decompressor is not installed for grpc-encoding {name}");
                return Err(Status::unimplemented(text).into());
            }
        };
        Ok(Self { service, method, kind, timeout, is_compressed, bytes })
    }
}

/// The header that names the compression of messages.
const ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Returns the compression that these headers name, if the library supports it.
#[must_use]
pub fn compression(headers: &HeaderMap) -> Option<CompressionEncoding> {
    let is_gzip = headers.get(ENCODING).is_some_and(|value| value == "gzip");
    is_gzip.then_some(CompressionEncoding::Gzip)
}

/// Returns whether the call requires a member with a leader. If so, the call's stream must end when the member loses
/// its leader.
#[must_use]
pub fn requires_leader(headers: &HeaderMap) -> bool {
    headers.get(HAS_LEADER).is_some_and(|value| value == "true")
}

/// The compression of a request's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding<'a> {
    Unsaid,
    /// The header says explicitly that messages are uncompressed.
    Identity,
    Gzip,
    Unknown(&'a HeaderValue),
}

/// The relevant headers of a gRPC request.
#[derive(Debug)]
pub(crate) struct Head<'a> {
    pub(crate) timeout: Option<Duration>,
    pub(crate) encoding: Encoding<'a>,
    /// Memory occupied by the headers, in bytes.
    pub(crate) bytes: u64,
}

/// The response to a request with refused headers: an HTTP status code and a gRPC status.
#[derive(Debug)]
pub struct Refusal {
    code: StatusCode,
    status: Status,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { code: StatusCode::OK, status }
    }
}

impl Refusal {
    /// Converts the refusal to a response.
    #[must_use]
    pub fn into_http(self) -> Response<Body> {
        let mut response = self.status.into_http();
        with_grpc_gos_text(response.headers_mut());
        *response.status_mut() = self.code;
        response
    }
}

/// The relevant headers as received.
struct Fields<'a> {
    content_type: Option<&'a HeaderValue>,
    host_count: usize,
    timeout: Option<Duration>,
    encoding: Encoding<'a>,
    /// The error text for the last malformed header.
    malformed: Option<String>,
    bytes: usize,
}

impl<'a> Fields<'a> {
    /// Visits all headers once, which is cheaper than looking up each relevant header.
    fn of(headers: &'a HeaderMap) -> Self {
        let mut fields = Fields {
            content_type: None,
            host_count: 0,
            timeout: None,
            encoding: Encoding::Unsaid,
            malformed: None,
            bytes: 0,
        };
        for (name, value) in headers {
            fields.bytes += FIELD_BYTES + name.as_str().len() + value.len();
            if name == CONTENT_TYPE {
                // One valid content type is sufficient.
                fields.content_type = fields.content_type.filter(|t| is_grpc(t)).or(Some(value));
            } else if name == HOST {
                fields.host_count += 1;
            } else {
                fields.take(name.as_str(), value);
            }
        }
        fields
    }

    fn take(&mut self, name: &str, value: &'a HeaderValue) {
        match name {
            "grpc-timeout" => match parse_timeout(value) {
                Ok(timeout) => self.timeout = Some(timeout),
                Err(text) => self.malformed = Some(format!("malformed grpc-timeout: {text}")),
            },
            "grpc-encoding" => self.encoding = parse_encoding(value),
            name if name.ends_with("-bin") => {
                if let Some(offset) = base64_fault(value.as_bytes()) {
                    self.malformed = Some(malformed_metadata(name, value, offset));
                }
            }
            _ => {}
        }
    }
}

impl<'a> Head<'a> {
    /// Parses the headers of a request, or refuses the request.
    pub(crate) fn read<B>(request: &'a Request<B>) -> Result<Self, Refusal> {
        let fields = Fields::of(request.headers());
        let refuse = |code, status| Err(Refusal { code, status });
        if fields.host_count > 1 {
            let authority_count = usize::from(request.uri().authority().is_some());
            let text = format!(
                "num values of :authority: {authority_count}, num values of host: {}, both must only have 1 \
                 value as per HTTP/2 spec",
                fields.host_count
            );
            return refuse(StatusCode::BAD_REQUEST, Status::internal(text));
        }
        if !fields.content_type.is_some_and(is_grpc) {
            let given = go_quote_bytes(fields.content_type.map_or(b"", HeaderValue::as_bytes));
            let text = format!("invalid gRPC request content-type {given}");
            return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, Status::invalid_argument(text));
        }
        if let Some(text) = fields.malformed {
            return refuse(StatusCode::BAD_REQUEST, Status::internal(text));
        }
        if request.method() != Method::POST {
            let given = go_quote_bytes(request.method().as_str().as_bytes());
            let text =
                format!("Received a HEADERS frame with :method {given} which should be POST");
            return refuse(StatusCode::METHOD_NOT_ALLOWED, Status::internal(text));
        }
        if fields.timeout.is_some_and(|timeout| timeout < TIMEOUT_MIN) {
            return Err(Status::deadline_exceeded("context deadline exceeded").into());
        }
        let bytes = (fields.bytes + request.uri().path().len()) as u64;
        Ok(Self { timeout: fields.timeout, encoding: fields.encoding, bytes })
    }
}

/// Returns whether a content type is gRPC's content type, possibly with a suffix after a separator.
fn is_grpc(content_type: &HeaderValue) -> bool {
    let rest = content_type.as_bytes().strip_prefix(b"application/grpc");
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

fn parse_encoding(value: &HeaderValue) -> Encoding<'_> {
    match value.as_bytes() {
        b"" | b"identity" => Encoding::Identity,
        b"gzip" => Encoding::Gzip,
        _ => Encoding::Unknown(value),
    }
}

fn malformed_metadata(name: &str, value: &HeaderValue, offset: usize) -> String {
    let (name, value) = (go_quote_bytes(name.as_bytes()), go_quote_bytes(value.as_bytes()));
    format!(
        "malformed binary metadata {value} in header {name}: illegal base64 data at input byte {offset}"
    )
}

/// Returns the position of the first error in a base64 value, or `None` if the value is valid. The value may be padded
/// if its length permits padding.
#[must_use]
pub fn base64_fault(value: &[u8]) -> Option<usize> {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let may_be_padded = value.len().is_multiple_of(4);
    let Some(end) = value.iter().position(|byte| !is_digit(byte)) else {
        return (value.len() % 4 == 1).then(|| value.len() - 1);
    };
    // Padding completes the last group of four characters, and no character may follow it.
    let padding = match end % 4 {
        2 if may_be_padded && value[end..].starts_with(b"==") => 2,
        3 if may_be_padded && value[end] == b'=' => 1,
        _ => return Some(end),
    };
    (end + padding < value.len()).then_some(end + padding)
}

/// Parses a `grpc-timeout` value: up to eight digits and a unit. The error has grpc-go's text.
pub fn parse_timeout(value: &HeaderValue) -> Result<Duration, String> {
    let text = value.as_bytes();
    let fault = |what: &str| format!("transport: timeout {what}: {}", go_quote_bytes(text));
    let (unit, digits) = match text {
        [] | [_] => return Err(fault("string is too short")),
        [digits @ .., unit] if digits.len() <= 8 => (unit, digits),
        _ => return Err(fault("string is too long")),
    };
    let nanos_per_unit: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return Err(fault("unit is not recognized")),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        let digits = go_quote_bytes(digits);
        return Err(format!("strconv.ParseUint: parsing {digits}: invalid syntax"));
    }
    let count = digits.iter().fold(0, |count, digit| count * 10 + u64::from(digit - b'0'));
    Ok(Duration::from_nanos(count.saturating_mul(nanos_per_unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_content_types_are_recognised() {
        for (text, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=x", true),
            ("application/grpcx", false),
            ("application/grpc-web", false),
            ("application/GRPC", false),
            ("", false),
        ] {
            assert_eq!(is_grpc(&HeaderValue::from_static(text)), expected, "{text}");
        }
    }

    #[test]
    fn base64_errors_have_the_offset_that_go_reports() {
        for good in ["", "AAEC", "AA==", "AA", "AAE=", "AAE", "AB", "+/+/"] {
            assert_eq!(base64_fault(good.as_bytes()), None, "{good}");
        }
        for (bad, offset) in [
            ("A", 0),
            ("!!!!", 0),
            ("abcd!", 4),
            ("-_-_", 0),
            ("AA==AA==", 4),
            ("AA=A", 2),
            ("AAA=A", 3),
            ("AAEC=AAA", 4),
            ("AAECA", 4),
            ("AA= ", 2),
        ] {
            assert_eq!(base64_fault(bad.as_bytes()), Some(offset), "{bad}");
        }
    }

    #[test]
    fn timeouts_have_at_most_eight_digits_and_a_unit() {
        let parse = |text: &'static str| parse_timeout(&HeaderValue::from_static(text));
        assert_eq!(parse("5S"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("99999999m"), Ok(Duration::from_millis(99_999_999)));
        assert_eq!(parse("4999910u"), Ok(Duration::from_micros(4_999_910)));
        assert_eq!(parse("99999999M"), Ok(Duration::from_secs(99_999_999 * 60)));
        assert!(parse("99999999H").unwrap() > Duration::from_secs(500 * 365 * 86_400));
        for (bad, text) in [
            ("", "transport: timeout string is too short: \"\""),
            ("S", "transport: timeout string is too short: \"S\""),
            ("1x", "transport: timeout unit is not recognized: \"1x\""),
            ("123456789S", "transport: timeout string is too long: \"123456789S\""),
            ("-1S", "strconv.ParseUint: parsing \"-1\": invalid syntax"),
            ("+1S", "strconv.ParseUint: parsing \"+1\": invalid syntax"),
        ] {
            assert_eq!(parse(bad), Err(text.to_owned()));
        }
    }
}
