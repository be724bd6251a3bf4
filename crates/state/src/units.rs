//! Types that several modules of the state machine share: time, lease ids, member ids.
//!
//! The caller passes time as a number. Nothing in this crate reads a clock.

use std::fmt;

/// A point on the caller's monotonic clock, in milliseconds. Only differences have a meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// The point `secs` seconds later, at most the end of the clock.
    #[must_use]
    pub const fn plus_secs(self, secs: u64) -> Self {
        self.plus(secs.saturating_mul(1000))
    }

    /// The point `millis` milliseconds later, at most the end of the clock.
    #[must_use]
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

/// A lease's id: any integer but 0, negative ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// The id in a record without a lease.
    pub const NONE: Self = Self(0);

    /// Whether this is [`LeaseId::NONE`].
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A member's id; 0 means no member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Lower-case hexadecimal without padding, as in keys of the file and in texts.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}
