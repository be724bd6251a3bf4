//! Majority quorums: the agreement of a set of voters, computed from the acknowledgement of each
//! voter.
//!
//! Every decision of the core is one of two questions. Replication asks which log index a majority
//! has, and linearizable reads ask how many reads a majority has confirmed. Elections and the
//! leader's lease ask whether a majority agrees. A joint configuration ([`joint`](crate::joint))
//! asks two sets at once.
//!
//! # Invariants
//!
//! * The answer never depends on the order in which voters are listed.
//! * Raising what one voter has acknowledged never lowers what is agreed.
//! * A missing acknowledgement counts as zero, never as agreement.
//!
//! # Not here
//!
//! The voters (`confchange`), and the effects of a decision (`replication`, `election`).
//!
//! # Tests
//!
//! Outside scenario files (`quorum/*.txt`) and a property test against a naive count, in
//! `tests/`.

use std::collections::BTreeSet;
use std::fmt;

use crate::entry::MemberId;
use crate::log_index::LogIndex;

/// A value that voters acknowledge: a log index or the number of a read. The default means none
/// yet.
pub trait Acknowledged: Copy + Default + Ord {
    /// The value that never limits a minimum.
    const MAX: Self;
}

impl Acknowledged for LogIndex {
    const MAX: Self = Self::MAX;
}

impl Acknowledged for u64 {
    const MAX: Self = Self::MAX;
}

/// Number of acknowledged values that are kept on the stack. A larger group allocates, which is
/// cheap compared with its other costs.
const VOTERS_ON_STACK: usize = 7;

/// The state of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteResult {
    /// The missing votes decide the result.
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

/// A set of voters; more than half of them decide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MajorityConfig(pub BTreeSet<MemberId>);

impl MajorityConfig {
    /// The highest number that a majority has acknowledged; `acked` returns the number of each
    /// voter.
    ///
    /// Without voters, the answer is [`Acknowledged::MAX`]: a joint decision takes the minimum of
    /// two majorities, and an empty half must not limit the other one.
    ///
    /// For log indexes, the answer is the replicated index, not yet the committed one: a leader may
    /// count only entries of its own term (Raft thesis, section 3.6.2).
    pub fn agreed<N: Acknowledged>(&self, acked: impl Fn(MemberId) -> Option<N>) -> N {
        let count = self.0.len();
        let numbers = self.0.iter().map(|id| acked(*id).unwrap_or_default());
        if count <= VOTERS_ON_STACK {
            let mut stack = [N::default(); VOTERS_ON_STACK];
            for (slot, number) in stack.iter_mut().zip(numbers) {
                *slot = number;
            }
            majority_of(&mut stack[..count])
        } else {
            majority_of(&mut numbers.collect::<Vec<_>>())
        }
    }

    /// The state of a yes-or-no vote. Without voters it is won, so that an empty half has no
    /// effect.
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

/// Writes member ids in hexadecimal and in order, as in all log lines.
pub(crate) fn write_ids(f: &mut fmt::Formatter<'_>, ids: &BTreeSet<MemberId>) -> fmt::Result {
    f.write_str("(")?;
    for (position, id) in ids.iter().enumerate() {
        let space = if position == 0 { "" } else { " " };
        write!(f, "{space}{id:x}")?;
    }
    f.write_str(")")
}

/// The highest value that more than half of `acked` have reached. Reorders the slice.
fn majority_of<N: Acknowledged>(acked: &mut [N]) -> N {
    if acked.is_empty() {
        return N::MAX;
    }
    // In descending order, n/2 + 1 values are at or above the value of rank n/2.
    let rank = acked.len() / 2;
    let (_, number, _) = acked.select_nth_unstable_by(rank, |a, b| b.cmp(a));
    *number
}
