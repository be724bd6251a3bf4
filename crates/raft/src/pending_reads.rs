//! Reads that wait until a quorum has confirmed that the leader still leads.
//!
//! # Confirmation
//!
//! The leader numbers its reads, starting from 1 when it becomes leader. A heartbeat's context is
//! the number of the newest read, 8 bytes little-endian, so one round confirms every read up to
//! that number. The echo of the context acknowledges a read number just as an append response
//! acknowledges an index, so the same quorum computation returns the number of confirmed reads.
//! Echoes of numbers that were never sent, and of contexts of another length, are ignored.
//!
//! # Not here
//!
//! Which followers are asked (`confirmers`).

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::confirmers::Confirmers;
use crate::entry::MemberId;
use crate::joint::JointConfig;
use crate::log_index::LogIndex;

/// A member's request for a read index, that is, for an index at which a read is linearizable.
#[derive(Debug)]
pub(crate) struct ReadRequest {
    /// The member that receives the response.
    pub(crate) from: MemberId,
    /// Bytes that identify the request.
    pub(crate) context: Bytes,
}

/// Read requests that wait until a quorum has confirmed that the leader still leads.
#[derive(Debug, Default)]
pub(crate) struct PendingReads {
    /// The requests, oldest first, each with the commit index at its arrival.
    unconfirmed: VecDeque<(ReadRequest, LogIndex)>,
    /// The number of reads that have been confirmed and removed from the front of `unconfirmed`.
    confirmed_count: u64,
    /// The number of the newest read that each member has confirmed.
    acknowledged: BTreeMap<MemberId, u64>,
    confirmers: Confirmers,
    /// The followers that were asked to confirm the newest read, if other voters were not asked. Irrelevant while no
    /// read is pending.
    asked_alone: Vec<MemberId>,
}

impl PendingReads {
    pub(crate) fn push(&mut self, request: ReadRequest, commit: LogIndex) {
        self.unconfirmed.push_back((request, commit));
    }

    /// Returns the number of the newest read.
    pub(crate) fn newest(&self) -> u64 {
        self.confirmed_count + self.unconfirmed.len() as u64
    }

    /// Returns the context for heartbeats, which is empty if no read is pending.
    pub(crate) fn heartbeat_context(&self) -> Bytes {
        if self.unconfirmed.is_empty() {
            return Bytes::new();
        }
        Bytes::copy_from_slice(&self.newest().to_le_bytes())
    }

    /// Records that a member has echoed a heartbeat's context. Returns the number of the newest read that the echo
    /// confirms, or `None` if no heartbeat of this leader can have carried the context.
    pub(crate) fn acknowledge(&mut self, from: MemberId, context: &[u8]) -> Option<u64> {
        let number = context.try_into().map(u64::from_le_bytes).ok()?;
        if number > self.newest() {
            return None;
        }
        let acknowledged = self.acknowledged.entry(from).or_default();
        *acknowledged = number.max(*acknowledged);
        Some(number)
    }

    /// Records that a member has answered, for the choice of the followers that are asked alone.
    pub(crate) fn rank(
        &mut self,
        own: MemberId,
        from: MemberId,
        number: u64,
        voters: &JointConfig,
    ) {
        self.confirmers.note_answer(own, from, number, voters);
    }

    /// Returns the followers to ask alone to confirm the newest read, or none if all voters must be asked.
    pub(crate) fn choose_confirmers(
        &mut self,
        own: MemberId,
        voters: &JointConfig,
    ) -> Vec<MemberId> {
        self.confirmers.choose(own, voters)
    }

    /// Returns whether this follower would be asked alone to confirm the next read.
    pub(crate) fn is_confirmer(&self, id: MemberId) -> bool {
        self.confirmers.is_chosen(id)
    }

    /// Forgets which followers to ask, so that all voters are asked to confirm the next read.
    pub(crate) fn forget_confirmers(&mut self) {
        self.confirmers.forget();
    }

    /// Records that only these followers were asked to confirm the newest read.
    pub(crate) fn note_asked_alone(&mut self, followers: Vec<MemberId>) {
        self.asked_alone = followers;
    }

    /// Records that the voters that were not asked to confirm the newest read have now been asked too. This is no
    /// survey, because the others were asked earlier.
    pub(crate) fn note_others_asked(&mut self) {
        self.asked_alone.clear();
    }

    /// Records that all voters were asked to confirm all pending reads.
    pub(crate) fn note_all_asked(&mut self) {
        self.asked_alone.clear();
        if !self.unconfirmed.is_empty() {
            self.confirmers.note_all_asked(self.newest());
        }
    }

    /// Returns the followers that were asked to confirm the newest read, if it is pending and other voters were not
    /// asked. Otherwise returns none.
    pub(crate) fn asked_alone(&self) -> &[MemberId] {
        if self.unconfirmed.is_empty() { &[] } else { &self.asked_alone }
    }

    /// Returns the number of the oldest pending read.
    pub(crate) fn oldest(&self) -> u64 {
        self.confirmed_count + 1
    }

    /// Removes and returns the next confirmed read, or returns `None` if all confirmed reads have been removed. A
    /// quorum has confirmed the reads with the numbers 1 to `confirmed`.
    pub(crate) fn pop_confirmed(&mut self, confirmed: u64) -> Option<(ReadRequest, LogIndex)> {
        if self.confirmed_count >= confirmed {
            return None;
        }
        assert!(
            confirmed <= self.newest(),
            "a quorum confirms only reads that exist: otherwise later reads would be answered without confirmation"
        );
        let read = self.unconfirmed.pop_front()?;
        self.confirmed_count += 1;
        Some(read)
    }

    pub(crate) fn quorum_confirmed(&self, voters: &JointConfig) -> u64 {
        voters.agreed(|id| self.acknowledged.get(&id).copied())
    }
}
