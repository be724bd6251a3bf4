//! Tests for senders and data that a member refuses.

use super::*;
use crate::body_reader::LARGE_BODIES_MAX;
use quorate_raft::{LogIndex, Term};

#[test]
fn forwarded_proposals_that_cannot_be_applied_are_dropped() {
    let (one, two) = pair();
    let header = Some(RequestHeader { id: 7, ..RequestHeader::default() });
    let request = |put| InternalRaftRequest { header: header.clone(), put, ..Default::default() };
    let entry = |kind, data: Vec<u8>| Entry { kind, data: data.into(), ..Entry::default() };
    let good = entry(EntryKind::Normal, request(Some(PutRequest::default())).encode_to_vec());
    let junk = entry(EntryKind::Normal, vec![0xff; 20]);
    let nothing = entry(EntryKind::Normal, request(None).encode_to_vec());
    // Builds transactions that are nested deeper than any decoder supports: operations (field 4) inside transactions
    // (field 2), wrapped in the entry (field 6).
    let mut deep = Vec::new();
    for tag in [2, 4].into_iter().cycle().take(4 * deep_txn::DEPTH_MAX + 1).chain([6]) {
        let mut outer = Vec::new();
        encode_key(tag, WireType::LengthDelimited, &mut outer);
        encode_varint(deep.len() as u64, &mut outer);
        outer.append(&mut deep);
        deep = outer;
    }
    deep.extend(
        InternalRaftRequest { header: header.clone(), ..Default::default() }.encode_to_vec(),
    );
    let deep = entry(EntryKind::Normal, deep);
    let auth = InternalRaftRequest {
        header: header.clone(),
        auth_user_add: Some(Box::new(AuthUserAddRequest {
            name: "old".into(),
            password: "not hashed".into(),
            ..Default::default()
        })),
        ..Default::default()
    };
    let auth = entry(EntryKind::Normal, auth.encode_to_vec());
    let change = entry(EntryKind::ConfChange, vec![0xff]);
    let propose = |entries| Message { from: 1, entries, ..Message::new(MessageKind::Propose, 2) };
    one.peers.send(vec![
        propose(vec![junk.clone(), good.clone(), deep.clone()]),
        propose(vec![deep, nothing, auth, change, junk]),
        propose(vec![good.clone()]),
    ]);
    assert_eq!(two.receive(2), [propose(vec![good.clone()]), propose(vec![good])]);
}

#[test]
fn a_snapshot_for_another_member_or_from_an_unknown_sender_is_not_stored() {
    let (_one, two) = pair();
    let named = "X-Server-From: 1\r\n";
    let stranger = "X-Server-From: 9\r\nX-PeerURLs: http://127.0.0.1:1\r\n";
    let unnamed = "X-Server-From: 8\r\n";
    let with = |from, index, term, voters: &[u64]| {
        let (index, term) = (LogIndex(index), Term(term));
        let conf_state = ConfState { voters: voters.to_vec(), ..ConfState::default() };
        let metadata = SnapshotMetadata { conf_state, index, term };
        let snapshot = Some(Box::new(Snapshot { data: Bytes::new(), metadata }));
        Message { from, term: Term(3), snapshot, ..Message::new(MessageKind::Snapshot, 2) }
    };
    let missing = Message { snapshot: None, ..with(1, 7, 3, &[1, 2]) };
    let other = Message { to: 5, ..with(1, 7, 3, &[1, 2, 5]) };
    block_on(async {
        for (head, message, status, text) in [
            ("", with(1, 7, 3, &[1, 2]), 404, "error sender not found"),
            (unnamed, with(8, 7, 3, &[1, 2, 8]), 404, "error sender not found"),
            (stranger, with(9, 7, 3, &[1, 2]), 404, "error sender not found"),
            (stranger, with(1, 7, 3, &[1, 2]), 404, "error sender not found"),
            (named, missing, 400, "it is missing"),
            (named, with(1, 0, 3, &[1, 2]), 400, "this member cannot install the snapshot"),
            (named, with(1, 7, 0, &[1, 2]), 400, "this member cannot install the snapshot"),
            (named, with(1, 7, 4, &[1, 2]), 400, "index or term is missing"),
            (named, with(1, 7, 3, &[1]), 400, "does not contain this member"),
            (named, other, 500, "mismatch member"),
        ] {
            let answer = post_snapshot(&two, head, &message, &[7; 100_000]).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{message:?}: {answer}");
            assert!(answer.contains(text), "{message:?}: {answer}");
        }
    });
    assert_eq!(std::fs::read_dir(two.dir.path()).unwrap().count(), 0, "no file is stored");
    // An unknown sender is refused even if its own message lists it as a member. It is accepted once it is confirmed as
    // a member that is not in the log yet.
    let fit = with(9, 7, 3, &[1, 2, 9]);
    let answer = block_on(post_snapshot(&two, stranger, &fit, &[7; 100]));
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    two.peers.local.known_members.confirm(9);
    let answer = block_on(post_snapshot(&two, stranger, &fit, &[7; 100]));
    assert!(
        answer.contains("the image is invalid"),
        "the image of a known member is checked: {answer}"
    );
    assert_eq!(std::fs::read_dir(two.dir.path()).unwrap().count(), 0, "no file is left");
}

