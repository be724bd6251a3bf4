//! Facts about the certificate that a server presents, for programs that show them.

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::expiry::time_of;
use crate::names::Names;

/// The parts of a certificate that programs show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The subject, as a distinguished name.
    pub subject: String,
    /// The issuer, as a distinguished name.
    pub issuer: String,
    /// The host names and addresses for which the certificate is valid.
    pub names: Vec<String>,
    /// The time at which the certificate becomes valid; `None` if the time is not representable.
    pub not_before: Option<SystemTime>,
    /// The time at which the certificate expires; `None` if the time is not representable.
    pub not_after: Option<SystemTime>,
}

impl CertificateFacts {
    /// Reads a certificate. Returns `None` if it cannot be parsed.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let names = Names::of(certificate).unwrap_or_default();
        let ips = names.ips.iter().map(ToString::to_string);
        Some(Self {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            names: names.dns.into_iter().chain(ips).collect(),
            not_before: time_of(&parsed.validity().not_before),
            not_after: time_of(&parsed.validity().not_after),
        })
    }
}
