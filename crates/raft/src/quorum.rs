//! Majority quorums: computing the decision of a set of voters from each voter's acknowledgement.
//!
//! The core asks a quorum one of two questions. Replication and linearizable reads ask for a
//! number: the highest log index that a majority has, or the number of reads that a majority has
//! confirmed. Elections and the leader's lease ask whether a majority agrees. In a joint
//! configuration ([`joint`](crate::joint)), two sets of voters must both agree.
//!
//! # Invariants
//!
//! * The result never depends on the order in which voters are listed.
//! * Raising one voter's acknowledged value never lowers the agreed value.
//! * A missing acknowledgement counts as zero, never as agreement.
//!
//! # Not here
//!
//! Choosing the voters (`confchange`), and the effects of a decision (`replication`, `election`).
//!
//! # Tests
//!
//! `tests/` runs scenario files (`quorum/*.txt`) of etcd's library and of this crate, and a property test that compares
//! the results with a naive count.

use std::collections::BTreeSet;
use std::fmt;

use crate::entry::MemberId;
use crate::log_index::LogIndex;

/// A value that voters acknowledge: a log index or the number of a read. The default value means that the voter has not
/// acknowledged anything yet.
pub trait Acknowledged: Copy + Default + Ord {
    /// The highest value, which is the identity element of `min`.
    const MAX: Self;
}

impl Acknowledged for LogIndex {
    const MAX: Self = Self::MAX;
}

impl Acknowledged for u64 {
    const MAX: Self = Self::MAX;
}

/// Maximum number of acknowledged values kept on the stack. A larger group needs an allocation,
/// which is cheap compared with the group's other costs.
const VOTERS_ON_STACK: usize = 7;

/// The state of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteResult {
    /// The result still depends on missing votes.
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

/// A set of voters. More than half of them form a quorum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MajorityConfig(pub BTreeSet<MemberId>);

impl MajorityConfig {
    /// Returns the highest value that a majority has acknowledged. `acked` returns the value that
    /// each voter has acknowledged.
    ///
    /// Without voters, the result is [`Acknowledged::MAX`], because a joint decision takes the
    /// minimum of the values of both halves, and an empty half must not limit the other.
    ///
    /// For log indexes, the result is the replicated index, which is not necessarily committed,
    /// because a leader may count only entries of its own term (Raft thesis, section 3.6.2).
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

    /// Returns the state of a yes-or-no vote. A vote without voters is won, so that an empty half of a joint
    /// configuration has no effect.
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

/// Returns the highest value that more than half of `acked` have reached. Reorders the slice.
fn majority_of<N: Acknowledged>(acked: &mut [N]) -> N {
    if acked.is_empty() {
        return N::MAX;
    }
    // In descending order, the value at position n/2 (counted from 0) is the lowest of the n/2 + 1 highest values.
    let rank = acked.len() / 2;
    let (_, number, _) = acked.select_nth_unstable_by(rank, |a, b| b.cmp(a));
    *number
}
