//! `--rebuild-corrupt-member`: a member whose state is bad fetches one that a quorum of the others holds, and only then.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{Cluster, ClusterOptions, Kind, eventually, on_quorate, put, request_with};

use crate::corruption::{Check, INITIAL, PERIODIC, alarms, corrupt, lead, start};

on_quorate! {
    alone:
    a_member_with_other_data_is_rebuilt,
    a_member_that_is_checked_at_its_start_is_rebuilt,
    a_leader_that_is_accused_hands_over_and_is_rebuilt,
    a_file_that_cannot_be_read_is_replaced,
    nothing_is_rebuilt_without_a_quorum,
    a_member_that_is_bad_again_at_once_is_not_rebuilt,
    a_cluster_led_by_etcd_has_its_bad_member_rebuilt,
    nothing_is_rebuilt_where_nobody_hands_a_state_out,
    a_state_is_handed_to_members_alone,
}

const REBUILD: Check = Check { ours: &["--rebuild-corrupt-member"], of_3_5: &[] };
const REBUILT: &str = "this member has its state anew, as a quorum holds it";

/// Waits until a member says so.
async fn says(cluster: &Cluster, member: usize, what: &str) {
    eventually(what, async || cluster.server(member).log().contains(what).then_some(())).await;
}

/// Waits until a member was rebuilt, and sees that all hold the same, also after another start of it.
async fn is_rebuilt(cluster: &mut Cluster, member: usize) {
    says(cluster, member, REBUILT).await;
    cluster.ready(member).await;
    eventually("no alarm", async || alarms(cluster, member).await.is_empty().then_some(())).await;
    cluster.client(member).put(put("after", "the rebuild")).await.unwrap();
    cluster.check_same_content().await;
    cluster.stop(member).await;
    cluster.client((member + 1) % 3).put(put("after", "its stop")).await.unwrap();
    cluster.restart(member).await;
    cluster.check_same_content().await;
}

async fn accuse(cluster: &Cluster, member: usize) {
    let alarm = pb::AlarmRequest {
        action: pb::alarm_request::AlarmAction::Activate.into(),
        member_id: cluster.id(member),
        alarm: pb::AlarmType::Corrupt.into(),
    };
    cluster.client(member).alarm(alarm).await.unwrap();
}

