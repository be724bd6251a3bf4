//! `--rebuild-corrupt-member`: a corrupt member fetches its state from the other members, but only if a quorum of them
//! agrees on a state.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use quorate_api::etcdserverpb as pb;
use quorate_tests::pki::{Credentials, Leaf};
use quorate_tests::{
    Cluster, ClusterOptions, Kind, Options, eventually, on_quorate, put, request_with,
};
use serde_json::Value;

use crate::corruption::{Check, INITIAL, PERIODIC, alarms, corrupt, lead, options};
use crate::tls::Files;
use crate::tls_hostile::ask;

on_quorate! {
    alone:
    a_corrupt_member_is_rebuilt,
    a_member_found_corrupt_by_the_initial_check_is_rebuilt,
    a_corrupt_leader_transfers_leadership_and_is_rebuilt,
    an_unreadable_backend_file_is_replaced,
    a_corrupt_member_is_not_rebuilt_without_a_quorum,
    a_member_that_is_corrupt_again_soon_after_a_rebuild_is_not_rebuilt,
    a_corrupt_member_is_rebuilt_under_an_etcd_leader,
    a_corrupt_member_is_not_rebuilt_if_no_other_member_sends_its_state,
    the_state_is_sent_only_to_peers_with_a_member_certificate,
    the_state_is_sent_only_to_peers_with_an_allowed_name,
    the_state_is_not_sent_without_peer_certificates,
    a_ca_shared_by_clients_and_peers_causes_a_warning,
}

const REBUILD: Check = Check { ours: &["--rebuild-corrupt-member"], of_3_5: &[] };
const REBUILT: &str = "rebuilt this member's state, which now equals the state of a quorum";

/// A cluster whose peers present certificates, and the certificate files.
struct Secured {
    cluster: Cluster,
    files: Files,
}

