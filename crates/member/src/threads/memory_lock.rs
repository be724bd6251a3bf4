//! `--memory-mlock`: the backend file stays in memory, so that no read waits for the disk.
//!
//! The file is locked as far as it reaches when it is opened, and again whenever it has become longer or shorter or
//! was replaced. What cannot be locked at the start stops the start (whoever asks for it counts on it); later it is
//! told once, and the member goes on.

use quorate_state::backend::Backend;
use quorate_storage::bolt::BoltError;
use quorate_telemetry::log;

/// Keeps the file locked that the backend thread writes to.
#[derive(Debug)]
pub struct MemoryLock {
    locked_bytes: u64,
    /// Whether the last attempt failed, which is told once.
    has_failed: bool,
}

impl MemoryLock {
    /// Locks the file as it is.
    ///
    /// # Errors
    ///
    /// The system allows this process less memory than that, or none.
    pub fn take(backend: &Backend) -> Result<Self, BoltError> {
        let locked_bytes = backend.stats().file_bytes;
        backend.db().lock_in_memory()?;
        Ok(Self { locked_bytes, has_failed: false })
    }

    /// Another file has taken the place of the one that is locked.
    pub(crate) const fn forget(&mut self) {
        self.locked_bytes = 0;
    }

    /// Locks what has changed, if anything has.
    pub(crate) fn follow(&mut self, backend: &Backend) {
        let file_bytes = backend.stats().file_bytes;
        if file_bytes == std::mem::replace(&mut self.locked_bytes, file_bytes) {
            return;
        }
        match backend.db().lock_in_memory() {
            Ok(()) => self.has_failed = false,
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => log::warn!(
                "failed to lock the backend file in memory; reads may wait for the disk: raise the limit of locked \
                 memory (ulimit -l, LimitMEMLOCK)",
                "file-bytes" = file_bytes,
                "error" = error.to_string()
            ),
            Err(_) => {}
        }
    }
}
