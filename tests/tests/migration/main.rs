//! Clusters of etcd 3.5 that become clusters of Quorate while clients use them, and go back.
//!
//! The clients write, watch and keep leases from the beginning to the end, and nothing of what they
//! were told may turn out to be untrue. See the library beside this for how a test is run. A half of
//! each test that is etcd's alone shows that what is asked for is what etcd does.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod directory;
mod guarded;
mod in_place;
mod learner;
mod leases;
mod load;
mod mixed;
mod versions;
mod witness;

use std::time::Duration;

use quorate_tests::{Kind, run_cluster_within};

use in_place::{guarded_members_change_in_place_and_back, members_change_in_place_and_back};
use learner::{guarded_members_change_by_learners_and_back, members_change_by_learners_and_back};
use versions::{
    a_cluster_that_is_not_held_rises, a_directory_that_has_risen_goes_back,
    a_held_cluster_rises_when_it_is_released, a_learner_of_etcd_joins_others,
    a_snapshot_after_a_refused_change_is_taken, a_wiped_member_is_replaced_among_others,
    deep_transactions_pass_between_members,
};

/// Longest that one migration may take: half a minute when the machine does nothing else.
const LIMIT: Duration = Duration::from_secs(300);

/// Makes the two tests of each function named, of which both need etcd.
macro_rules! from_etcd {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            use quorate_tests::Kind;

            #[test]
            fn quorate() {
                super::run(Kind::Quorate, super::$name);
            }

            #[test]
            fn etcd() {
                super::run(Kind::Etcd, super::$name);
            }
        })*
    };
}

fn run<F: Future<Output = ()>>(kind: Kind, body: impl FnOnce(Kind) -> F) {
    if Kind::Etcd.is_present() {
        run_cluster_within(LIMIT, kind, body);
    }
}

from_etcd! {
    members_change_in_place_and_back,
    members_change_by_learners_and_back,
    a_wiped_member_is_replaced_among_others,
    deep_transactions_pass_between_members,
    a_learner_of_etcd_joins_others,
    a_snapshot_after_a_refused_change_is_taken,
}

/// Makes a test of Quorate, whose way begins at etcd.
macro_rules! to_quorate {
    ($($name:ident),* $(,)?) => {
        $(mod $name {
            use quorate_tests::Kind;

            #[test]
            fn quorate() {
                super::run(Kind::Quorate, super::$name);
            }
        })*
    };
}

to_quorate! {
    a_held_cluster_rises_when_it_is_released,
    a_cluster_that_is_not_held_rises,
    a_directory_that_has_risen_goes_back,
    guarded_members_change_in_place_and_back,
    guarded_members_change_by_learners_and_back,
}
