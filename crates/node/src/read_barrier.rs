//! Pending read barriers.
//!
//! A barrier is a request for a read index (Raft thesis, section 6.4). A request is lost if there
//! is no leader, or if the message to the leader is lost. So each unanswered request is repeated
//! with a new id after some ticks. A barrier fails if the leader changes in the meantime, or if it
//! lasts longer than the request timeout.
//!
//! # Request ids
//!
//! On the wire, a request has an 8-byte id, which must be unique among all members, because the
//! leader stores pending requests by id. The caller provides the first id, and each request
//! increments it by one.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limits::{BARRIER_ROUNDS_MAX, READ_INDEX_RETRY_TICKS};

/// The pending barriers of one node.
#[derive(Debug)]
pub(crate) struct ReadBarriers {
    /// Pending requests by id. Ids ascend, so the first request is the oldest.
    requests: BTreeMap<u64, Request>,
    next_request_id: u64,
    /// The number of ticks after which a round fails.
    round_ticks_max: u64,
}

#[derive(Debug)]
struct Request {
    /// The barrier rounds that wait for this request.
    rounds: Vec<Round>,
    ticks_left: u64,
}

/// A barrier round in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Round {
    /// The number of the round.
    pub(crate) number: u64,
    /// The number of ticks since the round began.
    pub(crate) ticks: u64,
}

impl ReadBarriers {
    pub(crate) const fn new(first_request_id: u64, round_ticks_max: u64) -> Self {
        Self { requests: BTreeMap::new(), next_request_id: first_request_id, round_ticks_max }
    }

    /// Starts a request for `rounds` and returns its id, or returns the rounds as an error if too
    /// many are pending.
    pub(crate) fn start(&mut self, rounds: Vec<Round>) -> Result<Bytes, Vec<Round>> {
        let under_way: usize = self.requests.values().map(|request| request.rounds.len()).sum();
        if under_way + rounds.len() > BARRIER_ROUNDS_MAX {
            return Err(rounds);
        }
        let id = self.next_request_id;
        self.next_request_id += 1;
        let request = Request { rounds, ticks_left: READ_INDEX_RETRY_TICKS };
        let before = self.requests.insert(id, request);
        assert!(
            before.is_none(),
            "a request id is used only once: otherwise the answer to an older request could make newer reads stale"
        );
        Ok(Bytes::copy_from_slice(&id.to_be_bytes()))
    }

    /// Removes and returns the rounds that this answer completes: the rounds of the answered request and of all earlier
    /// requests, whose own answers are late or lost.
    pub(crate) fn finish(&mut self, name: &[u8]) -> Vec<Round> {
        let Ok(id) = name.try_into().map(u64::from_be_bytes) else { return Vec::new() };
        if !self.requests.contains_key(&id) {
            return Vec::new();
        }
        let later = self.requests.split_off(&(id + 1));
        let settled = std::mem::replace(&mut self.requests, later);
        settled.into_values().flat_map(|request| request.rounds).collect()
    }

    /// Removes and returns all pending rounds.
    pub(crate) fn take_all(&mut self) -> Vec<Round> {
        std::mem::take(&mut self.requests)
            .into_values()
            .flat_map(|request| request.rounds)
            .collect()
    }

    /// Advances one tick. Removes and returns the rounds whose request must be repeated, and the rounds that have
    /// lasted too long.
    pub(crate) fn tick(&mut self) -> (Vec<Round>, Vec<Round>) {
        let (mut overdue, mut expired) = (Vec::new(), Vec::new());
        for request in self.requests.values_mut() {
            request.ticks_left = request.ticks_left.saturating_sub(1);
            request.rounds.iter_mut().for_each(|round| round.ticks += 1);
            let is_expired = |round: &mut Round| round.ticks >= self.round_ticks_max;
            expired.extend(request.rounds.extract_if(.., is_expired));
            if request.ticks_left == 0 {
                overdue.append(&mut request.rounds);
            }
        }
        self.requests.retain(|_, request| !request.rounds.is_empty());
        (overdue, expired)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(numbers: impl IntoIterator<Item = u64>) -> Vec<Round> {
        numbers.into_iter().map(|number| Round { number, ticks: 0 }).collect()
    }

    #[test]
    fn a_read_index_response_also_confirms_earlier_rounds() {
        let mut barriers = ReadBarriers::new(7, 70);
        let first = barriers.start(rounds([1])).unwrap();
        let second = barriers.start(rounds([2, 3])).unwrap();
        let third = barriers.start(rounds([4])).unwrap();
        assert_eq!(barriers.finish(&second), rounds([1, 2, 3]));
        assert!(barriers.finish(&first).is_empty());
        assert_eq!(barriers.finish(&third), rounds([4]));
        assert!(barriers.finish(b"junk").is_empty());
    }

    #[test]
    fn an_unanswered_read_index_request_is_repeated_until_its_round_has_lasted_too_long() {
        let ticks_max = 2 * READ_INDEX_RETRY_TICKS + 1;
        let mut barriers = ReadBarriers::new(7, ticks_max);
        let mut names = vec![barriers.start(rounds([1])).unwrap()];
        for tick in 1..ticks_max {
            let (overdue, expired) = barriers.tick();
            assert!(expired.is_empty(), "tick {tick}");
            assert_eq!(overdue.is_empty(), tick % READ_INDEX_RETRY_TICKS != 0, "tick {tick}");
            if !overdue.is_empty() {
                assert_eq!(overdue, [Round { number: 1, ticks: tick }]);
                names.push(barriers.start(overdue).unwrap());
            }
        }
        assert_eq!(names.len(), 3);
        assert_ne!(names[0], names[1]);
        assert!(barriers.finish(&names[0]).is_empty());
        assert_eq!(barriers.tick(), (vec![], vec![Round { number: 1, ticks: ticks_max }]));
        assert!(barriers.finish(&names[2]).is_empty(), "the round has failed");
    }

    #[test]
    fn barrier_rounds_beyond_the_limit_are_refused_until_earlier_rounds_finish() {
        let mut barriers = ReadBarriers::new(7, 70);
        let bound = u64::try_from(BARRIER_ROUNDS_MAX).unwrap();
        let names: Vec<_> = (0..bound).map(|n| barriers.start(rounds([n])).unwrap()).collect();
        assert_eq!(barriers.start(rounds([bound])), Err(rounds([bound])));
        assert_eq!(barriers.finish(&names[1]), rounds([0, 1]));
        assert_eq!(
            barriers.start(rounds([1, 2, 3])),
            Err(rounds([1, 2, 3])),
            "only two more rounds are allowed"
        );
        barriers.start(rounds([1, 2])).unwrap();
        assert_eq!(barriers.take_all().len(), BARRIER_ROUNDS_MAX);
    }
}
