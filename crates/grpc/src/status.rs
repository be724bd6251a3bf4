//! The names of status codes, and the encoding of a status text in trailers.

use tonic::Code;

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
