//! TLS errors with the messages of Go's TLS library, because operators search for these messages in logs and runbooks.
//!
//! Errors without a counterpart in Go have Quorate's own messages.

use std::error::Error as StdError;
use std::io;

use quorate_gotext::quote::go_reason;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// Returns the text of the TLS error that caused `error`, or "EOF" if the connection was closed. Returns `None` if
/// `error` has another cause.
#[must_use]
pub fn tls_reason(error: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(of_library(error));
    }
    if let Some(of_system) = error.downcast_ref::<io::Error>() {
        // `io::Error::source` skips the wrapped error and returns the source of that error, so the wrapped error is
        // examined here.
        let wrapped = of_system.get_ref().and_then(|inner| tls_reason(inner));
        let has_ended = of_system.kind() == io::ErrorKind::UnexpectedEof;
        return wrapped.or_else(|| has_ended.then(|| "EOF".to_owned()));
    }
    match error.source() {
        Some(source) => tls_reason(source),
        // The HTTP/2 library keeps only the text of the error that ended a connection, so the alert is recognised by
        // its text.
        None => {
            let text = error.to_string();
            text.strip_prefix("received fatal alert: ").map(|name| {
                let known = ALERTS.iter().find(|(alert, _)| format!("{alert:?}") == name);
                of_remote(known.map_or(name, |(_, words)| words))
            })
        }
    }
}

/// Returns the reason why a handshake failed.
pub(crate) fn handshake_error(error: &io::Error) -> String {
    tls_reason(error).unwrap_or_else(|| go_reason(error))
}

fn of_library(error: &Error) -> String {
    match error {
        // A reason from this crate is returned unchanged.
        Error::InvalidCertificate(CertificateError::Other(own)) => own.0.to_string(),
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::NoCertificatesPresented => "tls: client didn't provide a certificate".to_owned(),
        Error::AlertReceived(alert) => match ALERTS.iter().find(|(known, _)| known == alert) {
            Some((_, words)) => of_remote(words),
            None => of_remote(&format!("{alert:?}")),
        },
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "tls: first record does not look like a TLS handshake".to_owned()
        }
        other => format!("tls: {other}"),
    }
}

fn of_certificate(error: &CertificateError) -> String {
    let why = match error {
        CertificateError::UnknownIssuer => {
            "x509: certificate signed by unknown authority".to_owned()
        }
        CertificateError::Expired | CertificateError::NotValidYet => {
            "x509: certificate has expired or is not yet valid".to_owned()
        }
        CertificateError::ExpiredContext { time, not_after } => {
            let [now, until] = [time, not_after].map(|time| date(time.as_secs()));
            format!(
                "x509: certificate has expired or is not yet valid: current time {now} is after {until}"
            )
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let [now, from] = [time, not_before].map(|time| date(time.as_secs()));
            format!(
                "x509: certificate has expired or is not yet valid: current time {now} is before {from}"
            )
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "x509: certificate specifies an incompatible key usage".to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            of_names(expected, presented)
        }
        other => other.to_string(),
    };
    format!("tls: failed to verify certificate: {why}")
}

/// Returns the error for a certificate that is not valid for the expected name. `presented` contains the certificate's
/// names in the library's format.
fn of_names(expected: &ServerName<'_>, presented: &[String]) -> String {
    let within = |start: &'static str, end: &'static str| {
        let names = presented.iter().filter_map(|name| name.strip_prefix(start)?.strip_suffix(end));
        names.collect::<Vec<_>>().join(", ")
    };
    let wanted = expected.to_str();
    if let ServerName::IpAddress(_) = expected {
        return match within("IpAddress(", ")") {
            none if none.is_empty() => format!(
                "x509: cannot validate certificate for {wanted} because it doesn't contain any IP SANs"
            ),
            addresses => format!("x509: certificate is valid for {addresses}, not {wanted}"),
        };
    }
    match within("DnsName(\"", "\")") {
        none if none.is_empty() => {
            format!("x509: certificate is not valid for any names, but wanted to match {wanted}")
        }
        names => format!("x509: certificate is valid for {names}, not {wanted}"),
    }
}

/// Formats a time given in seconds since 1970.
pub(crate) fn date(secs: u64) -> String {
    let time = i64::try_from(secs).ok().and_then(|secs| jiff::Timestamp::from_second(secs).ok());
    time.map_or_else(|| format!("{secs} s since 1970"), |time| time.to_string())
}

/// Alerts from the other side for which Go has messages.
const ALERTS: [(AlertDescription, &str); 19] = [
    (AlertDescription::AccessDenied, "access denied"),
    (AlertDescription::BadCertificate, "bad certificate"),
    (AlertDescription::BadRecordMac, "bad record MAC"),
    (AlertDescription::CertificateExpired, "expired certificate"),
    (AlertDescription::CertificateRequired, "certificate required"),
    (AlertDescription::CertificateRevoked, "revoked certificate"),
    (AlertDescription::CertificateUnknown, "unknown certificate"),
    (AlertDescription::DecodeError, "error decoding message"),
    (AlertDescription::DecryptError, "error decrypting message"),
    (AlertDescription::HandshakeFailure, "handshake failure"),
    (AlertDescription::IllegalParameter, "illegal parameter"),
    (AlertDescription::InsufficientSecurity, "insufficient security level"),
    (AlertDescription::InternalError, "internal error"),
    (AlertDescription::NoApplicationProtocol, "no application protocol"),
    (AlertDescription::ProtocolVersion, "protocol version not supported"),
    (AlertDescription::UnexpectedMessage, "unexpected message"),
    (AlertDescription::UnknownCA, "unknown certificate authority"),
    (AlertDescription::UnrecognisedName, "unrecognized name"),
    (AlertDescription::UnsupportedCertificate, "unsupported certificate"),
];

fn of_remote(words: &str) -> String {
    format!("remote error: tls: {words}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn tls_errors_are_worded_as_in_go() {
        let at = |secs| UnixTime::since_unix_epoch(Duration::from_secs(secs));
        let expired = CertificateError::ExpiredContext { time: at(86_400), not_after: at(0) };
        for (error, words) in [
            (
                Error::InvalidMessage(InvalidMessage::InvalidContentType),
                "tls: first record does not look like a TLS handshake",
            ),
            (
                Error::InvalidCertificate(CertificateError::UnknownIssuer),
                "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            ),
            (
                Error::InvalidCertificate(expired),
                "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: \
                 current time 1970-01-02T00:00:00Z is after 1970-01-01T00:00:00Z",
            ),
            (
                Error::AlertReceived(AlertDescription::BadCertificate),
                "remote error: tls: bad certificate",
            ),
            (Error::NoCertificatesPresented, "tls: client didn't provide a certificate"),
        ] {
            assert_eq!(handshake_error(&io::Error::other(error)), words);
        }
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(handshake_error(&refused), "connection refused");
        assert_eq!(tls_reason(&refused), None);
        let deep = io::Error::other(io::Error::other(Error::NoCertificatesPresented));
        assert_eq!(handshake_error(&deep), "tls: client didn't provide a certificate");
        assert_eq!(handshake_error(&io::ErrorKind::UnexpectedEof.into()), "EOF");
        #[derive(Debug, thiserror::Error)]
        #[error("received fatal alert: {0}")]
        struct TextOf(&'static str);
        for (alert, words) in [("CertificateRequired", "certificate required"), ("Other", "Other")]
        {
            let text = tls_reason(&TextOf(alert)).unwrap();
            assert_eq!(text, format!("remote error: tls: {words}"));
        }
    }
}
