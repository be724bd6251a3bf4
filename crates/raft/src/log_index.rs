//! Log indexes as a separate type, so that the compiler distinguishes an index from a term, a count
//! or a member id.
//!
//! Only meaningful arithmetic is defined: an index plus or minus a count, and the difference
//! between two indexes. The wire, files and metrics use plain numbers. Code that reads or writes
//! them converts with `LogIndex(number)` and [`LogIndex::get`].

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A position in the log. The first entry has index 1; [zero](Self::ZERO) is the position before it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// The position before the first entry.
    pub const ZERO: Self = Self(0);

    /// An index that no log reaches.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the plain number, for the wire, files and metrics.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the index of the next entry.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the index of the previous entry. Zero has no previous index.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self(self.0 - 1)
    }

    /// Returns the index `count` entries later, or [`MAX`](Self::MAX).
    #[must_use]
    pub const fn saturating_add(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// Returns the index `count` entries earlier, or [`ZERO`](Self::ZERO).
    #[must_use]
    pub const fn saturating_sub(self, count: u64) -> Self {
        Self(self.0.saturating_sub(count))
    }

    /// Returns the distance from `other` to this index, or 0 if this index is before `other`.
    #[must_use]
    pub const fn saturating_distance_from(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }

    /// Returns the distance from `other` to this index, or `None` if this index is before `other`.
    #[must_use]
    pub const fn checked_distance_from(self, other: Self) -> Option<u64> {
        self.0.checked_sub(other.0)
    }
}

/// Adding a count returns the index that many entries later.
impl Add<u64> for LogIndex {
    type Output = Self;

    fn add(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

impl AddAssign<u64> for LogIndex {
    fn add_assign(&mut self, count: u64) {
        self.0 += count;
    }
}

/// Subtracting one index from another returns the distance between them. The subtracted index must not be greater.
impl Sub for LogIndex {
    type Output = u64;

    fn sub(self, other: Self) -> u64 {
        self.0 - other.0
    }
}

/// Formats the index as a plain number, as in log lines.
impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Formats the index as a plain number.
impl fmt::Debug for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_printed_as_a_number() {
        let index = LogIndex(42);
        assert_eq!(format!("{index} {index:?} {index:>4}"), "42 42   42");
    }

    #[test]
    fn index_arithmetic_round_trips_and_saturates() {
        let index = LogIndex(7);
        assert_eq!(index.next(), index + 1);
        assert_eq!(index.next().prev(), index);
        assert_eq!((index + 5) - index, 5);
        assert_eq!(index.checked_distance_from(index + 1), None);
        assert_eq!(index.checked_distance_from(LogIndex::ZERO), Some(7));
        assert_eq!(index.saturating_distance_from(index + 1), 0);
        assert_eq!(index.saturating_distance_from(LogIndex(5)), 2);
        assert_eq!(index.saturating_sub(8), LogIndex::ZERO);
        assert_eq!(LogIndex::MAX.saturating_add(1), LogIndex::MAX);
    }
}
