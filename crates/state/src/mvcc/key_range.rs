//! The keys that a request names.

use super::tree::Bound;
use crate::steps;

/// The keys that `key` and `range_end` of a request denote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRange<'a> {
    /// One key: `range_end` is empty.
    One(&'a [u8]),
    /// All keys from the first up to, but not including, the second. The range is empty if the
    /// second key is not above the first.
    Between(&'a [u8], &'a [u8]),
    /// All keys from this key on: `range_end` is a single zero byte.
    From(&'a [u8]),
}

impl<'a> KeyRange<'a> {
    /// Builds the range from the two fields of a request.
    #[must_use]
    pub const fn new(key: &'a [u8], range_end: &'a [u8]) -> Self {
        match range_end {
            [] => Self::One(key),
            [0] => Self::From(key),
            _ => Self::Between(key, range_end),
        }
    }

    /// Returns whether the range contains a key.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        steps::count();
        match *self {
            Self::One(one) => key == one,
            Self::Between(from, to) => from <= key && key < to,
            Self::From(from) => from <= key,
        }
    }

    /// Returns the two bounds of a range, or the key itself for a single key.
    pub(super) const fn bounds(self) -> Result<(Bound<'a>, Bound<'a>), &'a [u8]> {
        match self {
            Self::One(key) => Err(key),
            Self::Between(from, to) => Ok((Bound::Key(from), Bound::Key(to))),
            Self::From(from) => Ok((Bound::Key(from), Bound::End)),
        }
    }
}
