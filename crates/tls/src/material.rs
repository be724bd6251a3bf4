//! Certificates, keys and revocation lists as files hold them.
//!
//! Every failure names its file. What is in a key never stands in an error or a log.

use std::io;
use std::path::{Path, PathBuf};

use quorate_gotext::quote::go_reason;
use rustls::Error;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// It cannot be read.
    #[error("open {}: {}", path.display(), go_reason(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It does not hold what it should.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Certificate and key do not belong together, or cannot be used.
    #[error("tls: {}, {}: {reason}", cert.display(), key.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system's trusted certificates cannot be found.
    #[error("the system has no trusted CA certificates ({0})")]
    System(String),
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, MaterialError> {
    std::fs::read(path).map_err(|source| MaterialError::Read { path: path.to_owned(), source })
}

pub(crate) fn content(path: &Path, reason: impl ToString) -> MaterialError {
    MaterialError::Content { path: path.to_owned(), reason: reason.to_string() }
}

/// All certificates of a file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let bytes = read(path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|_| content(path, "tls: the PEM data is broken or not whole"))?;
    if found.is_empty() {
        let reason = if PrivateKeyDer::from_pem_slice(&bytes).is_ok() {
            "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may \
             have been switched"
        } else {
            "tls: failed to find any PEM data in certificate input"
        };
        return Err(content(path, reason));
    }
    Ok(found)
}

/// A chain of certificates, the own one first, and the key to it, in PKCS#1, SEC1 or PKCS#8.
pub(crate) fn certified_key(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, MaterialError> {
    let chain = certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|_| content(key, "tls: failed to find a private key in PEM data"))?;
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| MaterialError::Pair {
        cert: cert.to_owned(),
        key: key.to_owned(),
        reason: match error {
            Error::InconsistentKeys(_) => "private key does not match public key".to_owned(),
            other => other.to_string(),
        },
    })
}
