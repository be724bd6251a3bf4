//! Reads records sequentially from segments, and classifies the end of the log.
//!
//! Damage is classified here. A log may end in the middle of a record because the power failed
//! while the record was being written. Such a record is *torn*, and cutting it off loses no
//! acknowledged data. All other damage is an error, which is never repaired. The rules are etcd's:
//!
//! * a zero length, or the end of the file, ends a segment;
//! * a record that reaches beyond the end of its file is torn;
//! * in the last segment, a record that cannot be decoded or has a wrong checksum is torn if its
//!   bytes in one of the 512-byte sectors are all zeros, because a sector is written completely or
//!   not at all, and the space ahead of the log contains zeros;
//! * everything else is fatal.
//!
//! # Not here
//!
//! The content of records (`contents`), and the removal of a torn part (`open`).

use std::path::Path;

use super::error::WalError;
use super::record::{LENGTH_BYTES, Record, decode_record, kind, split_length};
use super::segment::Segment;
use crate::size::in_memory;

/// The number of bytes read at a time. A longer record is still read as a whole.
const READ_BYTES: usize = 256 * 1024;

pub(super) const SECTOR_BYTES: u64 = 512;

/// A record, its segment, and its offset in that segment.
pub(super) struct Found<'w, 's> {
    pub(super) record: Record<'w>,
    pub(super) path: &'s Path,
    pub(super) offset: u64,
}

/// An iterator over the records of consecutive segments.
pub(super) struct Scanner<'s> {
    segments: &'s [Segment],
    /// The position of the current segment in `segments`.
    current: usize,
    /// The offset of the next record in the current segment.
    offset: u64,
    file_bytes: u64,
    /// The checksum of the data of all records so far, or 0 if reading began in the middle of the
    /// chain.
    crc: u32,
    window: Window,
}

impl<'s> Scanner<'s> {
    /// Starts at the beginning of the first segment. `segments` must not be empty.
    pub(super) fn new(segments: &'s [Segment]) -> Result<Self, WalError> {
        let mut scanner = Self {
            segments,
            current: 0,
            offset: 0,
            file_bytes: 0,
            crc: 0,
            window: Window::default(),
        };
        scanner.enter(0)?;
        Ok(scanner)
    }

    /// Returns the offset of the next record. At the end of the log, this is the offset at which
    /// new records are appended.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the running checksum.
    pub(super) const fn crc(&self) -> u32 {
        self.crc
    }

    /// Returns the next record and its position, or `None` at the clean end of the log.
    pub(super) fn next(&mut self) -> Result<Option<Found<'_, 's>>, WalError> {
        let Some((record_bytes, frame_bytes)) = self.next_frame()? else { return Ok(None) };
        let start = self.offset;
        let segment = &self.segments[self.current];
        let body = self.window.take(frame_bytes);
        let body = &body[LENGTH_BYTES..];
        let last = self.current + 1 == self.segments.len();
        let torn_or = |error: WalError| {
            if last && is_torn(body, start + LENGTH_BYTES as u64) {
                WalError::Torn { path: segment.path.clone(), offset: start }
            } else {
                error
            }
        };
        let mismatch = |expected, computed| WalError::CrcMismatch {
            expected,
            computed,
            path: segment.path.clone(),
            offset: start,
        };
        let Some(record) = decode_record(&body[..record_bytes]) else {
            let path = segment.path.clone();
            return Err(torn_or(WalError::Malformed { what: "Record", path, offset: start }));
        };
        if record.kind == kind::CRC {
            // A running checksum of 0 means that reading began in the middle of the chain, so the record's checksum
            // cannot be compared with it.
            if self.crc != 0 && record.crc != self.crc {
                return Err(mismatch(record.crc, self.crc));
            }
            self.crc = record.crc;
        } else {
            self.crc = crate::checksum::crc32c_extend(self.crc, record.data);
            if record.crc != self.crc {
                return Err(torn_or(mismatch(record.crc, self.crc)));
            }
        }
        self.offset += frame_bytes as u64;
        Ok(Some(Found { record, path: &segment.path, offset: start }))
    }

