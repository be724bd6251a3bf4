//! Messages between members, and between a member and its own storage threads.
//!
//! All messages share one flat type with the fields of `raftpb.Message`, so that the transport can convert a message
//! field by field. The documentation of each kind names the fields that it uses.
//! Numbers and printed names come from the wire protocol, because operators know the names from
//! etcd's logs.
//!
//! The crate that owns the transport implements the encoding.

use std::fmt;

use bytes::Bytes;

use crate::entry::{Entry, MemberId};
use crate::log_index::LogIndex;
use crate::state::Snapshot;
use crate::term::Term;

/// The recipient of [`MessageKind::StorageAppend`]: the thread that writes this member's log.
pub const LOCAL_APPEND: MemberId = u64::MAX;

/// The recipient of [`MessageKind::StorageApply`]: the thread that runs this member's state
/// machine.
pub const LOCAL_APPLY: MemberId = u64::MAX - 1;

/// Returns whether `id` identifies one of this member's storage threads instead of a member.
#[must_use]
pub fn is_local_target(id: MemberId) -> bool {
    id == LOCAL_APPEND || id == LOCAL_APPLY
}

/// The kind of a message. The discriminants are the wire values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(i32)]
pub enum MessageKind {
    /// Local: start an election.
    #[default]
    Hup = 0,
    /// Local: send heartbeats.
    Beat = 1,
    /// Append `entries` to the log; a follower forwards the message to its leader.
    Propose = 2,
    /// From the leader: append `entries` after the entry (`log_term`, `index`); entries up to
    /// `commit` are committed.
    Append = 3,
    /// From a follower: its log matches up to `index`. With `reject`: its log does not contain the append's preceding
    /// entry, which is at `index`; the logs may agree at (`log_term`, `reject_hint`).
    AppendResponse = 4,
    /// From a candidate: request for a vote in `term`. The candidate's log ends at (`log_term`,
    /// `index`).
    Vote = 5,
    /// Response to `Vote`: the vote is granted or, with `reject`, denied.
    VoteResponse = 6,
    /// From the leader: replace the log with `snapshot`.
    Snapshot = 7,
    /// From the leader, as proof that it still leads: `commit` is committed and in the recipient's
    /// log; the recipient echoes `context`.
    Heartbeat = 8,
    /// From a follower: echo of a heartbeat's `context`.
    HeartbeatResponse = 9,
    /// Local: the last message to `from` was lost.
    Unreachable = 10,
    /// Local: a snapshot to `from` arrived or, with `reject`, failed.
    SnapshotStatus = 11,
    /// Local: check whether a quorum has responded recently.
    CheckQuorum = 12,
    /// Transfer leadership to `from`.
    TransferLeader = 13,
    /// From the leader to its chosen successor: campaign immediately.
    TimeoutNow = 14,
    /// Request for a read index. The data of the only entry is the request's context.
    ReadIndex = 15,
    /// Response to `ReadIndex`: `index` is the read index, and the only entry is the one from the request.
    ReadIndexResponse = 16,
    /// Like `Vote`, but for a term that the candidate has not entered yet.
    PreVote = 17,
    /// Like `VoteResponse`, but for a `PreVote`.
    PreVoteResponse = 18,
    /// To [`LOCAL_APPEND`]: make `entries`, the hard state (`term`, `vote`, `commit`, unless all
    /// zero) and `snapshot` durable, then deliver `responses`.
    StorageAppend = 19,
    /// From [`LOCAL_APPEND`]: the log is durable up to (`log_term`, `index`), and `snapshot`, if
    /// any, is installed.
    StorageAppendResponse = 20,
    /// To [`LOCAL_APPLY`]: apply `entries`, then deliver `responses`.
    StorageApply = 21,
    /// From [`LOCAL_APPLY`]: `entries` are applied.
    StorageApplyResponse = 22,
    /// Local: stop following the current leader without leaving the term.
    ForgetLeader = 23,
}

