//! Read-only shared mappings of files, and the reasons why slices of a mapping are sound.
//!
//! The backend reads its pages through a mapping. The mapping may be larger than the file, so that
//! a growing file does not need a new one. Only the part within the file's last known length is
//! visible.
#![expect(unsafe_code, reason = "backend reads use memory maps to avoid copies")]

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{Mmap, MmapOptions};

use super::open_file::OpenFile;

/// A read-only view of a file's first bytes. Later writes to the file are visible in it.
///
/// A mapping dereferences to its *visible* bytes. Their number is the smaller of the mapped length
/// and the file's length, as of the creation of the mapping or the last [`Mapping::refresh`].
///
/// Before a caller shortens the file, it must ensure that no slice extends beyond the new end,
/// because reading there would terminate the process with a signal.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
    file: Arc<OpenFile>,
    visible: AtomicUsize,
}

impl Mapping {
    /// Maps `len` bytes of `file`, or one byte if `len` is 0, because `mmap` rejects an empty
    /// mapping.
    pub(super) fn new(file: Arc<OpenFile>, len: usize) -> io::Result<Self> {
        // SAFETY: a mapping of a file is sound as long as no bytes are invalidated while they are
        // read. (1) Other programs: the owner of the mapping holds the file's lock (`flock` on the
        // backend file), which the mapping keeps alive with `file`. etcd, bbolt and Quorate all
        // respect the lock, so no other engine writes to the file or truncates it. (2) This program
        // writes to a mapped page only while no reader can reach it: the backend is copy-on-write
        // and never reuses a page that an open transaction can see, and meta pages are copied and
        // verified by checksum. (3) Bytes beyond the end of the file are never returned: `deref`
        // stops at `visible`, which is taken from the file's length, and the only code that shortens the file (the
        // backend's own truncation) keeps every page that a live transaction can read.
        let map = unsafe { MmapOptions::new().len(len.max(1)).map(&**file)? };
        let mapping = Self { map, file, visible: AtomicUsize::new(0) };
        mapping.refresh()?;
        Ok(mapping)
    }

    /// Reads the file's length again and makes the file visible up to that length or to the mapped
    /// length, whichever is smaller.
    ///
    /// Returns the number of visible bytes. Call this after the file has grown. Before the file is
    /// shortened, call [`Mapping::hide_from`].
    pub fn refresh(&self) -> io::Result<usize> {
        let file_len = usize::try_from(self.file.metadata()?.len()).unwrap_or(usize::MAX);
        let visible = file_len.min(self.map.len());
        self.visible.store(visible, Ordering::Release);
        Ok(visible)
    }

    /// Hides all bytes after the first `len` bytes, before the file is shortened to `len`.
    ///
    /// Existing slices are not affected. The caller ensures that none of them extends that far.
    pub fn hide_from(&self, len: usize) {
        self.visible.fetch_min(len, Ordering::AcqRel);
    }

    /// Returns the number of mapped bytes, visible or not.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Locks the visible pages in memory (`mlock`). The mapped bytes beyond the end of the file are
    /// not locked, because the system would refuse to lock them but count them against this
    /// process's limit.
    pub fn lock_in_memory(&self) -> io::Result<()> {
        let bytes = self.visible.load(Ordering::Acquire);
        // SAFETY: the bytes are part of the mapping, which lives as long as `self`.
        unsafe { rustix::mm::mlock(self.map.as_ptr().cast_mut().cast(), bytes) }?;
        Ok(())
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // `visible` never exceeds the length of the mapping.
        &self.map[..self.visible.load(Ordering::Acquire)]
    }
}
