//! Proposals that wait for a leader.
//!
//! The consensus core drops a proposal while it has no leader and while a leader transfers leadership. Clients expect a
//! proposal to wait until their request times out, so proposals are kept here for as long. The caller withdraws the
//! proposals of clients that have stopped waiting earlier ([`crate::Event::Withdraw`]). A proposal may nevertheless
//! enter the log after its client has stopped waiting, just like any request whose response was lost.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_raft::{ConfChange, Message, encoded_bytes};

use crate::limits::{FORWARDED_WAITING_BYTES_MAX, WAITING_PROPOSALS_MAX};

/// The content of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data(Bytes),
    ConfChange(ConfChange),
}

/// A proposal's request id and its content.
pub(crate) type Waiting = (u64, Content);

/// The proposals that wait for a leader, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    /// This member's own proposals, each with the tick at which it is dropped.
    waiting: VecDeque<(u64, Waiting)>,
    /// Proposals that other members forwarded, each with the tick at which it is dropped.
    forwarded: VecDeque<(u64, Message)>,
    forwarded_bytes: u64,
    ticks: u64,
    ticks_max: u64,
}

impl Proposals {
    pub(crate) fn new(ticks_max: u64) -> Self {
        Self { ticks_max, ..Self::default() }
    }

    /// Queues a proposal, or returns its id as an error if the queue is full.
    pub(crate) fn push(&mut self, request_id: u64, content: Content) -> Result<(), u64> {
        if self.waiting.len() >= WAITING_PROPOSALS_MAX {
            return Err(request_id);
        }
        let last_tick = self.ticks.saturating_add(self.ticks_max);
        self.waiting.push_back((last_tick, (request_id, content)));
        Ok(())
    }

    /// Queues a forwarded message with proposals. Returns whether there was space for it.
    pub(crate) fn push_forwarded(&mut self, message: Message) -> bool {
        let bytes = encoded_bytes(&message.entries);
        let has_room = self.forwarded_bytes + bytes <= FORWARDED_WAITING_BYTES_MAX;
        if has_room {
            self.forwarded_bytes += bytes;
            self.forwarded.push_back((self.ticks.saturating_add(self.ticks_max), message));
        }
        has_room
    }

    pub(crate) fn take_forwarded(&mut self) -> Vec<Message> {
        self.forwarded_bytes = 0;
        self.forwarded.drain(..).map(|(_, message)| message).collect()
    }

    /// Returns whether no proposal is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.forwarded.is_empty()
    }

    /// Removes and returns this member's own waiting proposals, oldest first.
    pub(crate) fn take(&mut self) -> Vec<Waiting> {
        self.waiting.drain(..).map(|(_, waiting)| waiting).collect()
    }

    /// Drops the proposals with these ids, which are in ascending order.
    pub(crate) fn forget(&mut self, request_ids: &[u64]) {
        self.waiting.retain(|(_, (id, _))| request_ids.binary_search(id).is_err());
    }

    /// Advances one tick, and drops proposals that have waited for the maximum number of ticks. Returns the ids of the
    /// membership changes among this member's own dropped proposals. Their clients must be informed: unlike a write, a
    /// membership change has no request timeout.
    #[must_use]
    pub(crate) fn tick(&mut self) -> Vec<u64> {
        self.ticks += 1;
        let mut expired_changes = Vec::new();
        while let Some((_, (request_id, content))) =
            self.waiting.pop_front_if(|(last_tick, _)| *last_tick <= self.ticks)
        {
            match content {
                Content::Data(_) => {}
                Content::ConfChange(_) => expired_changes.push(request_id),
            }
        }
        while let Some((_, message)) =
            self.forwarded.pop_front_if(|(last_tick, _)| *last_tick <= self.ticks)
        {
            self.forwarded_bytes -= encoded_bytes(&message.entries);
        }
        assert!(
            !self.forwarded.is_empty() || self.forwarded_bytes == 0,
            "the byte count is zero if no requests wait: otherwise new forwarded requests would be dropped"
        );
        expired_changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_proposals_keep_their_order_and_expire() {
        let mut proposals = Proposals::new(2);
        for request_id in 0..3 {
            proposals.push(request_id, Content::Data(Bytes::new())).unwrap();
        }
        assert!(proposals.tick().is_empty());
        proposals.push(3, Content::Data(Bytes::new())).unwrap();
        assert!(proposals.tick().is_empty());
        let left: Vec<u64> = proposals.take().iter().map(|(request_id, _)| *request_id).collect();
        assert_eq!(left, [3]);
    }

    #[test]
    fn withdrawn_proposals_are_dropped() {
        let mut proposals = Proposals::new(2);
        for request_id in [7, 2, 9, 4] {
            proposals.push(request_id, Content::Data(Bytes::new())).unwrap();
        }
        proposals.forget(&[2, 3, 4]);
        let left: Vec<u64> = proposals.take().iter().map(|(request_id, _)| *request_id).collect();
        assert_eq!(left, [7, 9]);
    }

    #[test]
    fn the_queue_of_waiting_proposals_is_bounded() {
        let mut proposals = Proposals::new(2);
        for request_id in 0..WAITING_PROPOSALS_MAX as u64 {
            proposals.push(request_id, Content::Data(Bytes::new())).unwrap();
        }
        assert_eq!(proposals.push(99_999, Content::Data(Bytes::new())), Err(99_999));
    }
}
