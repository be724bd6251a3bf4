//! A full, failing or slow disk on one member.

use std::time::Duration;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    ClusterOptions, Held, Kind, Options, Server, Shim, SmallDisk, Syncing, Syncs, eventually, key,
    put, within,
};
use tokio::task::JoinSet;

use crate::{MANY, Ordeal, on_clusters, on_clusters_of_quorate};

on_clusters! {
    the_cluster_survives_a_full_disk_of_one_member,
    the_cluster_survives_failed_syncs_of_one_member,
    the_cluster_survives_slow_syncs_of_one_member,
}

on_clusters_of_quorate! {
    other_connections_are_served_while_the_disk_of_a_single_member_stalls,
    concurrent_puts_of_one_connection_share_syncs,
}

async fn concurrent_puts_of_one_connection_share_syncs(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    // After quick writes, the thread that serves the connection of a lone client writes the log.
    for number in 0..100 {
        client.write("k", number.to_string()).await;
    }
    let sync_count = || server.metric("etcd_disk_wal_fsync_duration_seconds_count").unwrap();
    let before = sync_count();
    let mut puts = JoinSet::new();
    for number in 0..1_000 {
        let client = client.clone();
        puts.spawn_local(async move { client.put(put(format!("k{number}"), "v")).await.unwrap() });
    }
    puts.join_all().await;
    let syncs = sync_count() - before;
    assert!(syncs < 120.0, "1,000 concurrent puts needed {syncs} syncs");
}

async fn other_connections_are_served_while_the_disk_of_a_single_member_stalls(kind: Kind) {
    let Some(shim) = Shim::build() else { return };
    let server = shim.prepare(Options::new(kind)).start().await;
    let writer = server.client();
    // After quick writes, the thread that serves the connection of a lone client writes the log.
    for number in 0..100 {
        writer.write("k", number.to_string()).await;
    }
    shim.hold(Held::Everything);
    let stalled = tokio::task::spawn_local(async move { writer.put(put("k", "last")).await });
    eventually("the put waits for the disk", async || {
        let pending = server.metric("etcd_server_proposals_pending");
        (pending >= Some(1.0)).then_some(())
    })
    .await;
    // The connections stay open, so that each thread that may serve one is chosen.
    let mut readers = Vec::new();
    for _ in 0..2 * std::thread::available_parallelism().unwrap().get() + 2 {
        let reader = server.client();
        let request = pb::RangeRequest { serializable: true, ..key("k") };
        let read = within("a read on a new connection", reader.range(request)).await;
        assert_eq!(read.unwrap().kvs[0].value(), b"99");
        readers.push(reader);
    }
    assert!(!stalled.is_finished());
    shim.hold(Held::Nothing);
    within("the put", stalled).await.unwrap().unwrap();
}

async fn the_cluster_survives_a_full_disk_of_one_member(kind: Kind) {
    // The disk must have space for two preallocated log segments.
    let Some(disk) = SmallDisk::new(250) else { return };
    let options = ClusterOptions::new(kind, 3).member(2, |member| disk.prepare(member));
    Ordeal::run(options, async |ordeal| {
        disk.fill();
        // Large values use up the preallocated space.
        let everyone = ordeal.cluster.everyone();
        let value = vec![b'v'; 200_000];
        eventually("the member without disk space exits", async || {
            // The outcome of the write does not matter.
            drop(everyone.try_ask(async |client| client.put(put("large", &value)).await).await);
            (!ordeal.cluster.server_mut(2).is_running()).then_some(())
        })
        .await;
        ordeal.progress().await;
        disk.empty();
        ordeal.cluster.kill(2);
        ordeal.cluster.restart(2).await;
        ordeal.progress().await;
    })
    .await;
}

async fn the_cluster_survives_failed_syncs_of_one_member(kind: Kind) {
    let Some(mut syncing) = Syncing::of(kind) else { return };
    let options = ClusterOptions::new(kind, 3).member(1, |member| syncing.prepare(member));
    Ordeal::run(options, async |ordeal| {
        for _ in 0..2 {
            syncing.set(ordeal.cluster.server(1), Syncs::Fail);
            // The member exits, because it must not acknowledge an entry that may not be on disk, and retrying the sync
            // would not help: the kernel may have dropped the data.
            ordeal.cluster.ended(1).await;
            ordeal.progress().await;
            syncing.set(ordeal.cluster.server(1), Syncs::Work);
            ordeal.cluster.restart(1).await;
            ordeal.progress().await;
        }
    })
    .await;
}

async fn the_cluster_survives_slow_syncs_of_one_member(kind: Kind) {
    let Some(mut syncing) = Syncing::of(kind) else { return };
    let options = ClusterOptions::new(kind, 3).member(1, |member| syncing.prepare(member));
    Ordeal::run(options, async |ordeal| {
        for milliseconds in [20, 200] {
            let syncs = Syncs::Take(Duration::from_millis(milliseconds));
            syncing.set(ordeal.cluster.server(1), syncs);
            ordeal.load.progress(MANY).await;
            syncing.set(ordeal.cluster.server(1), Syncs::Work);
            ordeal.progress().await;
        }
    })
    .await;
}
