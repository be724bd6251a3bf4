//! Compares quorums, joint quorums and membership changes with simple models.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quorate_raft::confchange::{Changer, restore};
use quorate_raft::joint::JointConfig;
use quorate_raft::quorum::{MajorityConfig, VoteResult};
use quorate_raft::{
    ConfChangeKind, ConfChangeStep, Configuration, InflightLimits, LogIndex, MemberId, ProgressMap,
};

const LIMITS: InflightLimits = InflightLimits { count_max: 4, bytes_max: u64::MAX };

fn any_voters() -> impl Strategy<Value = MajorityConfig> {
    // Some groups have more voters than the quorum computation keeps on the stack.
    proptest::collection::btree_set(1..12u64, 0..10).prop_map(MajorityConfig)
}

fn any_joint() -> impl Strategy<Value = JointConfig> {
    (any_voters(), any_voters()).prop_map(|(incoming, outgoing)| JointConfig { incoming, outgoing })
}

/// Tries every value to find the highest index that more than half of the voters have reached.
fn naive_committed(voters: &MajorityConfig, acked: &BTreeMap<MemberId, u64>) -> u64 {
    if voters.0.is_empty() {
        return u64::MAX;
    }
    let reach = |index: u64| {
        voters.0.iter().filter(|id| acked.get(id).copied().unwrap_or(0) >= index).count()
    };
    (0..=20).rev().find(|index| 2 * reach(*index) > voters.0.len()).unwrap_or(0)
}

/// Returns whether the agreeing voters are a majority of each set that has voters.
fn is_agreed(config: &JointConfig, votes: &BTreeMap<MemberId, bool>) -> bool {
    let agrees = |voters: &MajorityConfig| {
        let granted = voters.0.iter().filter(|id| votes.get(id) == Some(&true)).count();
        voters.0.is_empty() || 2 * granted > voters.0.len()
    };
    agrees(&config.incoming) && agrees(&config.outgoing)
}

fn any_step() -> impl Strategy<Value = ConfChangeStep> {
    (0..4u64, 0..6u64).prop_map(|(kind, node_id)| ConfChangeStep {
        kind: ConfChangeKind::from_wire(kind).expect("there are four kinds"),
        node_id,
    })
}

fn founders() -> Changer {
    let add = |node_id| ConfChangeStep { kind: ConfChangeKind::AddNode, node_id };
    let config = Configuration::default();
    let empty =
        Changer { config, progress: ProgressMap::new(), last_index: LogIndex(9), limits: LIMITS };
    let mut founders = [add(1), add(2), add(3)].into_iter();
    founders.try_fold(empty, |changer, step| changer.simple(&[step])).expect("voters can be added")
}

/// Returns whether the configuration is unchanged after it is recorded and restored.
fn round_trips_through_conf_state(changer: &Changer) -> bool {
    let restored = restore(&changer.config.conf_state(), changer.last_index, LIMITS);
    let (config, progress) = restored.expect("a recorded configuration can be restored");
    let learners = |progress: &ProgressMap| -> Vec<_> {
        progress.iter().map(|(id, progress)| (*id, progress.is_learner)).collect()
    };
    config == changer.config && learners(&progress) == learners(&changer.progress)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn agreed_index_equals_the_result_of_naive_counting(
        config in any_joint(),
        acked in proptest::collection::btree_map(1..12u64, 1..20u64, 0..12),
    ) {
        let index = config.agreed(|id| acked.get(&id).copied());
        let naive = naive_committed(&config.incoming, &acked)
            .min(naive_committed(&config.outgoing, &acked));
        prop_assert_eq!(index, naive);
    }

    #[test]
    fn raising_an_acknowledgement_never_lowers_the_agreed_index(
        config in any_joint(),
        mut acked in proptest::collection::btree_map(1..12u64, 1..20u64, 1..12),
        raised in 1..12u64,
    ) {
        let before = config.agreed(|id| acked.get(&id).copied());
        *acked.entry(raised).or_default() += 5;
        prop_assert!(config.agreed(|id| acked.get(&id).copied()) >= before);
    }

    #[test]
    fn a_vote_is_pending_while_missing_votes_can_decide_it(
        config in any_joint(),
        votes in proptest::collection::btree_map(1..12u64, any::<bool>(), 0..12),
    ) {
        let completed = |missing: bool| {
            let mut all: BTreeMap<_, _> = config.ids().into_iter().map(|id| (id, missing)).collect();
            all.extend(votes.clone());
            is_agreed(&config, &all)
        };
        let expected = match (completed(false), completed(true)) {
            (true, _) => VoteResult::Won,
            (false, true) => VoteResult::Pending,
            (false, false) => VoteResult::Lost,
        };
        prop_assert_eq!(config.vote_result(|id| votes.get(&id).copied()), expected);
    }

    /// Any sequence of changes, allowed or refused, leads from one valid configuration to another.
    /// The changer itself asserts that member lists and progress are consistent.
    #[test]
    fn configurations_stay_valid_and_round_trip_through_conf_state(
        changes in proptest::collection::vec(
            (0..4u8, proptest::collection::vec(any_step(), 0..4)), 0..20
        ),
    ) {
        let mut changer = founders();
        for (form, steps) in changes {
            let current = changer.clone();
            let changed = match form {
                0 => current.enter_joint(true, &steps),
                1 => current.enter_joint(false, &steps),
                2 => current.leave_joint(),
                _ => current.simple(&steps),
            };
            if let Ok(changed) = changed {
                let (before, after) = (&changer.config.voters, &changed.config.voters);
                prop_assert!(!after.incoming.0.is_empty());
                let both = before.incoming.0.symmetric_difference(&after.incoming.0).count();
                prop_assert!(both <= 1 || after.is_joint(), "majorities overlap");
                changer = changed;
            }
            prop_assert!(round_trips_through_conf_state(&changer));
        }
    }

    /// Making several changes through joint consensus has the same result as making them one by
    /// one.
    #[test]
    fn a_joint_change_has_the_same_result_as_successive_changes(steps in proptest::collection::vec(any_step(), 1..6)) {
        let one_by_one = steps.iter().try_fold(founders(), |changer, step| changer.simple(&[*step]));
        let at_once = founders().enter_joint(false, &steps).and_then(Changer::leave_joint);
        if let (Ok(one_by_one), Ok(at_once)) = (one_by_one, at_once) {
            prop_assert_eq!(one_by_one.config, at_once.config);
        }
    }
}