async fn a_member_with_other_data_is_rebuilt(ours: Kind) {
    let mut cluster = start([ours; 3], &[PERIODIC, REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.launch(member);
    is_rebuilt(&mut cluster, member).await;
}

async fn a_member_that_is_checked_at_its_start_is_rebuilt(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    let flags = [INITIAL.ours, REBUILD.ours].concat();
    cluster.server_mut(member).set_flags(&flags);
    cluster.launch(member);
    is_rebuilt(&mut cluster, member).await;
}

async fn a_leader_that_is_accused_hands_over_and_is_rebuilt(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.restart(member).await;
    lead(&cluster, member).await;
    accuse(&cluster, member).await;
    says(&cluster, member, "leadership transfer finished").await;
    is_rebuilt(&mut cluster, member).await;
}

async fn a_file_that_cannot_be_read_is_replaced(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    for number in 0..50 {
        cluster.client(0).put(put(format!("k{number}"), vec![7; 1000])).await.unwrap();
    }
    cluster.stop(member).await;
    // The log of the member ends before what it is to have.
    cluster.client((member + 1) % 3).put(put("while", "away")).await.unwrap();
    let backend = cluster.server(member).backend();
    let file = File::options().write(true).open(&backend).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&vec![0xff; usize::try_from(len - 8192).unwrap()], 8192).unwrap();
    cluster.launch(member);
    is_rebuilt(&mut cluster, member).await;
}

async fn nothing_is_rebuilt_without_a_quorum(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.restart(member).await;
    // One other is not enough to say who is right.
    let (other, gone) = ((member + 1) % 3, (member + 2) % 3);
    cluster.stop(gone).await;
    cluster.leader_among(&[member, other]).await;
    accuse(&cluster, member).await;
    says(&cluster, member, "no quorum says what is right; it goes on as it is").await;
    assert!(cluster.server_mut(member).is_running());
    assert!(!cluster.server(member).log().contains(REBUILT));
    assert_eq!(alarms(&cluster, member).await.len(), 1);
    // With the third it is known.
    cluster.restart(gone).await;
    is_rebuilt(&mut cluster, member).await;

    let mut cluster = ClusterOptions::new(ours, 2).flag("--rebuild-corrupt-member").start().await;
    cluster.client(0).put(put("k", "v")).await.unwrap();
    cluster.settle().await;
    let voters = cluster.ids().len();
    assert_eq!(voters, 2);
    let backend = cluster.server(1).backend();
    cluster.stop(1).await;
    std::fs::write(&backend, [0xff; 65536]).unwrap();
    cluster.launch(1);
    let exit = cluster.try_ready(1).await.unwrap_err();
    assert!(exit.log.contains("1 of 2 voters are no quorum"), "{exit}");
    assert_eq!(std::fs::read(&backend).unwrap(), [0xff; 65536], "it stays for a person to look at");
}

async fn a_member_that_is_bad_again_at_once_is_not_rebuilt(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    cluster.client(0).put(put("k", "v")).await.unwrap();
    cluster.stop(member).await;
    let backend = cluster.server(member).backend();
    std::fs::remove_file(&backend).unwrap();
    cluster.launch(member);
    is_rebuilt(&mut cluster, member).await;
    cluster.stop(member).await;
    std::fs::write(&backend, [0xff; 65536]).unwrap();
    cluster.launch(member);
    let exit = cluster.try_ready(member).await.unwrap_err();
    assert!(exit.log.contains("minutes after it was fetched anew"), "{exit}");
}

async fn a_cluster_led_by_etcd_has_its_bad_member_rebuilt(ours: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let mut cluster = start([Kind::Etcd, ours, ours], &[PERIODIC, REBUILD]).await;
    lead(&cluster, 0).await;
    corrupt(&mut cluster, 1).await;
    cluster.launch(1);
    // 3.5 accuses nobody by name: its alarm is an operator's to take back.
    says(&cluster, 1, REBUILT).await;
    cluster.ready(1).await;
    cluster.settle().await;
    cluster.check_same_content().await;
}

async fn nothing_is_rebuilt_where_nobody_hands_a_state_out(ours: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let mut cluster = start([Kind::Etcd, Kind::Etcd, ours], &[PERIODIC, REBUILD]).await;
    corrupt(&mut cluster, 2).await;
    cluster.restart(2).await;
    says(&cluster, 2, "goes on with a state that is bad: no other member hands one out").await;
    assert!(cluster.server_mut(2).is_running());
    cluster.stop(2).await;
    let backend = cluster.server(2).backend();
    std::fs::write(&backend, [0xff; 65536]).unwrap();
    cluster.launch(2);
    let exit = cluster.try_ready(2).await.unwrap_err();
    assert!(exit.log.contains("no other member hands one out: those of etcd do not"), "{exit}");
}

async fn a_state_is_handed_to_members_alone(ours: Kind) {
    let cluster = start([ours; 3], &[REBUILD]).await;
    cluster.client(0).put(put("k", "v")).await.unwrap();
    let peer = cluster.server(0).peer_url();
    let port = peer.rsplit(':').next().unwrap().parse().unwrap();
    let header =
        cluster.client(0).status(pb::StatusRequest::default()).await.unwrap().header.unwrap();
    let own = format!("{:x}", header.cluster_id);
    let member = format!("{:x}", cluster.id(1));
    for (cluster_id, from, status) in [
        (&own[..], Some(&member[..]), 200),
        (&own, Some("17"), 403),
        (&own, None, 403),
        ("17", Some(&member), 412),
        ("", Some(&member), 412),
    ] {
        let mut headers = vec![("X-Etcd-Cluster-ID", cluster_id)];
        headers.extend(from.map(|from| ("X-Server-From", from)));
        let answer = request_with(port, "GET", "/quorate/image", &headers, b"");
        assert_eq!(answer.status, status, "{cluster_id} {from:?}");
    }
}
