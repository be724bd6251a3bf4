//! Reasons why the core refuses a configuration, a proposal or a message.
//!
//! A refusal is a normal result, not a failure of the core. The core refuses a message that would break an invariant. A
//! correct peer never sends such a message. The application logs a refusal according to its [kind](StepError::kind),
//! and stops a member whose own log is damaged.

use thiserror::Error;

use crate::confchange::{ConfChangeError, wire};
use crate::entry::MemberId;
use crate::log_index::LogIndex;
use crate::message::MessageKind;
use crate::term::Term;

/// The reason why a member cannot start with a [`Config`](crate::Config) or a stored state.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Zero and the ids of the storage threads are not valid member ids.
    #[error("{0:x} is not a valid member id")]
    Id(MemberId),
    /// The heartbeat interval must not be zero.
    #[error("heartbeat tick must be greater than 0")]
    HeartbeatTick,
    /// The election timeout is so short that followers would campaign between two heartbeats.
    #[error("election tick must be greater than heartbeat tick")]
    ElectionTick,
    /// The limit on in-flight appends is zero, so no append could ever be sent.
    #[error("max inflight messages must be greater than 0")]
    InflightCount,
    /// A single full message would exceed the limit on in-flight bytes.
    #[error("max inflight bytes must be >= max message size")]
    InflightBytes,
    /// Lease-based reads require check-quorum, because a leader has no lease without it.
    #[error("CheckQuorum must be enabled when ReadOnlyOption is ReadOnlyLeaseBased")]
    LeaseWithoutCheckQuorum,
    /// The stored configuration contradicts itself.
    #[error("the stored configuration cannot be restored")]
    ConfState(#[source] ConfChangeError),
    /// The stored term is so high that no election could follow.
    #[error("the stored term {0} is implausibly high: no election could follow it")]
    Term(Term),
    /// The stored commit index is not in the stored log.
    #[error("commit {commit} is out of range [{first}, {last}]")]
    Commit {
        /// The stored commit index.
        commit: LogIndex,
        /// The last compacted index, which is certain to be committed.
        first: LogIndex,
        /// The last index of the log.
        last: LogIndex,
    },
    /// The applied index is not between the last compacted index and the commit index.
    #[error("applied {applied} is out of range [{first}, {commit}]")]
    Applied {
        /// The configured applied index.
        applied: LogIndex,
        /// The last compacted index.
        first: LogIndex,
        /// The commit index of the log.
        commit: LogIndex,
    },
}

