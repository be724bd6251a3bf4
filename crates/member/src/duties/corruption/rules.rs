//! Pure functions that draw conclusions from the hashes of several members.
//!
//! Two hashes are comparable if they were taken at the same revision and after the same compaction. A member that was
//! last compacted at a different revision, or that does not answer, is neither accused nor cleared.

use std::collections::{BTreeMap, BTreeSet};

use quorate_state::mvcc::HashKv;

use super::survey::Answer;

/// The member id in an alarm if the corrupt member cannot be identified.
pub(super) const ANY_MEMBER: u64 = 0;

/// The leader's hashes from before and after the other members were queried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    pub(super) member: u64,
    pub(super) before: HashKv,
    pub(super) after: HashKv,
}

/// A member with a different state, and the difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) member: u64,
    pub(super) difference: Difference,
}

/// The kind of inconsistency that a comparison with the leader's state has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Difference {
    #[error("the leader's own hash at revision {revision} has changed from {before} to {after}")]
    Unstable { revision: i64, before: u32, after: u32 },
    #[error("revision from follower must be less than or equal to leader's: {follower}, {leader}")]
    Revision { follower: i64, leader: i64 },
    #[error(
        "compact revision from follower must be less than or equal to leader's: {follower}, {leader}"
    )]
    CompactRevision { follower: i64, leader: i64 },
    #[error(
        "same compact revision then hashes must match: {follower}, leader's is {leader} at revision {revision}"
    )]
    Hash { revision: i64, follower: u32, leader: u32 },
}

/// Compares the responses of all members with the leader's state, and returns the first difference.
pub(super) fn compare(own: &Progress, answers: &[(u64, Answer)]) -> Option<Finding> {
    let Progress { member, before, after } = *own;
    let revision = before.hash_revision;
    let covers = |hash: HashKv| (hash.hash_revision, hash.compact_revision);
    if covers(before) == covers(after) && before.hash != after.hash {
        let (before, after) = (before.hash, after.hash);
        return Some(Finding {
            member,
            difference: Difference::Unstable { revision, before, after },
        });
    }
    let differs = |answer: &Answer| {
        if answer.revision > after.hash_revision {
            let (follower, leader) = (answer.revision, after.hash_revision);
            Some(Difference::Revision { follower, leader })
        } else if answer.compact_revision > after.compact_revision {
            let (follower, leader) = (answer.compact_revision, after.compact_revision);
            Some(Difference::CompactRevision { follower, leader })
        } else if answer.compact_revision == before.compact_revision && answer.hash != before.hash {
            let (follower, leader) = (answer.hash, before.hash);
            Some(Difference::Hash { revision, follower, leader })
        } else {
            None
        }
    };
    answers.iter().find_map(|(member, answer)| {
        differs(answer).map(|difference| Finding { member: *member, difference })
    })
}

/// The result of comparing the members' hashes of a compaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// There are no other members.
    Alone,
    /// All comparable hashes are equal, but some members could not be compared.
    AsFarAsKnown,
    /// All members have the same hash.
    Whole,
    /// Hashes differ. The accused are the members that differ from the majority of all members, in ascending order of
    /// id, or [`ANY_MEMBER`] if there is no such majority.
    None { accused: Vec<u64> },
}

/// Compares this member's hash of a compaction with the hashes of the other members.
pub(super) fn agree<E>(own: u64, hash: &HashKv, answers: &[(u64, Result<Answer, E>)]) -> Agreement {
    if answers.is_empty() {
        return Agreement::Alone;
    }
    let is_comparable = |answer: &&Answer| answer.compact_revision == hash.compact_revision;
    let hashes: Vec<(u64, u32)> = answers
        .iter()
        .filter_map(|(id, answer)| Some((*id, answer.as_ref().ok()?)))
        .filter(|(_, answer)| is_comparable(answer))
        .map(|(id, answer)| (id, answer.hash))
        .chain([(own, hash.hash)])
        .collect();
    let member_count = answers.len() + 1;
    if hashes.iter().all(|(_, other)| *other == hash.hash) {
        let is_whole = hashes.len() == member_count;
        return if is_whole { Agreement::Whole } else { Agreement::AsFarAsKnown };
    }
    let has_majority =
        |hash: u32| hashes.iter().filter(|(_, other)| *other == hash).count() > member_count / 2;
    let Some((_, right)) = hashes.iter().find(|(_, hash)| has_majority(*hash)) else {
        return Agreement::None { accused: vec![ANY_MEMBER] };
    };
    let mut accused: Vec<u64> =
        hashes.iter().filter(|(_, hash)| hash != right).map(|(id, _)| *id).collect();
    accused.sort_unstable();
    Agreement::None { accused }
}

