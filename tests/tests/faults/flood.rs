//! More requests than a member can execute, until it refuses some.

use quorate_tests::{Client, ClusterOptions, Kind, eventually, key, refused};
use tokio::task::JoinSet;
use tonic::Code;

use crate::on_clusters_of_quorate;

on_clusters_of_quorate! {
    reads_without_a_leader_are_bounded,
}

/// Maximum number of waiting reads on a member (`READS_MAX`).
const READS_MAX: usize = 16_384;

/// Number of reads per connection, which is below the limit of every listener.
const READS_PER_CONNECTION: usize = 200;

async fn reads_without_a_leader_are_bounded(kind: Kind) {
    // Requests wait for at least twice the election timeout, so that all have arrived before the first one times out.
    let mut cluster = ClusterOptions::new(kind, 3).timing(100, 10_000).start().await;
    let last = cluster.follower().await;
    for member in cluster.running().into_iter().filter(|member| *member != last) {
        cluster.kill(member);
    }
    let waiting = || cluster.server(last).metric("quorate_reads_waiting").unwrap() as usize;
    let read = async |client: Client| client.range(key("k")).await;
    let mut readers = JoinSet::new();
    while readers.len() < READS_MAX {
        let client = cluster.client(last);
        for _ in 0..READS_PER_CONNECTION {
            readers.spawn(read(client.clone()));
        }
    }
    // The refusals are the first answers to arrive.
    let refusal = readers.join_next().await.unwrap().unwrap();
    refused(refusal, Code::Unknown, "etcdserver: too many requests");
    assert!(waiting() <= READS_MAX);
    readers.abort_all();
    eventually("the waiting reads of disconnected callers are removed", async || {
        (waiting() == 0).then_some(())
    })
    .await;
    let others: Vec<usize> = cluster.members().into_iter().filter(|id| *id != last).collect();
    cluster.restart_all(&others).await;
    cluster.client(last).range(key("k")).await.unwrap();
}
