//! Members that are killed or stopped, and then restarted.

use std::time::Duration;

use quorate_api::etcdserverpb::StatusRequest;
use quorate_api::etcdserverpb::watch_request::RequestUnion;
use quorate_tests::{
    Client, ClusterOptions, Kind, Watch, eventually, key, put, refused, watch_key, within,
};
use tokio::sync::watch;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::{Ordeal, on_clusters, on_clusters_of_quorate};

on_clusters! {
    the_cluster_survives_a_killed_leader,
    the_cluster_survives_a_killed_follower,
    the_cluster_recovers_from_a_killed_majority,
    the_cluster_recovers_after_all_members_are_killed,
    the_cluster_serves_while_members_are_restarted_in_turn,
    a_follower_that_fell_behind_gets_a_snapshot,
    streams_that_require_a_leader_are_refused_without_a_quorum,
}

on_clusters_of_quorate! {
    a_small_snapshot_count_cuts_the_log_early,
    a_killed_leader_is_replaced_before_the_election_timeout,
    streams_that_require_a_leader_survive_a_killed_leader,
}

async fn the_cluster_survives_a_killed_leader(kind: Kind) {
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

/// The killed leader's address refuses connections, so that the other members need not wait for a timeout.
async fn a_killed_leader_is_replaced_before_the_election_timeout(kind: Kind) {
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
        assert!(in_time.is_ok(), "the members waited for an election timeout");
        cluster.restart(leader).await;
    }
}

async fn the_cluster_survives_a_killed_follower(kind: Kind) {
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

async fn the_cluster_recovers_from_a_killed_majority(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..2 {
            let leader = ordeal.cluster.leader().await;
            let follower = ordeal.cluster.follower().await;
            ordeal.cluster.kill(leader);
            ordeal.cluster.kill(follower);
            // The remaining member answers serializable reads.
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

async fn the_cluster_recovers_after_all_members_are_killed(kind: Kind) {
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

async fn the_cluster_serves_while_members_are_restarted_in_turn(kind: Kind) {
    Ordeal::run(ClusterOptions::new(kind, 3), async |ordeal| {
        for _ in 0..3 {
            // Before a leader stops, it transfers leadership.
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

/// Old entries are removed from the log in steps of 100, or of the snapshot count if that is smaller.
async fn a_small_snapshot_count_cuts_the_log_early(kind: Kind) {
    let flags = ["--snapshot-count=10", "--snapshot-catchup-entries=5"];
    let options = ClusterOptions::new(kind, 3).flag(flags[0]).flag(flags[1]);
    let mut cluster = options.start().await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let client = cluster.client(leader);
    cluster.kill(follower);
    for _ in 0..40 {
        client.put(put("k", vec![b'v'; 10_000])).await.unwrap();
    }
    // The leader keeps entries for a follower until the follower has been silent for an election timeout.
    eventually("the leader cuts its log", async || {
        client.put(put("k", "v")).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let held = cluster.server(leader).metric("quorate_log_memory_bytes").unwrap();
        let index = client.status(StatusRequest {}).await.unwrap().raft_index;
        assert!(index < 100, "the log has {index} entries and is not cut: {held} bytes");
        (held < 200_000.0).then_some(())
    })
    .await;
    cluster.restart(follower).await;
    cluster.check_same_content().await;
    let metrics = cluster.server(follower).get("/metrics").text();
    let received = metrics.lines().any(|line| {
        line.starts_with("etcd_network_snapshot_receive_success{") && !line.ends_with(" 0")
    });
    assert!(received, "no snapshot was received");
}

/// Opens a watch stream that must end if there is no leader.
async fn open_led(client: &Client) -> Result<Watch, Status> {
    let mut metadata = MetadataMap::new();
    metadata.insert("hasleader", "true".parse().unwrap());
    let mut watch = Watch::open_with(client, metadata);
    watch.send(RequestUnion::CreateRequest(watch_key("k"))).await;
    let reply = within("a watch response", watch.try_next()).await?;
    assert!(reply.is_some_and(|reply| reply.created));
    Ok(watch)
}

/// Opens one stream after another until it is stopped.
async fn open_many_led(client: Client, stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        drop(open_led(&client).await.expect("the stream is accepted"));
    }
}

/// An etcd follower accepts new streams until it notices the loss of its leader. A Quorate follower notices the loss at
/// once, and makes new streams wait for the next leader.
async fn streams_that_require_a_leader_survive_a_killed_leader(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).timing(100, 2_000).start().await;
    for _ in 0..3 {
        let leader = cluster.leader().await;
        let others: Vec<usize> = cluster.running().into_iter().filter(|id| *id != leader).collect();
        let (stop, stopped) = watch::channel(false);
        let [first, second] = [others[0], others[1]]
            .map(|member| open_many_led(cluster.client(member), stopped.clone()));
        let succession = async {
            cluster.kill(leader);
            let next = cluster.leader_among(&others).await;
            cluster.client(next).put(put("k", "after")).await.unwrap();
            stop.send_replace(true);
        };
        tokio::join!(first, second, succession);
        cluster.restart(leader).await;
    }
}

async fn streams_that_require_a_leader_are_refused_without_a_quorum(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).start().await;
    let leader = cluster.leader().await;
    let client = {
        let follower = cluster.follower().await;
        let third = cluster.running().into_iter().find(|id| *id != leader && *id != follower);
        let client = cluster.client(follower);
        open_led(&client).await.unwrap();
        cluster.kill(leader);
        cluster.kill(third.unwrap());
        client
    };
    let refusal = eventually("a refusal", async || open_led(&client).await.err()).await;
    refused::<()>(Err(refusal), Code::Unavailable, "etcdserver: no leader");
    let mut read = tonic::Request::new(key("k"));
    read.get_mut().serializable = true;
    read.metadata_mut().insert("hasleader", "true".parse().unwrap());
    let answer = client.kv().range(read).await.map(tonic::Response::into_inner);
    refused(answer, Code::Unavailable, "etcdserver: no leader");
}
