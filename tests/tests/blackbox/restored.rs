//! Clusters with the default token in which some members were restored from a snapshot and others were not.

use std::path::{Path, PathBuf};

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, Finished, Kind, Utl, eventually, on_both_servers, on_quorate,
};

on_both_servers! {
    alone:
    a_restored_member_stops_if_the_other_members_were_not_restored,
}

on_quorate! {
    alone:
    members_restored_from_one_snapshot_form_a_cluster_and_accept_new_members,
    a_member_that_was_not_restored_stops_if_a_quorum_was_restored,
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Saves a snapshot of a member, and returns its path.
async fn save(cluster: &Cluster, member: usize) -> PathBuf {
    let pieces = cluster.client(member).snapshot().await.unwrap();
    let path = cluster.scratch().join("snapshot.db");
    let blob: Vec<u8> = pieces.iter().flat_map(|piece| piece.blob.iter().copied()).collect();
    std::fs::write(&path, blob).unwrap();
    path
}

/// Restores a stopped member with its previous name and addresses.
fn restore(cluster: &mut Cluster, member: usize, snapshot: &Path) -> Finished {
    cluster.wipe(member);
    let servers = cluster.members().into_iter().map(|number| cluster.server(number));
    let words = servers.map(|server| format!("{}={}", server.name(), server.peer_url()));
    let words = words.collect::<Vec<_>>().join(",");
    let server = cluster.server(member);
    let finished = Utl::Quorate.run(&[
        "snapshot",
        "restore",
        text(snapshot),
        &format!("--name={}", server.name()),
        &format!("--initial-cluster={words}"),
        &format!("--initial-advertise-peer-urls={}", server.peer_url()),
        &format!("--data-dir={}", server.data().display()),
    ]);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    finished
}

async fn write_some(cluster: &Cluster, prefix: &str) {
    for number in 0..20 {
        cluster
            .everyone()
            .ask("a write", async |client| {
                client.put(quorate_tests::put(format!("{prefix}{number}"), b"v")).await
            })
            .await;
    }
}

async fn a_restored_member_stops_if_the_other_members_were_not_restored(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).start().await;
    write_some(&cluster, "before").await;
    let snapshot = save(&cluster, 0).await;
    write_some(&cluster, "after").await;
    cluster.kill(2);
    // A new leader does not know how many entries the stopped member had acknowledged.
    let leader = cluster.leader_among(&[0, 1]).await;
    let target_id = cluster.id(1 - leader);
    cluster.client(leader).move_leader(pb::MoveLeaderRequest { target_id }).await.unwrap();
    let output = restore(&mut cluster, 2, &snapshot);
    let server = cluster.server_mut(2);
    server.set_kind(Kind::Quorate);
    cluster.launch(2);
    cluster.ended(2).await;
    let log = cluster.server(2).log_of_this_run();
    assert!(log.contains("this member was restored from a snapshot, and "), "{log}");
    assert!(log.contains("member remove"), "{log}");
    assert!(!log.contains("ready to serve client requests"), "{log}");
    // The other members are not affected.
    write_some(&cluster, "later").await;
    cluster.check_same_content().await;
    assert!(output.stderr.contains("the cluster token is the default"), "{output:?}");
}

async fn members_restored_from_one_snapshot_form_a_cluster_and_accept_new_members(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).start().await;
    write_some(&cluster, "before").await;
    let snapshot = save(&cluster, 0).await;
    (0..3).for_each(|member| cluster.kill(member));
    for member in 0..3 {
        restore(&mut cluster, member, &snapshot);
    }
    cluster.restart_all(&[0, 1]).await;
    write_some(&cluster, "after").await;
    cluster.restart(2).await;
    cluster.check_same_content().await;
    for member in 0..3 {
        let mark = cluster.server(member).data().join("member/restored");
        eventually("the mark is removed", async || (!mark.exists()).then_some(())).await;
    }
    let added = cluster.add().await;
    cluster.check_same_content().await;
    for member in [0, 1, 2, added] {
        cluster.kill(member);
    }
    cluster.restart_all(&[0, 1, 2, added]).await;
    cluster.check_same_content().await;
}

async fn a_member_that_was_not_restored_stops_if_a_quorum_was_restored(kind: Kind) {
    let mut cluster = ClusterOptions::new(kind, 3).start().await;
    write_some(&cluster, "before").await;
    let snapshot = save(&cluster, 0).await;
    write_some(&cluster, "after").await;
    (0..3).for_each(|member| cluster.kill(member));
    for member in 0..2 {
        restore(&mut cluster, member, &snapshot);
    }
    cluster.restart_all(&[0, 1]).await;
    cluster.launch(2);
    cluster.ended(2).await;
    let log = cluster.server(2).log_of_this_run();
    assert!(log.contains("this member was not restored from a snapshot, and 2 of"), "{log}");
    write_some(&cluster, "later").await;
    cluster.check_same_content().await;
}
