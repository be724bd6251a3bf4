//! Conditions for the return to etcd, and members that join a cluster of the other kind.

use quorate_api::etcdserverpb::{self as pb, MemberUpdateRequest, RangeRequest};
use quorate_tests::{
    Cluster, ClusterOptions, Ctl, Kind, TIMEOUT, Tool, deep_put, delete, eventually, eventually_ok,
    prefix, put,
};

use crate::mixed::{flags, with_flags};

const OTHER_FLAGS: &[&str] = &["--strict-reconfig-check=false"];

async fn three(kind: Kind) -> Cluster {
    let options = (0..3).fold(ClusterOptions::new(kind, 3), |options, number| {
        options.member(number, |member| with_flags(member, kind))
    });
    options.start().await
}

/// Waits until every running member reports this cluster version.
async fn cluster_version(cluster: &Cluster, version: &str) {
    eventually_ok(TIMEOUT, &format!("the cluster version is {version}"), async || {
        let versions: Vec<_> = cluster
            .running()
            .into_iter()
            .map(|member| {
                let text = cluster.server(member).get("/version").text();
                let versions: serde_json::Value = serde_json::from_str(&text).unwrap();
                versions["etcdcluster"].clone()
            })
            .collect();
        if versions.iter().all(|one| one == version) { Ok(()) } else { Err(versions) }
    })
    .await;
}

async fn write(cluster: &Cluster, key: &str) {
    cluster.everyone().ask("a write", async |client| client.put(put(key, "v")).await).await;
}

/// Writes more than a leader keeps in its log.
async fn fill(cluster: &Cluster) {
    let everyone = cluster.everyone();
    for number in 0..600 {
        let request = put(format!("fill/{number}"), number.to_string());
        everyone.ask("a write", async |client| client.put(request.clone()).await).await;
    }
    let drop =
        async |client: quorate_tests::Client| client.delete_range(delete("fill/0", "")).await;
    everyone.ask("a deletion", drop).await;
}

/// Members of both kinds apply the same deeply nested transactions from the log, even after a restart.
pub(crate) async fn deeply_nested_transactions_are_replicated_in_a_mixed_cluster(kind: Kind) {
    let options = (0..3).fold(ClusterOptions::new(Kind::Etcd, 3), |options, number| {
        let kind = if number == 1 { kind } else { Kind::Etcd };
        options.member(number, |member| with_flags(member, kind).flag("--max-txn-ops=10000"))
    });
    let mut cluster = options.start().await;
    for (to, depth) in [(0, 3000), (1, 4999), (2, 128)] {
        eventually_ok(TIMEOUT, "leadership is transferred", async || {
            let leader = cluster.leader().await;
            if leader == to {
                return Ok(());
            }
            let request = pb::MoveLeaderRequest { target_id: cluster.id(to) };
            Err(cluster.client(leader).move_leader(request).await)
        })
        .await;
        for member in 0..3 {
            let request = deep_put(format!("{depth} by {member}, led by {to}"), depth);
            let client = cluster.client(member);
            eventually_ok(TIMEOUT, "a deep transaction succeeds", async || {
                client.raw("/etcdserverpb.KV/Txn", &request).await
            })
            .await;
        }
    }
    cluster.check_same_content().await;
    cluster.kill(1);
    cluster.restart(1).await;
    cluster.check_same_content().await;
}

/// Without a version hold, the cluster version rises to the version of the members, and older members are then refused.
pub(crate) async fn the_cluster_version_rises_without_a_hold(_: Kind) {
    let mut cluster = three(Kind::Etcd).await;
    write(&cluster, "before").await;
    cluster_version(&cluster, "3.5.0").await;
    for member in [0, 1] {
        cluster.stop(member).await;
        cluster.restart_as(member, Kind::Quorate, OTHER_FLAGS).await;
        write(&cluster, &format!("beside {member}")).await;
    }
    // While there is an older member, its version determines the cluster version.
    cluster_version(&cluster, "3.5.0").await;
    cluster.stop(2).await;
    cluster.restart_as(2, Kind::Quorate, OTHER_FLAGS).await;
    cluster_version(&cluster, "3.7.0").await;
    cluster.check_same_content().await;
    cluster.stop(1).await;
    cluster.server_mut(1).set_kind(Kind::Etcd);
    cluster.server_mut(1).set_flags(&[]);
    cluster.launch(1);
    let exit =
        cluster.try_ready(1).await.expect_err("an older member must refuse a newer directory");
    assert!(exit.status.is_some() && exit.log.contains("invalid downgrade"), "{exit}");
    // The refused start has not changed the data of the member.
    cluster.restart_as(1, Kind::Quorate, OTHER_FLAGS).await;
    cluster.check_same_content().await;
}

