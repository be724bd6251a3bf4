//! An open file of the machine and its locks, shared by the file's handle and its mappings.
#![expect(clippy::disallowed_types, reason = "this module implements `Disk` with real files")]
#![expect(unsafe_code, reason = "open-file-description locks have no safe wrapper")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};

use super::LockKind;

/// A file and its locks, shared by a handle and its mappings. The locks last until the handle and all of its mappings
/// are dropped.
///
/// Locks end with the open file description. But when another thread forks, the child process
/// briefly shares that description and would keep the lock. So the locks are released explicitly.
#[derive(Debug)]
pub(super) struct OpenFile {
    file: File,
    ofd_locked: AtomicBool,
    flocked: AtomicBool,
}

impl OpenFile {
    pub(super) const fn new(file: File) -> Self {
        Self { file, ofd_locked: AtomicBool::new(false), flocked: AtomicBool::new(false) }
    }

    pub(super) fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        let (granted, flag) = match kind {
            LockKind::OfdExclusive => match ofd_lock(&self.file, libc::F_WRLCK) {
                Ok(granted) => (granted, &self.ofd_locked),
                // Some kernels and file systems do not support open-file-description locks. etcd
                // uses the same fallback.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                    return self.try_lock(LockKind::FlockExclusive);
                }
                Err(e) => return Err(e),
            },
            LockKind::FlockExclusive => {
                (try_flock(&self.file, FlockOperation::NonBlockingLockExclusive)?, &self.flocked)
            }
            LockKind::FlockShared => {
                (try_flock(&self.file, FlockOperation::NonBlockingLockShared)?, &self.flocked)
            }
        };
        flag.fetch_or(granted, Ordering::AcqRel);
        Ok(granted)
    }
}

impl Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        // Closing the file also releases the locks, so a failure here has no effect.
        if *self.ofd_locked.get_mut() {
            ofd_lock(&self.file, libc::F_UNLCK).ok();
        }
        if *self.flocked.get_mut() {
            flock(&self.file, FlockOperation::Unlock).ok();
        }
    }
}

fn try_flock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn short(constant: libc::c_int) -> libc::c_short {
    libc::c_short::try_from(constant).expect("lock types and offset origins are small numbers")
}

/// Sets or clears a lock over the whole file. Returns `false` if another open file holds a
/// conflicting lock.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn ofd_lock(file: &File, kind: libc::c_int) -> io::Result<bool> {
    // The range extends from the start to the end of the file, whatever its length.
    // Open-file-description locks require the process id 0.
    let range = libc::flock {
        l_type: short(kind),
        l_whence: short(libc::SEEK_SET),
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open during the call, and the kernel only reads `range`, which has
    // the type that F_OFD_SETLK expects.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    if answer == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Returns an error, because this system does not support open-file-description locks.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn ofd_lock(_file: &File, _kind: libc::c_int) -> io::Result<bool> {
    Err(io::ErrorKind::InvalidInput.into())
}
