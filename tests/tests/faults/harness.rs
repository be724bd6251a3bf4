//! Tests of the harness itself: members start, stop, join, leave and agree.

use std::time::{Duration, Instant};

use quorate_tests::{Cluster, ClusterOptions, Endpoints, Kind, Load, Random, Rule, put, within};

use crate::on_clusters;

on_clusters! {
    members_agree_after_kills_and_pauses,
    members_can_be_added_and_removed,
    an_isolated_leader_is_replaced_and_catches_up,
    a_load_without_faults_passes_all_checks,
}

async fn write(everyone: &Endpoints, key: &str) {
    everyone.ask("a write", async |client| client.put(put(key, "v")).await).await;
}

async fn members_agree_after_kills_and_pauses(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    let everyone = cluster.everyone();
    write(&everyone, "first").await;
    let leader = cluster.leader().await;
    assert_ne!(cluster.follower().await, leader);

    cluster.kill(leader);
    let second = cluster.leader_among(&cluster.running()).await;
    write(&everyone, "without the first leader").await;
    cluster.restart(leader).await;
    cluster.check_same_content().await;

    cluster.pause(second).await;
    let third = cluster.leader_among(&cluster.running()).await;
    write(&everyone, "without the second leader").await;
    cluster.resume(second);
    cluster.check_same_content().await;

    cluster.stop(third).await;
    cluster.restart_as(third, kind, &["--max-snapshots=3"]).await;
    for member in 0..3 {
        cluster.kill(member);
    }
    cluster.restart_all(&[0, 1, 2]).await;
    let revision = cluster.check_same_content().await;
    assert!(revision >= 4, "three writes were acknowledged, revision {revision}");
}

async fn members_can_be_added_and_removed(kind: Kind) {
    let options = ClusterOptions::new(kind, 3).flag("--strict-reconfig-check=false");
    let mut cluster = options.start().await;
    let everyone = cluster.everyone();
    write(&everyone, "before").await;

    let learner = cluster.add_learner().await;
    cluster.promote(learner).await;
    assert_eq!(cluster.list().await.iter().filter(|member| !member.is_learner).count(), 4);

    let old = cluster.id(1);
    cluster.kill(1);
    cluster.replace(1).await;
    assert_ne!(cluster.id(1), old);

    cluster.kill(learner);
    cluster.remove(learner).await;
    let mut listed: Vec<u64> = cluster.list().await.iter().map(|member| member.id).collect();
    listed.sort_unstable();
    let mut known = cluster.ids();
    known.sort_unstable();
    assert_eq!(listed, known);
    write(&everyone, "after").await;
    cluster.check_same_content().await;
}

async fn an_isolated_leader_is_replaced_and_catches_up(kind: Kind) {
    let cluster = ClusterOptions::new(kind, 3).linked().start().await;
    let everyone = cluster.everyone();
    let leader = cluster.leader().await;
    cluster.links().isolate(leader);
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    let second = cluster.leader_among(&others).await;
    // Clients can still connect to both sides, but only one side may answer.
    let alone = cluster.client(leader);
    assert!(within("an answer", alone.put(put("alone", "v"))).await.is_err());
    write(&everyone, "together").await;
    cluster.links().heal();
    cluster.check_same_content().await;
    assert_eq!(cluster.client(second).read("together").await.unwrap(), b"v");

    // No message from the leader arrives, although the leader still receives all messages.
    let leader = cluster.leader().await;
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    for other in &others {
        cluster.links().set(leader, *other, Rule::Drop);
    }
    cluster.leader_among(&others).await;
    cluster.links().heal();
    let delay = Rule::Delay { base: Duration::from_millis(20), jitter: Duration::from_millis(20) };
    cluster.links().set_all(delay);
    cluster.leader().await;
    let start = Instant::now();
    write(&everyone, "slowly").await;
    assert!(start.elapsed() >= Duration::from_millis(40), "the delay applies in both directions");
    cluster.links().heal();
    cluster.check_same_content().await;
}

async fn a_load_without_faults_passes_all_checks(kind: Kind) {
    let mut random = Random::by_chance();
    let cluster = Cluster::start(kind, 3).await;
    let load = Load::start(&cluster, &mut random).await;
    load.progress(500).await;
    let summary = load.finish(&cluster).await;
    assert!(summary.failures.is_empty(), "{summary:?}");
}
