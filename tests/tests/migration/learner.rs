//! Each etcd member is replaced by a learner of another kind, which is then promoted. Then the replacements are
//! replaced by etcd members in the same way.

use quorate_tests::Kind;

use crate::mixed::{Mixed, with_flags};

/// Replaces etcd's members one at a time with members of another kind, then replaces the new members with etcd members.
pub(crate) async fn members_are_migrated_through_learners_and_back(kind: Kind) {
    change(Mixed::start().await, kind).await;
}

/// Performs the same migration with authentication and certificates.
pub(crate) async fn members_with_tls_and_users_are_migrated_through_learners_and_back(kind: Kind) {
    change(Mixed::start_guarded().await, kind).await;
}

async fn change(mut mixed: Mixed, kind: Kind) {
    let mut oldest = 0;
    for (newcomer, kind) in [(true, kind), (false, Kind::Etcd)] {
        for _ in 0..3 {
            let learner = mixed.cluster.add_with(true, |options| with_flags(options, kind)).await;
            mixed.cluster.promote(learner).await;
            mixed.take_side(learner, newcomer);
            mixed.admit(learner);
            // The leader is removed, too. The cluster then elects another one.
            mixed.remove_from_clients(oldest).await;
            mixed.cluster.remove(oldest).await;
            mixed.ends(oldest).await;
            mixed.exercise().await;
            oldest += 1;
        }
    }
    mixed.finish().await;
}
