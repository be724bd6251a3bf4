//! Clusters of etcd 3.5 that are migrated to Quorate and back while clients use them.
//!
//! The clients write, watch and renew leases throughout, and every answer must remain true. The library of this package
//! describes how the tests run. Most tests also run with etcd only, to show that the tests' requirements hold for etcd.

#![expect(clippy::unwrap_used, reason = "a failing step must fail the test")]

mod directory;
mod guarded;
mod in_place;
mod learner;
mod leases;
mod load;
mod mixed;
mod refused_writes;
mod versions;
mod witness;

use std::time::Duration;

use quorate_tests::{Kind, run_cluster_within};

use in_place::{
    members_are_migrated_in_place_and_back,
    members_with_tls_and_users_are_migrated_in_place_and_back,
};
use learner::{
    members_are_migrated_through_learners_and_back,
    members_with_tls_and_users_are_migrated_through_learners_and_back,
};
use refused_writes::refused_transactions_change_nothing_in_a_mixed_cluster;
use versions::{
    a_directory_can_be_downgraded_after_the_cluster_version_rose,
    a_promoted_etcd_learner_serves_after_the_other_members_are_removed,
    a_snapshot_after_a_refused_membership_change_is_accepted,
    a_wiped_member_is_replaced_by_one_that_runs_the_other_program,
    deeply_nested_transactions_are_replicated_in_a_mixed_cluster,
    the_cluster_version_rises_when_its_hold_is_released, the_cluster_version_rises_without_a_hold,
};

/// Timeout of one migration, which takes half a minute on an idle machine.
const LIMIT: Duration = Duration::from_secs(300);

/// Defines two tests for each function, both of which need etcd.
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
    members_are_migrated_in_place_and_back,
    members_are_migrated_through_learners_and_back,
    a_wiped_member_is_replaced_by_one_that_runs_the_other_program,
    deeply_nested_transactions_are_replicated_in_a_mixed_cluster,
    a_promoted_etcd_learner_serves_after_the_other_members_are_removed,
    a_snapshot_after_a_refused_membership_change_is_accepted,
}

/// Defines one test for each function, which migrates from etcd to Quorate.
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
    the_cluster_version_rises_when_its_hold_is_released,
    the_cluster_version_rises_without_a_hold,
    a_directory_can_be_downgraded_after_the_cluster_version_rose,
    refused_transactions_change_nothing_in_a_mixed_cluster,
    members_with_tls_and_users_are_migrated_in_place_and_back,
    members_with_tls_and_users_are_migrated_through_learners_and_back,
}
