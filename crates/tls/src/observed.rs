//! Records facts about the other side during a handshake, for the error and the log line if the handshake fails.
//!
//! For a failed handshake, the library returns only an error, and its certificate callbacks have no access to the
//! connection. However, the callbacks run in the connection's task. They therefore store the facts in a task-local
//! value, which exists for the duration of the handshake.
//!
//! A check of this crate that refuses a certificate calls [`refuse`] or [`refuse_as`]. The other side then receives the
//! alert that Go would send, usually `bad_certificate`, and the reason is stored for this side's error.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError};

use crate::names::Names;

tokio::task_local! {
    static OBSERVED: RefCell<Observed>;
}

/// Facts about one handshake.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The server name requested by the client; empty if the client requested none.
    pub(crate) server_name: String,
    /// The names in the other side's certificate.
    pub(crate) names: Names,
    /// The reason why this side refused the certificate.
    refusal: Option<OtherError>,
}

impl Observed {
    /// Returns the error of a handshake. If this side refused the certificate, the error states the reason for the
    /// refusal instead of the library's text.
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

/// Runs a handshake and returns the recorded facts.
pub(crate) async fn observe<T>(handshake: impl Future<Output = T>) -> (T, Observed) {
    let observing = async {
        let outcome = handshake.await;
        (outcome, OBSERVED.with(RefCell::take))
    };
    OBSERVED.scope(RefCell::default(), observing).await
}

/// Records a fact about the handshake of the current task, if a handshake is running.
pub(crate) fn note(notes: impl FnOnce(&mut Observed)) {
    // Without a handshake, as when a test calls a verifier directly, nothing is recorded.
    OBSERVED.try_with(|observed| notes(&mut observed.borrow_mut())).unwrap_or_default();
}

/// Stores the reason for refusing a certificate, and returns the error for the library.
pub(crate) fn refuse(reason: impl std::error::Error + Send + Sync + 'static) -> Error {
    // For this error, the library sends the alert `bad_certificate`.
    refuse_as(CertificateError::NotValidForName, reason)
}

/// Stores the reason for refusing a certificate, and returns this error for the library, which determines the alert.
pub(crate) fn refuse_as(
    error: CertificateError,
    reason: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    note(|observed| observed.refusal = Some(OtherError(Arc::new(reason))));
    error.into()
}
