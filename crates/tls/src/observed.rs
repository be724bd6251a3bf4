//! What is learned of the other side during a handshake, for the error and the log of one that fails.
//!
//! The library returns only an error for a handshake that failed, and has callbacks for certificates that do not know which
//! connection they are called for. They are called by the task of the connection, so they note what they find in a value that
//! belongs to the task for as long as the handshake takes.
//!
//! A certificate that is refused for a reason of ours is refused by [`refuse`]: the other side gets the alert
//! `bad_certificate`, as from Go, and the reason is kept here for the error of this side.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError};

use crate::names::Names;

tokio::task_local! {
    static OBSERVED: RefCell<Observed>;
}

/// What one handshake has shown so far.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The name that the client asked for; empty where it named none.
    pub(crate) server_name: String,
    /// The names of the certificate that the other side showed.
    pub(crate) names: Names,
    /// Why this side refused the certificate.
    refusal: Option<OtherError>,
}

impl Observed {
    /// The error of a handshake, with the reason of this side in the place of the library's.
    pub(crate) fn explain(&mut self, error: io::Error) -> io::Error {
        match self.refusal.take() {
            None => error,
            Some(reason) => {
                let error = Error::InvalidCertificate(CertificateError::Other(reason));
                io::Error::new(io::ErrorKind::InvalidData, error)
            }
        }
    }
}

/// Does a handshake, and returns what it has shown.
pub(crate) async fn observe<T>(handshake: impl Future<Output = T>) -> (T, Observed) {
    let observing = async {
        let outcome = handshake.await;
        (outcome, OBSERVED.with(RefCell::take))
    };
    OBSERVED.scope(RefCell::default(), observing).await
}

/// Notes something of the handshake that this task does, if it does one.
pub(crate) fn note(notes: impl FnOnce(&mut Observed)) {
    // Without a handshake, as in tests of a verifier alone, there is nothing to note it for.
    OBSERVED.try_with(|observed| notes(&mut observed.borrow_mut())).unwrap_or_default();
}

/// The error that refuses a certificate for this reason.
pub(crate) fn refuse(reason: impl std::error::Error + Send + Sync + 'static) -> Error {
    note(|observed| observed.refusal = Some(OtherError(Arc::new(reason))));
    // Of the library's reasons, one with the alert that is wanted.
    CertificateError::NotValidForName.into()
}
