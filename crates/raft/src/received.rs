//! A message of another member, or a member's own acknowledgement, typed by the role of its sender.
//!
//! [`Message`] has the fields of every kind, like the wire format. Here, each kind has only the
//! fields that it uses, and the kinds are grouped by sender, so that one match decides what a role
//! does with a group. Kinds that never travel between members have no form here: the application
//! calls a method of [`Node`](crate::Node) instead.
//!
//! `Node` checks positions and senders before it converts a message.

use bytes::Bytes;

use crate::entry::{Entry, EntryId, EntryKind, MemberId};
use crate::error::StepError;
use crate::log_index::LogIndex;
use crate::message::{Message, MessageKind};
use crate::state::{ReadState, Snapshot};
use crate::term::Term;

/// The context of a vote request after a leader transfer, which overrides leases.
pub(crate) const TRANSFER_CONTEXT: &[u8] = b"CampaignTransfer";

/// A message to process.
#[derive(Debug)]
pub(crate) struct Received {
    /// The kind, for log lines.
    pub(crate) kind: MessageKind,
    pub(crate) from: MemberId,
    /// The term of the sender, or zero for a request that has no term.
    pub(crate) term: Term,
    pub(crate) body: Body,
}

/// The content of a message.
#[derive(Debug)]
pub(crate) enum Body {
    /// A request for the leader of the group. Followers forward it.
    Request(Request),
    /// The leader of the term replicates its log.
    Replication(Replication),
    /// A follower answers the leader of the term.
    Acknowledgement(Acknowledgement),
    /// A candidate asks for a vote.
    VoteRequest(VoteRequest),
    /// A voter answers a candidate.
    Vote(Vote),
    /// The leader of the term asks its successor to campaign at once.
    TimeoutNow,
    /// The leader of the term answers a read request.
    ReadAnswer(ReadState),
}

/// A request for the leader of the group.
#[derive(Debug)]
pub(crate) enum Request {
    /// Append these entries.
    Propose(Vec<Entry>),
    /// Find an index from which on a read with this context is linearizable.
    ReadIndex(Bytes),
    /// Transfer leadership to the sender.
    TransferLeader,
}

/// The messages with which the leader of a term replicates its log.
#[derive(Debug)]
pub(crate) enum Replication {
    Append(Append),
    Heartbeat(Heartbeat),
    /// Replace the log by the snapshot.
    Snapshot(Box<Snapshot>),
}

/// Entries that follow the entry `previous`.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) previous: EntryId,
    pub(crate) entries: Vec<Entry>,
    /// The leader's commit index.
    pub(crate) commit: LogIndex,
}

/// Proof that the leader still leads.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    /// An index that is committed and that the recipient has.
    pub(crate) commit: LogIndex,
    /// Bytes that the recipient echoes.
    pub(crate) context: Bytes,
}

/// The answer of a follower.
#[derive(Debug)]
pub(crate) enum Acknowledgement {
    /// The log matches the leader's up to this index.
    Appended(LogIndex),
    AppendRefused(AppendRefused),
    /// The echo of a heartbeat's context.
    Heartbeat(Bytes),
}

/// The append did not fit to the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AppendRefused {
    /// The index before the first entry of the append.
    pub(crate) rejected: LogIndex,
    /// Where the logs may agree. The term is zero if the follower does not know it.
    pub(crate) hint: EntryId,
}

/// Which of the two rounds of an election a vote belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Round {
    /// Would the voter vote for the candidate? The term has not been entered yet.
    PreVote,
    /// The vote.
    Vote,
}

impl Round {
    /// The kind of the request.
    pub(crate) fn request(self) -> MessageKind {
        match self {
            Self::PreVote => MessageKind::PreVote,
            Self::Vote => MessageKind::Vote,
        }
    }

    /// The kind of the response.
    pub(crate) fn response(self) -> MessageKind {
        match self {
            Self::PreVote => MessageKind::PreVoteResponse,
            Self::Vote => MessageKind::VoteResponse,
        }
    }
}

/// A candidate's request.
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

/// A voter's answer.
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
        // A request that is forwarded to a leader has no term.
        let term = match kind.carries_term() || kind == MessageKind::TransferLeader {
            true => term,
            false => Term::ZERO,
        };
        Ok(Self { kind, from, term, body })
    }
}

/// The context of a read request, which is the data of its only entry.
fn read_context(mut entries: Vec<Entry>) -> Result<Bytes, StepError> {
    match (entries.pop(), entries.len()) {
        (Some(entry), 0) => Ok(entry.data),
        (None, _) => Err(StepError::ReadContexts(0)),
        (Some(_), others) => Err(StepError::ReadContexts(others + 1)),
    }
}

/// The entries of a message that carries the context of a read request.
pub(crate) fn read_entries(context: Bytes) -> Vec<Entry> {
    vec![Entry::proposal(EntryKind::Normal, context)]
}
