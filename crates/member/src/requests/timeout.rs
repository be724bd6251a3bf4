//! Why a proposal got no answer in time, as far as this member can tell.
//!
//! The words are for operators and retrying clients: a leader that failed meanwhile, a connection that is
//! broken, or neither. They are etcd's, with etcd's conditions.

use std::time::{Duration, Instant};

use crate::error::RequestError;

/// Who leads when the time is up.
#[derive(Clone, Debug)]
pub(crate) enum Lead {
    Nobody,
    Own {
        /// Voters and learners.
        member_count: usize,
        /// For each other member that is connected: since when.
        connected_since: Vec<Instant>,
    },
    Other {
        /// Since when the leader is connected, if it is.
        connected_since: Option<Instant>,
    },
}

/// What is known about a request whose time is up.
#[derive(Clone, Debug)]
pub(crate) struct TimedOut {
    pub(crate) started: Instant,
    /// When this member itself last became leader.
    pub(crate) led_since: Option<Instant>,
    pub(crate) election_timeout: Duration,
    pub(crate) lead: Lead,
}

impl TimedOut {
    pub(crate) fn explain(&self) -> RequestError {
        let started = self.started;
        // The leader before this one was lost at most two election timeouts before the election.
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
    fn an_election_shortly_after_the_start_is_to_blame() {
        let failed = |after| {
            let error = explain(Some(after), |_| Lead::Nobody);
            matches!(error, RequestError::TimeoutDueToLeaderFailure)
        };
        assert!(failed(SECOND) && failed(2 * SECOND - Duration::from_nanos(1)));
        assert!(!failed(Duration::ZERO) && !failed(2 * SECOND));
    }

    #[test]
    fn a_leader_blames_its_connections_when_it_lacks_a_majority() {
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
        assert!(lost(3, 0, 2), "connections made since then do not count");
        assert!(lost(4, 1, 0));
    }

    #[test]
    fn a_follower_blames_its_connection_to_the_leader() {
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