/// Log line that announces a rise of the cluster version.
const ANNOUNCED: &str = "the cluster version will rise once no member holds it";

/// On a directory of etcd 3.5, the rise of the cluster version is announced before it happens. The downgrade back to
/// 3.5 proceeds one minor version at a time.
pub(crate) async fn a_directory_can_be_downgraded_after_the_cluster_version_rose(_: Kind) {
    let options = ClusterOptions::new(Kind::Etcd, 1);
    let mut cluster = options.member(0, |member| with_flags(member, Kind::Etcd)).start().await;
    write(&cluster, "before").await;
    cluster.stop(0).await;
    // With a version hold, the version does not rise, so nothing is announced.
    cluster.restart_as(0, Kind::Quorate, &["--hold-cluster-version=3.5"]).await;
    assert!(!cluster.server(0).log_of_this_run().contains(ANNOUNCED));
    cluster.stop(0).await;
    cluster.restart_as(0, Kind::Quorate, &[]).await;
    cluster_version(&cluster, "3.7.0").await;
    let log = cluster.server(0).log_of_this_run();
    let (before, after) = log.split_once("updating cluster version using v3 API").unwrap();
    let said: Vec<&str> = before.lines().filter(|line| line.contains(ANNOUNCED)).collect();
    let [said] = &said[..] else { panic!("{log}") };
    for text in ["\"level\":\"warn\"", "--hold-cluster-version=3.5", "ctl downgrade enable"] {
        assert!(said.contains(text), "{said}");
    }
    assert!(!after.contains(ANNOUNCED), "{after}");
    for (version, flag) in
        [("3.6.0", "--hold-cluster-version=3.6"), ("3.5.0", "--hold-cluster-version=3.5")]
    {
        let ctl = Ctl::of(Tool::QuorateCtl, cluster.server(0)).unwrap();
        let answer = ctl.run(&["downgrade", "enable", version]).success();
        assert!(answer.contains("Downgrade enable success"), "{answer}");
        cluster_version(&cluster, version).await;
        cluster.stop(0).await;
        cluster.restart_as(0, Kind::Quorate, &[flag]).await;
        assert!(!cluster.server(0).log_of_this_run().contains(ANNOUNCED));
        eventually(&format!("the downgrade to {version} ends"), async || {
            let log = cluster.server(0).log_of_this_run();
            log.contains("the cluster has been downgraded").then_some(())
        })
        .await;
        write(&cluster, version).await;
    }
    cluster.stop(0).await;
    cluster.restart_as(0, Kind::Etcd, &[]).await;
    let keys = ["before", "3.6.0", "3.5.0"];
    for key in keys {
        assert_eq!(cluster.client(0).read(key).await.unwrap(), b"v");
    }
}

/// A held cluster keeps its version until the last member releases the hold.
pub(crate) async fn the_cluster_version_rises_when_its_hold_is_released(kind: Kind) {
    let mut cluster = three(kind).await;
    cluster_version(&cluster, "3.5.0").await;
    for member in [0, 1] {
        cluster.stop(member).await;
        cluster.restart_as(member, kind, OTHER_FLAGS).await;
        write(&cluster, &format!("{member} is released")).await;
        // A leader checks versions when its term begins.
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.restart(leader).await;
        cluster_version(&cluster, "3.5.0").await;
    }
    cluster.stop(2).await;
    cluster.restart_as(2, kind, OTHER_FLAGS).await;
    cluster_version(&cluster, "3.7.0").await;
    cluster.check_same_content().await;
}

