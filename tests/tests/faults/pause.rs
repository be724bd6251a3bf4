//! Members that are suspended for a while and do not notice the suspension.

use std::time::{Duration, Instant};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{ClusterOptions, Kind, eventually, within};

use crate::{Ordeal, on_clusters, on_clusters_of_quorate};

on_clusters! {
    a_resumed_leader_does_not_serve_stale_reads,
    the_cluster_survives_a_suspended_follower,
    the_cluster_survives_a_suspension_of_all_members,
}

on_clusters_of_quorate! {
    a_resumed_leader_does_not_expire_a_renewed_lease,
}

async fn a_resumed_leader_does_not_serve_stale_reads(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            let leader = ordeal.cluster.leader().await;
            ordeal.cluster.pause(leader).await;
            let awake = ordeal.cluster.running();
            ordeal.cluster.leader_among(&awake).await;
            ordeal.progress().await;
            // Through the suspended leader, these clients read keys that other clients change. Their requests wait
            // until the leader resumes, when it still believes that it leads.
            ordeal.load.read_from(&ordeal.cluster, leader, &mut ordeal.random);
            ordeal.load.work(Duration::from_millis(300)).await;
            ordeal.cluster.resume(leader);
            ordeal.progress().await;
        }
    })
    .await;
}

async fn the_cluster_survives_a_suspended_follower(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            let follower = ordeal.cluster.follower().await;
            ordeal.cluster.pause(follower).await;
            ordeal.progress().await;
            ordeal.load.read_from(&ordeal.cluster, follower, &mut ordeal.random);
            ordeal.load.work(Duration::from_millis(1_000)).await;
            ordeal.cluster.resume(follower);
            ordeal.progress().await;
        }
    })
    .await;
}

async fn the_cluster_survives_a_suspension_of_all_members(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            for member in 0..3 {
                ordeal.cluster.pause(member).await;
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

/// TTL of the leases, in seconds.
const LIFE: i64 = 2;

/// When the leader resumes, it still believes that it leads, and according to its clock the leases have expired,
/// although the next leader has renewed one of them. The resumed leader must neither revoke leases nor renew a lease on
/// its own.
async fn a_resumed_leader_does_not_expire_a_renewed_lease(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).start().await;
    for round in 1..=2 {
        let leader = cluster.leader().await;
        let ids = [10 * round, 10 * round + 1];
        for id in ids {
            cluster.client(leader).grant(id, LIFE).await;
        }
        cluster.pause(leader).await;
        let awake = cluster.running();
        let next = cluster.leader_among(&awake).await;
        let (client, sleeper) = (cluster.client(next), cluster.client(leader));
        let asleep = Instant::now();
        while asleep.elapsed() < Duration::from_secs(LIFE.unsigned_abs() + 1) {
            assert_eq!(client.renew(ids[0]).await.unwrap(), LIFE);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // This request waits until the leader resumes.
        let stale = tokio::task::spawn_local(async move { sleeper.renew(ids[1]).await });
        eventually("the lease that is not renewed expires", async || {
            client.renew(ids[0]).await.unwrap();
            let request = pb::LeaseTimeToLiveRequest { id: ids[1], keys: false };
            let found = client.lease_time_to_live(request).await.unwrap();
            (found.ttl == -1).then_some(())
        })
        .await;
        cluster.resume(leader);
        let answer = within("the response of the paused leader", stale).await.unwrap();
        assert!(
            !answer.as_ref().is_ok_and(|ttl| *ttl > 0),
            "the paused leader renewed an expired lease: {answer:?}"
        );
        // The leader checks for expired leases twice a second.
        let awake = Instant::now();
        while awake.elapsed() < Duration::from_secs(1) {
            assert_eq!(
                client.renew(ids[0]).await.unwrap(),
                LIFE,
                "the paused leader revoked a renewed lease"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
