//! Proposals that wait for a leader.
//!
//! The consensus core drops a proposal when it knows no leader. Clients expect it to wait instead, until
//! their request times out, so it waits here. A client's timeout is not known here: a proposal may get
//! into the log after its client has given up, as with any request whose answer was lost.

use std::collections::VecDeque;

use bytes::Bytes;
use quorate_raft::ConfChange;

use crate::limits::WAITING_PROPOSALS_MAX;

/// What is proposed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Data(Bytes),
    ConfChange(ConfChange),
}

/// A proposal and its name.
pub(crate) type Waiting = (u64, Content);

/// First in, first out.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    waiting: VecDeque<Waiting>,
    /// Ticks each may wait, and how long the oldest have: a queue of (ticks left, how many).
    ages: VecDeque<(u64, usize)>,
    ticks_max: u64,
}

impl Proposals {
    pub(crate) fn new(ticks_max: u64) -> Self {
        Self { waiting: VecDeque::new(), ages: VecDeque::new(), ticks_max }
    }

    /// Keeps a proposal, or gives it back when there are too many.
    pub(crate) fn push(&mut self, request_id: u64, content: Content) -> Result<(), u64> {
        if self.waiting.len() >= WAITING_PROPOSALS_MAX {
            return Err(request_id);
        }
        self.waiting.push_back((request_id, content));
        match self.ages.back_mut() {
            Some((ticks_left, count)) if *ticks_left == self.ticks_max => *count += 1,
            _ => self.ages.push_back((self.ticks_max, 1)),
        }
        Ok(())
    }

    /// Everything that waits, oldest first.
    pub(crate) fn take(&mut self) -> Vec<Waiting> {
        self.ages.clear();
        self.waiting.drain(..).collect()
    }

    /// Forgets what has waited longer than any client does.
    pub(crate) fn tick(&mut self) {
        for (ticks_left, _) in &mut self.ages {
            *ticks_left -= 1;
        }
        while let Some((0, count)) = self.ages.front() {
            self.waiting.drain(..*count);
            self.ages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposals_wait_in_order_and_not_for_ever() {
        let mut proposals = Proposals::new(2);
        for request_id in 0..3 {
            proposals.push(request_id, Content::Data(Bytes::new())).unwrap();
        }
        proposals.tick();
        proposals.push(3, Content::Data(Bytes::new())).unwrap();
        proposals.tick();
        let left: Vec<u64> = proposals.take().iter().map(|(request_id, _)| *request_id).collect();
        assert_eq!(left, [3]);
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut proposals = Proposals::new(2);
        for request_id in 0..WAITING_PROPOSALS_MAX as u64 {
            proposals.push(request_id, Content::Data(Bytes::new())).unwrap();
        }
        assert_eq!(proposals.push(9999, Content::Data(Bytes::new())), Err(9999));
    }
}
