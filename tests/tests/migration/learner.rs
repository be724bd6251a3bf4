//! Members replaced one at a time by a learner that is promoted, and back.

use quorate_tests::Kind;

use crate::mixed::{Mixed, with_flags};

/// Etcd's members give way to members of another kind one after the other, and those to etcd again.
pub(crate) async fn members_change_by_learners_and_back(kind: Kind) {
    change(Mixed::start().await, kind).await;
}

/// The same where nobody gets in who has not shown who he is.
pub(crate) async fn guarded_members_change_by_learners_and_back(kind: Kind) {
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
            // The leader among others: a cluster of which the leader is removed elects another one.
            mixed.dismiss(oldest).await;
            mixed.cluster.remove(oldest).await;
            mixed.ends(oldest).await;
            mixed.exercise().await;
            oldest += 1;
        }
    }
    mixed.finish().await;
}
