//! Records facts about the other side during a handshake, for the error and the log line if it fails.
//!
//! For a failed handshake the library returns only an error, and its certificate callbacks do not get the
//! connection. The callbacks run in the connection's task, so they store the facts in a task-local value for
//! the duration of the handshake.
//!
//! A certificate that is refused for a reason of this crate is refused by [`refuse`]: the other side gets the
//! alert `bad_certificate`, as from Go, and the reason is stored for this side's error.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use rustls::{CertificateError, Error, OtherError};

use crate::names::Names;

tokio::task_local! {
    static OBSERVED: RefCell<Observed>;
}

/// The facts about one handshake.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The server name that the client requested; empty if none.
    pub(crate) server_name: String,
    /// The names in the other side's certificate.
    pub(crate) names: Names,
    /// Why this side refused the certificate.
    refusal: Option<OtherError>,
}

impl Observed {
    /// Returns the error of a handshake, with this side's reason instead of the library's.
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

/// Runs a handshake and returns its facts.
pub(crate) async fn observe<T>(handshake: impl Future<Output = T>) -> (T, Observed) {
    let observing = async {
        let outcome = handshake.await;
        (outcome, OBSERVED.with(RefCell::take))
    };
    OBSERVED.scope(RefCell::default(), observing).await
}

/// Records a fact about the handshake of the current task, if there is one.
pub(crate) fn note(notes: impl FnOnce(&mut Observed)) {
    // There is no handshake in tests that use a verifier alone.
    OBSERVED.try_with(|observed| notes(&mut observed.borrow_mut())).unwrap_or_default();
}

/// Returns the error that refuses a certificate for this reason.
pub(crate) fn refuse(reason: impl std::error::Error + Send + Sync + 'static) -> Error {
    note(|observed| observed.refusal = Some(OtherError(Arc::new(reason))));
    // A reason of the library that sends the required alert.
    CertificateError::NotValidForName.into()
}
