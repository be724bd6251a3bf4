//! A member's leadership as one value, and the rules that follow from it.
//!
//! [`Consensus`](crate::Consensus) keeps the value, and its driver publishes copies. Everything that depends on who
//! leads asks a copy: read barriers, renewals of leases, their end, the clocks of leases, and what is said to clients that
//! require a leader. All times are by the clock that [`Consensus::note_time`](crate::Consensus::note_time) is given.
//!
//! # Invariants
//!
//! * No other leader was elected before the time of the last confirmation, as long as this member leads.
//! * A leader that has heard nothing from a quorum for an election timeout does not count as confirmed, whatever the
//!   reason is: a link that is down, a disk that is stuck, a process that was suspended.
//! * Reads need no barrier only where nobody else can have acknowledged anything.
//!
//! # Not here
//!
//! Elections (`raft`), how answers to heartbeats confirm a leader (`node::confirmation`), how the value gets to other
//! threads (`member::Standing`).

use quorate_node::Leadership;
use quorate_raft::{LogIndex, NONE, Role, Term};
use quorate_state::units::Millis;

use crate::lease_rules::{confirmed_millis_max, extension_millis};

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipState {
    /// Who leads, in which term, and this member's part.
    pub leadership: Leadership,
    /// When the heartbeats, or the round of the read barrier, were sent by which a quorum last confirmed this leader.
    pub confirmed_at: Millis,
    /// Whether this member leads, and there is no other, not even one that learns.
    pub is_alone: bool,
    /// What others may know to be committed from the time when there were some.
    pub alone_from: LogIndex,
    /// Whether this leader hands over because its disk is stuck. It sends no heartbeats then.
    pub gives_way: bool,
    /// Since when no leader is known, while that is so.
    pub leaderless_since: Option<Millis>,
    /// When consensus handled its last tick.
    pub ticked_at: Millis,
    /// How long followers wait for a leader before they elect another.
    pub election_timeout_millis: u64,
}

impl Default for LeadershipState {
    /// Of a member that never leads.
    fn default() -> Self {
        Self::new(0)
    }
}

impl LeadershipState {
    /// Of a member that has just started.
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

