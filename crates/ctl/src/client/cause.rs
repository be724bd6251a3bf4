//! Why an endpoint was not reached, in the words of Go's libraries, which people look for.
//!
//! What is known from the error is worded as Go words it; anything else keeps the words that it has.

use std::error::Error;
use std::io;

use quorate_cli::log::timestamp;
use quorate_tls::{ConnectError, Place};

use crate::failure::system_text;

/// Says why a connection could not be made: the address, the way there, or the handshake.
pub(super) fn not_connected(place: &Place, error: &(dyn Error + 'static)) -> String {
    let reason = innermost(error);
    if is_handshake(error) {
        return unconnected(&format!(
            "transport: authentication handshake failed: {}",
            tls(&reason)
        ));
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

/// The same of one that took too long.
pub(super) fn too_late(place: &Place) -> String {
    undialed(&match place {
        Place::Host(authority) => format!("dial tcp {authority}: i/o timeout"),
        Place::File(path) => format!("dial unix {}: i/o timeout", path.display()),
    })
}

/// The same of an address that cannot be dialed.
pub(super) fn no_address(fault: &str) -> String {
    undialed(&format!("dial tcp: {fault}"))
}

/// The same of one that stood, and broke before anything was answered.
pub(super) fn no_answer(reason: &str) -> String {
    let reason = match reason.starts_with("received fatal alert: ") {
        true => tls(reason),
        false => system_text(reason),
    };
    unconnected(&format!("error reading server preface: {reason}"))
}

/// What is wrong with `host:port`, if it is none.
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

/// What is at the bottom of an error.
pub(super) fn innermost(error: &dyn Error) -> String {
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
    // What an error of the system's type wraps is not its source, but the source's.
    let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<ConnectError>()
        || wrapped.is_some_and(|wrapped| wrapped.is::<ConnectError>())
        || error.source().is_some_and(is_handshake)
}

fn tls(reason: &str) -> String {
    if let Some(alert) = reason.strip_prefix("received fatal alert: ") {
        return format!("remote error: tls: {}", alert_text(alert));
    }
    if let Some(fault) = reason.strip_prefix("invalid peer certificate: ") {
        return format!("tls: failed to verify certificate: x509: {}", certificate(fault));
    }
    match reason {
        "tls handshake eof" => "EOF".to_owned(),
        "received corrupt message of type InvalidContentType" => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        _ => system_text(reason),
    }
}

fn certificate(fault: &str) -> String {
    match fault {
        "UnknownIssuer" => return "certificate signed by unknown authority".to_owned(),
        "Expired" | "NotValidYet" => {
            return "certificate has expired or is not yet valid".to_owned();
        }
        "InvalidPurpose" => return "certificate specifies an incompatible key usage".to_owned(),
        _ => {}
    }
    if fault.starts_with("certificate does not allow extended key usage") {
        return "certificate specifies an incompatible key usage".to_owned();
    }
    out_of_time(fault).or_else(|| other_name(fault)).unwrap_or_else(|| fault.to_owned())
}

/// A certificate that is not valid now.
fn out_of_time(fault: &str) -> Option<String> {
    let rest = fault.split_once(": verification time ")?.1;
    let (now, rest) = rest.split_once(" (UNIX), but certificate is not valid ")?;
    let (side, moment) = rest.split_once(' ')?;
    let moment = moment.split(' ').next()?;
    let date = |seconds: &str| {
        let since = std::time::Duration::from_secs(seconds.parse().ok()?);
        Some(timestamp(since).replace(".000000Z", "Z"))
    };
    Some(format!(
        "certificate has expired or is not yet valid: current time {} is {side} {}",
        date(now)?,
        date(moment)?
    ))
}

/// A certificate that stands for others.
fn other_name(fault: &str) -> Option<String> {
    let rest = fault.strip_prefix("certificate not valid for name \"")?;
    let (name, rest) = rest.split_once("\"; certificate is ")?;
    let is_address = name.parse::<std::net::IpAddr>().is_ok();
    let others: Vec<&str> = rest.split('"').skip(1).step_by(2).collect();
    let addresses: Vec<&str> =
        rest.split("IpAddress(").skip(1).filter_map(|part| part.split(')').next()).collect();
    if is_address && addresses.is_empty() {
        return Some(format!(
            "cannot validate certificate for {name} because it doesn't contain any IP SANs"
        ));
    }
    let valid_for = if is_address { addresses } else { others };
    Some(match valid_for.is_empty() {
        true => format!("certificate is not valid for any names, but wanted to match {name}"),
        false => format!("certificate is valid for {}, not {name}", valid_for.join(", ")),
    })
}

/// An alert of the other side, by the name that the library gives it.
fn alert_text(name: &str) -> &str {
    match name {
        "UnexpectedMessage" => "unexpected message",
        "BadRecordMac" => "bad record MAC",
        "HandshakeFailure" => "handshake failure",
        "BadCertificate" => "bad certificate",
        "UnsupportedCertificate" => "unsupported certificate",
        "CertificateRevoked" => "revoked certificate",
        "CertificateExpired" => "expired certificate",
        "CertificateUnknown" => "unknown certificate",
        "CertificateRequired" => "certificate required",
        "IllegalParameter" => "illegal parameter",
        "UnknownCA" => "unknown certificate authority",
        "AccessDenied" => "access denied",
        "DecodeError" => "error decoding message",
        "DecryptError" => "error decrypting message",
        "ProtocolVersion" => "protocol version not supported",
        "InsufficientSecurity" => "insufficient security level",
        "InternalError" => "internal error",
        "UnrecognisedName" => "unrecognized name",
        "NoApplicationProtocol" => "no application protocol",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_looked_at_as_go_does() {
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
    fn the_system_is_quoted_as_go_quotes_it() {
        let place = Place::Host("127.0.0.1:1".to_owned());
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(
            not_connected(&place, &refused),
            "connection error: desc = \"transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused\""
        );
        assert_eq!(system_text("EOF"), "EOF");
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_told_in_gos_words() {
        for (fault, words) in [
            ("UnknownIssuer", "certificate signed by unknown authority"),
            (
                "certificate expired: verification time 951782399 (UNIX), but certificate is not valid after 0 (951782399 seconds ago)",
                "certificate has expired or is not yet valid: current time 2000-02-28T23:59:59Z is after 1970-01-01T00:00:00Z",
            ),
            (
                "certificate not valid for name \"b\"; certificate is only valid for DnsName(\"a\") or IpAddress(127.0.0.1)",
                "certificate is valid for a, not b",
            ),
            (
                "certificate not valid for name \"::1\"; certificate is only valid for DnsName(\"a\") or IpAddress(127.0.0.1)",
                "certificate is valid for 127.0.0.1, not ::1",
            ),
            (
                "certificate not valid for name \"127.0.0.1\"; certificate is only valid for DnsName(\"a\")",
                "cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs",
            ),
            ("BadEncoding", "BadEncoding"),
        ] {
            assert_eq!(certificate(fault), words);
        }
        assert_eq!(
            no_answer("received fatal alert: CertificateRequired"),
            "connection error: desc = \"error reading server preface: remote error: tls: certificate required\""
        );
    }

    /// The names of alerts are the library's; this is how one comes.
    #[test]
    fn a_handshake_is_known_from_what_it_failed_of() {
        let alert = io::Error::other("received fatal alert: BadCertificate");
        let error = io::Error::other(ConnectError::Handshake(alert));
        let told = not_connected(&Place::Host("a:1".to_owned()), &error);
        assert_eq!(
            told,
            "connection error: desc = \"transport: authentication handshake failed: remote error: tls: bad certificate\""
        );
    }
}
