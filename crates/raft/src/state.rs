//! The values a member keeps or reports: hard state, soft state, configuration and snapshots.
//!
//! These are plain data. What must be durable before what is said where it is handed out, in
//! [`Ready`](crate::Ready).

use bytes::Bytes;

use crate::entry::{EntryId, MemberId};
use crate::log_index::LogIndex;
use crate::term::Term;

/// What a member must find again after a crash, besides its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term this member has seen.
    pub term: Term,
    /// Whom it voted for in that term, or [`NONE`](crate::NONE).
    pub vote: MemberId,
    /// The highest index it knows to be committed. Losing it is harmless; it is learnt again.
    pub commit: LogIndex,
}

impl HardState {
    /// Whether nothing was ever recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The part a member plays in the current term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Accepts entries from a leader, or waits for one.
    #[default]
    Follower,
    /// Asks whether an election could be won, without disturbing anybody's term.
    PreCandidate,
    /// Asks for votes in a new term.
    Candidate,
    /// Appends and replicates.
    Leader,
}

/// Volatile state that the application reacts to but never stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftState {
    /// The leader of the current term, as far as known, or [`NONE`](crate::NONE).
    pub leader: MemberId,
    /// This member's role.
    pub role: Role,
}

/// A membership configuration, as recorded in snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Voters; in a joint configuration, those of the incoming half.
    pub voters: Vec<MemberId>,
    /// Members that receive the log but have no vote.
    pub learners: Vec<MemberId>,
    /// Voters of the outgoing half; empty unless the configuration is joint.
    pub voters_outgoing: Vec<MemberId>,
    /// Outgoing voters that become learners when the joint configuration is left.
    pub learners_next: Vec<MemberId>,
    /// Whether the leader leaves the joint configuration by itself.
    pub auto_leave: bool,
}

impl ConfState {
    /// Whether both describe the same configuration, whatever the order of the lists.
    #[must_use]
    pub fn is_equivalent(&self, other: &Self) -> bool {
        self.sorted() == other.sorted()
    }

    fn sorted(&self) -> Self {
        let mut sorted = self.clone();
        sorted.voters.sort_unstable();
        sorted.learners.sort_unstable();
        sorted.voters_outgoing.sort_unstable();
        sorted.learners_next.sort_unstable();
        sorted
    }
}

/// Where in the log a snapshot stands, and who the members were there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotMetadata {
    /// The configuration after the last entry the snapshot covers.
    pub conf_state: ConfState,
    /// The index of that entry.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
}

/// The state machine at one log index, standing in for the log up to there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Opaque to this crate; may be empty when the real image travels another way.
    pub data: Bytes,
    /// Position and membership.
    pub metadata: SnapshotMetadata,
}

impl Snapshot {
    /// Whether this is no snapshot at all: there is none at index zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.metadata.index == LogIndex::ZERO
    }

    /// The identity of the last entry the snapshot covers.
    #[must_use]
    pub fn last_id(&self) -> EntryId {
        EntryId { term: self.metadata.term, index: self.metadata.index }
    }
}

/// The answer to a read barrier: once the state machine has applied `index`, a read of it is
/// linearizable for the request that `context` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadState {
    /// The commit index at the moment leadership was confirmed.
    pub index: LogIndex,
    /// The bytes that were passed to [`Node::read_index`](crate::Node::read_index).
    pub context: Bytes,
}
