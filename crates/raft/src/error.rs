//! Why the core refuses a configuration, a proposal or a message.
//!
//! Everything here is an answer, not a failure of this machine: the core has none of those. A
//! message is refused when acting on it would break an invariant, which a correct peer never asks
//! for; the application logs the refusal as its [kind](StepError::kind) deserves, and stops a member
//! whose own log is damaged.

use thiserror::Error;

use crate::confchange::{ConfChangeError, wire};
use crate::entry::MemberId;
use crate::log_index::LogIndex;
use crate::message::MessageKind;
use crate::term::Term;

/// Why a [`Config`](crate::Config) or a stored state cannot be started from.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Zero and the numbers of the storage threads are nobody's id.
    #[error("{0:x} cannot be a member's id")]
    Id(MemberId),
    /// A leader has to send heartbeats at some interval.
    #[error("heartbeat tick must be greater than 0")]
    HeartbeatTick,
    /// Followers would campaign between two heartbeats.
    #[error("election tick must be greater than heartbeat tick")]
    ElectionTick,
    /// Nothing could ever be sent.
    #[error("max inflight messages must be greater than 0")]
    InflightCount,
    /// Not even one full message could be in flight.
    #[error("max inflight bytes must be >= max message size")]
    InflightBytes,
    /// Without quorum checks a leader has no lease to base reads on.
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
        /// The last index known to be committed from the log alone.
        first: LogIndex,
        /// The end of the log.
        last: LogIndex,
    },
    /// The applied index is not between the log's beginning and the commit index.
    #[error("applied {applied} is out of range [{first}, {commit}]")]
    Applied {
        /// The configured index.
        applied: LogIndex,
        /// The last index compacted away.
        first: LogIndex,
        /// The commit index.
        commit: LogIndex,
    },
}

/// Why a proposal or a message was not acted upon.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepError {
    /// The proposal went nowhere: no leader, a transfer under way, too much uncommitted, or
    /// forwarding disabled. It may be proposed again.
    #[error("raft proposal dropped")]
    ProposalDropped,
    /// A kind that members only send to themselves came from outside.
    #[error("raft: cannot step raft local message")]
    LocalMessage,
    /// An answer from somebody who is not a member.
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
    /// An index is so large that it cannot be genuine, or a log is ahead of the term it is spoken of in.
    #[error("{kind} from {from:x} carries an index or a log term beyond any real one")]
    OutOfRange {
        /// The message's kind.
        kind: MessageKind,
        /// Its sender.
        from: MemberId,
    },
    /// A term so far ahead that it cannot be genuine, and would leave no room for elections.
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
    /// A proposal of a membership change that cannot be read.
    #[error("proposal of an unreadable membership change")]
    ConfChange(#[from] wire::DecodeError),
    /// A read request that does not carry exactly one context.
    #[error("read index request with {0} contexts")]
    ReadContexts(usize),
    /// The entries of an append are not consecutive, or their terms go back.
    #[error("append after index {prev_index} has inconsistent entries at position {position}")]
    InconsistentEntries {
        /// The index before the first entry.
        prev_index: LogIndex,
        /// The position of the first entry that does not fit.
        position: usize,
    },
    /// The leader counts on entries that this member has acknowledged and its log does not have.
    #[error(
        "leader {leader:x} counts on the acknowledgement of log entries up to index {commit}, and the log of \
         this member ends at index {last_index}: it has lost entries"
    )]
    CommitBeyondLog {
        /// Who says so.
        leader: MemberId,
        /// The commit index in the message.
        commit: LogIndex,
        /// The end of this log.
        last_index: LogIndex,
    },
    /// The leader does not have what is committed here: it was elected by members that had lost it.
    #[error(
        "leader {leader:x} has an entry of term {term} at index {index} of its log, which contradicts the \
         entry of term {own_term} that is committed at index {own_index} on this member: the cluster has \
         lost entries that were acknowledged, and this member still has them"
    )]
    CommitContradicted {
        /// Whose log it is.
        leader: MemberId,
        /// The position of its entry.
        index: LogIndex,
        /// The term of its entry.
        term: Term,
        /// A committed position at or before which the logs differ, or at which this one is ahead.
        own_index: LogIndex,
        /// The term there.
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
    #[error("snapshot with an impossible configuration")]
    SnapshotConfState(#[source] ConfChangeError),
}

/// What a refusal says about the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// Nothing: it happens among correct members.
    Ordinary,
    /// No correct member sends this.
    Impossible,
    /// Another member has committed entries that this one does not have. Which log is damaged cannot be told
    /// from here.
    Discord,
    /// The log of this member has lost entries that it had acknowledged. It must not vote again.
    LogLost,
    /// The group does not have the entries that are committed here. This member has no place in it.
    GroupLost,
}

impl StepError {
    /// What the refusal says about the group.
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