impl std::ops::Deref for Secured {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl std::ops::DerefMut for Secured {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

async fn start(kinds: [Kind; 3], checks: &[Check]) -> Secured {
    secure(options(kinds, checks), 3, |member| member).await
}

async fn secure(
    mut options: ClusterOptions,
    size: usize,
    change: impl Fn(Options) -> Options,
) -> Secured {
    let files = Files::new();
    for number in 0..size {
        options = options.member(number, |member| change(files.peers(member)));
    }
    Secured { cluster: options.start().await, files }
}

/// Waits until a member logs this text.
async fn says(cluster: &Cluster, member: usize, what: &str) {
    eventually(what, async || cluster.server(member).log().contains(what).then_some(())).await;
}

/// Waits until a member has been rebuilt. Checks that all members have the same data, even after that member is
/// restarted.
async fn is_rebuilt(cluster: &mut Cluster, member: usize) {
    says(cluster, member, REBUILT).await;
    cluster.ready(member).await;
    eventually("the alarm is cleared", async || {
        alarms(cluster, member).await.is_empty().then_some(())
    })
    .await;
    cluster.client(member).put(put("after", "the rebuild")).await.unwrap();
    cluster.check_same_content().await;
    cluster.stop(member).await;
    cluster.client((member + 1) % 3).put(put("after", "its stop")).await.unwrap();
    cluster.restart(member).await;
    cluster.check_same_content().await;
}

async fn raise_corrupt_alarm(cluster: &Cluster, member: usize) {
    let alarm = pb::AlarmRequest {
        action: pb::alarm_request::AlarmAction::Activate.into(),
        member_id: cluster.id(member),
        alarm: pb::AlarmType::Corrupt.into(),
    };
    cluster.client(member).alarm(alarm).await.unwrap();
}

async fn a_corrupt_member_is_rebuilt(ours: Kind) {
    let mut cluster = start([ours; 3], &[PERIODIC, REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.launch(member);
    is_rebuilt(&mut cluster, member).await;
}

async fn a_member_found_corrupt_by_the_initial_check_is_rebuilt(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    let of_peers = cluster.files.peer_flags();
    let of_peers: Vec<&str> = of_peers.iter().map(String::as_str).collect();
    let flags = [INITIAL.ours, REBUILD.ours, &of_peers].concat();
    cluster.server_mut(member).set_flags(&flags);
    cluster.launch(member);
    is_rebuilt(&mut cluster, member).await;
}

async fn a_corrupt_leader_transfers_leadership_and_is_rebuilt(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.restart(member).await;
    lead(&cluster, member).await;
    raise_corrupt_alarm(&cluster, member).await;
    says(&cluster, member, "leadership transfer finished").await;
    is_rebuilt(&mut cluster, member).await;
}

async fn an_unreadable_backend_file_is_replaced(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    for number in 0..50 {
        cluster.client(0).put(put(format!("k{number}"), vec![7; 1000])).await.unwrap();
    }
    cluster.stop(member).await;
    // The member's log now lacks an entry, which the member must receive before it serves.
    cluster.client((member + 1) % 3).put(put("while", "away")).await.unwrap();
    let backend = cluster.server(member).backend();
    let file = File::options().write(true).open(&backend).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&vec![0xff; usize::try_from(len - 8192).unwrap()], 8192).unwrap();
    cluster.launch(member);
    is_rebuilt(&mut cluster, member).await;
}

async fn a_corrupt_member_is_not_rebuilt_without_a_quorum(ours: Kind) {
    let mut cluster = start([ours; 3], &[REBUILD]).await;
    let member = cluster.follower().await;
    corrupt(&mut cluster, member).await;
    cluster.restart(member).await;
    // With only one other member, the members cannot decide which of the two states is correct.
    let (other, gone) = ((member + 1) % 3, (member + 2) % 3);
    cluster.stop(gone).await;
    cluster.leader_among(&[member, other]).await;
    raise_corrupt_alarm(&cluster, member).await;
    says(
        &cluster,
        member,
        "no quorum of other members agrees on a state; the member keeps its state",
    )
    .await;
    assert!(cluster.server_mut(member).is_running());
    assert!(!cluster.server(member).log().contains(REBUILT));
    assert_eq!(alarms(&cluster, member).await.len(), 1);
    // Once the third member runs, a quorum agrees on the correct state.
    cluster.restart(gone).await;
    is_rebuilt(&mut cluster, member).await;

    let two = ClusterOptions::new(ours, 2).flag("--rebuild-corrupt-member");
    let mut cluster = secure(two, 2, |member| member).await;
    cluster.client(0).put(put("k", "v")).await.unwrap();
    cluster.settle().await;
    let voters = cluster.ids().len();
    assert_eq!(voters, 2);
    let backend = cluster.server(1).backend();
    cluster.stop(1).await;
    std::fs::write(&backend, [0xff; 65536]).unwrap();
    cluster.launch(1);
    let exit = cluster.try_ready(1).await.unwrap_err();
    assert!(exit.log.contains("1 of 2 voters do not form a quorum"), "{exit}");
    assert_eq!(
        std::fs::read(&backend).unwrap(),
        [0xff; 65536],
        "the corrupt file must be kept for inspection"
    );
}

async fn a_member_that_is_corrupt_again_soon_after_a_rebuild_is_not_rebuilt(ours: Kind) {
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
    assert!(exit.log.contains("minutes after it was rebuilt"), "{exit}");
}

async fn a_corrupt_member_is_rebuilt_under_an_etcd_leader(ours: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let mut cluster = start([Kind::Etcd, ours, ours], &[PERIODIC, REBUILD]).await;
    lead(&cluster, 0).await;
    corrupt(&mut cluster, 1).await;
    cluster.launch(1);
    // etcd 3.5 does not name the corrupt member, so an operator must disarm the alarm.
    says(&cluster, 1, REBUILT).await;
    cluster.ready(1).await;
    cluster.settle().await;
    cluster.check_same_content().await;
}

async fn a_corrupt_member_is_not_rebuilt_if_no_other_member_sends_its_state(ours: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let mut cluster = start([Kind::Etcd, Kind::Etcd, ours], &[PERIODIC, REBUILD]).await;
    corrupt(&mut cluster, 2).await;
    cluster.restart(2).await;
    says(
        &cluster,
        2,
        "continues with a corrupt state, because no other member provides a correct one",
    )
    .await;
    assert!(cluster.server_mut(2).is_running());
    cluster.stop(2).await;
    let backend = cluster.server(2).backend();
    std::fs::write(&backend, [0xff; 65536]).unwrap();
    cluster.launch(2);
    let exit = cluster.try_ready(2).await.unwrap_err();
    assert!(
        exit.log.contains("no other member provides a correct one: members that run etcd never do"),
        "{exit}"
    );
}

/// Requests a member's state. Returns the status of the answer.
async fn image(
    cluster: &Secured,
    shown: Option<&Credentials>,
    (cluster_id, from): (&str, Option<&str>),
) -> std::io::Result<u16> {
    let from = from.map_or_else(String::new, |from| format!("X-Server-From: {from}\r\n"));
    let said = format!(
        "GET /quorate/image HTTP/1.1\r\nHost: h\r\nX-Etcd-Cluster-ID: {cluster_id}\r\n{from}\
         Connection: close\r\n\r\n"
    );
    let answer = ask(cluster.server(0).peer_port(), &cluster.files, shown, &said).await?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::Error::other(answer))
}

async fn cluster_id(cluster: &Cluster) -> String {
    let status = cluster.client(0).status(pb::StatusRequest::default()).await.unwrap();
    format!("{:x}", status.header.unwrap().cluster_id)
}

async fn the_state_is_sent_only_to_peers_with_a_member_certificate(ours: Kind) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("audit");
    let audited = ClusterOptions::new(ours, 3)
        .member(0, |member| member.flag(format!("--audit-log={}", log.display())));
    let cluster = secure(audited, 3, |member| member).await;
    let (own, member) = (cluster_id(&cluster).await, format!("{:x}", cluster.id(1)));
    let of_member = cluster.files.authority.sign(&Leaf::new("m1"));
    // The certificate is signed by the same CA, but it is a client certificate and contains no address.
    let of_client = cluster.files.authority.sign(&Leaf { hosts: Vec::new(), ..Leaf::new("app") });
    for (shown, cluster_id, from, status) in [
        (&of_member, &own[..], Some(&member[..]), 200),
        (&of_client, &own, Some(&member), 401),
        (&of_member, &own, Some("17"), 403),
        (&of_member, &own, None, 403),
        (&of_member, "17", Some(&member), 412),
        (&of_member, "", Some(&member), 412),
    ] {
        let answered = image(&cluster, Some(shown), (cluster_id, from)).await.unwrap();
        assert_eq!(answered, status, "{cluster_id} {from:?}");
    }
    let lines = eventually("six lines are in the audit log", async || {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let is_about_it = |line: &Value| line["method"] == "/quorate.Peer/Image";
        let lines: Vec<Value> = lines.filter(is_about_it).collect();
        (lines.len() >= 6).then_some(lines)
    })
    .await;
    let fields = |line: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&line["code"]), text(&line["certificate"]), text(&line["requests"][0]["member"]))
    };
    assert_eq!(fields(&lines[0]), ("OK".to_owned(), "m1".to_owned(), member.clone()));
    assert_eq!(fields(&lines[1]), ("UNAUTHENTICATED".to_owned(), "app".to_owned(), member));
    assert!(lines[1]["remote"].as_str().unwrap().starts_with("127.0.0.1:"), "{}", lines[1]);
    cluster.server(0).wait_for_log("refused to provide this member's state").await;
}

