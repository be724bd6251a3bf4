//! Members with a full disk: a leader transfers leadership, and writes are refused only if no member is able to lead.

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Cluster, ClusterOptions, Kind, SmallDisk, delete, eventually, on_quorate, put,
};

on_quorate! {
    alone:
    a_leader_with_a_full_disk_transfers_leadership,
    writes_are_refused_while_the_disks_of_all_members_are_full,
    a_snapshot_updates_a_member_whose_changes_wait_for_space,
}

/// Makes this member the leader.
async fn make_leader(cluster: &Cluster, member: usize) {
    eventually("the requested member becomes leader", async || {
        let leader = cluster.leader().await;
        if leader == member {
            return Some(());
        }
        let target_id = cluster.id(member);
        drop(cluster.client(leader).move_leader(pb::MoveLeaderRequest { target_id }).await);
        None
    })
    .await;
}

fn value() -> Vec<u8> {
    vec![b'v'; 50_000]
}

/// Retries a write until a member accepts it. Panics if the write is refused for lack of space.
async fn write(cluster: &Cluster, number: usize) {
    let everyone = cluster.everyone();
    eventually("a write is accepted", async || {
        let request = put(format!("k{number:03}"), value());
        match everyone.try_ask(async |client| client.put(request.clone()).await).await {
            Ok(_) => Some(()),
            Err(error) => {
                assert!(!error.message().contains("space exceeded"), "{number}: {error}");
                None
            }
        }
    })
    .await;
}

async fn alarms(cluster: &Cluster, member: usize) -> Vec<pb::AlarmMember> {
    cluster.client(member).alarm(pb::AlarmRequest::default()).await.unwrap().alarms
}

async fn a_leader_with_a_full_disk_transfers_leadership(kind: Kind) {
    let Some(disk) = SmallDisk::new(300) else { return };
    let options = ClusterOptions::new(kind, 3).member(1, |member| disk.prepare(member));
    let mut cluster = options.start().await;
    make_leader(&cluster, 1).await;
    // The log segments are preallocated, so only the backend file needs space.
    disk.fill_but(0);
    for number in 0..700 {
        write(&cluster, number).await;
    }
    cluster.server(1).wait_for_log("no disk space for the backend file").await;
    cluster.server(1).wait_for_log("transferring leadership to member").await;
    let running = cluster.running();
    let other = cluster.leader_among(&running).await;
    assert_ne!(other, 1, "a member with a full disk does not lead");
    assert_eq!(alarms(&cluster, other).await, []);
    // The member may have exited because there was no space for its log either.
    disk.resize(1_000);
    if !cluster.server_mut(1).is_running() {
        cluster.kill(1);
        cluster.restart(1).await;
    }
    cluster.check_same_content().await;
    assert_eq!(alarms(&cluster, 1).await, []);
}

async fn writes_are_refused_while_the_disks_of_all_members_are_full(kind: Kind) {
    let mut disks = Vec::new();
    let mut options = ClusterOptions::new(kind, 3);
    for number in 0..3 {
        let Some(disk) = SmallDisk::new(300) else { return };
        options = options.member(number, |member| disk.prepare(member));
        disks.push(disk);
    }
    let cluster = options.start().await;
    // The log segments are preallocated, so only the backend files need space.
    disks.iter().for_each(|disk| disk.fill_but(0));
    let everyone = cluster.everyone();
    let mut number = 0;
    eventually("a refusal", async || {
        number += 1;
        let request = put(format!("k{number:03}"), value());
        let answer = everyone.try_ask(async |client| client.put(request.clone()).await).await;
        answer.is_err_and(|error| error.message().contains("space exceeded")).then_some(())
    })
    .await;
    let raised = alarms(&cluster, 0).await;
    let [alarm] = &raised[..] else {
        panic!("exactly one member must raise the alarm: {raised:?}")
    };
    let teller = cluster.by_id(alarm.member_id).unwrap();
    cluster.server(teller).wait_for_log("no other member can lead").await;
    disks.iter().for_each(|disk| disk.resize(1_000));
    eventually("the alarm is cleared", async || alarms(&cluster, 0).await.is_empty().then_some(()))
        .await;
    write(&cluster, 0).await;
    cluster.check_same_content().await;
}

async fn a_snapshot_updates_a_member_whose_changes_wait_for_space(kind: Kind) {
    let Some(disk) = SmallDisk::new(300) else { return };
    let mut options = ClusterOptions::new(kind, 3).linked();
    for flag in
        ["--max-request-bytes=16777216", "--snapshot-count=50", "--snapshot-catchup-entries=10"]
    {
        options = options.flag(flag);
    }
    let cluster = options.member(1, |member| disk.prepare(member)).start().await;
    make_leader(&cluster, 0).await;
    // The backend file has space for the first of two 10 MB values, and the remaining space is enough for a small
    // snapshot.
    disk.fill_but(14);
    let client = cluster.client(0);
    for number in 0..2 {
        let request = put(format!("large{number}"), vec![b'v'; 10 << 20]);
        client.put(request).await.unwrap();
    }
    let pending = || cluster.server(1).metric("quorate_backend_pending_bytes").unwrap();
    eventually("changes wait for disk space", async || {
        let log = cluster.server(1).log();
        log.contains("no disk space for the backend file").then_some(())
    })
    .await;
    assert!(pending() > 1e7, "{}", pending());
    // The other members delete the values and compact their logs, so that only a snapshot can update the member.
    cluster.links().isolate(1);
    client.delete_range(delete("large", "largf")).await.unwrap();
    for number in 0..100 {
        client.write(format!("small{}", number % 5), value()).await;
    }
    let revision = client.revision().await;
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    for member in [0, 2] {
        cluster.client(member).defragment(pb::DefragmentRequest {}).await.unwrap();
    }
    eventually("the leader cuts its log", async || {
        client.write("small", "v").await;
        let held = cluster.server(0).metric("quorate_log_memory_bytes").unwrap();
        (held < 1e6).then_some(())
    })
    .await;
    cluster.links().heal();
    eventually("no more changes wait for disk space", async || (pending() < 1e6).then_some(()))
        .await;
    cluster.check_same_content().await;
    cluster.server(1).wait_for_log("applied snapshot").await;
}
