//! Whose signatures count: the certificates of a file, or those that the system trusts.
//!
//! The file is read again when it changes, for the handshakes from then on. A file that cannot be read keeps in force
//! what it said before.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use crate::expiry::{Expiry, Part};
use crate::material::{self, MaterialError};
use crate::watched::Watched;

/// Certificates that are trusted, and what verifies others by them.
#[derive(Debug)]
pub(crate) struct Trusted {
    roots: Vec<CertificateDer<'static>>,
    pub(crate) of_clients: Arc<dyn ClientCertVerifier>,
    pub(crate) of_servers: Arc<dyn ServerCertVerifier>,
}

impl Trusted {
    fn new(
        found: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let mut store = RootCertStore::empty();
        // As in Go, what cannot be read among others is passed over.
        let roots: Vec<_> =
            found.into_iter().filter(|root| store.add(root.clone()).is_ok()).collect();
        let store = Arc::new(store);
        let of_clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&store), Arc::clone(provider))
                .build()
                .map_err(|error| error.to_string())?;
        let of_servers = WebPkiServerVerifier::builder_with_provider(store, Arc::clone(provider))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { roots, of_clients, of_servers })
    }

    /// Whether a certificate is itself one of those that are trusted.
    pub(crate) fn has(&self, certificate: &CertificateDer<'_>) -> bool {
        self.roots.iter().any(|root| root == certificate)
    }
}

/// Where trust comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// PEM: certificates of authorities.
    File(PathBuf),
    /// What the system trusts, as of the start.
    System,
}

/// How a client verifies the certificate of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerCheck {
    /// A trusted CA has signed it, for the host that is dialed.
    Verify(Trust),
    /// Any certificate is accepted. Only for flags that ask for that.
    Skip,
}

impl ServerCheck {
    /// Skips the verification where a flag says so.
    pub fn by(trust: Trust, skips_verification: bool) -> Self {
        if skips_verification { Self::Skip } else { Self::Verify(trust) }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Authorities {
    source: Source,
}

#[derive(Debug)]
enum Source {
    File { path: PathBuf, provider: Arc<CryptoProvider>, kept: Watched<Trusted> },
    System(Arc<Trusted>),
}

impl Authorities {
    /// A file has to be right now.
    pub(crate) fn load(
        trust: &Trust,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, MaterialError> {
        let source = match trust {
            Trust::File(path) => Source::File {
                path: path.clone(),
                provider: Arc::clone(provider),
                kept: Watched::new("the authorities that are trusted", vec![path.clone()]),
            },
            Trust::System => Source::System(Arc::new(system(provider)?)),
        };
        let authorities = Self { source };
        authorities.trusted()?;
        Ok(authorities)
    }

    /// Those in force.
    pub(crate) fn trusted(&self) -> Result<Arc<Trusted>, MaterialError> {
        match &self.source {
            Source::System(trusted) => Ok(Arc::clone(trusted)),
            Source::File { path, provider, kept } => kept.get(|| {
                let found = material::certificates(path)?;
                Trusted::new(found, provider).map_err(|reason| material::content(path, reason))
            }),
        }
    }

    /// When the first of them expires; the system's are not ours to watch.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        match &self.source {
            Source::System(_) => None,
            Source::File { path, .. } => {
                Expiry::first(Part::Authorities, path, &self.trusted().ok()?.roots)
            }
        }
    }
}

/// Whether two sources of trust have a CA certificate in common.
///
/// # Errors
///
/// One of them cannot be read.
pub fn have_common_authority(one: &Trust, other: &Trust) -> Result<bool, MaterialError> {
    let certificates = |trust: &Trust| match trust {
        Trust::File(path) => material::certificates(path),
        Trust::System => Ok(rustls_native_certs::load_native_certs().certs),
    };
    let of_other = certificates(other)?;
    Ok(one == other || certificates(one)?.iter().any(|found| of_other.contains(found)))
}

fn system(provider: &Arc<CryptoProvider>) -> Result<Trusted, MaterialError> {
    let found = rustls_native_certs::load_native_certs();
    let reason = found.errors.first().map_or_else(String::new, ToString::to_string);
    Trusted::new(found.certs, provider)
        .map_err(|none| MaterialError::System(if reason.is_empty() { none } else { reason }))
}
