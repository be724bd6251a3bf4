//! The expiry times of the certificates and revocation lists in force.
//!
//! If a file contains several certificates, the first one to expire counts, because a chain is invalid from then on and
//! certificates signed by an expired authority are refused.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// The role of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// This side's own certificate.
    Certificate,
    /// The certificates of trusted authorities.
    Authorities,
    /// The revocation lists. Each list states the time of its next update, after which the list is outdated.
    Revocations,
}

/// The expiry of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The role of the file.
    pub part: Part,
    /// The path of the file.
    pub path: PathBuf,
    /// The time at which the first certificate in the file expires or the first list becomes outdated.
    pub not_after: SystemTime,
}

impl Expiry {
    pub(crate) fn first(
        part: Part,
        path: &Path,
        certificates: &[CertificateDer<'_>],
    ) -> Option<Self> {
        let not_after = certificates.iter().filter_map(not_after).min()?;
        Some(Self { part, path: path.to_owned(), not_after })
    }
}

/// Returns the expiry time, or `None` if the certificate is unreadable or the time is not representable.
fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    time_of(&parsed.validity().not_after)
}

/// Converts a time. Returns `None` if `SystemTime` cannot represent it.
pub(crate) fn time_of(time: &ASN1Time) -> Option<SystemTime> {
    let secs = u64::try_from(time.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs))
}
