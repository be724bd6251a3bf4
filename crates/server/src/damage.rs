//! Decides whether a fault means that the backend file itself is damaged. In that case, its content would still be
//! invalid after a restart.
//!
//! # Not here
//!
//! The rebuild when the member restarts (`bootstrap::rebuild`), and advice for the operator (`remedy`).

use std::error::Error;

use quorate_core::{ApplyError, BackendError};
use quorate_state::apply;
use quorate_state::backend::Fault;

/// Returns whether `error`, which a thread has reported, means that the file with this member's state is damaged.
pub(crate) fn is_of_state(error: &(dyn Error + 'static)) -> bool {
    if let Some(fault) = error.downcast_ref::<Fault>() {
        return fault.is_damage();
    }
    if let Some(error) = error.downcast_ref::<ApplyError>() {
        return match error {
            ApplyError::Other(apply::Fault::Store(fault)) => fault.is_damage(),
            ApplyError::Entry { .. }
            | ApplyError::Other(_)
            | ApplyError::Install(_)
            | ApplyError::ImageIndex { .. }
            | ApplyError::Members(_) => false,
        };
    }
    match error.downcast_ref::<BackendError>() {
        Some(BackendError::Backend(fault)) => fault.is_damage(),
        Some(BackendError::Bolt(error)) => error.is_damage(),
        Some(BackendError::Snapshot(_) | BackendError::Install(_)) | None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    use quorate_storage::bolt::BoltError;

    use super::*;

    #[test]
    fn corrupt_files_are_distinguished_from_failing_disks() {
        let path = || -> Arc<Path> { Arc::from(Path::new("db")) };
        let corrupt = || BoltError::Corrupt { path: path(), page: 3, offset: 5, reason: "odd" };
        let unread = || BoltError::Io {
            path: path(),
            operation: "read",
            offset: 5,
            source: io::Error::from_raw_os_error(5),
        };
        let apply = |error| ApplyError::Other(apply::Fault::Store(Fault::Engine(error)));
        assert!(is_of_state(&Fault::Engine(corrupt())));
        assert!(is_of_state(&apply(corrupt())));
        assert!(is_of_state(&BackendError::Bolt(corrupt())));
        assert!(!is_of_state(&Fault::Engine(unread())));
        assert!(!is_of_state(&apply(unread())));
        assert!(!is_of_state(&BackendError::Backend(Fault::Engine(unread()))));
        assert!(!is_of_state(&io::Error::other("something else")));
    }
}
