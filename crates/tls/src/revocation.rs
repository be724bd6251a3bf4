//! Certificates that were revoked: a file that lists their serial numbers.
//!
//! The file holds one list in DER, as for etcd, or any number in PEM. As in etcd, whose list it is does not matter, nor
//! whether it is still up to date: a certificate is refused if its serial, or that of any it was presented with, stands
//! there. A file that can no longer be read leaves those revoked who were; one that never could refuses everybody, for
//! who was revoked is not known.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::material::{self, MaterialError};
use crate::watched::Watched;

/// Why a chain is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RevocationError {
    #[error("transport: certificate serial {0} revoked")]
    Revoked(String),
    #[error(transparent)]
    Unreadable(#[from] MaterialError),
    #[error("a certificate cannot be read: {0}")]
    Certificate(String),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Revocations {
    path: PathBuf,
    /// Serials, without leading zeros.
    serials: Watched<BTreeSet<Vec<u8>>>,
}

impl Revocations {
    pub(crate) fn new(path: &Path) -> Self {
        let serials = Watched::new("the list of revoked certificates", vec![path.to_owned()]);
        Self { path: path.to_owned(), serials }
    }

    /// Reads the file if it has changed; what is wrong with it is told.
    pub(crate) fn look(&self) {
        // Whom that concerns is told in each handshake.
        drop(self.current());
    }

    fn current(&self) -> Result<Arc<BTreeSet<Vec<u8>>>, MaterialError> {
        self.serials.get(|| read(&self.path))
    }

    /// Checks all certificates that were presented.
    pub(crate) fn check<'a>(
        &self,
        chain: impl IntoIterator<Item = &'a CertificateDer<'a>>,
    ) -> Result<(), RevocationError> {
        let serials = self.current()?;
        for certificate in chain {
            let (_, parsed) = X509Certificate::from_der(certificate)
                .map_err(|error| RevocationError::Certificate(error.to_string()))?;
            if serials.contains(significant(parsed.raw_serial())) {
                return Err(RevocationError::Revoked(format!(
                    "{:x}",
                    parsed.tbs_certificate.serial
                )));
            }
        }
        Ok(())
    }
}

/// A number's bytes without leading zeros.
fn significant(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    &serial[zeros..]
}

fn read(path: &Path) -> Result<BTreeSet<Vec<u8>>, MaterialError> {
    let bytes = material::read(path)?;
    let lists: Vec<Vec<u8>> = CertificateRevocationListDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map(|lists| lists.iter().map(|list| list.to_vec()).collect())
        .unwrap_or_default();
    let lists = if lists.is_empty() { vec![bytes] } else { lists };
    let mut serials = BTreeSet::new();
    for list in &lists {
        let (rest, list) = CertificateRevocationList::from_der(list)
            .map_err(|error| material::content(path, format!("no revocation list: {error}")))?;
        if !rest.is_empty() {
            return Err(material::content(path, "no revocation list: more follows it"));
        }
        let revoked = list.iter_revoked_certificates();
        serials.extend(revoked.map(|one| significant(one.raw_serial()).to_vec()));
    }
    Ok(serials)
}
