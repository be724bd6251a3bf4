//! When a leader may answer for leases on its own, and how the renewal of a lease proceeds.
//!
//! A renewal is no log entry: the leader moves the end of the lease in its memory and tells the client. The leader may
//! have been deposed without knowing it, and its successor starts the lease's clock when it is elected. So a renewal
//! is answered only while the leadership was confirmed within the last election timeout ([`is_confirmed`]). The
//! successor was elected after the confirmation and gives every lease its lifetime and two election timeouts more
//! ([`extension_millis`]), so the lease ends there after the time that the client was promised here.
//!
//! The confirmation comes with heartbeats ([`Consensus::confirmed_at`](crate::Consensus::confirmed_at)), so a leader
//! that hears from a quorum asks nobody. A leader whose confirmation is older asks a quorum first, and renews the lease
//! again afterwards, since the answer may have taken long.
//!
//! # Not here
//!
//! The clocks of leases (`state::lease`), and the end of expired ones: the leader always asks a quorum before it
//! proposes that.

use quorate_state::lease::{Leases, Renewal};
use quorate_state::units::{LeaseId, Millis};

/// Whether a leadership that was confirmed at this time still counts as confirmed.
#[must_use]
pub const fn is_confirmed(confirmed_at: Millis, now: Millis, election_timeout_millis: u64) -> bool {
    now.0.saturating_sub(confirmed_at.0) <= election_timeout_millis
}

/// How much longer than its lifetime every lease lasts when a leader is elected, counted from the election.
///
/// A leader may be succeeded at once (decision record 0009), and one that runs etcd renews leases until it has missed a
/// quorum for two election timeouts. One of ours stops after one; the rest is for clocks that are not exact.
#[must_use]
pub const fn extension_millis(election_timeout_millis: u64) -> u64 {
    election_timeout_millis.saturating_mul(2)
}

/// What became of a renewal by the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease lasts for this long from now on, in seconds.
    For(i64),
    /// There is no such lease.
    Gone,
    /// The clocks of leases run at another member.
    NotPrimary,
}

/// What a renewal does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalStep {
    /// It is answered.
    Answer(Renewed),
    /// It waits until a quorum confirms that this member leads. If none does, this member must not answer.
    Confirm,
    /// The lease has expired: it waits until the lease is gone.
    AwaitEnd,
    /// It waits until a checkpoint of 0 for the lease is applied.
    Checkpoint,
}

/// A renewal by the leader that is in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenewalCourse {
    id: LeaseId,
    /// Whether a quorum was asked in the last step, and has confirmed that this member leads.
    is_quorum_asked: bool,
}

impl RenewalCourse {
    /// Of this lease.
    #[must_use]
    pub const fn new(id: LeaseId) -> Self {
        Self { id, is_quorum_asked: false }
    }

    /// Takes the next step. What the last step waited for has happened.
    ///
    /// `is_confirmed` is called after the lease was renewed, because the process may be suspended at any moment in
    /// between.
    pub fn step(
        &mut self,
        leases: &Leases,
        now: Millis,
        is_confirmed: impl Fn() -> bool,
    ) -> RenewalStep {
        let was_quorum_asked = std::mem::take(&mut self.is_quorum_asked);
        let step = match leases.renew(self.id, now) {
            Renewal::Renewed { ttl_secs } if is_confirmed() => {
                RenewalStep::Answer(Renewed::For(ttl_secs))
            }
            // The next leader may have granted it.
            Renewal::NotFound if was_quorum_asked => RenewalStep::Answer(Renewed::Gone),
            Renewal::NotPrimary => RenewalStep::Answer(Renewed::NotPrimary),
            Renewal::CheckpointFirst => RenewalStep::Checkpoint,
            Renewal::Expired if was_quorum_asked || is_confirmed() => RenewalStep::AwaitEnd,
            Renewal::Renewed { .. } | Renewal::NotFound | Renewal::Expired => RenewalStep::Confirm,
        };
        self.is_quorum_asked = step == RenewalStep::Confirm;
        step
    }
}

