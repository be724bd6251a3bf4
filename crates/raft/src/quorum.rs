//! Majority quorums: what a set of voters has agreed on, given what each has acknowledged.
//!
//! Every decision in the crate comes down to the two questions answered here. Replication asks
//! which log index a majority holds, linearizable reads ask how many reads a majority has
//! confirmed, elections and the leader's lease ask whether a majority says yes. Joint
//! configurations ([`joint`](crate::joint)) ask the same of two sets at once.
//!
//! # Invariants
//!
//! * The answer never depends on the order in which voters are listed.
//! * Raising one voter's acknowledged index never lowers the committed index.
//! * A missing acknowledgement counts as index 0, never as agreement.
//!
//! # Not here
//!
//! Who the voters are (`confchange`), and what follows from a decision (`replication`, `election`).
//!
//! # Tests
//!
//! Outside scenario files (`quorum/*.txt`) and a property test against a naive count, in
//! `tests/`.

use std::collections::BTreeSet;
use std::fmt;

use crate::entry::{LogIndex, MemberId};

/// The stack space for acknowledged indexes: a larger group than this allocates, and does not
/// notice among its other costs.
const VOTERS_ON_STACK: usize = 7;

/// How a vote stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteResult {
    /// The missing votes decide.
    Pending,
    /// A majority can no longer agree.
    Lost,
    /// A majority has agreed.
    Won,
}

impl fmt::Display for VoteResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vote{self:?}")
    }
}

/// A set of voters of which more than half decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MajorityConfig(pub BTreeSet<MemberId>);

impl MajorityConfig {
    /// The highest index that a majority has acknowledged, where `acked` gives each voter's.
    ///
    /// Without voters the answer is `LogIndex::MAX`: a joint decision takes the minimum of two
    /// majorities, and an absent half must not hold the other one back.
    ///
    /// This is what is replicated, not yet what is committed: a leader may only count entries of
    /// its own term (Raft thesis, section 3.6.2).
    pub fn committed_index(&self, acked: impl Fn(MemberId) -> Option<LogIndex>) -> LogIndex {
        let count = self.0.len();
        let indexes = self.0.iter().map(|id| acked(*id).unwrap_or(0));
        if count <= VOTERS_ON_STACK {
            let mut stack = [0; VOTERS_ON_STACK];
            for (slot, index) in stack.iter_mut().zip(indexes) {
                *slot = index;
            }
            majority_index(&mut stack[..count])
        } else {
            majority_index(&mut indexes.collect::<Vec<_>>())
        }
    }

    /// How a yes-or-no vote stands. Without voters it is won, for the same reason as above.
    pub fn vote_result(&self, vote: impl Fn(MemberId) -> Option<bool>) -> VoteResult {
        let quorum = if self.0.is_empty() { 0 } else { self.0.len() / 2 + 1 };
        let (mut granted, mut missing) = (0, 0);
        for id in &self.0 {
            match vote(*id) {
                Some(true) => granted += 1,
                Some(false) => {}
                None => missing += 1,
            }
        }
        if granted >= quorum {
            VoteResult::Won
        } else if granted + missing >= quorum {
            VoteResult::Pending
        } else {
            VoteResult::Lost
        }
    }
}

impl fmt::Display for MajorityConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_ids(f, &self.0)
    }
}

impl FromIterator<MemberId> for MajorityConfig {
    fn from_iter<T: IntoIterator<Item = MemberId>>(ids: T) -> Self {
        Self(ids.into_iter().collect())
    }
}

/// Writes member ids as operators see them everywhere: hexadecimal, in order.
pub(crate) fn write_ids(f: &mut fmt::Formatter<'_>, ids: &BTreeSet<MemberId>) -> fmt::Result {
    f.write_str("(")?;
    for (position, id) in ids.iter().enumerate() {
        let space = if position == 0 { "" } else { " " };
        write!(f, "{space}{id:x}")?;
    }
    f.write_str(")")
}

/// The highest value that more than half of `acked` reach. Reorders the slice.
fn majority_index(acked: &mut [LogIndex]) -> LogIndex {
    if acked.is_empty() {
        return LogIndex::MAX;
    }
    // In descending order, n/2 + 1 values sit at or above the one of rank n/2.
    let rank = acked.len() / 2;
    let (_, index, _) = acked.select_nth_unstable_by(rank, |a, b| b.cmp(a));
    *index
}
