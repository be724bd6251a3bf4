//! A member's leadership as one value, and the decisions that depend on it.
//!
//! [`Consensus`](crate::Consensus) keeps the value, and its driver publishes copies. Every decision that depends on the
//! leader uses a copy: read barriers, lease renewal and expiry, lease clocks, and the responses to clients that require
//! a leader. All times are on the clock of [`Consensus::note_time`](crate::Consensus::note_time).
//!
//! # Invariants
//!
//! * While this member leads, no leader of a later term was elected before the time of the last confirmation.
//! * A leader that has received no responses from a quorum for an election timeout does not count as confirmed,
//!   regardless of the reason (a broken link, a stalled disk, a suspended process).
//! * A read is served without the barrier only if no other member can have acknowledged a write.
//!
//! # Not here
//!
//! Elections (`raft`), the evaluation of heartbeat responses (`node::confirmation`), and the copies for other threads
//! (`member::MemberStatus`).

use quorate_node::Leadership;
use quorate_raft::{LogIndex, NONE, Role, Term};
use quorate_state::units::Millis;

use crate::lease_rules::{confirmed_millis_max, extension_millis};

/// A member's view of the leadership at a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipState {
    /// The leader, the term and this member's role.
    pub leadership: Leadership,
    /// The time of the last confirmation: a quorum has answered heartbeats, or a read barrier round, that this leader
    /// sent at this time or later.
    pub confirmed_at: Millis,
    /// Whether this member leads and is the only member, learners included.
    pub is_alone: bool,
    /// The commit index at the last change of the membership or the leadership. If this member is the only member,
    /// former members may have applied entries up to this index, but no later entries.
    pub alone_from: LogIndex,
    /// Whether this leader is handing over its leadership because its disk is stalled. It sends no heartbeats during
    /// the transfer.
    pub gives_way: bool,
    /// The time at which the last leader was lost, or `None` if a leader is known.
    pub leaderless_since: Option<Millis>,
    /// The time of the last tick.
    pub ticked_at: Millis,
    /// How long a follower waits for its leader before it starts an election, in milliseconds.
    pub election_timeout_millis: u64,
}

impl Default for LeadershipState {
    /// Returns the state of a member that never leads.
    fn default() -> Self {
        Self::new(0)
    }
}

impl LeadershipState {
    /// Returns the state of a member that has just started.
    #[must_use]
    pub fn new(election_timeout_millis: u64) -> Self {
        Self {
            leadership: Leadership::default(),
            confirmed_at: Millis(0),
            is_alone: false,
            alone_from: LogIndex::ZERO,
            gives_way: false,
            leaderless_since: Some(Millis(0)),
            ticked_at: Millis(0),
            election_timeout_millis,
        }
    }

