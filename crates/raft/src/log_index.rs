//! Positions in the log, as a type of their own: an index is not a term, a count or a member, and the compiler
//! knows.
//!
//! Only the arithmetic that means something exists: so many entries further, so many between two. Bare numbers
//! are for wire, files and metrics, by [`LogIndex::get`] and `LogIndex(number)`, where they are read and
//! written.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A position in the log. The first entry has index 1; [zero](Self::ZERO) is the position before it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// The position before the first entry.
    pub const ZERO: Self = Self(0);

    /// No log reaches it.
    pub const MAX: Self = Self(u64::MAX);

    /// The bare number, for wire, files and metrics.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position of the entry after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The position of the entry before this one. There is none before zero.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self(self.0 - 1)
    }

    /// So many entries further, or [`MAX`](Self::MAX).
    #[must_use]
    pub const fn saturating_add(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }

    /// So many entries back, or [`ZERO`](Self::ZERO).
    #[must_use]
    pub const fn saturating_sub(self, count: u64) -> Self {
        Self(self.0.saturating_sub(count))
    }

    /// How far this position is beyond `other`; nothing if it lies before it.
    #[must_use]
    pub const fn saturating_distance_from(self, other: Self) -> u64 {
        self.0.saturating_sub(other.0)
    }

    /// How far this position is beyond `other`, or `None` if it lies before it.
    #[must_use]
    pub const fn checked_distance_from(self, other: Self) -> Option<u64> {
        self.0.checked_sub(other.0)
    }
}

/// So many entries further.
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

/// How far one position is beyond another, which does not lie after it.
impl Sub for LogIndex {
    type Output = u64;

    fn sub(self, other: Self) -> u64 {
        self.0 - other.0
    }
}

/// The bare number, as log lines have it.
impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The bare number.
impl fmt::Debug for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_prints_as_its_number() {
        let index = LogIndex(42);
        assert_eq!(format!("{index} {index:?} {index:>4}"), "42 42   42");
    }

    #[test]
    fn distances_and_steps_agree() {
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
