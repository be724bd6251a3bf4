//! Members replaced one at a time by a learner that is promoted, and back.

use quorate_tests::Kind;

use crate::mixed::{Mixed, with_flags};

/// etcd's members are replaced by members of another kind one after the other, and back.
pub(crate) async fn members_are_migrated_through_learners_and_back(kind: Kind) {
    change(Mixed::start().await, kind).await;
}

/// The same migration with authentication and certificates.
pub(crate) async fn guarded_members_are_migrated_through_learners_and_back(kind: Kind) {
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
            // The leader too: a cluster whose leader is removed elects another one.
            mixed.remove_from_clients(oldest).await;
            mixed.cluster.remove(oldest).await;
            mixed.ends(oldest).await;
            mixed.exercise().await;
            oldest += 1;
        }
    }
    mixed.finish().await;
}
