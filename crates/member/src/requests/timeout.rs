//! Determines the probable reason why a proposal was not answered in time.
//!
//! Operators and retrying clients see one of three errors: the leader has failed, a connection is broken, or neither.
//! The error messages and the conditions are etcd's.

use std::time::{Duration, Instant};

use quorate_requests::RequestError;

/// The leader at the time of the deadline.
#[derive(Clone, Debug)]
pub(crate) enum Lead {
    Nobody,
    Own {
        /// Number of members, including learners.
        member_count: usize,
        /// The times at which the current connections to the other members were established.
        connected_since: Vec<Instant>,
    },
    Other {
        /// The time at which the current connection to the leader was established, if there is one.
        connected_since: Option<Instant>,
    },
}

/// The facts about a timed-out request.
#[derive(Clone, Debug)]
pub(crate) struct TimedOut {
    pub(crate) started: Instant,
    /// The time at which this member last became leader.
    pub(crate) led_since: Option<Instant>,
    pub(crate) election_timeout: Duration,
    pub(crate) lead: Lead,
}

impl TimedOut {
    pub(crate) fn explain(&self) -> RequestError {
        let started = self.started;
        // The previous leader was lost at most two election timeouts before the election, so a request that was in
        // progress at that time may have been lost with it.
        let may_have_met_the_loss = self
            .led_since
            .is_some_and(|since| started < since && started + 2 * self.election_timeout > since);
        if may_have_met_the_loss {
            return RequestError::TimeoutDueToLeaderFailure;
        }
        let is_connected = match &self.lead {
            Lead::Nobody => true,
            Lead::Own { member_count, connected_since } => {
                let others = connected_since.iter().filter(|since| **since < started).count();
                others + 1 > member_count / 2
            }
            Lead::Other { connected_since } => connected_since.is_some_and(|since| since < started),
        };
        if is_connected { RequestError::Timeout } else { RequestError::TimeoutDueToConnectionLost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn explain(led_before: Option<Duration>, lead: impl Fn(Instant) -> Lead) -> RequestError {
        let started = Instant::now() + 100 * SECOND;
        TimedOut {
            started,
            led_since: led_before.map(|after| started + after),
            election_timeout: SECOND,
            lead: lead(started),
        }
        .explain()
    }

    #[test]
    fn a_timeout_just_after_an_election_is_reported_as_a_leader_failure() {
        let failed = |after| {
            let error = explain(Some(after), |_| Lead::Nobody);
            matches!(error, RequestError::TimeoutDueToLeaderFailure)
        };
        assert!(failed(SECOND) && failed(2 * SECOND - Duration::from_nanos(1)));
        assert!(!failed(Duration::ZERO) && !failed(2 * SECOND));
    }

    #[test]
    fn a_timeout_on_a_leader_disconnected_from_a_majority_is_reported_as_a_lost_connection() {
        let lost = |member_count, before: usize, after: usize| {
            let error = explain(None, |started| {
                let early = std::iter::repeat_n(started - SECOND, before);
                let late = std::iter::repeat_n(started + SECOND, after);
                Lead::Own { member_count, connected_since: early.chain(late).collect() }
            });
            matches!(error, RequestError::TimeoutDueToConnectionLost)
        };
        assert!(!lost(1, 0, 0));
        assert!(!lost(3, 1, 0));
        assert!(lost(3, 0, 2), "connections made after the request started do not count");
        assert!(lost(4, 1, 0));
    }

    #[test]
    fn a_timeout_on_a_follower_disconnected_from_its_leader_is_reported_as_a_lost_connection() {
        let lost = |since: Option<Duration>| {
            let connected = |started: Instant| since.map(|before| started - before);
            let error =
                explain(None, |started| Lead::Other { connected_since: connected(started) });
            matches!(error, RequestError::TimeoutDueToConnectionLost)
        };
        assert!(lost(None) && lost(Some(Duration::ZERO)));
        assert!(!lost(Some(SECOND)));
        assert!(matches!(explain(None, |_| Lead::Nobody), RequestError::Timeout));
    }
}
