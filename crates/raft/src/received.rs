//! A message from another member, or this member's own acknowledgement, with a separate type for each role that the
//! sender can have.
//!
//! [`Message`] has the fields of every kind, like the wire format. Here, each kind has only the fields that it uses,
//! and the kinds are grouped by the sender's role, so that a single `match` decides how a role handles a group. Kinds
//! that never travel between members are absent, because the application calls a method of [`Node`](crate::Node) for
//! them instead.
//!
//! `Node` checks terms, indexes and senders before it converts a message.

use bytes::Bytes;

use crate::entry::{Entry, EntryId, EntryKind, MemberId};
use crate::error::StepError;
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::state::{ReadState, Snapshot};
use crate::term::Term;

/// The context of a vote request that follows a leadership transfer. Voters do not ignore such a
/// request during the leader's lease.
pub(crate) const TRANSFER_CONTEXT: &[u8] = b"CampaignTransfer";

/// A message to process.
#[derive(Debug)]
pub(crate) struct Received {
    /// Kind of the message, for log lines.
    pub(crate) kind: MessageKind,
    pub(crate) from: MemberId,
    /// The term in the message, or zero if the message has no term.
    pub(crate) term: Term,
    pub(crate) body: Body,
}

/// The content of a message.
#[derive(Debug)]
pub(crate) enum Body {
    /// A request for the leader of the group. Followers forward it.
    Request(Request),
    /// A message with which the leader of the term replicates its log.
    Replication(Replication),
    /// A follower's response to the leader of the term.
    Acknowledgement(Acknowledgement),
    /// A candidate's request for a vote.
    VoteRequest(VoteRequest),
    /// A voter's response to a candidate.
    Vote(Vote),
    /// The term's leader requests that its successor campaign immediately.
    TimeoutNow,
    /// The leader's response to a read request.
    ReadAnswer(ReadState),
}

/// A request for the leader of the group.
#[derive(Debug)]
pub(crate) enum Request {
    /// A request to append these entries.
    Propose(Vec<Entry>),
    /// A read index request with this context.
    ReadIndex(Bytes),
    /// A request to transfer leadership to the sender.
    TransferLeader,
}

/// The messages with which the leader of a term replicates its log.
#[derive(Debug)]
pub(crate) enum Replication {
    Append(Append),
    Heartbeat(Heartbeat),
    /// A snapshot that replaces the log.
    Snapshot(Box<Snapshot>),
}

/// Entries to append after the entry `previous`.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) previous: EntryId,
    pub(crate) entries: Vec<Entry>,
    /// The leader's commit index.
    pub(crate) commit: LogIndex,
}

/// A heartbeat, which shows that the leader still leads.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    /// A committed index that the recipient's log is known to contain.
    pub(crate) commit: LogIndex,
    /// Bytes that the recipient echoes.
    pub(crate) context: Bytes,
}

/// A follower's response to the leader.
#[derive(Debug)]
pub(crate) enum Acknowledgement {
    /// The follower's log matches the leader's log up to this index.
    Appended(LogIndex),
    AppendRefused(AppendRefused),
    /// The echo of a heartbeat's context.
    Heartbeat(Bytes),
}

/// The response to an append whose previous entry is not in the follower's log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppendRefused {
    /// The index before the first entry of the append.
    pub(crate) rejected: LogIndex,
    /// The position at which the logs may agree. The term is zero if the follower does not know it.
    pub(crate) hint: EntryId,
}

/// A round of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// The pre-vote: asks whether the voter would vote for the candidate. The candidate has not entered the term yet.
    PreVote,
    /// The actual vote.
    Vote,
}

impl Round {
    /// Returns the message kind of this round's request.
    pub(crate) fn request(self) -> MessageKind {
        match self {
            Self::PreVote => MessageKind::PreVote,
            Self::Vote => MessageKind::Vote,
        }
    }

    /// Returns the message kind of this round's response.
    pub(crate) fn response(self) -> MessageKind {
        match self {
            Self::PreVote => MessageKind::PreVoteResponse,
            Self::Vote => MessageKind::VoteResponse,
        }
    }
}