/// A member that has lost its disk is replaced by a member of another kind, which receives its data from the others.
pub(crate) async fn a_wiped_member_is_replaced_by_one_that_runs_the_other_program(kind: Kind) {
    let mut cluster = three(Kind::Etcd).await;
    fill(&cluster).await;
    for kind in [kind, Kind::Etcd] {
        cluster.kill(1);
        cluster.server_mut(1).set_kind(kind);
        cluster.server_mut(1).set_flags(flags(kind));
        cluster.replace(1).await;
        fill(&cluster).await;
        cluster.check_same_content().await;
        let found = cluster.client(1).range(prefix("fill/")).await.unwrap();
        assert_eq!(found.count, 599);
        // The other members are replaced, too.
        for member in [0, 2] {
            cluster.stop(member).await;
            cluster.restart_as(member, kind, flags(kind)).await;
        }
    }
}

/// Members of the other kind accept an etcd leader's snapshot even if its last entry is a refused membership change.
pub(crate) async fn a_snapshot_after_a_refused_membership_change_is_accepted(kind: Kind) {
    let mut cluster = three(Kind::Etcd).await;
    cluster_version(&cluster, "3.5.0").await;
    let leader = cluster.leader().await;
    let target = (leader + 1) % 3;
    cluster.stop(target).await;
    fill(&cluster).await;
    // A follower may apply its client's write before the leader does.
    cluster.settle().await;
    let client = cluster.client(leader);
    let last = async || client.status(pb::StatusRequest {}).await.unwrap().raft_applied_index;
    let before = last().await;
    let peer_urls = vec![cluster.server(leader).peer_url()];
    let add = pb::MemberAddRequest { peer_urls, is_learner: false };
    let refused = client.member_add(add).await.unwrap_err();
    assert_eq!(refused.message(), "etcdserver: Peer URLs already exists");
    assert_eq!(last().await, before + 1, "the log has the refused change, and nothing after it");
    cluster.restart_as(target, kind, flags(kind)).await;
    let metrics = cluster.server(target).get("/metrics").text();
    let received = metrics.lines().any(|line| {
        line.starts_with("etcd_network_snapshot_receive_success{") && !line.ends_with(" 0")
    });
    assert!(received, "no snapshot was received");
    cluster.check_same_content().await;
    assert_eq!(cluster.list().await.len(), 3);
}

/// An etcd learner receives its data from a leader of another kind, and is promoted. Then the other members are
/// removed.
pub(crate) async fn a_promoted_etcd_learner_serves_after_the_other_members_are_removed(kind: Kind) {
    let mut cluster = three(kind).await;
    fill(&cluster).await;
    let learner = cluster.add_with(true, |options| with_flags(options, Kind::Etcd)).await;
    let leader = cluster.leader().await;
    assert_ne!(leader, learner);
    let client = cluster.client(learner);
    let local = RangeRequest { serializable: true, ..prefix("fill/") };
    eventually_ok(TIMEOUT, "the learner receives all keys", async || {
        let count = client.range(local.clone()).await.map(|answer| answer.count);
        if count.as_ref().is_ok_and(|count| *count == 599) { Ok(()) } else { Err(count) }
    })
    .await;
    if kind == Kind::Quorate {
        // After an update through a member of etcd up to 3.5.30 or 3.6.11, the learner would refuse its promotion.
        let peer_urls = vec![cluster.server(learner).peer_url()];
        let update = MemberUpdateRequest { id: cluster.id(learner), peer_urls };
        cluster.client(leader).member_update(update).await.unwrap();
    }
    cluster.promote(learner).await;
    cluster.check_same_content().await;
    for member in 0..3 {
        cluster.remove(member).await;
        cluster.ended(member).await;
        write(&cluster, &format!("without {member}")).await;
    }
    assert_eq!(cluster.client(learner).range(prefix("fill/")).await.unwrap().count, 599);
}
