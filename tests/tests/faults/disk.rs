//! A full, failing or slow disk on one member.

use std::time::Duration;

use quorate_tests::{ClusterOptions, Kind, SmallDisk, Syncing, Syncs, eventually, put};

use crate::{MANY, Ordeal, on_clusters};

on_clusters! {
    the_cluster_survives_a_full_disk_of_one_member,
    the_cluster_survives_failed_syncs_of_one_member,
    the_cluster_survives_slow_syncs_of_one_member,
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
