//! The members of the group: the current configuration, and the leader's record of each member's
//! replication progress.
//!
//! [`Configuration`] lists voters and learners. [`Tracker`] adds a [`Progress`] per member and
//! applies the quorum computations to the current configuration: the replicated index, the result
//! of a vote, and whether a quorum is active.
//!
//! # Invariants
//!
//! * Every voter and every learner has a [`Progress`], and no other member has one.
//! * No member is both a voter and a learner; `learners_next` contains outgoing voters only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::entry::MemberId;
use crate::inflights::Inflights;
use crate::joint::JointConfig;
use crate::log_index::LogIndex;
use crate::progress::Progress;
use crate::quorum::{VoteResult, write_ids};
use crate::state::ConfState;

/// The [`Progress`] of every member.
pub type ProgressMap = BTreeMap<MemberId, Progress>;

/// The voters, the learners, and whether the configuration is joint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The voters, in one or two sets.
    pub voters: JointConfig,
    /// Members without a vote.
    pub learners: BTreeSet<MemberId>,
    /// Outgoing voters that become learners when the joint configuration is left. They cannot be learners yet, because
    /// a member is never both a voter and a learner.
    pub learners_next: BTreeSet<MemberId>,
    /// Whether the leader leaves the joint configuration automatically.
    pub auto_leave: bool,
}

impl Configuration {
    /// Returns the configuration in the form in which snapshots record it.
    #[must_use]
    pub fn conf_state(&self) -> ConfState {
        let list = |ids: &BTreeSet<MemberId>| ids.iter().copied().collect();
        ConfState {
            voters: list(&self.voters.incoming.0),
            learners: list(&self.learners),
            voters_outgoing: list(&self.voters.outgoing.0),
            learners_next: list(&self.learners_next),
            auto_leave: self.auto_leave,
        }
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "voters={}", self.voters)?;
        if !self.learners.is_empty() {
            f.write_str(" learners=")?;
            write_ids(f, &self.learners)?;
        }
        if !self.learners_next.is_empty() {
            f.write_str(" learners_next=")?;
            write_ids(f, &self.learners_next)?;
        }
        if self.auto_leave {
            f.write_str(" autoleave")?;
        }
        Ok(())
    }
}

/// The limits of each follower's window of unacknowledged appends.
#[derive(Clone, Copy, Debug)]
pub struct InflightLimits {
    /// Maximum number of unacknowledged appends.
    pub count_max: usize,
    /// Maximum number of payload bytes of the unacknowledged appends.
    pub bytes_max: u64,
}

impl InflightLimits {
    pub(crate) fn window(self) -> Inflights {
        Inflights::new(self.count_max, self.bytes_max)
    }
}

/// The votes of a campaign, and their result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) granted: usize,
    pub(crate) rejected: usize,
    pub(crate) result: VoteResult,
}

/// The current configuration, its members' progress, and the votes of a campaign.
#[derive(Debug)]
pub(crate) struct Tracker {
    pub(crate) config: Configuration,
    pub(crate) progress: ProgressMap,
    pub(crate) limits: InflightLimits,
    votes: BTreeMap<MemberId, bool>,
    /// Ids of all other members, in ascending order, for broadcasts.
    peers: Vec<MemberId>,
}

impl Tracker {
    pub(crate) fn new(limits: InflightLimits) -> Self {
        Self {
            config: Configuration::default(),
            progress: ProgressMap::new(),
            limits,
            votes: BTreeMap::new(),
            peers: Vec::new(),
        }
    }

    /// Replaces the configuration and the members' progress.
    pub(crate) fn switch(&mut self, config: Configuration, progress: ProgressMap, own: MemberId) {
        self.peers = progress.keys().copied().filter(|id| *id != own).collect();
        self.config = config;
        self.progress = progress;
    }

    /// Returns the peer at `position` in id order, or `None` if there are not that many peers.
    pub(crate) fn peer(&self, position: usize) -> Option<MemberId> {
        self.peers.get(position).copied()
    }

    /// Returns whether `id` is the only voter.
    pub(crate) fn is_sole_voter(&self, id: MemberId) -> bool {
        let voters = &self.config.voters;
        voters.incoming.0.len() == 1 && voters.incoming.0.contains(&id) && !voters.is_joint()
    }

    /// Returns the highest index that a quorum has acknowledged.
    pub(crate) fn replicated_index(&self) -> LogIndex {
        self.config.voters.agreed(|id| self.progress.get(&id).map(|p| p.match_index))
    }

    /// Returns whether a quorum of voters has been active since the last quorum check.
    pub(crate) fn is_quorum_active(&self) -> bool {
        let active = |id| {
            let progress = self.progress.get(&id).filter(|p| !p.is_learner);
            progress.map(|p| p.is_recently_active)
        };
        self.config.voters.vote_result(active) == VoteResult::Won
    }

    pub(crate) fn reset_votes(&mut self) {
        self.votes.clear();
    }

    /// Records a vote. Only a member's first response counts.
    pub(crate) fn record_vote(&mut self, voter: MemberId, granted: bool) {
        self.votes.entry(voter).or_insert(granted);
    }

    /// Counts the votes of the campaign. Only the votes of current voters count.
    pub(crate) fn tally(&self) -> Tally {
        let voters = self.progress.iter().filter(|(_, p)| !p.is_learner);
        let votes = voters.filter_map(|(id, _)| self.votes.get(id));
        let (mut granted, mut rejected) = (0, 0);
        for vote in votes {
            *(if *vote { &mut granted } else { &mut rejected }) += 1;
        }
        let result = self.config.voters.vote_result(|id| self.votes.get(&id).copied());
        Tally { granted, rejected, result }
    }
}
