//! The segment that is being written: the end of its records, and the zeros that are written in advance after that end.
//!
//! Space ahead of the log is reserved when a segment is created. But on most file systems, a reserved block that has
//! never been written still costs a metadata update when it is first synced. So zeros are written ahead of the log in
//! large steps. A sync of appended records then writes only data, which takes half the time. The zeros never extend
//! beyond the reserved space. If the disk has no room for a reservation, records are appended at the end of the file.
//!
//! # Invariant
//!
//! `written <= zeroed_to`, and every byte of the file from `written` on is zero.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::Options;
use crate::disk::{DiskFile, is_no_room, reserve_ahead};
use crate::size::in_memory;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// The page size, in bytes. The zeros written ahead of the log end at a page boundary.
const PAGE_BYTES: u64 = 4096;

#[derive(Debug)]
pub(super) struct Tail {
    file: Arc<dyn DiskFile>,
    /// The number of bytes of records in the file, which is also the offset of the next record.
    written: u64,
    /// The offset up to which all blocks of the file have been written at least once.
    zeroed_to: u64,
    /// The offset up to which space is allocated, written or not.
    reserved_to: u64,
    /// The planned size of the segment, in bytes.
    segment_bytes: u64,
    /// The number of bytes that must stay free on the disk when space is reserved.
    kept_free_bytes: u64,
}

impl Tail {
    /// Continues a file at `written`. From that offset to its end, the file must contain only
    /// zeros.
    pub(super) fn new(
        file: Arc<dyn DiskFile>,
        written: u64,
        options: &Options,
    ) -> io::Result<Self> {
        let reserved_to = file.len()?.max(written);
        Ok(Self {
            file,
            written,
            zeroed_to: written,
            reserved_to,
            segment_bytes: options.segment_bytes,
            kept_free_bytes: options.kept_free_bytes,
        })
    }

    /// Reserves the remaining space of the segment, or as much of it as the disk has room for.
    pub(super) fn reserve(&mut self) -> io::Result<()> {
        if self.is_reserved() {
            return Ok(());
        }
        let (from, to) = (self.reserved_to, self.segment_bytes);
        self.reserved_to = reserve_ahead(&*self.file, from, to, self.kept_free_bytes)?;
        Ok(())
    }

    /// Returns whether all planned space of the segment is reserved.
    pub(super) const fn is_reserved(&self) -> bool {
        self.reserved_to >= self.segment_bytes
    }

    pub(super) const fn reserved_to(&self) -> u64 {
        self.reserved_to
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

    /// Appends `bytes`. If they extend beyond the zeros, another `step` of zeros is written with
    /// them.
    pub(super) fn append(&mut self, bytes: &[u8], step: u64) -> io::Result<()> {
        let end = self.written + bytes.len() as u64;
        if end > self.reserved_to {
            self.reserve()?;
        }
        if end > self.zeroed_to {
            let target = self.planned(end.saturating_add(step));
            if target <= end || !self.append_with_zeros(bytes, target - end)? {
                self.write_or_cut_back(bytes)?;
                self.zeroed_to = end;
                self.reserved_to = self.reserved_to.max(end);
            }
        } else {
            self.file.write_all_at(bytes, self.written)?;
        }
        self.written = end;
        self.assert_ordered();
        Ok(())
    }

    /// Asserts the order of the three positions. Every function that changes one of them ends with
    /// this call.
    fn assert_ordered(&self) {
        assert!(
            self.written <= self.zeroed_to,
            "records end within written blocks: otherwise old bytes after them could be read as records"
        );
        assert!(
            self.zeroed_to <= self.reserved_to,
            "zeros are written into reserved space: otherwise they would take space that the backend file needs"
        );
    }

    /// Writes `bytes`. If there is no room, cuts off the partially written bytes, because otherwise
    /// they would have to be repaired when the log is opened again, possibly without room for the
    /// repair.
    fn write_or_cut_back(&self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all_at(bytes, self.written);
        if written.as_ref().is_err_and(is_no_room) {
            // If this also fails, the log is repaired when it is opened again.
            drop(self.file.set_len(self.written));
        }
        written
    }

    /// Writes `bytes` and zeros in one call. Returns `false` if there is no room for all of them.
    fn append_with_zeros(&mut self, bytes: &[u8], zeros: u64) -> io::Result<bool> {
        let mut slices = vec![IoSlice::new(bytes)];
        slices.extend(zero_slices(zeros));
        match self.file.write_all_vectored_at(&slices, self.written) {
            Ok(()) => {
                self.zeroed_to = self.written + bytes.len() as u64 + zeros;
                Ok(true)
            }
            // Even reserved space may be unavailable when it is written. Truncating the file drops the bytes written so
            // far. Those bytes are either a part of `bytes`, which the caller writes again, or zeros.
            Err(e) if is_no_room(&e) => {
                self.give_back(self.written)?;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Truncates the file to `end` because the disk is full. Afterwards, no space beyond `end` is
    /// reserved.
    fn give_back(&mut self, end: u64) -> io::Result<()> {
        self.file.set_len(end)?;
        self.reserved_to = end;
        Ok(())
    }

    /// Returns the number of zeros that must be written so that `lead` bytes of zeros are ahead of
    /// the log.
    pub(super) fn zeros_wanted(&self, lead: u64) -> u64 {
        self.planned(self.written.saturating_add(lead)).saturating_sub(self.zeroed_to)
    }

    /// Writes `count` more zeros ahead of the log, or as many as there is room for. The caller syncs them.
    pub(super) fn write_zeros(&mut self, count: u64) -> io::Result<()> {
        let slices: Vec<IoSlice<'_>> = zero_slices(count).collect();
        match self.file.write_all_vectored_at(&slices, self.zeroed_to) {
            Ok(()) => self.zeroed_to += count,
            Err(e) if is_no_room(&e) => self.give_back(self.zeroed_to)?,
            Err(e) => return Err(e),
        }
        self.assert_ordered();
        Ok(())
    }

    /// Returns the last page boundary at or before `offset`, limited to the reserved space and to
    /// the segment's planned size.
    fn planned(&self, offset: u64) -> u64 {
        (offset / PAGE_BYTES * PAGE_BYTES).min(self.reserved_to).min(self.segment_bytes)
    }
}

fn zero_slices<'z>(count: u64) -> impl Iterator<Item = IoSlice<'z>> {
    let chunk = ZEROS.len() as u64;
    (0..count.div_ceil(chunk)).map(move |number| {
        let rest = (count - number * chunk).min(chunk);
        IoSlice::new(&ZEROS[..in_memory(rest)])
    })
}
