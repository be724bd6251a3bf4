//! Links that drop or delay bytes, or carry them in only one direction.

use std::time::Duration;

use quorate_tests::{ClusterOptions, Kind, Rule};

use crate::{CALM, MANY, Ordeal, on_clusters};

/// Log line of a member that campaigns.
const ELECTION: &str = "is starting a new election";

on_clusters! {
    the_cluster_survives_an_isolated_leader,
    the_cluster_survives_an_isolated_follower,
    the_cluster_survives_a_partition_with_the_leader_in_the_minority,
    the_cluster_survives_the_loss_of_messages_from_the_leader,
    the_cluster_survives_the_loss_of_messages_to_the_leader,
    the_cluster_survives_the_loss_of_messages_to_a_follower,
    the_cluster_survives_a_broken_link_between_two_members,
    the_cluster_survives_a_leader_that_refuses_connections,
    the_cluster_survives_flapping_links,
    the_cluster_survives_slow_links,
    the_cluster_survives_repeatedly_cut_connections,
}

fn linked(kind: Kind, size: usize) -> ClusterOptions {
    ClusterOptions::new(kind, size).linked()
}

async fn the_cluster_survives_an_isolated_leader(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        for _ in 0..2 {
            let leader = ordeal.cluster.leader().await;
            let others = ordeal.others(leader);
            ordeal.load.read_from(&ordeal.cluster, leader, &mut ordeal.random);
            ordeal.cluster.links().isolate(leader);
            ordeal.cluster.leader_among(&others).await;
            ordeal.progress().await;
            ordeal.cluster.links().heal();
            ordeal.progress().await;
        }
    })
    .await;
}

async fn the_cluster_survives_an_isolated_follower(kind: Kind) {
    Ordeal::run(linked(kind, 3).timing(CALM.0, CALM.1), async |ordeal| {
        let leader = ordeal.cluster.leader().await;
        let follower = ordeal.cluster.follower().await;
        ordeal.load.read_from(&ordeal.cluster, follower, &mut ordeal.random);
        ordeal.cluster.links().isolate(follower);
        ordeal.progress().await;
        ordeal.wait_for_log(follower, ELECTION, 2).await;
        ordeal.cluster.links().heal();
        ordeal.progress().await;
        ordeal.cluster.settle().await;
        assert_eq!(
            ordeal.cluster.leader().await,
            leader,
            "the returning member unseated the leader"
        );
    })
    .await;
}

async fn the_cluster_survives_a_partition_with_the_leader_in_the_minority(kind: Kind) {
    Ordeal::run(linked(kind, 5), async |ordeal| {
        let leader = ordeal.cluster.leader().await;
        let mut majority = ordeal.others(leader);
        let friend = majority.pop().unwrap();
        ordeal.cluster.links().split(&[leader, friend], &majority, Rule::Drop);
        ordeal.cluster.leader_among(&majority).await;
        ordeal.progress().await;
        ordeal.cluster.links().heal();
        ordeal.progress().await;
    })
    .await;
}

async fn the_cluster_survives_the_loss_of_messages_from_the_leader(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        let leader = ordeal.cluster.leader().await;
        let others = ordeal.others(leader);
        for other in &others {
            ordeal.cluster.links().set(leader, *other, Rule::Drop);
        }
        ordeal.cluster.leader_among(&others).await;
        ordeal.progress().await;
        ordeal.cluster.links().heal();
        ordeal.progress().await;
    })
    .await;
}

async fn the_cluster_survives_the_loss_of_messages_to_the_leader(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        let leader = ordeal.cluster.leader().await;
        let others = ordeal.others(leader);
        for other in &others {
            ordeal.cluster.links().set(*other, leader, Rule::Drop);
        }
        // The leader must notice that no member answers and step down. Otherwise, the other members would wait for the
        // leader forever.
        ordeal.cluster.leader_among(&others).await;
        ordeal.progress().await;
        ordeal.cluster.links().heal();
        ordeal.progress().await;
    })
    .await;
}

async fn the_cluster_survives_the_loss_of_messages_to_a_follower(kind: Kind) {
    Ordeal::run(linked(kind, 3).timing(CALM.0, CALM.1), async |ordeal| {
        let leader = ordeal.cluster.leader().await;
        let follower = ordeal.cluster.follower().await;
        for other in ordeal.others(follower) {
            ordeal.cluster.links().set(other, follower, Rule::Drop);
        }
        // The follower campaigns repeatedly, and all members receive its requests.
        ordeal.wait_for_log(follower, ELECTION, 3).await;
        ordeal.progress().await;
        assert_eq!(
            ordeal.cluster.leader().await,
            leader,
            "a partitioned member unseated the leader"
        );
        ordeal.cluster.links().heal();
        ordeal.progress().await;
    })
    .await;
}

async fn the_cluster_survives_a_broken_link_between_two_members(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        let leader = ordeal.cluster.leader().await;
        let follower = ordeal.cluster.follower().await;
        ordeal.cluster.links().set_both(leader, follower, Rule::Drop);
        ordeal.wait_for_log(follower, ELECTION, 1).await;
        ordeal.progress().await;
        ordeal.cluster.links().heal();
        ordeal.progress().await;
    })
    .await;
}

/// To the other members, the leader's process seems to have exited, but the leader has not stepped down.
async fn the_cluster_survives_a_leader_that_refuses_connections(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        for _ in 0..3 {
            let leader = ordeal.cluster.leader().await;
            ordeal.load.read_from(&ordeal.cluster, leader, &mut ordeal.random);
            ordeal.cluster.links().refuse(leader);
            ordeal.progress().await;
            ordeal.cluster.links().heal();
            ordeal.progress().await;
        }
    })
    .await;
}

async fn the_cluster_survives_flapping_links(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        for milliseconds in [100, 400, 1_100] {
            let leader = ordeal.cluster.leader().await;
            let turn = Duration::from_millis(milliseconds);
            ordeal.cluster.links().set_links_of(leader, Rule::Flap { turn });
            ordeal.load.work(Duration::from_millis(2_000)).await;
            ordeal.cluster.links().heal();
            ordeal.progress().await;
        }
    })
    .await;
}

async fn the_cluster_survives_slow_links(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        for milliseconds in [10, 60] {
            let time = Duration::from_millis(milliseconds);
            ordeal.cluster.links().set_all(Rule::Delay { base: time, jitter: time });
            ordeal.load.progress(MANY).await;
        }
        ordeal.cluster.links().heal();
    })
    .await;
}

async fn the_cluster_survives_repeatedly_cut_connections(kind: Kind) {
    Ordeal::run(linked(kind, 3), async |ordeal| {
        ordeal.cluster.links().set_all(Rule::Cut { one_in: 100 });
        for member in ordeal.cluster.members() {
            ordeal.wait_for_log(member, "lost TCP streaming connection", 4).await;
        }
        ordeal.progress().await;
        ordeal.cluster.links().heal();
    })
    .await;
}
