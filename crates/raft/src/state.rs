//! The values a member keeps or reports: hard state, soft state, configuration and snapshots.
//!
//! These are plain data. [`Ready`](crate::Ready), which returns them, documents what must be
//! durable before which message.

use bytes::Bytes;

use crate::entry::{EntryId, MemberId};
use crate::log_index::LogIndex;
use crate::term::Term;

/// The state besides the log that a member must find again after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term this member has seen.
    pub term: Term,
    /// The member that received this member's vote in that term, or [`NONE`](crate::NONE).
    pub vote: MemberId,
    /// The highest index known to be committed. Its loss is harmless, because the member learns it
    /// again.
    pub commit: LogIndex,
}

impl HardState {
    /// Whether no hard state was ever recorded.
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
    /// Finds out whether an election could be won, without changing any member's term.
    PreCandidate,
    /// Requests votes in a new term.
    Candidate,
    /// Appends proposals and replicates the log.
    Leader,
}

/// Volatile state that the application reacts to but never stores.
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
    /// Voters; in a joint configuration, those of the incoming half.
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
    /// Whether both describe the same configuration, in any order of the lists.
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
    /// The configuration after the last entry the snapshot covers.
    pub conf_state: ConfState,
    /// The index of that entry.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: Term,
}

/// The state machine at one log index, which replaces the log up to that index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Opaque to this crate; may be empty if the image is transferred separately.
    pub data: Bytes,
    /// Position and membership.
    pub metadata: SnapshotMetadata,
}

impl Snapshot {
    /// Whether there is no snapshot: a snapshot never has index zero.
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

/// The answer to a read index request: when the state machine has applied `index`, a read of it is
/// linearizable for the request with this `context`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadState {
    /// The commit index at the moment leadership was confirmed.
    pub index: LogIndex,
    /// The bytes that were passed to [`Node::read_index`](crate::Node::read_index).
    pub context: Bytes,
}
