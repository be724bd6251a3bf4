//! `--memory-mlock`: locks the backend file in memory, so that reads do not wait for the disk.
//!
//! The whole file is locked when it is opened, and again when its size changes or the file is replaced. If locking
//! fails during startup, the member does not start, because the user relies on the lock. If it fails later, the failure
//! is logged once and the member continues.

use quorate_state::backend::Backend;
use quorate_storage::bolt::BoltError;
use quorate_telemetry::log;

/// Keeps the backend file locked in memory.
#[derive(Debug)]
pub struct MemoryLock {
    locked_bytes: u64,
    /// Whether the last attempt failed. A failure is logged only once.
    has_failed: bool,
}

impl MemoryLock {
    /// Locks the whole file.
    ///
    /// # Errors
    ///
    /// The system does not allow this process to lock that much memory.
    pub fn take(backend: &Backend) -> Result<Self, BoltError> {
        let locked_bytes = backend.stats().file_bytes;
        backend.db().lock_in_memory()?;
        Ok(Self { locked_bytes, has_failed: false })
    }

    /// Records that the locked file was replaced.
    pub(crate) const fn forget(&mut self) {
        self.locked_bytes = 0;
    }

    /// Locks the file again if its size has changed or it was replaced.
    pub(crate) fn follow(&mut self, backend: &Backend) {
        let file_bytes = backend.stats().file_bytes;
        if file_bytes == std::mem::replace(&mut self.locked_bytes, file_bytes) {
            return;
        }
        match backend.db().lock_in_memory() {
            Ok(()) => self.has_failed = false,
            Err(error) if !std::mem::replace(&mut self.has_failed, true) => log::warn!(
                "failed to lock the backend file in memory; reads may wait for the disk: raise the limit on locked \
                 memory (ulimit -l, LimitMEMLOCK)",
                "file-bytes" = file_bytes,
                "error" = error.to_string()
            ),
            Err(_) => {}
        }
    }
}
