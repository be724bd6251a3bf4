//! The range of terms and indexes that are accepted as genuine.
//!
//! Terms rise by one per election, and no log comes near 2^63 entries, so a message with a larger
//! number is an error or an attack. Accepting it would be permanent: a term is stored and sent on,
//! and if no higher term can be reached, no election can happen again.
//!
//! So a single message must not use up the terms. Up to [`TERM_BELIEVED_MAX`], any term is
//! accepted, as in etcd. Beyond it, a message may be ahead of the own term by at most
//! [`TERM_STEP_MAX`], and no member enters [`TERM_END`]. A group whose term was driven to
//! [`TERM_BELIEVED_MAX`] by mistake can still elect leaders for the lifetime of its machines.
//!
//! A commit index beyond the own log means that this log has lost entries, and stops the member for
//! ever. So a commit index is accepted only if a log could have reached it meanwhile:
//! [`COMMIT_STEP_MAX`] entries take a month to write at 400,000 a second.

use crate::log_index::LogIndex;
use crate::term::Term;

/// The largest genuine term or index; arithmetic up to it cannot overflow.
pub(crate) const POSITION_MAX: u64 = u64::MAX >> 1;

/// Terms up to this one are accepted, whatever the own term is.
const TERM_BELIEVED_MAX: Term = Term(1 << 62);

/// How far beyond [`TERM_BELIEVED_MAX`], or the own term if that is larger, a term may be.
const TERM_STEP_MAX: u64 = 1 << 32;

/// The last term: no election follows it.
pub(crate) const TERM_END: Term = Term(POSITION_MAX - TERM_STEP_MAX);

/// The highest term of a message that a member of term `own` follows.
pub(crate) fn believed_term_max(own: Term) -> Term {
    let reach = own.max(TERM_BELIEVED_MAX).get().saturating_add(TERM_STEP_MAX);
    Term(reach).min(TERM_END)
}

/// How far beyond the end of the own log a commit index may be.
const COMMIT_STEP_MAX: u64 = 1 << 40;

/// The highest commit index that a member whose log ends at `last` accepts as genuine.
pub(crate) fn believed_commit_max(last: LogIndex) -> LogIndex {
    last.saturating_add(COMMIT_STEP_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_election_can_follow_the_highest_term_that_one_message_can_set() {
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
