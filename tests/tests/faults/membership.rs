//! Members that are added, promoted, removed and replaced under load.

use quorate_api::etcdserverpb as pb;
use quorate_tests::{ClusterOptions, Kind, eventually};

use crate::{Ordeal, on_clusters};

on_clusters! {
    a_killed_member_can_be_replaced_under_load,
    a_wiped_member_is_refused_and_can_be_replaced_under_load,
    a_learner_can_be_promoted_under_load,
    leadership_can_be_transferred_under_load,
}

async fn a_killed_member_can_be_replaced_under_load(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        let leader = ordeal.cluster.leader().await;
        ordeal.cluster.kill(leader);
        ordeal.progress().await;
        ordeal.cluster.replace(leader).await;
        ordeal.progress().await;
    })
    .await;
}

async fn a_wiped_member_is_refused_and_can_be_replaced_under_load(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        let follower = ordeal.cluster.follower().await;
        ordeal.cluster.kill(follower);
        ordeal.cluster.wipe(follower);
        // The wiped member has lost its votes and acknowledged entries, so it must not return under its old id.
        ordeal.cluster.launch(follower);
        let exit = ordeal.cluster.try_ready(follower).await.unwrap_err();
        assert!(exit.status.is_some(), "{exit}");
        assert!(exit.log.contains("has already been bootstrapped"), "{exit}");
        let is_advised = exit.log.contains("etcdctl member remove");
        assert!(is_advised || kind == Kind::Etcd, "the log must name the remedy: {exit}");
        ordeal.progress().await;
        ordeal.cluster.replace(follower).await;
        ordeal.progress().await;
    })
    .await;
}

async fn a_learner_can_be_promoted_under_load(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        let learner = ordeal.cluster.add_learner().await;
        ordeal.progress().await;
        ordeal.cluster.promote(learner).await;
        ordeal.progress().await;
        let follower = ordeal.cluster.follower().await;
        ordeal.cluster.kill(follower);
        ordeal.progress().await;
        ordeal.cluster.restart(follower).await;
    })
    .await;
}

async fn leadership_can_be_transferred_under_load(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..4 {
            let leader = ordeal.cluster.leader().await;
            let target = ordeal.cluster.follower().await;
            let request = pb::MoveLeaderRequest { target_id: ordeal.cluster.id(target) };
            ordeal.cluster.client(leader).move_leader(request).await.unwrap();
            eventually("the member becomes leader", async || {
                (ordeal.cluster.leader().await == target).then_some(())
            })
            .await;
            ordeal.progress().await;
        }
    })
    .await;
}
