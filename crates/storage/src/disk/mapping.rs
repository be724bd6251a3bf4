//! A file's bytes as memory: the read-only shared map, and why handing out slices of it is sound.
//!
//! The backend reads its pages through this. The map may be larger than the file, so that a growing
//! file needs no new map: only the part that the file covered when last asked is visible.
#![expect(unsafe_code, reason = "memory maps are what makes backend reads copy-free")]

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::{Mmap, MmapOptions};

use super::open_file::OpenFile;

/// A read-only view of a file's first bytes, which shows later writes to the same file.
///
/// It dereferences to the *visible* bytes: the mapped length or the file's length, whichever was
/// smaller at the time of the map or of the last [`Mapping::refresh`].
///
/// Whoever shortens the file has to make sure first that nobody reads beyond the new end: such a
/// read would end the process with a signal.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
    file: Arc<OpenFile>,
    visible: AtomicUsize,
}

impl Mapping {
    /// Maps `len` bytes of `file`; at least one page, as an empty map is not possible.
    pub(super) fn new(file: Arc<OpenFile>, len: usize) -> io::Result<Self> {
        // SAFETY: a map of a file is sound while nobody invalidates bytes that are being read.
        // (1) Other programs: the owner of the mapping holds the file's lock (`flock` on the backend
        // file), which the mapping keeps alive with `file` and which etcd, bbolt and this program all honour, so no
        // other engine writes or truncates it. (2) This program writes to a mapped page only while
        // no reader can reach it: the backend is copy-on-write and never reuses a page that an open
        // transaction can see, and meta pages are copied out and verified by checksum. (3) Bytes
        // beyond the end of the file are never handed out: `deref` stops at `visible`, which is
        // taken from the file's length, and the one place that shortens the file (the backend's own
        // truncation) first waits for the transactions that could see the tail.
        let map = unsafe { MmapOptions::new().len(len.max(1)).map(&**file)? };
        let mapping = Self { map, file, visible: AtomicUsize::new(0) };
        mapping.refresh()?;
        Ok(mapping)
    }

    /// Looks at the file's length again and makes that much visible, up to the mapped length.
    ///
    /// Returns the number of visible bytes. Called after the file grew, and before it is shortened
    /// there is [`Mapping::hide_from`].
    pub fn refresh(&self) -> io::Result<usize> {
        let file_len = usize::try_from(self.file.metadata()?.len()).unwrap_or(usize::MAX);
        let visible = file_len.min(self.map.len());
        self.visible.store(visible, Ordering::Release);
        Ok(visible)
    }

    /// Hides the bytes from `len` on, ahead of shortening the file to `len`.
    ///
    /// Slices handed out earlier are not affected: the caller knows that none reaches that far.
    pub fn hide_from(&self, len: usize) {
        self.visible.fetch_min(len, Ordering::AcqRel);
    }

    /// Returns how many bytes are mapped, visible or not: the room for growth.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.map.len()
    }

    /// Pins the visible pages in memory (`mlock`). The room for growth is not locked: the system refuses what lies
    /// beyond the end of a file, and would count it against this process.
    pub fn lock_in_memory(&self) -> io::Result<()> {
        let bytes = self.visible.load(Ordering::Acquire);
        // SAFETY: the bytes are a part of the map, which lives as long as this.
        unsafe { rustix::mm::mlock(self.map.as_ptr().cast_mut().cast(), bytes) }?;
        Ok(())
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // `visible` never exceeds the map's length.
        &self.map[..self.visible.load(Ordering::Acquire)]
    }
}
