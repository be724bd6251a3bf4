//! Chooses the followers that a leader asks to confirm its reads.
//!
//! A leader of three voters needs the answer of only one follower to confirm a read. The answer of the other one costs
//! two messages and wakes threads of both members for nothing.
//!
//! While no followers are chosen, all voters are asked to confirm a read, and the leader observes which of them answer
//! first (a survey). The first ones that form a quorum with the leader are then asked alone to confirm later reads.
//!
//! The caller must ask the other voters too if the chosen ones do not answer in time. It must forget the choice if the
//! chosen ones were late or are unreachable, and from time to time, because another follower may have become faster.
//!
//! # Guarantees
//!
//! * The choice affects only when a read is confirmed. Confirmations are counted in `pending_reads`, which accepts
//!   those of all voters.
//! * The chosen followers and the leader are a quorum of the configuration that the caller passes for each read.

use crate::entry::MemberId;
use crate::joint::JointConfig;
use crate::quorum::VoteResult;

/// The followers that a leader asks to confirm its reads.
#[derive(Debug, Default)]
pub(crate) struct Confirmers {
    /// The followers to ask alone. Empty if all voters must be asked.
    chosen: Vec<MemberId>,
    survey: Option<Survey>,
}

/// The observation of which voters answer first.
#[derive(Debug)]
struct Survey {
    /// The number of the newest read when the survey began. Only answers that confirm it count.
    number: u64,
    /// The voters that have answered, in the order of their answers.
    answered: Vec<MemberId>,
}

impl Confirmers {
    /// Returns the followers to ask alone, or none if all voters must be asked.
    pub(crate) fn choose(&mut self, own: MemberId, voters: &JointConfig) -> Vec<MemberId> {
        if !is_quorum(own, &self.chosen, voters) {
            self.chosen.clear();
        }
        self.chosen.clone()
    }

    /// Forgets the choice, so that the next read is followed by a survey.
    pub(crate) fn forget(&mut self) {
        self.chosen.clear();
        self.survey = None;
    }

    /// Returns whether this follower is one of those to ask alone.
    pub(crate) fn is_chosen(&self, id: MemberId) -> bool {
        self.chosen.contains(&id)
    }

    /// Records that all voters were asked to confirm all reads up to `number`.
    pub(crate) fn note_all_asked(&mut self, number: u64) {
        // A survey that is still in progress continues. Otherwise frequent reads could keep each survey from ending.
        if self.chosen.is_empty() {
            self.survey.get_or_insert_with(|| Survey { number, answered: Vec::new() });
        }
    }

    /// Records that a member has confirmed all reads up to `number`.
    pub(crate) fn note_answer(
        &mut self,
        own: MemberId,
        from: MemberId,
        number: u64,
        voters: &JointConfig,
    ) {
        let Some(survey) = self.survey.as_mut().filter(|survey| number >= survey.number) else {
            return;
        };
        if voters.contains(from) && !survey.answered.contains(&from) {
            survey.answered.push(from);
            if is_quorum(own, &survey.answered, voters) {
                self.chosen = std::mem::take(&mut survey.answered);
                self.survey = None;
            }
        }
    }
}

/// Returns whether the followers and the leader are a quorum.
fn is_quorum(own: MemberId, followers: &[MemberId], voters: &JointConfig) -> bool {
    let agrees = |id| (id == own || followers.contains(&id)).then_some(true);
    !followers.is_empty() && voters.vote_result(agrees) == VoteResult::Won
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: MemberId = 1;

    fn voters(ids: &[MemberId]) -> JointConfig {
        let mut voters = JointConfig::default();
        voters.incoming.0.extend(ids);
        voters
    }

    /// Surveys all members, of which these answer in this order.
    fn surveyed(voters: &JointConfig, answering: &[MemberId]) -> Confirmers {
        let mut confirmers = Confirmers::default();
        assert!(confirmers.choose(OWN, voters).is_empty());
        confirmers.note_all_asked(7);
        for id in answering {
            confirmers.note_answer(OWN, *id, 7, voters);
        }
        confirmers
    }

    #[test]
    fn the_first_followers_that_form_a_quorum_with_the_leader_are_chosen() {
        for (ids, answering, chosen) in [
            (&[1, 2, 3][..], &[3, 2][..], &[3][..]),
            (&[1, 2, 3, 4, 5], &[4, 4, 2, 3], &[4, 2]),
            (&[1, 2, 3, 4, 5], &[4], &[]),
            // Members 8 and 9 are learners.
            (&[1, 2, 3], &[9, 8, 2], &[2]),
            // The leader has been removed from the configuration.
            (&[2, 3, 4], &[3, 4], &[3, 4]),
        ] {
            let voters = voters(ids);
            let mut confirmers = surveyed(&voters, answering);
            assert_eq!(confirmers.choose(OWN, &voters), chosen, "{ids:?} {answering:?}");
        }
    }

    #[test]
    fn both_sets_of_a_joint_configuration_must_agree() {
        let mut joint = voters(&[1, 2, 3]);
        joint.outgoing.0.extend([1, 4, 5]);
        let mut confirmers = surveyed(&joint, &[2, 3, 5]);
        assert_eq!(confirmers.choose(OWN, &joint), [2, 3, 5]);
        let mut confirmers = surveyed(&voters(&[1, 2, 3]), &[2]);
        assert!(confirmers.choose(OWN, &joint).is_empty(), "the configuration has changed");
    }

    #[test]
    fn answers_to_earlier_rounds_do_not_count() {
        let three = voters(&[1, 2, 3]);
        let mut confirmers = surveyed(&three, &[]);
        confirmers.note_answer(OWN, 2, 6, &three);
        assert!(confirmers.choose(OWN, &three).is_empty());
        // A further round does not begin a new survey while one is in progress.
        confirmers.note_all_asked(8);
        confirmers.note_answer(OWN, 3, 7, &three);
        assert_eq!(confirmers.choose(OWN, &three), [3]);
    }
}
