//! Each etcd member is replaced by a member of another kind on the same data directory, one at a time. Then the
//! replacements are replaced by etcd members in the same way.

use quorate_tests::Kind;

use crate::mixed::{Mixed, flags};

/// Replaces etcd's members one at a time with members of another kind, then replaces the new members with etcd members.
pub(crate) async fn members_are_migrated_in_place_and_back(kind: Kind) {
    change(Mixed::start().await, kind).await;
}

/// Performs the same migration with authentication and certificates.
pub(crate) async fn members_with_tls_and_users_are_migrated_in_place_and_back(kind: Kind) {
    change(Mixed::start_guarded().await, kind).await;
}

async fn change(mut mixed: Mixed, kind: Kind) {
    mixed.exercise().await;
    for (newcomer, kind) in [(true, kind), (false, Kind::Etcd)] {
        for member in 0..3 {
            // Some members are stopped, and some are killed.
            if member == 1 {
                mixed.cluster.kill(member);
            } else {
                mixed.cluster.stop(member).await;
            }
            mixed.cluster.restart_as(member, kind, flags(kind)).await;
            mixed.take_side(member, newcomer);
            mixed.exercise().await;
        }
    }
    mixed.finish().await;
}