    /// Reads the next frame into the window. Returns the lengths of the record and of the whole
    /// frame.
    fn next_frame(&mut self) -> Result<Option<(usize, usize)>, WalError> {
        loop {
            let available = self.fill(LENGTH_BYTES)?;
            let length = self.window.peek_length();
            if available == 0 || length == Some(0) {
                if self.current + 1 == self.segments.len() {
                    return Ok(None);
                }
                self.enter(self.current + 1)?;
                continue;
            }
            let (record_bytes, padding) = split_length(length.ok_or_else(|| self.torn())?);
            let room = self.file_bytes.saturating_sub(self.offset).checked_sub(padding);
            if room.is_none_or(|room| record_bytes > room) {
                return Err(self.torn());
            }
            // The check above ensures that the length is not greater than the rest of the file.
            let record_bytes = usize::try_from(record_bytes).map_err(|_| self.torn())?;
            let frame_bytes = LENGTH_BYTES + record_bytes + in_memory(padding);
            if self.fill(frame_bytes)? < frame_bytes {
                return Err(self.torn());
            }
            return Ok(Some((record_bytes, frame_bytes)));
        }
    }

    fn enter(&mut self, position: usize) -> Result<(), WalError> {
        let segment = &self.segments[position];
        self.current = position;
        self.offset = 0;
        self.file_bytes = segment.file.len().map_err(WalError::io("read", &segment.path))?;
        self.window.clear();
        Ok(())
    }

    fn fill(&mut self, wanted: usize) -> Result<usize, WalError> {
        let segment = &self.segments[self.current];
        let filled = self.window.fill(segment, wanted, self.file_bytes);
        filled.map_err(WalError::io("read", &segment.path))
    }

    fn torn(&self) -> WalError {
        WalError::Torn { path: self.segments[self.current].path.clone(), offset: self.offset }
    }
}

/// Returns whether there is a sector in which all bytes of `body` are zero. `body` begins at
/// `offset` in its file.
fn is_torn(body: &[u8], offset: u64) -> bool {
    let to_boundary = in_memory(SECTOR_BYTES - offset % SECTOR_BYTES);
    let (first, rest) = body.split_at(to_boundary.min(body.len()));
    let is_zero = |part: &[u8]| !part.is_empty() && part.iter().all(|byte| *byte == 0);
    is_zero(first) || rest.chunks(in_memory(SECTOR_BYTES)).any(is_zero)
}

/// A part of the current file in memory.
#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    /// The number of consumed bytes in `bytes`.
    consumed: usize,
    /// The offset in the file at which `bytes` ends.
    file_offset: u64,
}

impl Window {
    fn clear(&mut self) {
        self.bytes.clear();
        self.consumed = 0;
        self.file_offset = 0;
    }

    /// Makes `wanted` bytes available, or fewer at the end of the file. Returns the number of
    /// available bytes.
    fn fill(
        &mut self,
        segment: &Segment,
        wanted: usize,
        file_bytes: u64,
    ) -> std::io::Result<usize> {
        if self.bytes.len() - self.consumed >= wanted {
            return Ok(self.bytes.len() - self.consumed);
        }
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        while self.bytes.len() < wanted {
            let held = self.bytes.len();
            let left = file_bytes.saturating_sub(self.file_offset).clamp(1, READ_BYTES as u64);
            self.bytes.resize(held + (wanted - held).max(in_memory(left)), 0);
            let count = segment.file.read_at(&mut self.bytes[held..], self.file_offset);
            self.bytes.truncate(held + count.as_ref().copied().unwrap_or(0));
            match count? {
                0 => break,
                count => self.file_offset += count as u64,
            }
        }
        Ok(self.bytes.len())
    }

    fn peek_length(&self) -> Option<u64> {
        self.bytes[self.consumed..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Consumes bytes that `fill` has made available.
    fn take(&mut self, count: usize) -> &[u8] {
        let start = self.consumed;
        self.consumed += count;
        &self.bytes[start..self.consumed]
    }
}