/// Starts a snapshot request with a message of a megabyte, of which 100,000 bytes are sent.
async fn begin_large_snapshot(to: &TestMember, from: MemberId) -> TcpStream {
    let head = format!(
        "POST /raft/snapshot HTTP/1.1\r\nHost: x\r\nX-Etcd-Cluster-ID: {CLUSTER:x}\r\n\
         X-Server-Version: 3.7.1\r\nX-Min-Cluster-Version: 3.0.0\r\nX-Server-From: {from:x}\r\n\
         Content-Length: 2000000\r\n\r\n"
    );
    let mut stream = TcpStream::connect(to.url.strip_prefix("http://").unwrap()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let message = [&1_000_000_u64.to_be_bytes()[..], &[7; 100_000]].concat();
    // The server may refuse the request before it has read the message.
    drop(stream.write_all(&message).await);
    stream
}

#[test]
fn a_snapshot_from_an_unknown_sender_is_refused_before_its_message_arrives() {
    let (_one, two) = pair();
    for from in [9, two.id] {
        let answer = block_on(async {
            let mut stream = begin_large_snapshot(&two, from).await;
            let mut answer = [0; 12];
            stream.read_exact(&mut answer).await.unwrap();
            answer
        });
        assert_eq!(&answer, b"HTTP/1.1 404");
    }
}

#[test]
fn large_messages_before_snapshots_count_as_large_bodies() {
    let (_one, two) = pair();
    let begun = block_on(async {
        let mut begun = Vec::new();
        for _ in 0..8 {
            begun.push(begin_large_snapshot(&two, 1).await);
        }
        begun
    });
    let large = || two.peers.load().large_bodies;
    wait_until(|| large() == LARGE_BODIES_MAX);
    drop(begun);
    wait_until(|| large() == 0);
}

#[test]
fn a_removed_member_is_notified() {
    let (one, two) = (TestMember::start(1), TestMember::start(2));
    one.peers.set_members(&Members::new(members(&[&one]).iter().cloned(), [units::MemberId(2)]));
    two.peers.set_members(&members(&[&one, &two]));
    two.wait_for(|report| matches!(report, Report::Removal).then_some(()));
    let asked = one.ask(Method::GET, "/raft/stream/msgapp/2", &GREETING);
    assert_eq!(asked, (410, "removed member\n".to_owned()));
}

#[test]
fn a_member_of_another_cluster_is_refused() {
    let one = TestMember::start(1);
    let stranger = TestMember::start_in(2, 0xc2, Duration::from_secs(5), Dialer::default());
    let both = members(&[&one, &stranger]);
    one.peers.set_members(&both);
    stranger.peers.set_members(&both);
    stranger.peers.send(vec![answer(2, 1, 1)]);
    let unreachable = stranger.wait_for(|report| match report {
        Report::Unreachable(id) => Some(id),
        _ => None,
    });
    assert_eq!(unreachable, 1);
    assert!(stranger.peers.active_since(1).is_none());
    let mut greeting = GREETING;
    greeting[3].1 = "c2";
    for (method, path) in [(Method::GET, "/raft/stream/message/2"), (Method::POST, "/raft")] {
        let asked = one.ask(method, path, &greeting);
        assert_eq!(asked, (412, "cluster ID mismatch\n".to_owned()));
    }
}

#[test]
fn stream_requests_are_checked_in_the_same_order_as_in_etcd() {
    let one = TestMember::start(1);
    let two = TestMember::start(2);
    one.peers.set_members(&members(&[&one, &two]));
    let get = |path, headers: &[(&'static str, &str)]| one.ask(Method::GET, path, headers);
    let refused = |status, text: &str| (status, format!("{text}\n"));
    let stream = "/raft/stream/message/2";
    assert_eq!(one.ask(Method::POST, stream, &GREETING), refused(405, "Method Not Allowed"));
    assert_eq!(get("/raft", &GREETING), refused(405, "Method Not Allowed"));
    let mut old = GREETING;
    old[1].1 = "2.3.0";
    assert_eq!(get(stream, &old), refused(412, "incompatible version"));
    assert_eq!(get(stream, &GREETING[..3]), refused(412, "cluster ID mismatch"));
    // `msgappv2` is the name of an encoding. The path of its stream is `msgapp`.
    assert_eq!(get("/raft/stream/msgappv2/2", &GREETING), refused(404, "invalid path"));
    assert_eq!(get("/raft/stream/message/2/3", &GREETING), refused(404, "invalid path"));
    assert_eq!(get("/raft/stream/message/xyz", &GREETING), refused(404, "invalid from"));
    assert_eq!(get("/raft/stream/message/9", &GREETING), refused(404, "error sender not found"));
    let mut elsewhere = GREETING;
    elsewhere[4].1 = "5";
    assert_eq!(get(stream, &elsewhere), refused(412, "to field mismatch"));
    assert_eq!(get("/raft/elsewhere", &GREETING), refused(404, "404 page not found"));
    let (status, alive) = get("/raft/probing", &[]);
    assert!(status == 200 && alive.starts_with("{\"OK\":true,\"Now\":\""), "{alive}");
    // A stopped member has no peers.
    one.peers.stop();
    assert_eq!(get(stream, &GREETING), refused(404, "error sender not found"));
}

#[test]
fn messages_addressed_to_another_member_are_refused() {
    let one = TestMember::start(1);
    let others =
        [2, 3].map(|id| Member::new(units::MemberId(id), vec![format!("http://127.0.0.1:{id}")]));
    one.peers.set_members(&Members::new(others, []));
    let post = |body: Bytes| {
        let mut call = Call::get(&one.url, "/raft", Duration::from_secs(10));
        call.headers = GREETING.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        (call.method, call.body) = (Method::POST, body);
        let answer = block_on(call.send(&Dialer::default())).unwrap();
        let text = String::from_utf8(answer.body().to_vec()).unwrap();
        (answer.status().as_u16(), text)
    };
    let encoded = |message: &Message| {
        let mut out = bytes::BytesMut::new();
        wire::put_message(message, &mut out);
        out.freeze()
    };
    let refused = |status, text: &str| (status, format!("{text}\n"));
    assert_eq!(post(Bytes::new()), refused(500, "error processing raft message"));
    assert_eq!(post(encoded(&answer(2, 5, 1))), refused(500, "error processing raft message"));
    assert_eq!(post(Bytes::from_static(b"\xff")), refused(400, "error unmarshalling raft message"));
    // The request succeeds, but its message is dropped, because only a member itself may create messages of this kind.
    let local = Message { from: 2, ..Message::new(MessageKind::Unreachable, 1) };
    assert_eq!(post(encoded(&local)), (204, String::new()));
    assert_eq!(post(encoded(&answer(2, 1, 4))), (204, String::new()));
    // The headers name member 2. Member 2 may forward messages from member 3, but not messages that carry a term.
    assert_eq!(post(encoded(&heartbeat(3, 1))), refused(500, "error processing raft message"));
    let passed_on = Message { from: 3, ..Message::new(MessageKind::TransferLeader, 1) };
    assert_eq!(post(encoded(&passed_on)), (204, String::new()));
    assert_eq!(one.receive(2), [answer(2, 1, 4), passed_on]);
}

#[test]
fn a_message_with_millions_of_empty_entries_is_refused() {
    let one = TestMember::start(1);
    let second = Member::new(units::MemberId(2), vec!["http://127.0.0.1:2".to_owned()]);
    one.peers.set_members(&Members::new([second], []));
    let mut call = Call::get(&one.url, "/raft", Duration::from_secs(30));
    call.headers = GREETING.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let mut body = bytes::BytesMut::new();
    wire::put_message(&append(2, 1, 0, 0), &mut body);
    body.extend_from_slice(&[0x3a, 0].repeat(8 << 20));
    (call.method, call.body) = (Method::POST, body.freeze());
    let answer = block_on(call.send(&Dialer::default())).unwrap();
    assert_eq!(answer.status().as_u16(), 400);
    assert_eq!(answer.body(), "error unmarshalling raft message\n");
}

#[test]
fn messages_from_unknown_senders_are_dropped() {
    let one = TestMember::start(1);
    // The members of this cluster do not list member 9, and the members of the other cluster list member 2.
    let unlisted = TestMember::start(9);
    let elsewhere = TestMember::start_in(2, 0xc2, Duration::from_secs(5), Dialer::default());
    for (from, url) in
        [(9, &unlisted.url), (2, &elsewhere.url), (2, &"http://127.0.0.1:9".to_owned())]
    {
        let mut call = Call::get(&one.url, "/raft", Duration::from_secs(10));
        call.headers = GREETING.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        call.headers[0].1 = from.to_string();
        call.headers.push(("x-peerurls", url.clone()));
        let mut body = bytes::BytesMut::new();
        wire::put_message(&heartbeat(from, 1), &mut body);
        (call.method, call.body) = (Method::POST, body.freeze());
        assert_eq!(
            block_on(call.send(&Dialer::default())).unwrap().status().as_u16(),
            204,
            "etcd returns the same status"
        );
        let local = &one.peers.local;
        let (known, cluster) = (&local.known_members, &local.introduction.cluster);
        assert!(!block_on(known.is_listed(
            from,
            url,
            cluster,
            (&local.dialer, local.dial_timeout)
        )));
        assert_eq!(known.of(from), Sender::Unknown);
    }
    // A known sender's stream cannot deliver messages from an unknown sender either.
    let mixed = vec![heartbeat(9, 1), heartbeat(1, 1), heartbeat(2, 1)];
    block_on(one.peers.local.deliver(mixed, 1));
    assert_eq!(one.receive(1), [heartbeat(1, 1)]);
    // Member 2 is confirmed as a member.
    let two = TestMember::start(2);
    two.peers.set_members(&members(&[&one, &two]));
    one.peers.set_members(&members(&[&one]));
    one.peers.table.add_remote(2, std::slice::from_ref(&two.url), Instant::now());
    two.introduce_to(&one);
}

#[test]
fn silent_remotes_are_replaced_by_new_remotes() {
    let one = TestMember::start(1);
    one.peers.set_members(&members(&[&one]));
    let table = &one.peers.table;
    // The identity check of the remotes does not end during the test.
    let unanswered = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let urls = [format!("http://{}", unanswered.local_addr().unwrap())];
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    for id in 100..200 {
        table.add_remote(id, &urls, start + second * u32::from(id >= 102));
    }
    assert_eq!(one.peers.load(), PeersLoad { remotes: 64, ..PeersLoad::default() });
    assert!(!table.has_remote(199), "the table of remotes was full");
    // One of the first two senders is confirmed as a member, and a later sender sends another request.
    one.peers.local.known_members.confirm(100);
    table.add_remote(102, &urls, start + second * 5);
    table.add_remote(300, &urls, start + second * 10);
    assert!(
        !table.has_remote(101) && table.has_remote(300),
        "the remote that was silent longest is replaced"
    );
    table.add_remote(301, &urls, start + second * 10);
    assert!(!table.has_remote(301), "the only silent remote is a confirmed member");
    table.add_remote(301, &urls, start + second * 11);
    assert!(!table.has_remote(103) && table.has_remote(301));
    assert!(table.has_remote(100) && table.has_remote(102));
    assert_eq!(one.peers.load(), PeersLoad { remotes: 64, confirmed: 1, ..PeersLoad::default() });
}

#[test]
fn remotes_whose_identity_check_failed_are_replaced_at_once() {
    let one = TestMember::start(1);
    one.peers.set_members(&members(&[&one]));
    let table = &one.peers.table;
    let (urls, now) = (["http://127.0.0.1:9".to_owned()], Instant::now());
    for id in 100..164 {
        table.add_remote(id, &urls, now);
    }
    wait_until(|| {
        table.add_remote(200, &urls, now);
        table.has_remote(200)
    });
    assert_eq!(table.remote_count(), 64);
}

#[test]
fn senders_with_unusable_urls_do_not_become_remotes() {
    let one = TestMember::start(1);
    one.peers.set_members(&members(&[&one]));
    let many = vec!["http://127.0.0.1:9"; 17].join(",");
    let long = format!("http://127.0.0.1:9/{}", "x".repeat(4096));
    for urls in [&many, &long, &",".repeat(10_000), "http://127.0.0.1:9,ftp://x", ""] {
        let mut headers = GREETING.to_vec();
        headers.push(("x-peerurls", urls));
        let asked = one.ask(Method::GET, "/raft/stream/message/2", &headers);
        assert_eq!((asked.0, one.peers.table.remote_count()), (404, 0), "{urls}");
    }
}

#[test]
fn active_unknown_remotes_do_not_replace_silent_members() {
    let one = TestMember::start(1);
    one.peers.set_members(&members(&[&one]));
    let table = &one.peers.table;
    // The identity check of the remotes does not end during the test.
    let unanswered = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let urls = [format!("http://{}", unanswered.local_addr().unwrap())];
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    for id in 100..164 {
        table.add_remote(id, &urls, start);
    }
    for id in 101..164 {
        one.peers.local.known_members.confirm(id);
    }
    // One unknown remote is active.
    table.add_remote(100, &urls, start + second * 9);
    table.add_remote(200, &urls, start + second * 10);
    assert!(!table.has_remote(200) && (100..164).all(|id| table.has_remote(id)));
    // The remote becomes silent, so the next sender replaces it.
    table.add_remote(200, &urls, start + second * 19);
    assert!(table.has_remote(200) && !table.has_remote(100));
    assert!((101..164).all(|id| table.has_remote(id)));
    // All remotes are confirmed, so the remote that has been silent longest is replaced.
    one.peers.local.known_members.confirm(200);
    table.add_remote(201, &urls, start + second * 20);
    assert!(table.has_remote(201) && !table.has_remote(101) && table.has_remote(200));
}

#[test]
fn unknown_senders_share_one_metric_series() {
    let one = TestMember::start(1);
    let second = Member::new(units::MemberId(2), vec!["http://127.0.0.1:9".to_owned()]);
    one.peers.set_members(&Members::new([second], []));
    let encoded = |message: &Message| {
        let mut out = bytes::BytesMut::new();
        wire::put_message(message, &mut out);
        out.freeze()
    };
    let post = |sender: MemberId, body: Bytes| {
        let mut call = Call::get(&one.url, "/raft", Duration::from_secs(10));
        call.headers = GREETING.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        call.headers[0].1 = format!("{sender:x}");
        (call.method, call.body) = (Method::POST, body);
        drop(block_on(call.send(&Dialer::default())).unwrap());
    };
    for id in 0xa01..0xa10 {
        post(id, encoded(&heartbeat(id, 1)));
        post(id, encoded(&heartbeat(id, 5)));
        post(id, Bytes::from_static(b"\xff"));
        let named = format!("X-Server-From: {id:x}\r\n");
        for message in [heartbeat(id, 1), Message::new(MessageKind::Snapshot, 5)] {
            drop(block_on(post_snapshot(&one, &named, &Message { from: id, ..message }, &[])));
        }
    }
    post(2, encoded(&heartbeat(2, 1)));
    let text = one.metrics.render();
    let mut senders: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("{From=\"")?.1.split_once('"'))
        .map(|(sender, _)| sender)
        .collect();
    senders.sort_unstable();
    senders.dedup();
    assert_eq!(senders, ["2", "UNKNOWN_SNAPSHOT_SENDER", "unknown"]);
    let bytes = encoded(&heartbeat(2, 1)).len() as u64;
    assert_eq!(one.metrics.network.peer_received_bytes.with(&["2"]).value(), bytes);
    assert!(one.metrics.network.peer_received_failures.with(&["unknown"]).value() > 0);
}
