//! The names of status codes, and the fields of a status in headers and trailers.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::{Code, Status};

/// The field that contains the text of a status.
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Returns the name of a code as in gRPC's documentation.
#[must_use]
pub const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// Reads the status in headers or trailers, and writes its text as grpc-go does. Returns `None` if there is no status.
///
/// grpc-go always sends a text, even if it is empty. Some clients of etcd compare the text without decoding it.
pub fn with_grpc_gos_text(headers: &mut HeaderMap) -> Option<Status> {
    let status = Status::from_header_map(headers)?;
    let text = match status.message() {
        "" => HeaderValue::from_static(""),
        text => HeaderValue::try_from(percent_encoded(text))
            .expect("an encoded text consists of printable ASCII characters"),
    };
    headers.insert(MESSAGE, text);
    Some(status)
}

/// Encodes a status text like grpc-go, which escapes only `%` and bytes other than printable ASCII characters.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => write!(encoded, "%{byte:02X}").expect("a string accepts all text"),
        }
    }
    encoded
}

/// Decodes a `grpc-message`, in which servers encode some bytes as `%` and two hexadecimal digits.
#[must_use]
pub fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (byte, len) = match byte {
            Some(byte) if *first == b'%' => (byte, 3),
            _ => (*first, 1),
        };
        decoded.push(byte);
        rest = &rest[len..];
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_in_headers_gets_the_text_that_grpc_go_sends() {
        for (text, sent) in [
            ("etcdserver: key is not provided", "etcdserver: key is not provided"),
            ("\u{2264} 5%\n~\x7f\"", "%E2%89%A4 5%25%0A~%7F\""),
            ("", ""),
        ] {
            for code in [Code::Ok, Code::InvalidArgument] {
                let mut headers = Status::new(code, text).into_http::<()>().into_parts().0.headers;
                let status = with_grpc_gos_text(&mut headers).unwrap();
                assert_eq!((status.code(), status.message()), (code, text));
                assert_eq!(with_grpc_gos_text(&mut headers).unwrap().message(), text, "again");
                let number = (code as i32).to_string();
                let fields: Vec<_> = headers
                    .iter()
                    .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
                    .collect();
                let expected = [
                    ("content-type", "application/grpc"),
                    ("grpc-status", number.as_str()),
                    ("grpc-message", sent),
                ];
                assert_eq!(fields, expected);
            }
        }
        let mut none = HeaderMap::new();
        assert!(with_grpc_gos_text(&mut none).is_none());
        assert!(none.is_empty());
    }

    #[test]
    fn percent_encoded_status_messages_are_decoded() {
        for (sent, meant) in [
            ("etcdserver:%20request%20timed%20out", "etcdserver: request timed out"),
            ("100%, %4, %+5 and %zz", "100%, %4, %+5 and %zz"),
            ("%E2%89%a4", "\u{2264}"),
            ("", ""),
        ] {
            assert_eq!(percent_decoded(sent), meant);
        }
    }
}
