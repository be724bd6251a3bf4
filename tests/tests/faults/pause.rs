//! Members that get no processor for a while and do not know.

use std::time::Duration;

use quorate_tests::{ClusterOptions, Kind};

use crate::{Ordeal, on_clusters};

on_clusters! {
    a_leader_that_slept_answers_nothing_stale,
    a_follower_sleeps,
    everybody_sleeps,
}

async fn a_leader_that_slept_answers_nothing_stale(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            let leader = ordeal.cluster.leader().await;
            ordeal.cluster.pause(leader);
            let awake = ordeal.cluster.running();
            ordeal.cluster.leader_among(&awake).await;
            ordeal.progress().await;
            // These ask the sleeper what others have changed since. It finds their questions when it
            // wakes up and still believes that it leads.
            ordeal.load.read_from(&ordeal.cluster, leader, &mut ordeal.random);
            ordeal.load.work(Duration::from_millis(300)).await;
            ordeal.cluster.resume(leader);
            ordeal.progress().await;
        }
    })
    .await;
}

async fn a_follower_sleeps(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            let follower = ordeal.cluster.follower().await;
            ordeal.cluster.pause(follower);
            ordeal.progress().await;
            ordeal.load.read_from(&ordeal.cluster, follower, &mut ordeal.random);
            ordeal.load.work(Duration::from_millis(1_000)).await;
            ordeal.cluster.resume(follower);
            ordeal.progress().await;
        }
    })
    .await;
}

async fn everybody_sleeps(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            for member in 0..3 {
                ordeal.cluster.pause(member);
            }
            ordeal.load.work(Duration::from_millis(1_500)).await;
            for member in 0..3 {
                ordeal.cluster.resume(member);
            }
            ordeal.progress().await;
        }
    })
    .await;
}
