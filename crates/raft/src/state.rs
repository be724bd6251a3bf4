//! Values that a member stores or reports: hard state, soft state, configuration and snapshots.
//!
//! The types in this file are plain data. [`Ready`](crate::Ready), which returns them, documents
//! which data must be durable before a message is sent.

use bytes::Bytes;

use crate::entry::{EntryId, MemberId};
use crate::log_index::LogIndex;
use crate::term::Term;

/// The durable state of a member except its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term known to this member.
    pub term: Term,
    /// The member that received this member's vote in that term, or [`NONE`](crate::NONE).
    pub vote: MemberId,
    /// The highest index known to be committed. Losing it is harmless, because the member receives
    /// it again from the leader.
    pub commit: LogIndex,
}

impl HardState {
    /// Returns whether the member has never recorded a hard state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The role of a member in the current term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Accepts entries from a leader, or waits for a leader.
    #[default]
    Follower,
    /// Asks whether it could win an election, without changing any member's term.
    PreCandidate,
    /// Requests votes in a new term.
    Candidate,
    /// Appends proposals and replicates the log.
    Leader,
}

/// Volatile state to which the application reacts but which it never stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftState {
    /// The known leader of the current term, or [`NONE`](crate::NONE).
    pub leader: MemberId,
    /// This member's role.
    pub role: Role,
}

/// A membership configuration, as recorded in snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Voters. In a joint configuration, these are the voters of the incoming half.
    pub voters: Vec<MemberId>,
    /// Members that receive the log but have no vote.
    pub learners: Vec<MemberId>,
    /// Voters of the outgoing half; empty unless the configuration is joint.
    pub voters_outgoing: Vec<MemberId>,
    /// Outgoing voters that become learners when the joint configuration is left.
    pub learners_next: Vec<MemberId>,
    /// Whether the leader leaves the joint configuration automatically.
    pub auto_leave: bool,
}

impl ConfState {
    /// Returns whether both states describe the same configuration. The order of the lists does not matter.
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

/// The log position of a snapshot, and the members at that position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotMetadata {
    /// The configuration after the last entry that the snapshot covers.
    pub conf_state: ConfState,
    /// The index of the last entry that the snapshot covers.
    pub index: LogIndex,
    /// The term of the last entry that the snapshot covers.
    pub term: Term,
}

/// The state machine at one log index, which replaces the log up to that index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The state machine image, which this crate does not interpret. Empty if the image is
    /// transferred separately.
    pub data: Bytes,
    /// Log position and membership at that position.
    pub metadata: SnapshotMetadata,
}

impl Snapshot {
    /// Returns whether this value means that there is no snapshot. The index of a snapshot is never
    /// zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.metadata.index == LogIndex::ZERO
    }

    /// Returns the identity of the last entry that the snapshot covers.
    #[must_use]
    pub fn last_id(&self) -> EntryId {
        EntryId { term: self.metadata.term, index: self.metadata.index }
    }
}

/// The response to a read index request. Once the state machine has applied `index`, a read reflects every write that
/// was acknowledged before the request with this `context`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadState {
    /// The commit index that the leader recorded for the request before it confirmed its
    /// leadership.
    pub index: LogIndex,
    /// The bytes passed to [`Node::read_index`](crate::Node::read_index).
    pub context: Bytes,
}
