//! The certificate that is shown, and the key to it: those that the files hold at each handshake.
//!
//! Files that are broken or do not belong together fail the handshakes that need them, with a warning, and serve again
//! once they are whole: as in etcd, so that a rotation needs no restart.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_telemetry::log;
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::material::{self, MaterialError};
use crate::throttle::LogThrottle;
use crate::watched::Watched;

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
}

/// Which side shows it; that is told in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Server,
    Client,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Identity {
    pair: Pair,
    side: Side,
    provider: Arc<CryptoProvider>,
    kept: Watched<CertifiedKey>,
    warnings: LogThrottle,
}

impl Identity {
    /// The files have to be right now.
    pub(crate) fn load(
        pair: Pair,
        side: Side,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, MaterialError> {
        let kept = Watched::new(vec![pair.cert.clone(), pair.key.clone()]);
        let (provider, warnings) = (Arc::clone(provider), LogThrottle::default());
        let identity = Self { pair, side, provider, kept, warnings };
        identity.read()?;
        Ok(identity)
    }

    fn read(&self) -> Result<Arc<CertifiedKey>, MaterialError> {
        let Pair { cert, key } = &self.pair;
        self.kept.get(|| material::certified_key(cert, key, &self.provider))
    }

    fn for_handshake(&self) -> Option<Arc<CertifiedKey>> {
        self.read().inspect_err(|error| self.warn(error)).ok()
    }

    fn warn(&self, error: &MaterialError) {
        let Some(left_out) = self.warnings.admits() else { return };
        let text = match (self.side, error.is_missing()) {
            (Side::Server, true) => "failed to find peer cert files",
            (Side::Server, false) => "failed to create peer certificate",
            (Side::Client, true) => "failed to find client cert files",
            (Side::Client, false) => "failed to create client certificate",
        };
        log::warn!(
            text,
            "cert-file" = self.pair.cert.display().to_string(),
            "key-file" = self.pair.key.display().to_string(),
            "error" = error.to_string(),
            "lines-left-out" = left_out
        );
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
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
