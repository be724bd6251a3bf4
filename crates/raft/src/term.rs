//! Terms of leadership, as a type of their own: a term is not an index or a member, and the compiler knows.
//!
//! Terms are compared, and followed by the next. Bare numbers are for wire, files and metrics, by [`Term::get`]
//! and `Term(number)`, where they are read and written.

use std::fmt;

/// A leadership term. [Zero](Self::ZERO) is "no term": a local message, or the position before the first
/// entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Term(pub u64);

impl Term {
    /// No term.
    pub const ZERO: Self = Self(0);

    /// The bare number, for wire, files and metrics.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The term that an election after this one is about.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The bare number, as log lines have it.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The bare number.
impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_prints_as_its_number() {
        let term = Term(7);
        assert_eq!(format!("{term} {term:?} {term:03}"), "7 7 007");
    }

    #[test]
    fn terms_follow_one_another() {
        assert!(Term::ZERO < Term::ZERO.next());
        assert_eq!(Term(7).next().get(), 8);
    }
}
