//! Members and clusters that have lost acknowledged entries, and forged peer messages. In none of these cases may
//! further acknowledged writes be lost. Before a member exits, it logs the remedy.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use prost::Message as _;
use quorate_api::etcdserverpb as pb;
use quorate_api::raftpb;
use quorate_tests::{
    Client, Cluster, Kind, Server, eventually, on_both_servers, on_quorate, request_with,
};

on_both_servers! {
    alone:
    a_wiped_member_does_not_cause_the_loss_of_acknowledged_entries,
}

on_quorate! {
    alone:
    a_wiped_member_whose_name_is_unknown_to_its_peer_stops_permanently,
    a_member_with_a_higher_commit_index_than_its_cluster_stops,
    a_backend_without_its_log_is_refused,
    a_forged_heartbeat_does_not_prevent_elections,
}

const KEYS: [&str; 3] = ["k/4", "k/5", "k/6"];

async fn holds_all(client: &Client) -> bool {
    for key in KEYS {
        if client.read(key).await.is_none() {
            return false;
        }
    }
    true
}

/// Three members, identified by their roles.
struct Three {
    cluster: Cluster,
    /// The leader, which has all entries.
    full: usize,
    /// The member that was down during the last writes.
    behind: usize,
    /// The member that has acknowledged the last writes. Its files are deleted later.
    wiped: usize,
}

impl Three {
    async fn start(kind: Kind) -> Self {
        let mut cluster = Cluster::start(kind, 3).await;
        let full = cluster.leader().await;
        let [behind, wiped] = [(full + 1) % 3, (full + 2) % 3];
        cluster.settle().await;
        cluster.kill(behind);
        let client = cluster.client(full);
        for key in KEYS {
            client.write(key, "acknowledged").await;
        }
        Self { cluster, full, behind, wiped }
    }

    fn url(&self, member: usize) -> String {
        self.cluster.server(member).peer_url()
    }

    /// Deletes the files of the member that acknowledged the writes, and makes it join again.
    fn wipe(&mut self) {
        self.cluster.kill(self.wiped);
        self.cluster.wipe(self.wiped);
        let words = (0..3).map(|member| format!("m{member}={}", self.url(member)));
        let words = words.collect::<Vec<_>>().join(",");
        self.cluster.server_mut(self.wiped).set_cluster(words, true);
    }

    /// Makes the wiped member query a peer whose member list contains the wiped member and one other member, without
    /// their names.
    async fn ask_peer_that_does_not_know_its_name(&mut self, other: usize) {
        let status = self.cluster.client(self.full).status(pb::StatusRequest {}).await.unwrap();
        let cluster_id = status.header.unwrap().cluster_id;
        let (own, own_id) = (self.url(self.wiped), self.cluster.id(self.wiped));
        let other_id = self.cluster.id(other);
        let url = serve_member_list(cluster_id, move |url| {
            format!(
                r#"[{{"id":{own_id},"peerURLs":["{own}"]}},{{"id":{other_id},"peerURLs":["{url}"]}}]"#
            )
        });
        let words = format!("m{}={},m{other}={url}", self.wiped, self.url(self.wiped));
        self.cluster.server_mut(self.wiped).set_cluster(words, true);
    }
}

/// Answers the requests of a joining member while the test runs. Returns the URL of the service.
fn serve_member_list(cluster_id: u64, members: impl Fn(&str) -> String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let members = members(&url);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let (mut asked, mut piece) = (Vec::new(), [0; 4096]);
            while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(count) if count > 0 => asked.extend_from_slice(&piece[..count]),
                    _ => break,
                }
            }
            let (status, body) = if asked.starts_with(b"GET /members ") {
                ("200 OK", members.as_str())
            } else if asked.starts_with(b"GET /version ") {
                ("200 OK", r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0"}"#)
            } else {
                ("404 Not Found", "")
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nX-Etcd-Cluster-ID: {cluster_id:x}\r\nConnection: close\r\n\
                 Content-Length: {length}\r\n\r\n"
            );
            // A client that has disconnected will repeat its request.
            drop(
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())),
            );
        }
    });
    url
}

