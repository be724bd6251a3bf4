//! Plausibility limits for the terms and indexes in messages.
//!
//! Terms rise by one per election, and no log comes near 2^63 entries, so a message with a larger
//! number is an error or an attack. Accepting it would cause permanent damage: a term is stored and
//! passed on to other members, and if no higher term can be reached, no election can happen again.
//!
//! So a single message must not exhaust the range of terms. Up to [`TERM_BELIEVED_MAX`], any term is accepted, as in
//! etcd. Beyond it, a message's term may exceed the larger of [`TERM_BELIEVED_MAX`] and the recipient's own term by at
//! most [`TERM_STEP_MAX`], and no member enters a term beyond [`TERM_END`]. A group whose term has reached
//! [`TERM_BELIEVED_MAX`] by mistake can still elect leaders for the lifetime of its machines.
//!
//! A commit index in a heartbeat that is beyond the end of the recipient's log means that this log has lost entries, so
//! the recipient stops permanently. A message is therefore accepted only if its commit index is plausible: it may be
//! beyond the end of this log by at most [`COMMIT_STEP_MAX`] entries, which a group needs a month to write at 400,000
//! entries per second.

use crate::log_index::LogIndex;
use crate::term::Term;

/// The largest plausible term or index. Arithmetic on values up to this limit cannot overflow.
pub(crate) const POSITION_MAX: u64 = u64::MAX >> 1;

/// A message with any term up to this limit is accepted, regardless of the recipient's own term.
const TERM_BELIEVED_MAX: Term = Term(1 << 62);

/// Maximum amount by which a term may exceed the larger of [`TERM_BELIEVED_MAX`] and the recipient's own term.
const TERM_STEP_MAX: u64 = 1 << 32;

/// The last term that a member can enter. No member in this term campaigns.
pub(crate) const TERM_END: Term = Term(POSITION_MAX - TERM_STEP_MAX);

/// Returns the highest term that a member in term `own` accepts from a message.
pub(crate) fn believed_term_max(own: Term) -> Term {
    let reach = own.max(TERM_BELIEVED_MAX).get().saturating_add(TERM_STEP_MAX);
    Term(reach).min(TERM_END)
}

/// Maximum number of entries by which a commit index may exceed the end of the recipient's log.
const COMMIT_STEP_MAX: u64 = 1 << 40;

/// Returns the highest commit index that a member whose log ends at `last` accepts.
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
            assert!(
                believed_term_max(reached) > reached.next(),
                "the term of the next candidate is accepted"
            );
            assert!(
                believed_term_max(Term::ZERO) > TERM_BELIEVED_MAX,
                "a new member accepts the highest plausible term"
            );
        }
        assert_eq!(believed_term_max(Term(TERM_END.get() - 1)), TERM_END);
        assert_eq!(believed_term_max(Term(u64::MAX)), TERM_END);
    }
}
