//! Versions and suites together, and what can be wrong with how TLS is set up.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

use crate::material::MaterialError;
use crate::suites::{SuiteError, Suites};
use crate::versions::Versions;

/// How the two sides may speak.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protocols {
    /// Of the protocol.
    pub versions: Versions,
    /// Of TLS 1.2.
    pub suites: Suites,
}

impl Protocols {
    pub(crate) fn provider(&self) -> Result<Arc<CryptoProvider>, SuiteError> {
        self.suites.provider(self.versions).map(Arc::new)
    }
}

/// Why TLS cannot be done as asked.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file cannot be used.
    #[error(transparent)]
    Material(#[from] MaterialError),
    /// The suites cannot.
    #[error(transparent)]
    Suites(#[from] SuiteError),
    /// They do not go together.
    #[error(transparent)]
    Library(#[from] rustls::Error),
}
