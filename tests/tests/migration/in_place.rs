//! Members replaced one at a time by another program on the same data directory, and back.

use quorate_tests::Kind;

use crate::mixed::{Mixed, flags};

/// Etcd's members become members of another kind one after the other, and etcd's again.
pub(crate) async fn members_change_in_place_and_back(kind: Kind) {
    change(Mixed::start().await, kind).await;
}

/// The same where nobody gets in who has not shown who he is.
pub(crate) async fn guarded_members_change_in_place_and_back(kind: Kind) {
    change(Mixed::start_guarded().await, kind).await;
}

async fn change(mut mixed: Mixed, kind: Kind) {
    mixed.exercise().await;
    for (newcomer, kind) in [(true, kind), (false, Kind::Etcd)] {
        for member in 0..3 {
            // Some members end well, and some without a word.
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
