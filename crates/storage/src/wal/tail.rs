//! The segment being written: where it ends, and the zeros ahead of that end.
//!
//! Space ahead of the log is reserved when a segment is created, but on most file systems a reserved
//! block that was never written still costs a metadata update at its first sync. So zeros are
//! written ahead of the log in large steps, and a sync of appended records touches data alone, which
//! takes half the time. The zeros never reach beyond the planned size of a segment.
//!
//! # Invariant
//!
//! `written <= zeroed_to`, and every byte from `written` on is zero.

use std::io::{self, IoSlice};
use std::sync::Arc;

use crate::disk::DiskFile;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Zeros written ahead of the log end at a page's boundary.
const PAGE_BYTES: u64 = 4096;

#[derive(Debug)]
pub(super) struct Tail {
    file: Arc<dyn DiskFile>,
    /// Bytes of records in the file, which is also where the next goes.
    written: u64,
    /// Up to here the file's blocks were written at least once.
    zeroed_to: u64,
    /// Planned size of a segment.
    segment_bytes: u64,
}

impl Tail {
    /// Continues a file at `written`, behind which it holds zeros or nothing.
    pub(super) const fn new(file: Arc<dyn DiskFile>, written: u64, segment_bytes: u64) -> Self {
        Self { file, written, zeroed_to: written, segment_bytes }
    }

    pub(super) const fn written(&self) -> u64 {
        self.written
    }

    pub(super) const fn is_full(&self) -> bool {
        self.written >= self.segment_bytes
    }

    pub(super) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    /// Appends `bytes`; when they pass the zeros, another `step` of zeros goes with them.
    pub(super) fn append(&mut self, bytes: &[u8], step: u64) -> io::Result<()> {
        let end = self.written + bytes.len() as u64;
        if end > self.zeroed_to {
            let target = self.planned(end.saturating_add(step));
            if target <= end || !self.append_with_zeros(bytes, target - end)? {
                self.file.write_all_at(bytes, self.written)?;
                self.zeroed_to = end;
            }
        } else {
            self.file.write_all_at(bytes, self.written)?;
        }
        self.written = end;
        Ok(())
    }

    /// Writes `bytes` and zeros in one go; `false` if there is no room for all of it.
    fn append_with_zeros(&mut self, bytes: &[u8], zeros: u64) -> io::Result<bool> {
        let mut slices = vec![IoSlice::new(bytes)];
        slices.extend(zero_slices(zeros));
        match self.file.write_all_vectored_at(&slices, self.written) {
            Ok(()) => {
                self.zeroed_to = self.written + bytes.len() as u64 + zeros;
                Ok(true)
            }
            // What did get written is the same bytes again or zeros behind them.
            Err(e) if e.kind() == io::ErrorKind::StorageFull => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns how many zeros are missing for a lead of `lead` bytes over the log.
    pub(super) fn zeros_wanted(&self, lead: u64) -> u64 {
        self.planned(self.written.saturating_add(lead)).saturating_sub(self.zeroed_to)
    }

    /// Writes `count` more zeros ahead; the caller syncs.
    pub(super) fn write_zeros(&mut self, count: u64) -> io::Result<()> {
        let slices: Vec<IoSlice<'_>> = zero_slices(count).collect();
        self.file.write_all_vectored_at(&slices, self.zeroed_to)?;
        self.zeroed_to += count;
        Ok(())
    }

    /// Returns the offset of a page's boundary near `offset`, not beyond the segment's planned size.
    fn planned(&self, offset: u64) -> u64 {
        (offset / PAGE_BYTES * PAGE_BYTES).min(self.segment_bytes)
    }
}

fn zero_slices<'z>(count: u64) -> impl Iterator<Item = IoSlice<'z>> {
    let chunk = ZEROS.len() as u64;
    (0..count.div_ceil(chunk)).map(move |number| {
        let rest = (count - number * chunk).min(chunk);
        IoSlice::new(&ZEROS[..rest as usize])
    })
}
