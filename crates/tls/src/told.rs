//! What went wrong with TLS, in the words of Go's library: people search logs and runbooks for them.
//!
//! What that has no words for is told in those of ours.

use std::io;

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// Tells why a handshake failed, or a connection broke.
pub(crate) fn told(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner {
        // A reason of ours, as it is.
        Some(Error::InvalidCertificate(CertificateError::Other(own))) => own.0.to_string(),
        Some(error) => of_library(error),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => quorate_gotext::quote::go_reason(error),
    }
}

fn of_library(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => of_certificate(error),
        Error::NoCertificatesPresented => "tls: client didn't provide a certificate".to_owned(),
        Error::AlertReceived(alert) => format!("remote error: tls: {}", of_alert(*alert)),
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
        other => other.to_string(),
    };
    format!("tls: failed to verify certificate: {why}")
}

/// A time in seconds since 1970, as people read it.
fn date(secs: u64) -> String {
    let time = i64::try_from(secs).ok().and_then(|secs| jiff::Timestamp::from_second(secs).ok());
    time.map_or_else(|| format!("{secs} s since 1970"), |time| time.to_string())
}

fn of_alert(alert: AlertDescription) -> String {
    let words = match alert {
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::InternalError => "internal error",
        AlertDescription::NoApplicationProtocol => "no application protocol",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        other => return format!("{other:?}"),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn failures_are_told_as_go_tells_them() {
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
            assert_eq!(told(&io::Error::other(error)), words);
        }
        let refused = io::Error::from_raw_os_error(111);
        assert_eq!(told(&refused), "connection refused");
    }
}
