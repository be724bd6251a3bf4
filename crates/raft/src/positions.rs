//! Which terms and indexes are believed.
//!
//! Terms rise by one per election, and no log comes near 2^63 entries. A message with a larger number is
//! an accident or worse. Believing it would be for good: a term is stored and passed on, and where no
//! higher one can be reached there is never another election.
//!
//! So one message cannot use up the terms. Up to [`TERM_BELIEVED_MAX`] any term is believed, as etcd
//! does; beyond it, a message may be ahead of what this member knows by [`TERM_STEP_MAX`] at most, and
//! nobody enters [`TERM_END`]. A group whose term was driven to the first of these by mistake goes on
//! electing leaders for as long as there are machines.
//!
//! A commit index beyond the own log means that this log has lost entries, and ends the member for good. So
//! one is believed that a log could have reached meanwhile: [`COMMIT_STEP_MAX`] entries take a month to write
//! at 400,000 a second.

use crate::log_index::LogIndex;
use crate::term::Term;

/// Larger terms and indexes are nobody's; arithmetic on smaller ones cannot overflow.
pub(crate) const POSITION_MAX: u64 = u64::MAX >> 1;

/// Terms up to here are believed, whatever the own term is.
const TERM_BELIEVED_MAX: Term = Term(1 << 62);

/// How far beyond [`TERM_BELIEVED_MAX`], or the own term if that is larger, a term may be.
const TERM_STEP_MAX: u64 = 1 << 32;

/// No election follows this term.
pub(crate) const TERM_END: Term = Term(POSITION_MAX - TERM_STEP_MAX);

/// The highest term that a member of term `own` follows a message into.
pub(crate) fn believed_term_max(own: Term) -> Term {
    let reach = own.max(TERM_BELIEVED_MAX).get().saturating_add(TERM_STEP_MAX);
    Term(reach).min(TERM_END)
}

/// How far beyond the end of the own log a commit index may be.
const COMMIT_STEP_MAX: u64 = 1 << 40;

/// The highest commit index that a member whose log ends at `last` believes anybody to have reached.
pub(crate) fn believed_commit_max(last: LogIndex) -> LogIndex {
    last.saturating_add(COMMIT_STEP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elections_follow_every_term_that_one_message_leads_to() {
        let far = Term(TERM_BELIEVED_MAX.get() + 7);
        for own in [Term::ZERO, Term(1), TERM_BELIEVED_MAX, far] {
            let reached = believed_term_max(own);
            assert!(reached < TERM_END);
            assert!(believed_term_max(reached) > reached.next(), "the next candidate is believed");
            assert!(believed_term_max(Term::ZERO) > TERM_BELIEVED_MAX, "so is it by a newcomer");
        }
        assert_eq!(believed_term_max(Term(TERM_END.get() - 1)), TERM_END);
        assert_eq!(believed_term_max(Term(u64::MAX)), TERM_END);
    }
}
