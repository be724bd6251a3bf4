//! The order in which followers campaign when the leader's process has ended.
//!
//! A follower that receives no messages from the leader waits for one to two election timeouts,
//! because the network may be slow. If the leader's connections break and its addresses refuse new
//! connections, waiting is pointless. Its followers then stop following it and campaign one after
//! another, in id order, so that they do not split the votes. Each follower campaigns once in this
//! way. Later elections start after a timeout.
//!
//! A mistaken follower does not depose the leader, because it first runs a pre-vote, and members that
//! still receive messages from the leader refuse the pre-vote. A leader that refuses the connections of
//! all followers is replaced even though it is running, as it would be after a partition.
//!
//! See decision record 0009.

use std::collections::BTreeSet;

use quorate_raft::{MemberId, NONE, Role, Term};

use crate::Leadership;

/// Ticks between the turns of two members. The spacing is needed because members do not all notice
/// in the same tick that the leader is gone, and because an election takes two rounds of messages
/// and a write.
const SPACING_TICKS: usize = 3;

/// A member's turn to campaign, and the number of ticks until it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Turn {
    /// The term of the leader whose process has ended.
    term: Term,
    ticks_left: usize,
}

/// Tracks this member's turn to campaign after the leader's process has ended.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    turn: Option<Turn>,
}

impl Succession {
    /// Starts waiting for this member's turn if the member may succeed the leader whose process has
    /// ended. Returns `false` if it may not.
    pub(crate) fn begin(
        &mut self,
        own_id: MemberId,
        leadership: Leadership,
        voters: &BTreeSet<MemberId>,
    ) -> bool {
        if !voters.contains(&own_id)
            || leadership.role != Role::Follower
            || leadership.leader == NONE
        {
            return false;
        }
        let before = voters.range(..own_id).filter(|id| **id != leadership.leader);
        self.turn =
            Some(Turn { term: leadership.term, ticks_left: 1 + before.count() * SPACING_TICKS });
        true
    }

    /// Postpones the turn because another member is campaigning and two candidates would split the
    /// votes.
    pub(crate) fn step_back(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.ticks_left += SPACING_TICKS;
        }
    }

    /// Advances one tick, given the current leader and term. Returns true once, when this member's
    /// turn comes and no other member has become leader or started a new term.
    pub(crate) fn tick(&mut self, leader: MemberId, term: Term) -> bool {
        let Some(turn) = &mut self.turn else { return false };
        if leader != NONE || term != turn.term {
            self.turn = None;
            return false;
        }
        turn.ticks_left -= 1;
        let is_due = turn.ticks_left == 0;
        if is_due {
            self.turn = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LED: Leadership = Leadership { leader: 2, term: Term(7), role: Role::Follower };
    const LEADERLESS: Leadership = Leadership { leader: NONE, ..LED };

    /// Returns the number of ticks after which the member campaigns.
    fn turn_of(succession: &mut Succession) -> Option<usize> {
        let turns: Vec<usize> = (1..=20).filter(|_| succession.tick(NONE, LED.term)).collect();
        assert!(turns.len() <= 1, "a member has at most one turn");
        turns.first().copied()
    }

    #[test]
    fn voters_campaign_one_after_another() {
        let five = [1, 2, 3, 4, 5].into();
        let turn_of = |id: MemberId| {
            let mut succession = Succession::default();
            succession.begin(id, LED, &five);
            turn_of(&mut succession)
        };
        assert_eq!([1, 3, 4, 5].map(turn_of), [1, 4, 7, 10].map(Some));
        assert_eq!(turn_of(9), None, "a learner has no turn");
    }

    #[test]
    fn another_candidate_delays_a_members_campaign() {
        let mut succession = Succession::default();
        succession.step_back();
        assert_eq!(turn_of(&mut succession), None, "no member has a turn");
        succession.begin(1, LED, &[1, 2, 3].into());
        succession.step_back();
        assert_eq!(turn_of(&mut succession), Some(4));
    }

    #[test]
    fn only_a_follower_of_a_leader_begins_a_succession() {
        let three = [1, 2, 3].into();
        let mut succession = Succession::default();
        assert!(!succession.begin(1, LEADERLESS, &three));
        assert!(!succession.begin(2, Leadership { role: Role::Leader, ..LED }, &three));
        assert!(succession.begin(1, LED, &three));
    }

    #[test]
    fn a_new_leader_or_term_ends_the_succession() {
        let three = [1, 2, 3].into();
        for (leader, term) in [(2, 7), (NONE, 8)] {
            let mut succession = Succession::default();
            assert!(succession.begin(1, LED, &three));
            assert!(!succession.tick(leader, Term(term)));
            assert_eq!(turn_of(&mut succession), None, "the turn is over");
        }
    }
}