/// A candidate's request for a vote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VoteRequest {
    pub(crate) round: Round,
    pub(crate) candidate: MemberId,
    pub(crate) term: Term,
    /// The last entry of the candidate's log.
    pub(crate) last: EntryId,
    /// Whether the leader asked the candidate to campaign.
    pub(crate) is_transfer: bool,
}

/// A voter's response to a candidate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vote {
    pub(crate) round: Round,
    pub(crate) is_granted: bool,
}

impl TryFrom<Message> for Received {
    type Error = StepError;

    fn try_from(message: Message) -> Result<Self, StepError> {
        let Message { kind, from, term, index, log_term, commit, reject, context, .. } = message;
        let entry_count = message.entries.len();
        let position = EntryId { term: log_term, index };
        let vote_request = |round| {
            let is_transfer = context == TRANSFER_CONTEXT;
            Body::VoteRequest(VoteRequest {
                round,
                candidate: from,
                term,
                last: position,
                is_transfer,
            })
        };
        let body = match kind {
            MessageKind::Propose if entry_count == 0 => return Err(StepError::EmptyProposal),
            MessageKind::Propose => Body::Request(Request::Propose(message.entries)),
            MessageKind::ReadIndex => {
                Body::Request(Request::ReadIndex(read_context(message.entries)?))
            }
            MessageKind::TransferLeader => Body::Request(Request::TransferLeader),
            MessageKind::Append => Body::Replication(Replication::Append(Append {
                previous: position,
                entries: message.entries,
                commit,
            })),
            MessageKind::Heartbeat => {
                Body::Replication(Replication::Heartbeat(Heartbeat { commit, context }))
            }
            MessageKind::Snapshot => {
                Body::Replication(Replication::Snapshot(message.snapshot.unwrap_or_default()))
            }
            MessageKind::AppendResponse if reject => {
                let hint = EntryId { term: log_term, index: message.reject_hint };
                let refused = AppendRefused { rejected: index, hint };
                Body::Acknowledgement(Acknowledgement::AppendRefused(refused))
            }
            MessageKind::AppendResponse => Body::Acknowledgement(Acknowledgement::Appended(index)),
            MessageKind::HeartbeatResponse => {
                Body::Acknowledgement(Acknowledgement::Heartbeat(context))
            }
            MessageKind::PreVote => vote_request(Round::PreVote),
            MessageKind::Vote => vote_request(Round::Vote),
            MessageKind::PreVoteResponse => {
                Body::Vote(Vote { round: Round::PreVote, is_granted: !reject })
            }
            MessageKind::VoteResponse => {
                Body::Vote(Vote { round: Round::Vote, is_granted: !reject })
            }
            MessageKind::TimeoutNow => Body::TimeoutNow,
            MessageKind::ReadIndexResponse => {
                Body::ReadAnswer(ReadState { index, context: read_context(message.entries)? })
            }
            MessageKind::Hup
            | MessageKind::Beat
            | MessageKind::Unreachable
            | MessageKind::SnapshotStatus
            | MessageKind::CheckQuorum
            | MessageKind::StorageAppend
            | MessageKind::StorageAppendResponse
            | MessageKind::StorageApply
            | MessageKind::StorageApplyResponse
            | MessageKind::ForgetLeader => return Err(StepError::LocalMessage),
        };
        // A proposal or a read request has no term, even if it has been forwarded. A term in a transfer request shows
        // that the request has been forwarded before.
        let term = match kind.carries_term() || kind == MessageKind::TransferLeader {
            true => term,
            false => Term::ZERO,
        };
        Ok(Self { kind, from, term, body })
    }
}

/// Returns the context of a read request, which is the data of its only entry.
fn read_context(mut entries: Vec<Entry>) -> Result<Bytes, StepError> {
    match (entries.pop(), entries.len()) {
        (Some(entry), 0) => Ok(entry.data),
        (None, _) => Err(StepError::ReadContexts(0)),
        (Some(_), others) => Err(StepError::ReadContexts(others + 1)),
    }
}

/// Returns the entries of a message that carries a read request's context.
pub(crate) fn read_entries(context: Bytes) -> Vec<Entry> {
    vec![Entry::proposal(EntryKind::Normal, context)]
}