    /// Returns whether this member believes that it leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leadership.role == Role::Leader
    }

    /// Returns whether this member believes that it leads in this term.
    #[must_use]
    pub fn leads_in(&self, term: Term) -> bool {
        self.leads() && self.leadership.term == term
    }

    /// Returns whether a leader is known.
    #[must_use]
    pub const fn has_leader(&self) -> bool {
        self.leadership.leader != NONE
    }

    /// Returns whether a read of the state at this applied entry is linearizable without a read barrier.
    ///
    /// That is the case if this member is the only member, leads, and has applied an entry of its term and every entry
    /// that former members may have applied. It has then applied every write acknowledged so far, and it acknowledges a
    /// later write only after applying it.
    #[must_use]
    pub fn reads_need_no_barrier(&self, applied: LogIndex, applied_term: Term) -> bool {
        self.is_alone && self.leads_in(applied_term) && applied >= self.alone_from
    }

    /// Returns whether this member leads, and either no other member can lead or a quorum has confirmed the leadership
    /// within the last election timeout. A leader that hands over its leadership because of a stalled disk does not
    /// count as confirmed, unless no other member can lead.
    #[must_use]
    pub fn is_confirmed(&self, now: Millis) -> bool {
        let timeout = self.election_timeout_millis;
        let age_max = confirmed_millis_max(timeout);
        assert!(
            age_max <= extension_millis(timeout),
            "a successor's extension covers the time in which an old leader may still renew leases: otherwise leases \
             would expire early"
        );
        let is_recent = now.0.saturating_sub(self.confirmed_at.0) <= age_max;
        self.leads() && (self.is_alone || !self.gives_way && is_recent)
    }

    /// Returns whether this member leads and no leader of a later term was elected before this time. The latter holds
    /// if no other member can lead, or if a quorum has answered messages that this leader sent at this time or later.
    #[must_use]
    pub fn is_confirmed_since(&self, then: Millis) -> bool {
        self.leads() && (self.is_alone || self.confirmed_at >= then)
    }

    /// Returns whether this member leads and no other member can lead.
    #[must_use]
    pub fn leads_alone(&self) -> bool {
        self.leads() && self.is_alone
    }

    /// Returns whether no leader has been known for at least this long. A normal change of leaders takes less time than
    /// `timeout_millis`.
    #[must_use]
    pub fn misses_leader(&self, now: Millis, timeout_millis: u64) -> bool {
        self.leaderless_since.is_some_and(|since| now >= since.plus(timeout_millis))
    }

    /// Returns whether this member has known no leader since this time.
    #[must_use]
    pub fn had_no_leader_since(&self, then: Millis) -> bool {
        self.leaderless_since.is_some_and(|since| since <= then)
    }

    /// Returns whether consensus has handled a tick within the last `last_millis`.
    #[must_use]
    pub const fn has_ticked_within(&self, now: Millis, last_millis: u64) -> bool {
        now.0.saturating_sub(self.ticked_at.0) <= last_millis
    }

    /// Records a change of leadership.
    pub(crate) fn change(&mut self, leadership: Leadership, now: Millis) {
        assert!(
            leadership.term >= self.leadership.term,
            "terms never decrease: otherwise a leader of an older term would be followed again"
        );
        self.leadership = leadership;
        let is_leaderless = leadership.leader == NONE;
        self.leaderless_since = is_leaderless.then(|| self.leaderless_since.unwrap_or(now));
    }

    /// Records a membership change: whether this member is the only member, and the commit index.
    pub(crate) fn note_membership(&mut self, is_alone: bool, commit: LogIndex) {
        self.is_alone = is_alone && self.leads();
        self.alone_from = commit;
    }

    /// Records that a quorum has answered messages that this leader sent at this time.
    pub(crate) fn confirm(&mut self, at: Millis) {
        assert!(
            self.leads(),
            "only a leader is confirmed: otherwise a member that does not lead would renew leases"
        );
        self.confirmed_at = self.confirmed_at.max(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: u64 = 1_000;
    const LEADS: Leadership = Leadership { leader: 1, term: Term(2), role: Role::Leader };
    const FOLLOWS: Leadership = Leadership { leader: 2, term: Term(3), role: Role::Follower };

    fn leading() -> LeadershipState {
        let mut state = LeadershipState::new(TIMEOUT);
        state.change(LEADS, Millis(0));
        state
    }

    #[test]
    fn a_leadership_confirmation_is_valid_for_one_election_timeout() {
        let mut state = leading();
        state.confirm(Millis(500));
        assert!(state.is_confirmed(Millis(1_500)));
        assert!(!state.is_confirmed(Millis(1_501)));
        assert!(
            state.is_confirmed(Millis(400)),
            "the caller may have read the clock before the confirmation"
        );
        // A tick is not a confirmation.
        state.ticked_at = Millis(1_501);
        assert!(!state.is_confirmed(Millis(1_501)));
        state.change(FOLLOWS, Millis(600));
        assert!(!state.is_confirmed(Millis(600)), "a follower has no confirmation");
    }

    #[test]
    fn an_older_leadership_confirmation_is_ignored() {
        let mut state = leading();
        state.confirm(Millis(500));
        state.confirm(Millis(300));
        assert_eq!(state.confirmed_at, Millis(500));
        assert!(state.is_confirmed_since(Millis(500)));
        assert!(!state.is_confirmed_since(Millis(501)));
    }

    #[test]
    fn a_leader_that_transfers_leadership_because_of_a_stalled_disk_is_not_confirmed() {
        let mut state = leading();
        state.confirm(Millis(500));
        state.gives_way = true;
        assert!(!state.is_confirmed(Millis(500)));
    }

    #[test]
    fn a_sole_member_needs_no_confirmation_of_its_leadership() {
        let mut state = leading();
        state.note_membership(true, LogIndex(3));
        assert!(state.is_confirmed(Millis(90_000)) && state.is_confirmed_since(Millis(90_000)));
        state.note_membership(false, LogIndex(3));
        assert!(!state.is_confirmed(Millis(90_000)) && !state.is_confirmed_since(Millis(90_000)));
    }

    #[test]
    fn the_time_without_a_leader_is_measured_from_the_loss_of_the_last_leader() {
        let mut state = LeadershipState::new(TIMEOUT);
        assert!(state.had_no_leader_since(Millis(5)));
        state.change(Leadership { term: Term(2), ..FOLLOWS }, Millis(10));
        assert!(!state.had_no_leader_since(Millis(5)) && !state.misses_leader(Millis(99), 0));
        state.change(Leadership { leader: NONE, term: Term(2), ..FOLLOWS }, Millis(20));
        assert!(!state.had_no_leader_since(Millis(5)), "the cluster had a leader in the meantime");
        state.change(Leadership { leader: NONE, ..FOLLOWS }, Millis(30));
        assert!(state.had_no_leader_since(Millis(20)), "the new term has no leader");
        assert!(state.misses_leader(Millis(70), 50) && !state.misses_leader(Millis(69), 50));
    }

    #[test]
    fn only_a_sole_member_reads_without_a_barrier() {
        let mut state = leading();
        state.note_membership(true, LogIndex(3));
        let can_read = |state: LeadershipState, index, term| {
            state.reads_need_no_barrier(LogIndex(index), Term(term))
        };
        assert!(!can_read(state, 3, 1), "no entry of this term is applied");
        assert!(can_read(state, 4, 2));
        state.note_membership(false, LogIndex(4));
        assert!(!can_read(state, 4, 2), "a learner may apply the entry first");
        state.note_membership(true, LogIndex(9));
        assert!(!can_read(state, 8, 2), "a former member may have applied the ninth entry");
        assert!(can_read(state, 9, 2));
        state.change(FOLLOWS, Millis(0));
        assert!(!can_read(state, 9, 2), "another member is the leader");
        state.note_membership(true, LogIndex(9));
        assert!(!can_read(state, 9, 3), "another member is the leader");
    }
}
