//! The certificate that is shown, and the key to it: those that the files hold at each handshake.
//!
//! Files that are gone, broken or do not belong together change nothing: the pair that was read before is shown until
//! they are whole, so that nobody has to replace two files in one moment.

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

/// Of a certificate whose names are not to be made out.
const UNREADABLE: &str = "x509: malformed certificate";

/// The files of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// PEM: the certificate and those that lead to an authority.
    pub cert: PathBuf,
    /// PEM: the private key.
    pub key: PathBuf,
}

impl Pair {
    /// These files.
    pub fn new(cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        Self { cert: cert.as_ref().to_owned(), key: key.as_ref().to_owned() }
    }

    /// The common name of the certificate; empty where it has none.
    ///
    /// # Errors
    ///
    /// The file cannot be used.
    pub fn common_name(&self) -> Result<String, MaterialError> {
        let certificates = material::certificates(&self.cert)?;
        let names = certificates.first().and_then(Names::of);
        let names = names.ok_or_else(|| material::content(&self.cert, UNREADABLE))?;
        Ok(names.common)
    }
}

/// Which side shows it; that is told in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Server,
    Client,
}

impl Side {
    const fn purpose(self) -> &'static str {
        match self {
            Self::Server => "the certificate that clients are shown",
            Self::Client => "the certificate that servers are shown",
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Identity {
    pair: Pair,
    provider: Arc<CryptoProvider>,
    kept: Watched<CertifiedKey>,
}

impl Identity {
    /// The files have to be right now.
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

    /// The pair in force.
    fn current(&self) -> Result<Arc<CertifiedKey>, MaterialError> {
        let Pair { cert, key } = &self.pair;
        self.kept.get(|| material::certified_key(cert, key, &self.provider))
    }

    fn for_handshake(&self) -> Option<Arc<CertifiedKey>> {
        // The files were right once, at the start.
        self.current().ok()
    }

    /// When the first certificate of the chain expires.
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
        // Whichever authorities the server names: it knows best what it accepts.
        self.for_handshake()
    }

    fn has_certs(&self) -> bool {
        true
    }
}