async fn the_state_is_sent_only_to_peers_with_an_allowed_name(ours: Kind) {
    let named = |member: Options| member.flag("--peer-cert-allowed-cn=server");
    let cluster = secure(ClusterOptions::new(ours, 3), 3, named).await;
    let (own, member) = (cluster_id(&cluster).await, format!("{:x}", cluster.id(1)));
    let sign = |name: &str, hosts: &[&str]| {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        cluster.files.authority.sign(&Leaf { hosts, ..Leaf::new(name) })
    };
    let asked = (&own[..], Some(&member[..]));
    let status = image(&cluster, Some(&sign("server", &[])), asked).await.unwrap();
    assert_eq!(status, 200);
    // A peer with another name is refused earlier, regardless of the alternative names in its certificate.
    let refused = image(&cluster, Some(&sign("app", &["127.0.0.1"])), asked).await;
    assert!(refused.is_err(), "{refused:?}");
    assert!(!cluster.server(0).log().contains(SHARED));
}

async fn the_state_is_not_sent_without_peer_certificates(ours: Kind) {
    let cluster = options([ours; 3], &[REBUILD]).start().await;
    cluster.client(0).put(put("k", "v")).await.unwrap();
    let (own, member) = (cluster_id(&cluster).await, format!("{:x}", cluster.id(1)));
    let headers = [("X-Etcd-Cluster-ID", &own[..]), ("X-Server-From", &member)];
    let port = cluster.server(0).peer_port();
    let answer = request_with(port, "GET", "/quorate/image", &headers, b"");
    assert_eq!(answer.status, 401);
    // Without peer certificates, the member logs a warning that `--rebuild-corrupt-member` has no effect.
    let warning = "--rebuild-corrupt-member has no effect";
    cluster.server(0).wait_for_log(warning).await;
}

const SHARED: &str = "a CA that signs client certificates is also trusted for peers";

async fn a_ca_shared_by_clients_and_peers_causes_a_warning(ours: Kind) {
    let (files, others) = (Files::new(), Files::new());
    let shared = files.peers(files.closed(ours)).start().await;
    shared.wait_for_log(SHARED).await;
    let apart = others.peers(files.closed(ours)).start().await;
    assert!(!apart.log().contains(SHARED));
    let open = files.peers(files.server(ours)).start().await;
    assert!(!open.log().contains(SHARED), "clients need no certificates");
}
