//! Segments: their names, the selection of segments to read, and their locks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::WalError;
use crate::disk::{Disk, DiskFile, LockKind, OpenMode};

/// A segment's name, which consists of its sequence number and the first log index that it may
/// contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// The sequence number of the segment, starting at 0.
    pub sequence: u64,
    /// The last index saved before the segment was started, plus one.
    pub index: u64,
}

impl SegmentName {
    /// Returns the file name, `<sequence>-<index>.wal` with 16 hexadecimal digits for each number.
    #[must_use]
    pub fn file_name(&self) -> String {
        format!("{:016x}-{:016x}.wal", self.sequence, self.index)
    }

    /// Parses a file name. Returns `None` if it is not the name of a segment.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (sequence, index) = name.strip_suffix(".wal")?.split_once('-')?;
        let name = Self { sequence: parse_hex(sequence)?, index: parse_hex(index)? };
        // The highest sequence number is refused, because the next segment's number would overflow.
        (name.sequence < u64::MAX).then_some(name)
    }

    /// Returns whether `next` directly follows this segment.
    pub(super) fn precedes(&self, next: &Self) -> bool {
        self.sequence.checked_add(1) == Some(next.sequence)
    }
}

/// Parses up to 16 hexadecimal digits, without a sign.
pub(crate) fn parse_hex(digits: &str) -> Option<u64> {
    let plain = digits.len() <= 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if plain { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// The content of a log's directory.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The segments, sorted by name.
    pub segments: Vec<SegmentName>,
    /// Unexpected names, excluding the names of preallocated files. The caller logs a warning about them.
    pub ignored: Vec<OsString>,
}

/// Lists a log's directory.
pub fn list(disk: &dyn Disk, dir: &Path) -> Result<Listing, WalError> {
    let mut listing = Listing::default();
    for name in disk.read_dir(dir).map_err(WalError::io("list", dir))? {
        match name.to_str().and_then(SegmentName::parse) {
            Some(segment) => listing.segments.push(segment),
            None if name.as_encoded_bytes().ends_with(b".tmp") => {}
            None => listing.ignored.push(name),
        }
    }
    if listing.segments.is_empty() {
        return Err(WalError::NoSegments { dir: dir.to_path_buf() });
    }
    Ok(listing)
}

/// Returns the segments to read for the records after `index`: the last segment that may contain `index`, and all later
/// segments.
pub(super) fn select(
    dir: &Path,
    segments: &[SegmentName],
    index: u64,
) -> Result<Vec<SegmentName>, WalError> {
    let position = segments
        .iter()
        .rposition(|segment| segment.index <= index)
        .ok_or(WalError::NoSegmentForSnapshot { index })?;
    let chosen = &segments[position..];
    let gapless = chosen.windows(2).all(|pair| pair[0].precedes(&pair[1]));
    if !gapless {
        return Err(WalError::SequenceGap { position, dir: dir.to_path_buf() });
    }
    Ok(chosen.to_vec())
}

/// An open segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) name: SegmentName,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
}

impl Segment {
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &Path,
        name: SegmentName,
        mode: OpenMode,
    ) -> Result<Self, WalError> {
        let path = dir.join(name.file_name());
        let file = disk.open(&path, mode).map_err(WalError::io("open", &path))?;
        Ok(Self { name, path, file })
    }
}

/// Locks a segment. The error contains the segment and the cause.
pub(super) fn lock(file: &dyn DiskFile, path: &Path) -> Result<(), WalError> {
    match file.try_lock(LockKind::OfdExclusive).map_err(WalError::io("lock", path))? {
        true => Ok(()),
        false => Err(WalError::Locked { path: path.to_path_buf() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_names_round_trip_and_other_names_are_refused() {
        let name = SegmentName { sequence: 0x1f, index: u64::MAX };
        assert_eq!(name.file_name(), "000000000000001f-ffffffffffffffff.wal");
        assert_eq!(SegmentName::parse(&name.file_name()), Some(name));
        for stranger in ["0.tmp", "a.wal", "+1-2.wal", "1-2.wal.broken", "1-2-3.wal", "1-g.wal"] {
            assert_eq!(SegmentName::parse(stranger), None, "{stranger}");
        }
    }

    #[test]
    fn reading_begins_at_the_last_segment_that_may_contain_the_index() {
        let names = |pairs: &[(u64, u64)]| -> Vec<SegmentName> {
            pairs.iter().map(|&(sequence, index)| SegmentName { sequence, index }).collect()
        };
        let dir = Path::new("wal");
        let all = names(&[(3, 10), (4, 20), (5, 30)]);
        assert_eq!(select(dir, &all, 10).unwrap(), all);
        assert_eq!(select(dir, &all, 29).unwrap(), all[1..]);
        assert_eq!(select(dir, &all, 99).unwrap(), all[2..]);
        let error = select(dir, &all, 9).unwrap_err();
        assert_eq!(error.to_string(), "wal: file not found which matches the snapshot index '9'");
        let gap = names(&[(0, 0), (1, 10), (3, 20)]);
        assert!(matches!(select(dir, &gap, 12), Err(WalError::SequenceGap { position: 1, .. })));
        assert_eq!(select(dir, &gap, 20).unwrap(), gap[2..]);
    }
}