/// The verdict on this member's state according to the hashes of the other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A quorum has the same state.
    Sound,
    /// A quorum of the other members agrees on a different state.
    Bad { hash: u32 },
    /// Too few members could be compared, or they do not agree.
    Unknown,
}

/// Judges a state by comparing it with the states of the voters. If `own` is a voter, it counts in favour of the state.
/// If `own` is `None`, the state is a candidate to replace a member's state, and no vote is counted for that member.
pub(super) fn judge(
    held: &HashKv,
    own: Option<u64>,
    voters: &BTreeSet<u64>,
    answers: &[(u64, Answer)],
) -> Verdict {
    let quorum = voters.len() / 2 + 1;
    let comparable = answers.iter().filter(|(id, answer)| {
        voters.contains(id) && answer.compact_revision == held.compact_revision
    });
    let mut holders: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, answer) in comparable {
        *holders.entry(answer.hash).or_default() += 1;
    }
    if own.is_some_and(|id| voters.contains(&id)) {
        *holders.entry(held.hash).or_default() += 1;
    }
    match holders.into_iter().find(|(_, count)| *count >= quorum) {
        Some((hash, _)) if hash == held.hash => Verdict::Sound,
        Some((hash, _)) => Verdict::Bad { hash },
        None => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 1;

    fn at(hash: u32, compact_revision: i64, hash_revision: i64) -> HashKv {
        HashKv { hash, compact_revision, hash_revision }
    }

    fn answer(hash: u32, compact_revision: i64, revision: i64) -> Answer {
        Answer { hash, compact_revision, revision }
    }

    #[test]
    fn members_whose_hashes_are_not_comparable_are_not_reported() {
        let own = Progress { member: OWN, before: at(7, 3, 10), after: at(8, 5, 12) };
        for fine in [
            answer(7, 3, 10),
            answer(7, 3, 12),
            // After a different compaction, the hash covers different records.
            answer(9, 5, 12),
            answer(9, -1, 10),
        ] {
            assert_eq!(compare(&own, &[(2, fine)]), None, "{fine:?}");
        }
    }

    #[test]
    fn the_first_member_with_a_contradictory_hash_or_revision_is_reported() {
        let own = Progress { member: OWN, before: at(7, 3, 10), after: at(8, 5, 12) };
        for (bad, difference) in [
            (answer(7, 3, 13), Difference::Revision { follower: 13, leader: 12 }),
            (answer(7, 6, 12), Difference::CompactRevision { follower: 6, leader: 5 }),
            (answer(6, 3, 10), Difference::Hash { revision: 10, follower: 6, leader: 7 }),
        ] {
            let answers = [(2, answer(7, 3, 10)), (3, bad), (4, answer(1, 3, 10))];
            assert_eq!(compare(&own, &answers), Some(Finding { member: 3, difference }));
        }
    }

    #[test]
    fn a_leader_whose_own_hash_changes_is_reported() {
        let own = |after| Progress { member: OWN, before: at(7, 3, 10), after };
        let finding = compare(&own(at(8, 3, 10)), &[]);
        let difference = Difference::Unstable { revision: 10, before: 7, after: 8 };
        assert_eq!(finding, Some(Finding { member: OWN, difference }));
        for fine in [at(7, 3, 10), at(8, 3, 11), at(8, 4, 10)] {
            assert_eq!(compare(&own(fine), &[]), None, "{fine:?}");
        }
    }

    fn agreement(others: &[Option<(u32, i64)>]) -> Agreement {
        let to_answer = |(hash, compact)| answer(hash, compact, 20);
        let answers: Vec<(u64, Result<Answer, ()>)> =
            (2..).zip(others.iter().map(|other| other.map(to_answer).ok_or(()))).collect();
        agree(OWN, &at(7, 3, 10), &answers)
    }

    #[test]
    fn members_that_differ_from_the_majority_are_reported_as_corrupt() {
        let (same, other, third, silent, behind) =
            (Some((7, 3)), Some((8, 3)), Some((9, 3)), None, Some((8, 2)));
        for (others, expected) in [
            (vec![], Agreement::Alone),
            (vec![same, same], Agreement::Whole),
            (vec![same, silent], Agreement::AsFarAsKnown),
            (vec![behind, behind], Agreement::AsFarAsKnown),
            (vec![same, other], Agreement::None { accused: vec![3] }),
            (vec![other, other], Agreement::None { accused: vec![OWN] }),
            (vec![other, silent], Agreement::None { accused: vec![ANY_MEMBER] }),
            (vec![other, third], Agreement::None { accused: vec![ANY_MEMBER] }),
            (vec![other, same, third, same], Agreement::None { accused: vec![2, 4] }),
            // Two of four members do not form a majority.
            (vec![same, other, other], Agreement::None { accused: vec![ANY_MEMBER] }),
        ] {
            assert_eq!(agreement(&others), expected, "{others:?}");
        }
    }

    fn verdict(own: Option<u64>, voters: u64, others: &[(u64, u32)]) -> Verdict {
        let answers: Vec<(u64, Answer)> =
            others.iter().map(|(id, hash)| (*id, answer(*hash, 3, 20))).collect();
        judge(&at(7, 3, 10), own, &(1..=voters).collect(), &answers)
    }

    #[test]
    fn a_member_is_corrupt_only_if_a_quorum_of_others_agrees_on_another_hash() {
        let own = Some(OWN);
        let bad = Verdict::Bad { hash: 8 };
        for (voters, others, expected) in [
            (3, &[(2, 8), (3, 8)][..], bad),
            (3, &[(2, 8)], Verdict::Unknown),
            (3, &[(2, 8), (3, 9)], Verdict::Unknown),
            (3, &[(2, 7)], Verdict::Sound),
            (3, &[(2, 7), (3, 8)], Verdict::Sound),
            // One of two voters is not a quorum.
            (2, &[(2, 8)], Verdict::Unknown),
            (1, &[], Verdict::Sound),
            (5, &[(2, 8), (3, 8)], Verdict::Unknown),
            (5, &[(2, 8), (3, 8), (4, 8)], bad),
            (5, &[(2, 8), (3, 8), (4, 7), (5, 8)], bad),
            (4, &[(2, 8), (3, 8), (4, 8)], bad),
            (4, &[(2, 8), (3, 8)], Verdict::Unknown),
            // A learner's state does not count towards the quorum.
            (3, &[(2, 8), (9, 8)], Verdict::Unknown),
        ] {
            assert_eq!(verdict(own, voters, others), expected, "{voters} voters, {others:?}");
        }
        // This member is a learner, so its own state does not count towards the quorum of the three voters.
        assert_eq!(verdict(Some(9), 3, &[(1, 7)]), Verdict::Unknown);
        assert_eq!(verdict(Some(9), 3, &[(1, 8), (2, 8)]), bad);
    }

    #[test]
    fn a_received_state_is_verified_without_the_vote_of_the_receiving_member() {
        assert_eq!(verdict(None, 3, &[(2, 7)]), Verdict::Unknown);
        assert_eq!(verdict(None, 3, &[(2, 7), (3, 7)]), Verdict::Sound);
        assert_eq!(verdict(None, 3, &[(2, 8), (3, 8)]), Verdict::Bad { hash: 8 });
    }

    #[test]
    fn hashes_after_different_compactions_are_not_compared() {
        let answers = [(2, answer(8, 4, 20)), (3, answer(8, 4, 20))];
        let voters = (1..=3).collect();
        assert_eq!(judge(&at(7, 3, 10), Some(OWN), &voters, &answers), Verdict::Unknown);
    }
}
