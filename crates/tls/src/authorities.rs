//! The trusted authorities: the certificates in a file, or the system's certificates.
//!
//! The file is read again when it changes. The new certificates apply to later handshakes. If the file becomes
//! unreadable, the previous certificates stay in force.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::chain::Anchors;
use crate::expiry::{Expiry, Part};
use crate::material::{self, MaterialError};
use crate::watched::Watched;

/// Trusted certificates.
#[derive(Debug, Default)]
pub(crate) struct Trusted {
    certificates: Vec<CertificateDer<'static>>,
    /// The certificates that may sign other certificates.
    pub(crate) anchors: Anchors,
}

impl Trusted {
    fn new(found: Vec<CertificateDer<'static>>) -> Result<Self, String> {
        let mut trusted = Self::default();
        for certificate in found {
            // Unreadable certificates are skipped, as in Go.
            let Ok((&[], parsed)) = X509Certificate::from_der(&certificate) else { continue };
            trusted.anchors.add(&certificate, &parsed);
            trusted.certificates.push(certificate);
        }
        if trusted.certificates.is_empty() {
            return Err("no root trust anchors were provided".to_owned());
        }
        Ok(trusted)
    }

    /// Returns whether the certificate itself is trusted.
    pub(crate) fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates.contains(certificate)
    }
}

/// The source of the trusted certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// A PEM file with certificates of authorities.
    File(PathBuf),
    /// The authorities that the system trusts at startup.
    System,
}

/// How to verify a server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerCheck {
    /// The certificate must be signed by a trusted CA and valid for the dialed host.
    Verify(Trust),
    /// Any certificate is accepted. Used only if a flag requests it.
    Skip,
}

impl ServerCheck {
    /// Returns the check against these authorities, or [`Self::Skip`] if a flag turns the verification off.
    pub fn by(trust: Trust, skips_verification: bool) -> Self {
        if skips_verification { Self::Skip } else { Self::Verify(trust) }
    }
}

/// The trusted authorities, kept up to date.
#[derive(Debug)]
pub(crate) struct Authorities {
    source: Source,
}

#[derive(Debug)]
enum Source {
    File { path: PathBuf, kept: Watched<Trusted> },
    System(Arc<Trusted>),
}

impl Authorities {
    /// Loads the authorities. Fails if the file with their certificates is invalid now, or if the system has no trusted
    /// certificates.
    pub(crate) fn load(trust: &Trust) -> Result<Self, MaterialError> {
        let source = match trust {
            Trust::File(path) => Source::File {
                path: path.clone(),
                kept: Watched::new("trusted authorities", vec![path.clone()]),
            },
            Trust::System => Source::System(Arc::new(system()?)),
        };
        let authorities = Self { source };
        authorities.trusted()?;
        Ok(authorities)
    }

    /// Returns the certificates in force.
    pub(crate) fn trusted(&self) -> Result<Arc<Trusted>, MaterialError> {
        match &self.source {
            Source::System(trusted) => Ok(Arc::clone(trusted)),
            Source::File { path, kept } => kept.get(|| {
                let found = material::certificates(path)?;
                Trusted::new(found).map_err(|reason| material::content(path, reason))
            }),
        }
    }

    /// Returns the time at which the first of the authorities' certificates expires; `None` for the system's
    /// authorities.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        match &self.source {
            Source::System(_) => None,
            Source::File { path, .. } => {
                Expiry::first(Part::Authorities, path, &self.trusted().ok()?.certificates)
            }
        }
    }
}

/// Returns whether two sources of trust have a CA certificate in common.
///
/// # Errors
///
/// Returns an error if one of the sources cannot be read.
pub fn have_common_authority(one: &Trust, other: &Trust) -> Result<bool, MaterialError> {
    let certificates = |trust: &Trust| match trust {
        Trust::File(path) => material::certificates(path),
        Trust::System => Ok(rustls_native_certs::load_native_certs().certs),
    };
    let of_other = certificates(other)?;
    Ok(one == other || certificates(one)?.iter().any(|found| of_other.contains(found)))
}

fn system() -> Result<Trusted, MaterialError> {
    let found = rustls_native_certs::load_native_certs();
    let reason = found.errors.first().map_or_else(String::new, ToString::to_string);
    Trusted::new(found.certs)
        .map_err(|none| MaterialError::System(if reason.is_empty() { none } else { reason }))
}
