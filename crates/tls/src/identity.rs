//! This side's own certificate and key. Each handshake uses the current contents of their files.
//!
//! If a file is missing or invalid, or if the certificate does not match the key, the previous pair stays in use until
//! the files are valid again. The two files therefore do not have to be replaced at the same moment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::expiry::{Expiry, Part};
use crate::material::{self, MaterialError};
use crate::names::Names;
use crate::observed::note;
use crate::watched::Watched;

/// The error text for a certificate whose names cannot be parsed.
const UNREADABLE: &str = "x509: malformed certificate";

/// The files with a certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// PEM file with the certificate and its chain up to an authority.
    pub cert: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

impl Pair {
    /// Creates a pair from the paths of its files.
    pub fn new(cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        Self { cert: cert.as_ref().to_owned(), key: key.as_ref().to_owned() }
    }

    /// Returns the certificate's common name; empty if there is none.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is invalid.
    pub fn common_name(&self) -> Result<String, MaterialError> {
        let certificates = material::certificates(&self.cert)?;
        let names = certificates.first().and_then(Names::of);
        let names = names.ok_or_else(|| material::content(&self.cert, UNREADABLE))?;
        Ok(names.common)
    }
}

/// The side that presents the certificate, for log lines.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Server,
    Client,
}

impl Side {
    const fn purpose(self) -> &'static str {
        match self {
            Self::Server => "server certificate",
            Self::Client => "client certificate",
        }
    }
}

/// A certificate and its private key, kept up to date.
#[derive(Debug)]
pub(crate) struct Identity {
    pair: Pair,
    provider: Arc<CryptoProvider>,
    kept: Watched<CertifiedKey>,
}

impl Identity {
    /// Loads the pair. Fails if the files are invalid now.
    pub(crate) fn load(
        pair: Pair,
        side: Side,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, MaterialError> {
        let kept = Watched::new(side.purpose(), vec![pair.cert.clone(), pair.key.clone()]);
        let identity = Self { pair, provider: Arc::clone(provider), kept };
        identity.current()?;
        Ok(identity)
    }

    /// Returns the pair in force.
    fn current(&self) -> Result<Arc<CertifiedKey>, MaterialError> {
        let Pair { cert, key } = &self.pair;
        self.kept.get(|| material::certified_key(cert, key, &self.provider))
    }

    fn for_handshake(&self) -> Option<Arc<CertifiedKey>> {
        // The files were valid at startup, so there is always a pair in force.
        self.current().ok()
    }

    /// Returns the time at which the first certificate of the chain expires.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        let pair = self.current().ok()?;
        Expiry::first(Part::Certificate, &self.pair.cert, &pair.cert)
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default();
        note(|observed| name.clone_into(&mut observed.server_name));
        self.for_handshake()
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // The authorities named by the server are ignored: the certificate is always presented, and the server decides
        // whether to accept it.
        self.for_handshake()
    }

    fn has_certs(&self) -> bool {
        true
    }
}
