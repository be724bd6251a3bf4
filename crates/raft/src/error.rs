//! Why the core refuses a configuration, a proposal or a message.
//!
//! Everything here is an answer, not a failure of this machine: the core has none of those. A
//! message is refused when acting on it would break an invariant, which a correct peer never asks
//! for; the application logs the refusal, and treats those that [say so](StepError::is_log_damage)
//! as damage to a member's log.

use thiserror::Error;

use crate::confchange::{ConfChangeError, wire};
use crate::entry::{LogIndex, MemberId, Term};
use crate::message::MessageKind;

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
    /// A term or an index is so large that it cannot be genuine, and arithmetic would overflow.
    #[error("{0} carries a term or index beyond any real one")]
    OutOfRange(MessageKind),
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
    /// The leader counts on entries that this log does not have.
    #[error("commit {commit} is out of range [last index {last_index}]: was the log lost?")]
    CommitBeyondLog {
        /// The commit index in the message.
        commit: LogIndex,
        /// The end of this log.
        last_index: LogIndex,
    },
    /// A follower acknowledged entries that this leader does not have.
    #[error("{from:x} acknowledges index {index} beyond the last index {last_index}")]
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

impl StepError {
    /// Whether the refusal means that a log, this member's or the sender's, has lost or changed
    /// committed entries. Going on without an operator would risk more of them.
    #[must_use]
    pub fn is_log_damage(&self) -> bool {
        matches!(self, Self::CommitBeyondLog { .. } | Self::AcknowledgedBeyondLog { .. })
    }
}
