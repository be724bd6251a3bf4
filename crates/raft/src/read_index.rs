//! Linearizable reads: finding an index from which on a read misses nothing (Raft thesis, 6.4).
//!
//! A leader notes its commit index when a request arrives and answers once it is sure to have been
//! the leader at that moment: after a quorum has answered a heartbeat sent later (`Safe`), or at
//! once if it trusts its lease (`LeaseBased`). Requests made elsewhere are passed on to the leader.
//!
//! # Confirmation
//!
//! Reads are numbered from 1 since the member became leader. A heartbeat's context is the number
//! of the newest read, 8 bytes little-endian, so that one round confirms every read before it,
//! and its echo acknowledges them as an append's index does entries: the same quorum computation
//! gives the number of confirmed reads. Echoes of numbers that were never sent, or of contexts of
//! another length, come from elsewhere and are ignored.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::config::ReadOnlyOption;
use crate::entry::{EntryId, LogIndex, MemberId, NONE};
use crate::joint::JointConfig;
use crate::message::{Message, MessageKind};
use crate::note::note;
use crate::raft::Raft;
use crate::state::ReadState;
use crate::storage::Storage;

/// Read requests that wait for the leader's leadership to be confirmed.
#[derive(Debug, Default)]
pub(crate) struct PendingReads {
    /// The requests, oldest first, each with the commit index when it came.
    unconfirmed: VecDeque<(Message, LogIndex)>,
    /// How many reads have been confirmed and are gone from the front of `unconfirmed`.
    confirmed_count: u64,
    /// The number of the newest read that each member has confirmed.
    acknowledged: BTreeMap<MemberId, u64>,
}

impl PendingReads {
    fn push(&mut self, request: Message, commit: LogIndex) {
        self.unconfirmed.push_back((request, commit));
    }

    /// The number of the newest read.
    fn newest(&self) -> u64 {
        self.confirmed_count + self.unconfirmed.len() as u64
    }

    /// What heartbeats ask for; empty if no read waits.
    pub(crate) fn heartbeat_context(&self) -> Bytes {
        if self.unconfirmed.is_empty() {
            return Bytes::new();
        }
        Bytes::copy_from_slice(&self.newest().to_le_bytes())
    }

    /// Books the echo of a heartbeat. Says whether it means anything.
    fn acknowledge(&mut self, from: MemberId, context: &[u8]) -> bool {
        let Ok(number) = context.try_into().map(u64::from_le_bytes) else { return false };
        if number > self.newest() {
            return false;
        }
        let acknowledged = self.acknowledged.entry(from).or_default();
        *acknowledged = number.max(*acknowledged);
        true
    }

    /// The next read that a quorum has confirmed.
    fn pop_confirmed(&mut self, confirmed: u64) -> Option<(Message, LogIndex)> {
        if self.confirmed_count >= confirmed {
            return None;
        }
        let read = self.unconfirmed.pop_front()?;
        self.confirmed_count += 1;
        Some(read)
    }

    fn quorum_confirmed(&self, voters: &JointConfig) -> u64 {
        voters.committed_index(|id| self.acknowledged.get(&id).copied())
    }
}

impl<S: Storage> Raft<S> {
    pub(crate) fn handle_read_index(&mut self, request: Message) {
        if self.has_committed_in_term() {
            self.confirm_leadership_for(request);
        } else {
            // The commit index may still be behind what earlier leaders have answered for, or this
            // member itself before a crash.
            self.parked_reads.push(request);
        }
    }

    /// Whether anything is committed in the current term, which makes the leader's commit index
    /// the latest there is.
    pub(crate) fn has_committed_in_term(&self) -> bool {
        self.log.contains(EntryId { term: self.term, index: self.log.committed() })
    }

    fn confirm_leadership_for(&mut self, request: Message) {
        let commit = self.log.committed();
        let is_sure = self.config.read_only == ReadOnlyOption::LeaseBased
            || self.tracker.is_sole_voter(self.config.id);
        if is_sure {
            self.answer_read(request, commit);
            return;
        }
        self.reads.push(request, commit);
        let context = self.reads.heartbeat_context();
        self.reads.acknowledge(self.config.id, &context);
        self.broadcast_heartbeat();
    }

    /// Takes up the reads that came before anything was committed in this term.
    pub(crate) fn release_parked_reads(&mut self) {
        if self.parked_reads.is_empty() {
            return;
        }
        if !self.has_committed_in_term() {
            note!(
                self,
                Error,
                "pending MsgReadIndex should be released only after first commit in current term"
            );
            return;
        }
        for request in std::mem::take(&mut self.parked_reads) {
            self.confirm_leadership_for(request);
        }
    }

    /// A follower has echoed a heartbeat.
    pub(crate) fn confirm_reads(&mut self, from: MemberId, context: &[u8]) {
        if self.config.read_only != ReadOnlyOption::Safe || context.is_empty() {
            return;
        }
        if !self.reads.acknowledge(from, context) {
            note!(
                self,
                Debug,
                "{:x} ignored a heartbeat response from {from:x} with a context that was not sent",
                self.config.id
            );
            return;
        }
        self.answer_confirmed_reads();
    }

    /// Answers what the acknowledgements so far suffice for, in the configuration in force.
    pub(crate) fn answer_confirmed_reads(&mut self) {
        let confirmed = self.reads.quorum_confirmed(&self.tracker.config.voters);
        while let Some((request, commit)) = self.reads.pop_confirmed(confirmed) {
            self.answer_read(request, commit);
        }
    }

    fn answer_read(&mut self, request: Message, index: LogIndex) {
        if request.from == NONE || request.from == self.config.id {
            self.push_read_state(index, request);
            return;
        }
        let mut response = Message::new(MessageKind::ReadIndexResponse, request.from);
        response.index = index;
        response.entries = request.entries;
        self.send(response);
    }

    fn push_read_state(&mut self, index: LogIndex, mut message: Message) {
        // `Node` has checked that there is exactly one.
        if let Some(entry) = message.entries.pop() {
            self.read_states.push(ReadState { index, context: entry.data });
        }
    }

    /// A follower passes read requests on to its leader.
    pub(crate) fn forward_read_index(&mut self, mut request: Message) {
        if self.leader == NONE {
            note!(
                self,
                Info,
                "{:x} no leader at term {}; dropping index reading msg",
                self.config.id,
                self.term
            );
            return;
        }
        request.to = self.leader;
        self.send(request);
    }

    pub(crate) fn handle_read_index_response(&mut self, response: Message) {
        self.push_read_state(response.index, response);
    }
}
