//! Types shared by several modules of the state machine: time, lease ids, member ids.
//!
//! The caller passes the time as a number, because this crate never reads a clock.

use std::fmt;

/// A point in time on the caller's monotonic clock, in milliseconds. Only differences are
/// meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Returns the point `secs` seconds later, clamped to the clock's maximum.
    #[must_use]
    pub const fn plus_secs(self, secs: u64) -> Self {
        self.plus(secs.saturating_mul(1000))
    }

    /// Returns the point `millis` milliseconds later, clamped to the clock's maximum.
    #[must_use]
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }
}

/// A lease's id: any integer except 0, including negative ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

impl LeaseId {
    /// The lease id in a record without a lease.
    pub const NONE: Self = Self(0);

    /// Returns whether this is [`LeaseId::NONE`].
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// A member's id; 0 means no member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

/// Writes the id in lower-case hexadecimal without padding, as in the keys of the backend file and
/// in messages.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}
