//! Explains why an endpoint could not be reached, with the error texts of Go's libraries, because users search for
//! these texts.
//!
//! Known errors are reported with Go's text. Other errors keep their own text.

use std::error::Error;
use std::io;

use quorate_tls::{ConnectError, Place, tls_reason};

use crate::failure::system_text;

/// Returns the error text for a connection that failed because of the address, the network or the
/// TLS handshake.
pub(super) fn not_connected(place: &Place, error: &(dyn Error + 'static)) -> String {
    let reason = innermost(error);
    if is_handshake(error) {
        let reason = tls_reason(error).unwrap_or_else(|| system_text(&reason));
        return unconnected(&format!("transport: authentication handshake failed: {reason}"));
    }
    let target = match place {
        Place::File(path) => format!("dial unix {}: connect: ", path.display()),
        Place::Host(authority) if reason.contains("lookup address information") => {
            let host = authority.rsplit_once(':').map_or(&**authority, |(host, _)| host);
            let is_unknown = !reason.contains("Temporary failure");
            let answer = if is_unknown { "no such host" } else { "server misbehaving" };
            return undialed(&format!("dial tcp: lookup {host}: {answer}"));
        }
        Place::Host(authority) => format!("dial tcp {authority}: connect: "),
    };
    undialed(&format!("{target}{}", system_text(&reason)))
}

/// Returns the error text for a connection attempt that took too long.
pub(super) fn too_late(place: &Place) -> String {
    undialed(&match place {
        Place::Host(authority) => format!("dial tcp {authority}: i/o timeout"),
        Place::File(path) => format!("dial unix {}: i/o timeout", path.display()),
    })
}

/// Returns the error text for an address that cannot be dialled.
pub(super) fn no_address(fault: &str) -> String {
    undialed(&format!("dial tcp: {fault}"))
}

/// Returns the error text for a connection that failed before the server sent its first frame.
pub(super) fn not_greeted(reason: &str) -> String {
    unconnected(&format!("error reading server preface: {reason}"))
}

/// Returns the error text for a connection on which the server did not send its first frame in
/// time.
pub(super) fn silent() -> String {
    not_greeted("i/o timeout")
}

/// Returns the error text for a connection that broke after the server's first frame but before any
/// response.
pub(super) fn no_answer(reason: &str) -> String {
    unconnected(&format!("error reading from server: {reason}"))
}

/// Returns the error text for an invalid `host:port`, or `None` if it is valid.
pub(super) fn fault_of(authority: &str) -> Option<String> {
    let address = |fault: &str| Some(format!("address {authority}: {fault}"));
    if authority.is_empty() {
        return Some("missing address".to_owned());
    }
    let (host, port) = match authority.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return address("missing ']' in address"),
        Some(Some((_, ""))) => return address("missing port in address"),
        Some(Some((host, rest))) => match rest.strip_prefix(':') {
            Some(port) => (host, port),
            None => return address("missing port in address"),
        },
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, port),
            None => return address("missing port in address"),
        },
    };
    if port.contains(':') || (host.contains(':') && !authority.starts_with('[')) {
        return address("too many colons in address");
    }
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(_) => None,
        Err(_) if port.is_empty() => None,
        Err(_) if is_number => Some(format!("address {port}: invalid port")),
        Err(_) => Some(format!("lookup tcp/{port}: unknown port")),
    }
}

/// Returns the text of an error that broke a connection.
pub(super) fn broken(error: &(dyn Error + 'static)) -> String {
    tls_reason(error).unwrap_or_else(|| system_text(&innermost(error)))
}

/// Returns the text of the innermost error.
fn innermost(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn unconnected(reason: &str) -> String {
    format!("connection error: desc = \"{reason}\"")
}

fn undialed(reason: &str) -> String {
    unconnected(&format!("transport: Error while dialing: {reason}"))
}

fn is_handshake(error: &(dyn Error + 'static)) -> bool {
    // The source of an `io::Error` is not the wrapped error but the wrapped error's source, so the wrapped error is
    // read separately.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<ConnectError>()
        || wrapped.is_some_and(|wrapped| wrapped.is::<ConnectError>())
        || error.source().is_some_and(is_handshake)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_as_in_go() {
        for (authority, fault) in [
            ("a:1", None),
            (":1", None),
            ("a:", None),
            ("[::1]:1", None),
            ("", Some("missing address")),
            ("a", Some("address a: missing port in address")),
            ("[::1]", Some("address [::1]: missing port in address")),
            ("[::1", Some("address [::1: missing ']' in address")),
            ("1:2:3", Some("address 1:2:3: too many colons in address")),
            ("a:99999", Some("address 99999: invalid port")),
            ("a:x", Some("lookup tcp/x: unknown port")),
        ] {
            assert_eq!(fault_of(authority).as_deref(), fault, "{authority}");
        }
    }

    #[test]
    fn system_errors_are_worded_as_in_go() {
        let place = Place::Host("127.0.0.1:1".to_owned());
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(
            not_connected(&place, &refused),
            "connection error: desc = \"transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused\""
        );
        assert_eq!(system_text("EOF"), "EOF");
    }

    #[test]
    fn handshake_errors_are_worded_as_in_go() {
        let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
        let error = io::Error::other(ConnectError::Handshake(ended));
        let as_grpc_go = not_connected(&Place::Host("a:1".to_owned()), &error);
        assert_eq!(
            as_grpc_go,
            "connection error: desc = \"transport: authentication handshake failed: EOF\""
        );
    }
}