/// The reason why a proposal or a message was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// The proposal was dropped because there is no leader, the leader has left the group, a
    /// transfer is in progress, too many bytes are uncommitted, or forwarding is disabled. The
    /// caller may propose it again.
    #[error("raft proposal dropped")]
    ProposalDropped,
    /// A message of a local kind came from another member, or a response from a storage thread has
    /// the wrong kind, sender or recipient.
    #[error("raft: cannot step raft local message")]
    LocalMessage,
    /// A response came from a sender outside the group.
    #[error("raft: cannot step as peer not found")]
    PeerNotFound,
    /// The message lacks its sender or its term, or claims to come from this member itself.
    #[error("{kind} from {from:x} at term {term}: the sender or the term is invalid")]
    Sender {
        /// The message's kind.
        kind: MessageKind,
        /// The sender of the message.
        from: MemberId,
        /// The term of the message.
        term: Term,
    },
    /// An index or a log term is implausibly large, or a log term is higher than the term of the message.
    #[error("{kind} from {from:x} carries an implausibly high index or log term")]
    OutOfRange {
        /// The message's kind.
        kind: MessageKind,
        /// The sender of the message.
        from: MemberId,
    },
    /// The term is implausibly far ahead; accepting it could make further elections impossible.
    #[error(
        "{kind} from {from:x} carries term {term}, which is implausibly far ahead of term {own}"
    )]
    Term {
        /// The message's kind.
        kind: MessageKind,
        /// The sender of the message.
        from: MemberId,
        /// The term of the message.
        term: Term,
        /// The term of this member.
        own: Term,
    },
    /// The proposal has no entries.
    #[error("the proposal has no entries")]
    EmptyProposal,
    /// The proposed membership change cannot be decoded.
    #[error("the proposed membership change cannot be decoded")]
    ConfChange(#[from] wire::DecodeError),
    /// The read request does not carry exactly one context.
    #[error("the read index request has {0} contexts instead of one")]
    ReadContexts(usize),
    /// The entries of an append are not consecutive, or their terms decrease.
    #[error("append after index {prev_index} has inconsistent entries at position {position}")]
    InconsistentEntries {
        /// The index before the first entry.
        prev_index: LogIndex,
        /// The position of the first inconsistent entry.
        position: usize,
    },
    /// The leader relies on entries that this member has acknowledged but that are missing from this member's log.
    #[error(
        "leader {leader:x} relies on acknowledged log entries up to index {commit}, but the log of this member \
         ends at index {last_index}: it has lost entries"
    )]
    CommitBeyondLog {
        /// The leader that sent the message.
        leader: MemberId,
        /// The commit index in the message.
        commit: LogIndex,
        /// The last index of this member's log.
        last_index: LogIndex,
    },
    /// The leader lacks entries that are committed on this member. It was elected by members that had lost those
    /// entries.
    #[error(
        "leader {leader:x} has an entry of term {term} at index {index} of its log, which contradicts the \
         entry of term {own_term} that is committed at index {own_index} on this member: the cluster has \
         lost acknowledged entries that this member still has"
    )]
    CommitContradicted {
        /// The leader that sent the message.
        leader: MemberId,
        /// The index of the leader's entry.
        index: LogIndex,
        /// The term of the leader's entry.
        term: Term,
        /// Index of a committed entry in this member's log. No log can contain both this entry and the leader's entry.
        own_index: LogIndex,
        /// The term of the entry at that index.
        own_term: Term,
    },
    /// A follower acknowledged entries that this leader does not have.
    #[error(
        "{from:x} acknowledges log entries up to index {index}, but the log of this leader ends at index \
         {last_index}: the cluster may have lost acknowledged entries that {from:x} still has"
    )]
    AcknowledgedBeyondLog {
        /// The follower that sent the acknowledgement.
        from: MemberId,
        /// The acknowledged index.
        index: LogIndex,
        /// The last index of this member's log.
        last_index: LogIndex,
    },
    /// The configuration in a snapshot contradicts itself.
    #[error("the configuration in the snapshot contradicts itself")]
    SnapshotConfState(#[source] ConfChangeError),
}

/// The consequence of a refusal for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The refusal does not indicate a problem, because it also occurs among correct members.
    Ordinary,
    /// The sender is faulty: a correct member never sends such a message.
    Impossible,
    /// Another member has acknowledged entries that are missing from this member's log. This member cannot determine
    /// which log is damaged.
    Discord,
    /// This member's log has lost acknowledged entries. The member must not vote again.
    LogLost,
    /// The group lacks entries that are committed on this member. The member must leave the group.
    GroupLost,
}

impl StepError {
    /// Returns the consequence of the refusal for the group.
    #[must_use]
    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::ProposalDropped | Self::PeerNotFound => RefusalKind::Ordinary,
            Self::LocalMessage
            | Self::Sender { .. }
            | Self::OutOfRange { .. }
            | Self::Term { .. }
            | Self::EmptyProposal
            | Self::ConfChange(_)
            | Self::ReadContexts(_)
            | Self::InconsistentEntries { .. }
            | Self::SnapshotConfState(_) => RefusalKind::Impossible,
            Self::AcknowledgedBeyondLog { .. } => RefusalKind::Discord,
            Self::CommitBeyondLog { .. } => RefusalKind::LogLost,
            Self::CommitContradicted { .. } => RefusalKind::GroupLost,
        }
    }
}
