//! Corrects the member list of a data directory to match the members that consensus counts.
//!
//! In a directory that etcd has written, the member list in the backend file can differ from raft's configuration: an
//! old restore leaves rows of former members, an update of a learner's URLs turns the learner's row into a voter's row,
//! and some versions did not store promotions. etcd starts raft with the configuration in the newest snapshot and
//! applies the membership changes in the log to that configuration. A member that counted the rows instead could
//! disagree with its peers about the quorum, so the rows are corrected to match raft's configuration. In directories
//! that Quorate has written, the rows and the configuration never differ.
//!
//! # Not here
//!
//! Names, URLs and removed members that an older version did not store ([`old_members`](crate::old_members)).

use std::collections::BTreeSet;

use prost::Message as _;
use quorate_api::raftpb;
use quorate_raft::confchange::wire;
use quorate_raft::{ConfChangeKind, EntryKind};
use quorate_state::apply::State;
use quorate_state::members::Members;
use quorate_state::units::MemberId;

use crate::start::Start;

impl Start {
    /// Corrects the members of the state to match the members that consensus counts at the applied index. Returns
    /// whether any member has changed. If the configuration is unknown, for example because the snapshot mark does not
    /// contain it, the members remain unchanged.
    pub fn correct_members(&self, state: &mut State) -> bool {
        let counted = Counted::at_start(self, state.members());
        let Some(members) = counted.and_then(|counted| counted.of(state.members())) else {
            return false;
        };
        let differs = members != *state.members();
        if differs {
            state.repair_members(members);
            state.publish();
        }
        differs
    }
}

/// The configuration of consensus at the applied index.
struct Counted {
    voters: BTreeSet<u64>,
    learners: BTreeSet<u64>,
}

impl Counted {
    /// Reads the configuration from the snapshot mark, and applies the later changes in the log up to the applied
    /// index.
    fn at_start(start: &Start, members: &Members) -> Option<Self> {
        let mut counted = match &start.mark.conf_state {
            None if start.mark.index == 0 => {
                Self { voters: BTreeSet::new(), learners: BTreeSet::new() }
            }
            None => return None,
            Some(encoded) => Self::from_mark(encoded)?,
        };
        if start.mark.index > start.applied.get() {
            return None;
        }
        let applied = start.entries.iter().take_while(|entry| entry.index <= start.applied);
        for entry in applied.filter(|entry| entry.kind == EntryKind::ConfChange) {
            let change = wire::decode_v1(&entry.data).ok()?;
            counted.apply(change.kind, change.node_id, members);
        }
        (!counted.voters.is_empty()).then_some(counted)
    }

    fn from_mark(encoded: &[u8]) -> Option<Self> {
        let state = raftpb::ConfState::decode(encoded).ok()?;
        // etcd never leaves a joint configuration in a snapshot, because it changes one member at a time.
        let is_joint = !state.voters_outgoing.is_empty() || !state.learners_next.is_empty();
        let (voters, learners) = (state.voters, state.learners);
        (!is_joint && !voters.is_empty()).then(|| Self {
            voters: voters.into_iter().collect(),
            learners: learners.into_iter().collect(),
        })
    }

    /// Applies a change that is already part of the state. Refused changes must have no effect. Therefore an addition
    /// is skipped if the member has no row (it was refused, or a later entry removes the member), and so is the removal
    /// of the last voter.
    fn apply(&mut self, kind: ConfChangeKind, id: u64, members: &Members) {
        let has_row = members.get(MemberId(id)).is_some();
        match kind {
            ConfChangeKind::AddNode if has_row => {
                self.learners.remove(&id);
                self.voters.insert(id);
            }
            ConfChangeKind::AddLearnerNode if has_row && !self.voters.contains(&id) => {
                self.learners.insert(id);
            }
            ConfChangeKind::RemoveNode if self.voters.iter().any(|voter| *voter != id) => {
                self.voters.remove(&id);
                self.learners.remove(&id);
            }
            ConfChangeKind::AddNode
            | ConfChangeKind::AddLearnerNode
            | ConfChangeKind::RemoveNode
            | ConfChangeKind::UpdateNode => {}
        }
    }

    /// Returns the counted members with their rows, or `None` if a counted member has no row.
    fn of(&self, members: &Members) -> Option<Members> {
        let list = |ids: &BTreeSet<u64>| ids.iter().copied().collect::<Vec<_>>();
        members.counted_as(&list(&self.voters), &list(&self.learners))
    }
}
