//! Time limits for leases: how old a leader's confirmation may be, and by how much a new leader extends every lease.
//!
//! A renewal is not a log entry: the leader postpones the lease's expiry in memory and answers the client. The leader
//! may have been deposed without noticing, and its successor starts the lease's clock when it is elected. Therefore a
//! renewal is answered only if the leadership was confirmed within the last election timeout
//! ([`LeadershipState::is_confirmed`](crate::LeadershipState::is_confirmed)). A successor is elected after the
//! confirmation and gives every lease its full TTL plus two election timeouts ([`extension_millis`]). So the lease
//! expires on the successor no earlier than the old leader promised to the client.
//!
//! Heartbeat responses confirm the leadership ([`LeadershipState`](crate::LeadershipState)), so a leader that receives
//! them from a quorum needs no read barrier. A leader with an older confirmation asks a quorum before it answers
//! ([`LeaseTask`](crate::LeaseTask)).
//!
//! # Not here
//!
//! Lease clocks (`state::lease`), the steps of a lease request (`lease_task`), and the revocation of expired leases
//! (`lease_care`).

/// Returns the maximum age, in milliseconds, of the confirmation on which a leader relies when it renews leases.
#[must_use]
pub const fn confirmed_millis_max(election_timeout_millis: u64) -> u64 {
    election_timeout_millis
}

/// Returns how much a new leader extends every lease, in milliseconds. A lease expires after its TTL and this
/// extension, counted from the election.
///
/// A successor may be elected right after the old leader's last confirmation (decision record 0009). A leader that runs
/// etcd renews leases until it has had no quorum for two election timeouts. A leader that runs Quorate stops after one.
/// The difference is a margin for inexact clocks.
#[must_use]
pub const fn extension_millis(election_timeout_millis: u64) -> u64 {
    election_timeout_millis.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use quorate_state::units::Millis;

    use super::*;

    #[test]
    fn a_lease_renewed_just_before_a_leader_change_lasts_its_full_ttl() {
        // The successor is elected right after the last answered heartbeat.
        let (election_timeout, lifetime, elected) = (1_000, 60_000, Millis(0));
        let ends = elected.plus(lifetime).plus(extension_millis(election_timeout));
        // One leader runs Quorate. The other runs etcd, which checks for a quorum once per election timeout.
        let ours = elected.plus(confirmed_millis_max(election_timeout)).0;
        for last_renewal in [ours, 2 * election_timeout] {
            assert!(ends >= Millis(last_renewal).plus(lifetime), "renewed at {last_renewal}");
        }
    }
}
