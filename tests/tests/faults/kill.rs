//! Members that are killed or stopped, and started again.

use std::time::Duration;

use quorate_tests::{ClusterOptions, Kind, key, put};

use crate::{Ordeal, on_clusters, on_clusters_of_quorate};

on_clusters! {
    the_leader_is_killed,
    a_follower_is_killed,
    a_majority_is_killed,
    all_are_killed,
    one_after_the_other_is_stopped,
    a_follower_that_fell_behind_gets_a_snapshot,
}

on_clusters_of_quorate! {
    a_killed_leader_is_succeeded_before_a_timeout,
}

async fn the_leader_is_killed(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..3 {
            let leader = ordeal.cluster.leader().await;
            ordeal.cluster.kill(leader);
            ordeal.progress().await;
            ordeal.cluster.restart(leader).await;
            ordeal.progress().await;
        }
    })
    .await;
}

/// Its address refuses connections, so that nobody has to wait until it has been silent for long.
async fn a_killed_leader_is_succeeded_before_a_timeout(kind: Kind) {
    const ELECTION_MILLIS: u32 = 20_000;
    let mut cluster = ClusterOptions::new(kind, 3).timing(100, ELECTION_MILLIS).start().await;
    for round in 0..2 {
        let leader = cluster.leader().await;
        cluster.client(leader).write("k", format!("{round}")).await;
        cluster.kill(leader);
        let others = cluster.running();
        let succession = async {
            let next = cluster.leader_among(&others).await;
            cluster.client(next).put(put("k", "after")).await.unwrap();
        };
        let limit = Duration::from_millis((ELECTION_MILLIS / 2).into());
        let in_time = tokio::time::timeout(limit, succession).await;
        assert!(in_time.is_ok(), "they waited for a timeout");
        cluster.restart(leader).await;
    }
}

async fn a_follower_is_killed(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..3 {
            let follower = ordeal.cluster.follower().await;
            ordeal.cluster.kill(follower);
            ordeal.progress().await;
            ordeal.cluster.restart(follower).await;
            ordeal.progress().await;
        }
    })
    .await;
}

async fn a_majority_is_killed(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            let leader = ordeal.cluster.leader().await;
            let follower = ordeal.cluster.follower().await;
            ordeal.cluster.kill(leader);
            ordeal.cluster.kill(follower);
            // The one that is left answers what needs nobody else.
            let last = ordeal.cluster.running()[0];
            let mut read = key("load/0");
            read.serializable = true;
            ordeal.cluster.client(last).range(read).await.unwrap();
            ordeal.cluster.restart_all(&[leader, follower]).await;
            ordeal.progress().await;
        }
    })
    .await;
}

async fn all_are_killed(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..3 {
            for member in 0..3 {
                ordeal.cluster.kill(member);
            }
            ordeal.cluster.restart_all(&[0, 1, 2]).await;
            ordeal.progress().await;
        }
    })
    .await;
}

async fn one_after_the_other_is_stopped(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..3 {
            // A leader that stops hands over first.
            let leader = ordeal.cluster.leader().await;
            ordeal.cluster.stop(leader).await;
            ordeal.progress().await;
            ordeal.cluster.restart(leader).await;
        }
    })
    .await;
}

async fn a_follower_that_fell_behind_gets_a_snapshot(kind: Kind) {
    let catchup = match kind {
        Kind::Quorate => "--snapshot-catchup-entries=20",
        Kind::Etcd => "--experimental-snapshot-catchup-entries=20",
    };
    let options = ClusterOptions::new(kind, 3).flag("--snapshot-count=50").flag(catchup);
    Ordeal::run(options, async |ordeal| {
        let follower = ordeal.cluster.follower().await;
        ordeal.cluster.kill(follower);
        ordeal.load.progress(400).await;
        ordeal.cluster.restart(follower).await;
        ordeal.progress().await;
        let metrics = ordeal.cluster.server(follower).get("/metrics").text();
        let received = metrics.lines().any(|line| {
            line.starts_with("etcd_network_snapshot_receive_success{") && !line.ends_with(" 0")
        });
        assert!(received, "no snapshot was received");
    })
    .await;
}
