//! When certificates that are in force expire, and lists of revoked ones are out of date.
//!
//! Of several in one file the first to go counts: of a chain because it breaks there, of authorities because those
//! whom it has signed are refused from then on.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

/// What a file is to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The certificate that is shown.
    Certificate,
    /// The authorities that are trusted.
    Authorities,
    /// Who is revoked. Its time is that at which a newer list was promised.
    Revocations,
}

/// Until when a file is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// What it is.
    pub part: Part,
    /// Where it lies.
    pub path: PathBuf,
    /// When the first of its certificates expires, or of its lists is out of date.
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

/// `None` for a certificate that cannot be read, or whose time no clock shows.
fn not_after(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    time_of(&parsed.validity().not_after)
}

/// `None` for a time that no clock shows.
pub(crate) fn time_of(time: &ASN1Time) -> Option<SystemTime> {
    let secs = u64::try_from(time.timestamp()).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(secs))
}