impl MessageKind {
    const ALL: [(Self, &'static str); 24] = [
        (Self::Hup, "MsgHup"),
        (Self::Beat, "MsgBeat"),
        (Self::Propose, "MsgProp"),
        (Self::Append, "MsgApp"),
        (Self::AppendResponse, "MsgAppResp"),
        (Self::Vote, "MsgVote"),
        (Self::VoteResponse, "MsgVoteResp"),
        (Self::Snapshot, "MsgSnap"),
        (Self::Heartbeat, "MsgHeartbeat"),
        (Self::HeartbeatResponse, "MsgHeartbeatResp"),
        (Self::Unreachable, "MsgUnreachable"),
        (Self::SnapshotStatus, "MsgSnapStatus"),
        (Self::CheckQuorum, "MsgCheckQuorum"),
        (Self::TransferLeader, "MsgTransferLeader"),
        (Self::TimeoutNow, "MsgTimeoutNow"),
        (Self::ReadIndex, "MsgReadIndex"),
        (Self::ReadIndexResponse, "MsgReadIndexResp"),
        (Self::PreVote, "MsgPreVote"),
        (Self::PreVoteResponse, "MsgPreVoteResp"),
        (Self::StorageAppend, "MsgStorageAppend"),
        (Self::StorageAppendResponse, "MsgStorageAppendResp"),
        (Self::StorageApply, "MsgStorageApply"),
        (Self::StorageApplyResponse, "MsgStorageApplyResp"),
        (Self::ForgetLeader, "MsgForgetLeader"),
    ];

    /// Returns the kind with this number on the wire, or `None` for an undefined number.
    #[must_use]
    pub fn from_wire(number: i32) -> Option<Self> {
        usize::try_from(number).ok().and_then(|n| Self::ALL.get(n)).map(|(kind, _)| *kind)
    }

    /// Returns the number on the wire.
    #[must_use]
    pub fn to_wire(self) -> i32 {
        self as i32
    }

    /// Returns the kind's name in the wire protocol.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns whether messages of this kind never travel between members.
    #[must_use]
    pub fn is_local(self) -> bool {
        matches!(
            self,
            Self::Hup
                | Self::Beat
                | Self::Unreachable
                | Self::SnapshotStatus
                | Self::CheckQuorum
                | Self::StorageAppend
                | Self::StorageAppendResponse
                | Self::StorageApply
                | Self::StorageApplyResponse
                | Self::ForgetLeader
        )
    }

    /// Returns whether the kind is a response. Only members of the group have a reason to send responses.
    #[must_use]
    pub fn is_response(self) -> bool {
        self.attests_durability()
            || matches!(self, Self::HeartbeatResponse | Self::ReadIndexResponse)
    }

    /// Returns whether messages of this kind carry the term in which they were sent. Requests to the leader need not
    /// carry a term: proposals and read requests never do, and a transfer request carries one only after it has been
    /// forwarded.
    #[must_use]
    pub fn carries_term(self) -> bool {
        !self.is_local() && !matches!(self, Self::Propose | Self::ReadIndex | Self::TransferLeader)
    }

    /// Returns whether the kind attests to durable state: a vote or stored entries. Such a message is sent only after
    /// that state has been written.
    #[must_use]
    pub fn attests_durability(self) -> bool {
        matches!(self, Self::AppendResponse | Self::VoteResponse | Self::PreVoteResponse)
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A message. Fields that the message's kind does not use are zero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The kind of the message.
    pub kind: MessageKind,
    /// The recipient of the message.
    pub to: MemberId,
    /// The sender; for some local kinds, the member that the message concerns.
    pub from: MemberId,
    /// The sender's term; zero for proposals and read requests.
    pub term: Term,
    /// The term of the entry at `index`.
    pub log_term: Term,
    /// A log position whose meaning depends on the kind.
    pub index: LogIndex,
    /// Entries to append, apply or propose, or the entry with a read request's context.
    pub entries: Vec<Entry>,
    /// The sender's commit index.
    pub commit: LogIndex,
    /// Local: the vote to make durable.
    pub vote: MemberId,
    /// The snapshot to install.
    pub snapshot: Option<Box<Snapshot>>,
    /// Whether the response is negative.
    pub reject: bool,
    /// In the response to a refused append: the index at which the logs may agree.
    pub reject_hint: LogIndex,
    /// The context that a heartbeat carries and its response echoes, or the reason for an election.
    pub context: Bytes,
    /// Local: messages to deliver once the storage thread has done the work.
    pub responses: Vec<Self>,
}

impl Message {
    /// Creates a message of `kind` to `to`. All other fields have their defaults.
    #[must_use]
    pub fn new(kind: MessageKind, to: MemberId) -> Self {
        Self { kind, to, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_kinds_round_trip_through_wire_numbers() {
        for number in 0..24 {
            let kind = MessageKind::from_wire(number).unwrap();
            assert_eq!(kind.to_wire(), number);
        }
        assert_eq!(MessageKind::from_wire(-1), None);
        assert_eq!(MessageKind::from_wire(24), None);
    }
}