    /// Whether this member believes that it leads.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.leadership.role == Role::Leader
    }

    /// Whether it believes that it leads in this term.
    #[must_use]
    pub fn leads_in(&self, term: Term) -> bool {
        self.leads() && self.leadership.term == term
    }

    /// Whether a leader is known.
    #[must_use]
    pub const fn has_leader(&self) -> bool {
        self.leadership.leader != NONE
    }

    /// Whether a read of what was published up to this entry misses nothing, although nobody was asked.
    ///
    /// That is so where this member is alone, leads, and has applied an entry of its term and all that others may have
    /// heard of while there were some, and so everything that was ever acknowledged before. Whatever it acknowledges now
    /// it has applied first.
    #[must_use]
    pub fn reads_need_no_barrier(&self, applied: LogIndex, applied_term: Term) -> bool {
        self.is_alone && self.leads_in(applied_term) && applied >= self.alone_from
    }

    /// Whether this leader may answer for leases on its own: nobody else can lead, or a quorum has confirmed it lately.
    #[must_use]
    pub fn is_confirmed(&self, now: Millis) -> bool {
        let timeout = self.election_timeout_millis;
        let age_max = confirmed_millis_max(timeout);
        assert!(
            age_max <= extension_millis(timeout),
            "a successor lengthens leases by as long as an old leader may renew them: otherwise it ends what was promised"
        );
        let is_recent = now.0.saturating_sub(self.confirmed_at.0) <= age_max;
        self.leads() && (self.is_alone || !self.gives_way && is_recent)
    }

    /// Whether no other leader was elected before this time: nobody else can lead, or a quorum has answered what this
    /// leader sent then or later.
    #[must_use]
    pub fn is_confirmed_since(&self, then: Millis) -> bool {
        self.leads() && (self.is_alone || self.confirmed_at >= then)
    }

    /// Whether there is no leader, and has been none for so long that it is no mere change of leaders.
    #[must_use]
    pub fn misses_leader(&self, now: Millis, patience_millis: u64) -> bool {
        self.leaderless_since.is_some_and(|since| now >= since.plus(patience_millis))
    }

    /// Whether no leader has been known at any moment since then.
    #[must_use]
    pub fn had_no_leader_since(&self, then: Millis) -> bool {
        self.leaderless_since.is_some_and(|since| since <= then)
    }

    /// Whether consensus has handled a tick within the last while.
    #[must_use]
    pub const fn has_ticked_within(&self, now: Millis, last_millis: u64) -> bool {
        now.0.saturating_sub(self.ticked_at.0) <= last_millis
    }

    /// Consensus says who leads now.
    pub(crate) fn change(&mut self, leadership: Leadership, now: Millis) {
        assert!(
            leadership.term >= self.leadership.term,
            "terms never fall: a leader of an older term would be obeyed again"
        );
        self.leadership = leadership;
        let is_leaderless = leadership.leader == NONE;
        self.leaderless_since = is_leaderless.then(|| self.leaderless_since.unwrap_or(now));
    }

    /// Whether there is no other member, and what is committed by now, of which those who were there may have heard.
    pub(crate) fn note_company(&mut self, is_alone: bool, commit: LogIndex) {
        self.is_alone = is_alone && self.leads();
        self.alone_from = commit;
    }

    /// A quorum has answered what this leader sent at this time.
    pub(crate) fn confirm(&mut self, at: Millis) {
        assert!(self.leads(), "only a leader is confirmed: any other member would renew leases");
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
    fn a_confirmation_counts_for_an_election_timeout() {
        let mut state = leading();
        state.confirm(Millis(500));
        assert!(state.is_confirmed(Millis(1_500)));
        assert!(!state.is_confirmed(Millis(1_501)));
        assert!(state.is_confirmed(Millis(400)), "it may come while the time is read");
        // Ticks are no confirmation.
        state.ticked_at = Millis(1_501);
        assert!(!state.is_confirmed(Millis(1_501)));
        state.change(FOLLOWS, Millis(600));
        assert!(!state.is_confirmed(Millis(600)), "it does not lead");
    }

    #[test]
    fn an_older_confirmation_changes_nothing() {
        let mut state = leading();
        state.confirm(Millis(500));
        state.confirm(Millis(300));
        assert_eq!(state.confirmed_at, Millis(500));
        assert!(state.is_confirmed_since(Millis(500)));
        assert!(!state.is_confirmed_since(Millis(501)));
    }

    #[test]
    fn a_leader_that_hands_over_for_its_disk_is_not_confirmed() {
        let mut state = leading();
        state.confirm(Millis(500));
        state.gives_way = true;
        assert!(!state.is_confirmed(Millis(500)));
    }

    #[test]
    fn a_lone_leader_needs_no_confirmation() {
        let mut state = leading();
        state.note_company(true, LogIndex(3));
        assert!(state.is_confirmed(Millis(90_000)) && state.is_confirmed_since(Millis(90_000)));
        state.note_company(false, LogIndex(3));
        assert!(!state.is_confirmed(Millis(90_000)) && !state.is_confirmed_since(Millis(90_000)));
    }

    #[test]
    fn it_is_known_since_when_there_is_no_leader() {
        let mut state = LeadershipState::new(TIMEOUT);
        assert!(state.had_no_leader_since(Millis(5)));
        state.change(Leadership { term: Term(2), ..FOLLOWS }, Millis(10));
        assert!(!state.had_no_leader_since(Millis(5)) && !state.misses_leader(Millis(99), 0));
        state.change(Leadership { leader: NONE, term: Term(2), ..FOLLOWS }, Millis(20));
        assert!(!state.had_no_leader_since(Millis(5)), "there was one in between");
        state.change(Leadership { leader: NONE, ..FOLLOWS }, Millis(30));
        assert!(state.had_no_leader_since(Millis(20)), "another term is no leader");
        assert!(state.misses_leader(Millis(70), 50) && !state.misses_leader(Millis(69), 50));
    }

    #[test]
    fn reads_need_no_barrier_where_nobody_else_can_have_acknowledged_anything() {
        let mut state = leading();
        state.note_company(true, LogIndex(3));
        let can_read = |state: LeadershipState, index, term| {
            state.reads_need_no_barrier(LogIndex(index), Term(term))
        };
        assert!(!can_read(state, 3, 1), "nothing of this term is applied");
        assert!(can_read(state, 4, 2));
        state.note_company(false, LogIndex(4));
        assert!(!can_read(state, 4, 2), "a learner may apply first");
        state.note_company(true, LogIndex(9));
        assert!(!can_read(state, 8, 2), "whoever was there may have applied the ninth");
        assert!(can_read(state, 9, 2));
        state.change(FOLLOWS, Millis(0));
        assert!(!can_read(state, 9, 2), "another leads");
        state.note_company(true, LogIndex(9));
        assert!(!can_read(state, 9, 3), "another leads");
    }
}
