//! Terms as a separate type, so that the compiler distinguishes a term from an index or a member
//! id.
//!
//! Terms can be compared and incremented. The wire, files and metrics use plain numbers. Code that
//! reads or writes them converts with `Term(number)` and [`Term::get`].

use std::fmt;

/// A term. [Zero](Self::ZERO) means no term. It is the term of local messages and of the position
/// before the first entry.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Term(pub u64);

impl Term {
    /// The value that stands for no term.
    pub const ZERO: Self = Self(0);

    /// Returns the plain number, for the wire, files and metrics.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the next term, in which a candidate of the next election campaigns.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Formats the term as a plain number, as in log lines.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Formats the term as a plain number.
impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_printed_as_a_number() {
        let term = Term(7);
        assert_eq!(format!("{term} {term:?} {term:03}"), "7 7 007");
    }

    #[test]
    fn the_next_term_is_one_higher() {
        assert!(Term::ZERO < Term::ZERO.next());
        assert_eq!(Term(7).next().get(), 8);
    }
}
