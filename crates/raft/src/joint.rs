//! Joint quorums: decisions that need a majority in each of two sets of voters.
//!
//! While a group changes from one set of voters to another (Raft thesis, section 4.3), a decision
//! requires a majority of both the incoming and the outgoing set. At other times the outgoing set
//! is empty and has no effect.

use std::collections::BTreeSet;
use std::fmt;

use crate::entry::MemberId;
use crate::quorum::{Acknowledged, MajorityConfig, VoteResult};

/// Two sets of voters. The outgoing set is empty unless the configuration is joint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JointConfig {
    /// The voters of the new configuration.
    pub incoming: MajorityConfig,
    /// The voters of the old configuration.
    pub outgoing: MajorityConfig,
}

impl JointConfig {
    /// Returns whether both sets must agree.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.outgoing.0.is_empty()
    }

    /// Returns whether `id` votes in either set.
    #[must_use]
    pub fn contains(&self, id: MemberId) -> bool {
        self.incoming.0.contains(&id) || self.outgoing.0.contains(&id)
    }

    /// Returns the union of both sets.
    #[must_use]
    pub fn ids(&self) -> BTreeSet<MemberId> {
        self.incoming.0.union(&self.outgoing.0).copied().collect()
    }

    /// Returns the highest value that majorities of both sets have acknowledged.
    pub fn agreed<N: Acknowledged>(&self, acked: impl Fn(MemberId) -> Option<N>) -> N {
        let incoming = self.incoming.agreed(&acked);
        if self.is_joint() { incoming.min(self.outgoing.agreed(&acked)) } else { incoming }
    }

    /// Returns the state of a vote: won if both sets agree, lost as soon as one of them can no
    /// longer agree.
    pub fn vote_result(&self, vote: impl Fn(MemberId) -> Option<bool>) -> VoteResult {
        match (self.incoming.vote_result(&vote), self.outgoing.vote_result(&vote)) {
            (VoteResult::Lost, _) | (_, VoteResult::Lost) => VoteResult::Lost,
            (VoteResult::Won, VoteResult::Won) => VoteResult::Won,
            _ => VoteResult::Pending,
        }
    }
}

impl fmt::Display for JointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.incoming)?;
        if self.is_joint() {
            write!(f, "&&{}", self.outgoing)?;
        }
        Ok(())
    }
}