/// Whether a leader may tell what is left of a lease on its own, or has to ask a quorum first.
#[must_use]
pub fn may_tell_time_to_live(
    leases: &Leases,
    id: LeaseId,
    is_confirmed: impl FnOnce() -> bool,
) -> bool {
    leases.contains(id) && is_confirmed()
}

#[cfg(test)]
mod tests {
    use quorate_state::lease::{LeaseRecord, Lessor, LessorOptions};

    use super::*;

    const ID: LeaseId = LeaseId(7);

    fn leases() -> (Lessor, Leases) {
        let record = LeaseRecord { id: ID, ttl_secs: 60, remaining_secs: 0 };
        let none: [(&[u8], LeaseId); 0] = [];
        let lessor = Lessor::recover([record], none, LessorOptions::default());
        let leases = lessor.reader();
        leases.promote(0, Millis(0));
        (lessor, leases)
    }

    #[test]
    fn a_confirmation_counts_for_an_election_timeout() {
        assert!(is_confirmed(Millis(500), Millis(1_500), 1_000));
        assert!(!is_confirmed(Millis(500), Millis(1_501), 1_000));
        assert!(
            is_confirmed(Millis(500), Millis(400), 1_000),
            "it may come while the time is read"
        );
    }

    #[test]
    fn a_lease_renewed_by_a_leader_that_was_succeeded_at_once_lasts_as_promised() {
        // The successor is elected right after the last heartbeat that was answered.
        let (election_timeout, lifetime, elected) = (1_000, 60_000, Millis(0));
        let ends = elected.plus(lifetime).plus(extension_millis(election_timeout));
        // A leader of ours, and one of etcd's, which looks for a quorum once in an election timeout.
        let ours = (0..).take_while(|at| is_confirmed(elected, Millis(*at), election_timeout));
        for last_renewal in [ours.last().unwrap(), 2 * election_timeout] {
            assert!(ends >= Millis(last_renewal).plus(lifetime), "renewed at {last_renewal}");
        }
    }

    #[test]
    fn a_renewal_asks_a_quorum_unless_the_leadership_is_confirmed() {
        let (_lessor, leases) = leases();
        let answer = RenewalStep::Answer(Renewed::For(60));
        let mut course = RenewalCourse::new(ID);
        assert_eq!(course.step(&leases, Millis(0), || true), answer);
        let mut course = RenewalCourse::new(ID);
        assert_eq!(course.step(&leases, Millis(0), || false), RenewalStep::Confirm);
        // The quorum has taken longer than an election timeout.
        assert_eq!(course.step(&leases, Millis(9_000), || false), RenewalStep::Confirm);
        assert_eq!(course.step(&leases, Millis(10_000), || true), answer);
        let left = leases.time_to_live(ID, Millis(10_000)).unwrap().remaining_secs;
        assert_eq!(left, Some(60), "from the answer on, not from the question on");
    }

    #[test]
    fn only_a_quorum_knows_that_there_is_no_lease() {
        let (_lessor, leases) = leases();
        let mut course = RenewalCourse::new(LeaseId(8));
        assert_eq!(course.step(&leases, Millis(0), || true), RenewalStep::Confirm);
        let gone = RenewalStep::Answer(Renewed::Gone);
        assert_eq!(course.step(&leases, Millis(0), || true), gone);
        assert!(!may_tell_time_to_live(&leases, LeaseId(8), || true));
        assert!(may_tell_time_to_live(&leases, ID, || true));
        assert!(!may_tell_time_to_live(&leases, ID, || false));
    }

    #[test]
    fn an_expired_lease_is_waited_for_where_a_quorum_confirms_the_leader() {
        let (mut lessor, leases) = leases();
        let mut course = RenewalCourse::new(ID);
        assert_eq!(course.step(&leases, Millis(60_000), || false), RenewalStep::Confirm);
        assert_eq!(course.step(&leases, Millis(60_000), || false), RenewalStep::AwaitEnd);
        lessor.revoke(ID);
        assert_eq!(course.step(&leases, Millis(60_100), || true), RenewalStep::Confirm);
        let gone = RenewalStep::Answer(Renewed::Gone);
        assert_eq!(course.step(&leases, Millis(60_100), || true), gone);
    }
}
