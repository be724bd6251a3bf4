//! TLS versions and cipher suites, and the errors of the TLS setup.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

use crate::material::MaterialError;
use crate::suites::{SuiteError, Suites};
use crate::versions::Versions;

/// The TLS versions and cipher suites of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    /// The TLS versions.
    pub versions: Versions,
    /// The cipher suites for TLS 1.2.
    pub suites: Suites,
}

impl Protocols {
    pub(crate) fn provider(&self) -> Result<Arc<CryptoProvider>, SuiteError> {
        self.suites.provider(self.versions).map(Arc::new)
    }
}

/// The reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file is invalid.
    #[error(transparent)]
    Material(#[from] MaterialError),
    /// The selection of cipher suites is invalid.
    #[error(transparent)]
    Suites(#[from] SuiteError),
    /// The library refuses the combination of settings.
    #[error(transparent)]
    Library(#[from] rustls::Error),
}
