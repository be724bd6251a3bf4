//! Jumps of the wall clock. The test does not cover etcd, because it changes the time that the C library returns, and
//! Go programs read the clock without the C library.

use std::time::Duration;

use quorate_tests::{Cluster, ClusterOptions, Kind, Shim, get};

use crate::{CALM, Ordeal, on_clusters_of_quorate};

on_clusters_of_quorate! {
    the_cluster_survives_jumps_of_the_leaders_clock,
}

/// Returns the date and hour that a member reports to its peers.
fn clock(cluster: &Cluster, member: usize) -> String {
    let answer = get(cluster.server(member).peer_port(), "/raft/probing").text();
    let time = answer.split("\"Now\":\"").nth(1).and_then(|rest| rest.get(..13));
    time.unwrap_or_else(|| panic!("there is no time in {answer}")).to_owned()
}

async fn the_cluster_survives_jumps_of_the_leaders_clock(kind: Kind) {
    let shims: Option<Vec<Shim>> = (0..3).map(|_| Shim::build()).collect();
    let Some(shims) = shims else { return };
    let mut options = ClusterOptions::new(kind, 3).timing(CALM.0, CALM.1);
    for (member, shim) in shims.iter().enumerate() {
        options = options.member(member, |member| shim.prepare(member));
    }
    Ordeal::run(options, async |ordeal| {
        for seconds in [3_600, -3_600, 86_400 * 400, 0] {
            let leader = ordeal.cluster.leader().await;
            let before = clock(&ordeal.cluster, leader);
            shims[leader].set_clock(seconds);
            assert_ne!(clock(&ordeal.cluster, leader), before, "the clock did not jump");
            ordeal.load.work(Duration::from_millis(1_500)).await;
            ordeal.progress().await;
            assert_eq!(ordeal.cluster.leader().await, leader, "the clock jump caused an election");
        }
    })
    .await;
}