/// Returns the last line of a log. Returns the last line that the server has logged, except warnings, which other
/// threads may log while the server ends.
fn last_line(server: &Server) -> String {
    let log = server.log_of_this_run();
    let is_warning = |line: &&str| line.contains(r#""level":"warn""#);
    log.lines().rfind(|line| !is_warning(line)).unwrap_or_default().to_owned()
}

async fn a_wiped_member_does_not_cause_the_loss_of_acknowledged_entries(kind: Kind) {
    let mut three = Three::start(kind).await;
    let Three { full, behind, wiped, .. } = three;
    three.wipe();
    let cluster = &mut three.cluster;
    cluster.launch(wiped);
    let status = cluster.ended(wiped).await;
    assert_ne!(status.code(), Some(0));
    match kind {
        Kind::Quorate => {
            let (said, id) = (last_line(cluster.server(wiped)), cluster.id(wiped));
            assert!(said.contains("has already run"), "{said}");
            assert!(said.contains(&format!("etcdctl member remove {id:x}")), "{said}");
        }
        Kind::Etcd => {
            let said = cluster.server(wiped).log_of_this_run();
            assert!(said.contains("tocommit("), "{said}");
        }
    }
    // The lagging member cannot be elected without the votes of the other members.
    cluster.kill(full);
    cluster.launch(behind);
    cluster.launch(full);
    cluster.ready(full).await;
    let leader = cluster.leader().await;
    assert!(holds_all(&cluster.client(leader)).await);
    // The last log line describes this remedy.
    cluster.replace(wiped).await;
    let client = cluster.client(wiped);
    eventually("the new member has all keys", async || holds_all(&client).await.then_some(()))
        .await;
}

async fn a_wiped_member_whose_name_is_unknown_to_its_peer_stops_permanently(kind: Kind) {
    let mut three = Three::start(kind).await;
    let Three { full, behind, wiped, .. } = three;
    three.wipe();
    three.ask_peer_that_does_not_know_its_name(full).await;
    let cluster = &mut three.cluster;
    cluster.launch(wiped);
    let status = cluster.ended(wiped).await;
    assert_eq!(status.code(), Some(1));
    let (said, id) = (last_line(cluster.server(wiped)), cluster.id(wiped));
    assert!(said.contains("relies on acknowledged log entries up to index"), "{said}");
    assert!(
        said.contains(&format!(
            "must not vote again; remove this member from the cluster (etcdctl member remove \
                                    {id:x})"
        )),
        "{said}"
    );
    // The wiped member also fails to start while no peer that could report the loss is available.
    cluster.kill(full);
    cluster.launch(behind);
    cluster.launch(wiped);
    let status = cluster.ended(wiped).await;
    assert_eq!(status.code(), Some(1));
    let said = last_line(cluster.server(wiped));
    assert!(
        said.contains("lost-log: this member has found that its log has lost entries"),
        "{said}"
    );
    assert!(said.contains("etcdctl member remove"), "{said}");
    cluster.launch(full);
    cluster.ready(full).await;
    let leader = cluster.leader().await;
    assert!(holds_all(&cluster.client(leader)).await);
}

async fn a_member_with_a_higher_commit_index_than_its_cluster_stops(kind: Kind) {
    let mut three = Three::start(kind).await;
    let Three { full, behind, wiped, .. } = three;
    three.wipe();
    three.ask_peer_that_does_not_know_its_name(behind).await;
    let cluster = &mut three.cluster;
    // The wiped member breaks its earlier promises and votes for the lagging member.
    cluster.stop(full).await;
    cluster.launch(behind);
    cluster.launch(wiped);
    cluster.ready(wiped).await;
    let leader = cluster.leader().await;
    assert!(!holds_all(&cluster.client(leader)).await);
    cluster.launch(full);
    let status = cluster.ended(full).await;
    assert_eq!(status.code(), Some(1));
    let (said, id) = (last_line(cluster.server(full)), cluster.id(full));
    assert!(said.contains("the cluster has lost acknowledged entries"), "{said}");
    assert!(said.contains("keep a copy of"), "{said}");
    assert!(said.contains(&format!("etcdctl member remove {id:x}")), "{said}");
    assert!(said.contains("--force-new-cluster"), "{said}");
    // The full member still has the reported entries, which the other members have lost.
    for member in [behind, wiped] {
        cluster.kill(member);
    }
    cluster.server_mut(full).set_flags(&["--force-new-cluster"]);
    cluster.restart(full).await;
    assert!(holds_all(&cluster.client(full)).await);
}

async fn a_backend_without_its_log_is_refused(kind: Kind) {
    let mut server = Server::start(kind).await;
    server.client().write("k", "v").await;
    server.stop().await;
    let log = server.data().join("member").join("wal");
    let away = server.scratch().join("away");
    std::fs::rename(&log, &away).unwrap();
    for flags in [&[][..], &["--force-new-cluster"], &["--initial-cluster-state=existing"]] {
        server.set_flags(flags);
        let exit = server.try_start_again().await.unwrap_err();
        assert_eq!(exit.status.and_then(|status| status.code()), Some(1), "{exit}");
        let said = exit.log.lines().last().unwrap_or_default();
        assert!(said.contains(&server.backend().display().to_string()), "{said}");
        assert!(said.contains("there is no write-ahead log in"), "{said}");
        assert!(said.contains("specify its directory with --wal-dir"), "{said}");
        assert!(!log.exists(), "no log is created");
    }
    // With the log's actual folder in `--wal-dir`, the member starts without data loss.
    server.set_flags(&[&format!("--wal-dir={}", away.display())]);
    server.start_again().await;
    assert_eq!(server.client().read("k").await.as_deref(), Some(&b"v"[..]));
}

async fn a_forged_heartbeat_does_not_prevent_elections(kind: Kind) {
    const HEARTBEAT: i32 = 8;
    let mut cluster = Cluster::start(kind, 3).await;
    let leader = cluster.leader().await;
    let status = cluster.client(leader).status(pb::StatusRequest {}).await.unwrap();
    let (cluster_id, term) = (format!("{:x}", status.header.unwrap().cluster_id), status.raft_term);
    let follower = cluster.follower().await;
    for (from, forged, commit) in [
        (0xdead_beef, (1 << 63) - 1, 0),
        (0xdead_beef, term + 1_000, 0),
        (cluster.id(follower), (1 << 63) - 2, 0),
        (cluster.id(follower), (1 << 63) - 1, 0),
        (cluster.id(follower), u64::MAX, 0),
        // A forged commit index must not make a member believe that its log has lost entries.
        (cluster.id(follower), term + 1, 1 << 41),
        (cluster.id(follower), term + 1, u64::MAX),
    ] {
        for member in 0..3 {
            let message = raftpb::Message {
                r#type: Some(HEARTBEAT),
                to: Some(cluster.id(member)),
                from: Some(from),
                term: Some(forged),
                commit: Some(commit),
                ..raftpb::Message::default()
            };
            let from = format!("{from:x}");
            let headers = [
                ("X-Server-From", from.as_str()),
                ("X-Server-Version", "3.7.1"),
                ("X-Min-Cluster-Version", "3.0.0"),
                ("X-Etcd-Cluster-ID", &cluster_id),
            ];
            let port = cluster.server(member).peer_port();
            let answer = request_with(port, "POST", "/raft", &headers, &message.encode_to_vec());
            assert_eq!(answer.status, 204, "{answer:?}");
        }
    }
    // An election is still possible, and no member has adopted the forged terms.
    let [one, two] = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.kill(leader);
    let next = cluster.leader_among(&[one, two]).await;
    cluster.client(next).write("k", "v").await;
    let now = cluster.client(next).status(pb::StatusRequest {}).await.unwrap().raft_term;
    assert!(now > term && now < term + 1_000, "the term changed from {term} to {now}");
    for member in [one, two].into_iter().filter(|member| *member != follower) {
        let server = cluster.server(member);
        server.wait_for_log("cannot process message from unknown member").await;
        let term = "carries term 9223372036854775806, which is implausibly far ahead";
        server.wait_for_log(term).await;
    }
}
