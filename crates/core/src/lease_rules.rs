//! For how long a leader may answer for leases on its own, and for how long its successor waits.
//!
//! A renewal is no log entry: the leader moves the end of the lease in its memory and tells the client. The leader may
//! have been deposed without knowing it, and its successor starts the lease's clock when it is elected. So a renewal
//! is answered only while the leadership was confirmed within the last election timeout
//! ([`LeadershipState::is_confirmed`](crate::LeadershipState::is_confirmed)). The successor was elected after the
//! confirmation and gives every lease its lifetime and two election timeouts more ([`extension_millis`]), so the lease
//! ends there after the time that the client was promised here.
//!
//! The confirmation comes with heartbeats ([`LeadershipState`](crate::LeadershipState)), so a leader that hears from a
//! quorum asks nobody. A leader whose confirmation is older asks a quorum first ([`LeaseTask`](crate::LeaseTask)).
//!
//! # Not here
//!
//! The clocks of leases (`state::lease`), the course of a question about a lease (`lease_task`), and the end of expired
//! ones (`lease_care`).

/// How old the confirmation of a leader may be that answers for leases.
#[must_use]
pub const fn confirmed_millis_max(election_timeout_millis: u64) -> u64 {
    election_timeout_millis
}

/// How much longer than its lifetime every lease lasts when a leader is elected, counted from the election.
///
/// A leader may be succeeded at once (decision record 0009), and one that runs etcd renews leases until it has missed a
/// quorum for two election timeouts. One of ours stops after one; the rest is for clocks that are not exact.
#[must_use]
pub const fn extension_millis(election_timeout_millis: u64) -> u64 {
    election_timeout_millis.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use quorate_state::units::Millis;

    use super::*;

    #[test]
    fn a_lease_renewed_by_a_leader_that_was_succeeded_at_once_lasts_as_promised() {
        // The successor is elected right after the last heartbeat that was answered.
        let (election_timeout, lifetime, elected) = (1_000, 60_000, Millis(0));
        let ends = elected.plus(lifetime).plus(extension_millis(election_timeout));
        // A leader of ours, and one of etcd's, which looks for a quorum once in an election timeout.
        let ours = elected.plus(confirmed_millis_max(election_timeout)).0;
        for last_renewal in [ours, 2 * election_timeout] {
            assert!(ends >= Millis(last_renewal).plus(lifetime), "renewed at {last_renewal}");
        }
    }
}
