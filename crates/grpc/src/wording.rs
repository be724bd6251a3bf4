//! Replaces the gRPC library's errors about messages with grpc-go's errors.
//!
//! The library checks that a message is complete, short enough and valid, but etcd clients expect other texts and, for
//! some errors, other codes. The expected texts and codes depend on the kind of call, because grpc-go uses different
//! functions to read the message of a unary call and the messages of a stream.

use tonic::{Code, Status};

use crate::methods::Kind;

/// Replaces an error of the library with grpc-go's code and text. Returns any other status unchanged.
#[must_use]
pub fn in_grpc_gos_words(status: Status, kind: Kind) -> Status {
    let is_unary = match kind {
        Kind::Unary => true,
        Kind::ServerStream | Kind::BidiStream => false,
    };
    let text = status.message();
    match status.code() {
        Code::OutOfRange => match numbers_after(text, "Error, decoded message length too large") {
            Some([found, limit]) => Status::resource_exhausted(format!(
                "grpc: received message larger than max ({found} vs. {limit})"
            )),
            None => status,
        },
        Code::ResourceExhausted => match numbers_after(text, "Error decompressing: size limit") {
            Some([limit, _]) => Status::resource_exhausted(format!(
                "grpc: received message after decompression larger than max {limit}"
            )),
            None => status,
        },
        Code::Internal => refusal_of_a_message(text, is_unary).unwrap_or(status),
        _ => status,
    }
}

fn refusal_of_a_message(text: &str, is_unary: bool) -> Option<Status> {
    // If the body of a unary call ends early, grpc-go returns a plain read error, which clients receive with the code
    // Unknown.
    let ended = |text: &str| if is_unary { Status::unknown(text) } else { Status::internal(text) };
    if text == "Unexpected EOF decoding stream." {
        return Some(ended("unexpected EOF"));
    }
    if text == "Missing request message." {
        return Some(ended(if is_unary {
            "EOF"
        } else {
            "cardinality violation: received no request message from non-client-streaming RPC"
        }));
    }
    if text.starts_with("protocol error: received message with compressed-flag") {
        let text = "grpc: compressed flag set with identity or empty encoding";
        return Some(Status::internal(text));
    }
    let prefix = "protocol error: received message with invalid compression flag";
    if let Some([flag, _]) = numbers_after(text, prefix) {
        return Some(Status::internal(format!("grpc: received unexpected payload format {flag}")));
    }
    if let Some(reason) = text.strip_prefix("Error decompressing: ") {
        let reason = reason.trim_end_matches(", while sending request");
        return Some(Status::internal(match reason {
            "invalid gzip header" => {
                "grpc: failed to decompress the message: gzip: invalid header".to_owned()
            }
            "unexpected end of file" => {
                "grpc: failed to decompress the message: unexpected EOF".to_owned()
            }
            "incomplete deflate stream" => {
                "grpc: failed to read decompressed data: unexpected EOF".to_owned()
            }
            other => format!("grpc: failed to read decompressed data: {other}"),
        }));
    }
    let reason = text.strip_prefix("grpc: error unmarshalling request: ")?;
    let text = format!("grpc: failed to unmarshal the received message: {reason}");
    (!is_unary).then(|| Status::internal(text))
}

/// Returns the first two numbers in `text`, or `None` if it does not start with this prefix or contains no number.
fn numbers_after<'a>(text: &'a str, prefix: &str) -> Option<[&'a str; 2]> {
    let rest = text.strip_prefix(prefix)?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    Some([numbers.next()?, numbers.next().unwrap_or_default()])
}
