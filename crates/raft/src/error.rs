//! Reasons why the core refuses a configuration, a proposal or a message.
//!
//! A refusal is a normal result; the core itself has no failures. A message is refused if it would
//! break an invariant, which a message of a correct peer never does. The application logs a refusal
//! according to its [kind](StepError::kind), and stops a member whose own log is damaged.

use thiserror::Error;

use crate::confchange::{ConfChangeError, wire};
use crate::entry::MemberId;
use crate::log_index::LogIndex;
use crate::message::MessageKind;
use crate::term::Term;

/// Why a member cannot start with a [`Config`](crate::Config) or a stored state.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Zero and the ids of the storage threads are not ids of members.
    #[error("{0:x} cannot be a member's id")]
    Id(MemberId),
    /// A leader must send heartbeats at an interval.
    #[error("heartbeat tick must be greater than 0")]
    HeartbeatTick,
    /// Followers would campaign between two heartbeats.
    #[error("election tick must be greater than heartbeat tick")]
    ElectionTick,
    /// No append could ever be sent.
    #[error("max inflight messages must be greater than 0")]
    InflightCount,
    /// One full message would already exceed the limit.
    #[error("max inflight bytes must be >= max message size")]
    InflightBytes,
    /// Without check-quorum, a leader has no lease for reads.
    #[error("CheckQuorum must be enabled when ReadOnlyOption is ReadOnlyLeaseBased")]
    LeaseWithoutCheckQuorum,
    /// The stored configuration contradicts itself.
    #[error("the stored configuration cannot be restored")]
    ConfState(#[source] ConfChangeError),
    /// The stored term leaves no room for elections.
    #[error("the stored term {0} cannot be genuine, and no election could follow it")]
    Term(Term),
    /// The stored commit index is not in the stored log.
    #[error("commit {commit} is out of range [{first}, {last}]")]
    Commit {
        /// The stored commit index.
        commit: LogIndex,
        /// The last index that the log alone proves to be committed.
        first: LogIndex,
        /// The end of the log.
        last: LogIndex,
    },
    /// The applied index is not between the log's beginning and the commit index.
    #[error("applied {applied} is out of range [{first}, {commit}]")]
    Applied {
        /// The configured index.
        applied: LogIndex,
        /// The last compacted index.
        first: LogIndex,
        /// The commit index.
        commit: LogIndex,
    },
}

/// Why a proposal or a message was refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// The proposal was dropped: there is no leader, a transfer is in progress, too many bytes are
    /// uncommitted, or forwarding is disabled. It may be proposed again.
    #[error("raft proposal dropped")]
    ProposalDropped,
    /// A message of a local kind came from outside.
    #[error("raft: cannot step raft local message")]
    LocalMessage,
    /// A response from a sender that is not a member.
    #[error("raft: cannot step as peer not found")]
    PeerNotFound,
    /// The message lacks its sender or its term, or claims to come from this member itself.
    #[error("{kind} from {from:x} at term {term} has no valid sender or term")]
    Sender {
        /// The message's kind.
        kind: MessageKind,
        /// Its sender.
        from: MemberId,
        /// Its term.
        term: Term,
    },
    /// An index is too large to be genuine, or a log term is higher than the term of the message.
    #[error("{kind} from {from:x} carries an index or a log term beyond any real one")]
    OutOfRange {
        /// The message's kind.
        kind: MessageKind,
        /// Its sender.
        from: MemberId,
    },
    /// The term is too far ahead to be genuine, and would leave no room for elections.
    #[error(
        "{kind} from {from:x} carries term {term}, which no election can have led to from term {own}"
    )]
    Term {
        /// The message's kind.
        kind: MessageKind,
        /// Its sender.
        from: MemberId,
        /// Its term.
        term: Term,
        /// The term of this member.
        own: Term,
    },
    /// A proposal without entries.
    #[error("proposal without entries")]
    EmptyProposal,
    /// A proposal of a membership change that cannot be decoded.
    #[error("proposal of an unreadable membership change")]
    ConfChange(#[from] wire::DecodeError),
    /// A read request that does not carry exactly one context.
    #[error("read index request with {0} contexts")]
    ReadContexts(usize),
    /// The entries of an append are not consecutive, or their terms decrease.
    #[error("append after index {prev_index} has inconsistent entries at position {position}")]
    InconsistentEntries {
        /// The index before the first entry.
        prev_index: LogIndex,
        /// The position of the first entry that is inconsistent.
        position: usize,
    },
    /// The leader relies on entries that this member has acknowledged but that its log lacks.
    #[error(
        "leader {leader:x} counts on the acknowledgement of log entries up to index {commit}, and the log of \
         this member ends at index {last_index}: it has lost entries"
    )]
    CommitBeyondLog {
        /// The leader.
        leader: MemberId,
        /// The commit index in the message.
        commit: LogIndex,
        /// The end of this log.
        last_index: LogIndex,
    },
    /// The leader lacks entries that are committed here: members that had lost them have elected
    /// it.
    #[error(
        "leader {leader:x} has an entry of term {term} at index {index} of its log, which contradicts the \
         entry of term {own_term} that is committed at index {own_index} on this member: the cluster has \
         lost entries that were acknowledged, and this member still has them"
    )]
    CommitContradicted {
        /// The leader.
        leader: MemberId,
        /// The index of the leader's entry.
        index: LogIndex,
        /// The term of the leader's entry.
        term: Term,
        /// A committed index at or before which the logs differ, or at which this log is ahead.
        own_index: LogIndex,
        /// The term at that index.
        own_term: Term,
    },
    /// A follower acknowledged entries that this leader does not have.
    #[error(
        "{from:x} acknowledges log entries up to index {index}, and the log of this leader ends at index \
         {last_index}: the cluster may have lost entries that were acknowledged, which {from:x} still has"
    )]
    AcknowledgedBeyondLog {
        /// The follower.
        from: MemberId,
        /// The index it acknowledged.
        index: LogIndex,
        /// The end of this log.
        last_index: LogIndex,
    },
    /// The configuration in a snapshot contradicts itself.
    #[error("the configuration in the snapshot contradicts itself")]
    SnapshotConfState(#[source] ConfChangeError),
}

/// The meaning of a refusal for the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// None: it happens among correct members.
    Ordinary,
    /// No correct member sends this.
    Impossible,
    /// Another member has committed entries that this one does not have. This member cannot
    /// determine which log is damaged.
    Discord,
    /// The log of this member has lost entries that it had acknowledged. It must not vote again.
    LogLost,
    /// The group lacks entries that are committed here. This member must leave it.
    GroupLost,
}

impl StepError {
    /// The meaning of the refusal for the group.
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
