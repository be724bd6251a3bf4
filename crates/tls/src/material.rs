//! Reads certificates, keys and revocation lists from files.
//!
//! Every error about a file names the file. Errors and log lines never contain key material.

use std::io;
use std::path::{Path, PathBuf};

use quorate_gotext::quote::go_reason;
use rustls::Error;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::end_entity::EndEntity;

/// The reason why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// The file cannot be read.
    #[error("open {}: {}", path.display(), go_reason(source))]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The content is invalid.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the content is invalid.
        reason: String,
    },
    /// The certificate and the key do not match, or are not supported.
    #[error("tls: {}, {}: {reason}", cert.display(), key.display())]
    Pair {
        /// The certificate's path.
        cert: PathBuf,
        /// The key's path.
        key: PathBuf,
        /// The reason why the pair cannot be used.
        reason: String,
    },
    /// The system has no trusted certificates.
    #[error("the system has no trusted CA certificates ({0})")]
    System(String),
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, MaterialError> {
    std::fs::read(path).map_err(|source| MaterialError::Read { path: path.to_owned(), source })
}

pub(crate) fn content(path: &Path, reason: impl ToString) -> MaterialError {
    MaterialError::Content { path: path.to_owned(), reason: reason.to_string() }
}

/// Returns all certificates in a file, which must contain at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, MaterialError> {
    let bytes = read(path)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|_| content(path, "tls: the PEM data is damaged or incomplete"))?;
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

/// Returns a certificate chain, starting with the server's or client's own certificate, and its private key, in PKCS#1,
/// SEC1 or PKCS#8 format.
pub(crate) fn certified_key(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, MaterialError> {
    let chain = certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|_| content(key, "tls: failed to find a private key in PEM data"))?;
    // rustls compares the key with the certificate, which it cannot read in every form.
    let readable = EndEntity::new(&chain[0]).form().clone().into_owned();
    let mut pair = CertifiedKey::from_der(vec![readable], secret, provider).map_err(|error| {
        MaterialError::Pair {
            cert: cert.to_owned(),
            key: key.to_owned(),
            reason: match error {
                Error::InconsistentKeys(_) => "private key does not match public key".to_owned(),
                other => other.to_string(),
            },
        }
    })?;
    pair.cert = chain;
    Ok(pair)
}
