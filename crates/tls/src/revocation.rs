//! Revoked certificates, read from a file with their serial numbers.
//!
//! As in etcd, the file contains either one DER list or any number of PEM lists, and the issuer and age of a list are
//! ignored. A client is refused if the serial number of its certificate, or of any other certificate that it presents,
//! is listed. Refusing all clients once a list is outdated would stop a cluster whose authority publishes the next list
//! too late. Instead, the outdated list is reported (`expiry`). If the file becomes unreadable, the previous lists stay
//! in force. If the file was never readable, all certificates are refused, because it is unknown which ones are
//! revoked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::expiry::{Expiry, Part, time_of};
use crate::material::{self, MaterialError};
use crate::watched::Watched;

/// The reason why a chain is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RevocationError {
    #[error("transport: certificate serial {0} revoked")]
    Revoked(String),
    #[error(transparent)]
    Unreadable(#[from] MaterialError),
    #[error("a certificate cannot be parsed: {0}")]
    Certificate(String),
}

/// Revocation lists, kept up to date.
#[derive(Debug)]
pub(crate) struct Revocations {
    path: PathBuf,
    listed: Watched<Listed>,
}

/// The combined contents of the lists in a file.
#[derive(Debug, Default)]
struct Listed {
    /// The revoked serial numbers, without leading zeros.
    serials: BTreeSet<Vec<u8>>,
    /// The earliest time at which a list becomes outdated, if any list states a time.
    next_update: Option<SystemTime>,
}

impl Revocations {
    pub(crate) fn new(path: &Path) -> Self {
        let listed = Watched::new("revoked certificates", vec![path.to_owned()]);
        Self { path: path.to_owned(), listed }
    }

    /// Reads the file if it has changed. Returns the time at which the first list becomes outdated, if known.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        // If the file was never readable, the error is logged when a handshake is refused because of it.
        let not_after = self.current().ok()?.next_update?;
        Some(Expiry { part: Part::Revocations, path: self.path.clone(), not_after })
    }

    fn current(&self) -> Result<Arc<Listed>, MaterialError> {
        self.listed.get(|| read(&self.path))
    }

    /// Checks all presented certificates.
    pub(crate) fn check<'a>(
        &self,
        chain: impl IntoIterator<Item = &'a CertificateDer<'a>>,
    ) -> Result<(), RevocationError> {
        let listed = self.current()?;
        for certificate in chain {
            let (_, parsed) = X509Certificate::from_der(certificate)
                .map_err(|error| RevocationError::Certificate(error.to_string()))?;
            if listed.serials.contains(significant(parsed.raw_serial())) {
                return Err(RevocationError::Revoked(format!(
                    "{:x}",
                    parsed.tbs_certificate.serial
                )));
            }
        }
        Ok(())
    }
}

/// Returns the bytes of a number without leading zeros.
fn significant(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    &serial[zeros..]
}

fn read(path: &Path) -> Result<Listed, MaterialError> {
    let bytes = material::read(path)?;
    let lists: Vec<Vec<u8>> = CertificateRevocationListDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map(|lists| lists.iter().map(|list| list.to_vec()).collect())
        .unwrap_or_default();
    let lists = if lists.is_empty() { vec![bytes] } else { lists };
    let mut listed = Listed::default();
    for list in &lists {
        let (rest, list) = CertificateRevocationList::from_der(list).map_err(|error| {
            material::content(path, format!("not a valid revocation list: {error}"))
        })?;
        if !rest.is_empty() {
            return Err(material::content(path, "not a valid revocation list: trailing data"));
        }
        let revoked = list.iter_revoked_certificates();
        listed.serials.extend(revoked.map(|one| significant(one.raw_serial()).to_vec()));
        let next_update = list.next_update().as_ref().and_then(time_of);
        listed.next_update = listed.next_update.into_iter().chain(next_update).min();
    }
    Ok(listed)
}
