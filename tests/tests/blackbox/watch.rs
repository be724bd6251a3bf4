//! Watch: the delivered events, their order, and the other responses of a stream.

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::watch_create_request::FilterType;
use quorate_api::mvccpb::Event;
use quorate_api::mvccpb::event::EventType;
use quorate_tests::{
    Client, Kind, Options, Server, Watch, bytes, delete, eventually, is_first_term,
    on_both_servers, prefix, put, put_leased, put_op, txn, watch_key, watch_prefix, write_op,
};

on_both_servers! {
    a_watcher_receives_events_after_its_creation,
    events_contain_whole_records,
    a_single_key_is_matched_exactly,
    a_range_is_half_open,
    an_empty_key_with_a_zero_end_watches_all_keys,
    history_is_replayed_before_live_events,
    a_watch_from_a_future_revision_waits_for_that_revision,
    all_events_of_a_revision_are_in_one_response,
    a_transaction_that_deletes_and_puts_a_key_produces_both_events,
    filtered_events_are_not_delivered,
    previous_records_are_delivered_on_request,
    compacted_previous_records_are_omitted,
    the_server_chooses_unused_watch_ids,
    the_client_may_choose_watch_ids,
    invalid_watches_are_rejected,
    a_cancelled_watcher_gets_no_more_events,
    a_watch_from_a_compacted_revision_is_cancelled,
    a_watch_may_start_at_the_latest_compaction_revision,
    an_empty_request_is_ignored,
    closing_the_request_side_leaves_the_watch_stream_open,
    many_watchers_share_a_stream,
    closing_a_stream_with_many_watchers_leaves_the_server_running,
    a_watch_stream_that_requires_a_leader_gets_events,
}

fn shown(event: &Event) -> String {
    let fields = event.kv.as_ref().unwrap().fields();
    let kind = match event.r#type() {
        EventType::Put => "put",
        EventType::Delete => "delete",
    };
    let key = String::from_utf8_lossy(fields.key);
    let value = String::from_utf8_lossy(fields.value);
    format!("{kind} {key}={value}@{}", fields.mod_revision)
}

fn all_shown(events: &[Event]) -> Vec<String> {
    events.iter().map(shown).collect()
}

async fn remove(client: &Client, key: &str) -> i64 {
    client.delete_range(delete(key, "")).await.unwrap().header.unwrap().revision
}

async fn a_watcher_receives_events_after_its_creation(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "before").await;
    let mut watch = Watch::open(&client);
    let reply = watch.create(watch_key("a")).await;
    assert_eq!((reply.watch_id, reply.canceled, reply.events.len()), (0, false, 0));
    let header = reply.header.unwrap();
    assert!(header.revision == 2 && is_first_term(header.raft_term), "{header:?}");
    assert!(header.cluster_id != 0 && header.member_id != 0);
    client.write("a", "after").await;
    let response = watch.next().await;
    assert_eq!(all_shown(&response.events), ["put a=after@3"]);
    assert_eq!(
        response.header.unwrap().revision,
        3,
        "the header of a live response has the revision of its events"
    );
    assert!(!response.created && !response.canceled && !response.fragment);
    remove(&client, "a").await;
    assert_eq!(all_shown(&watch.events(1).await), ["delete a=@4"]);
}

async fn events_contain_whole_records(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 600).await;
    let mut watch = Watch::open(&client);
    watch.create(watch_key("a")).await;
    client.write("a", "1").await;
    client.put(put_leased("a", "2", 5)).await.unwrap();
    remove(&client, "a").await;
    let events = watch.events(3).await;
    let record = events[1].kv.clone().unwrap();
    let fields = record.fields();
    assert_eq!((fields.key, fields.value), (&b"a"[..], &b"2"[..]));
    assert_eq!((fields.create_revision, fields.mod_revision), (2, 3));
    assert_eq!((fields.version, fields.lease), (2, 5));
    let record = events[2].kv.clone().unwrap();
    let fields = record.fields();
    assert_eq!((fields.key, fields.mod_revision), (&b"a"[..], 4));
    assert_eq!((fields.create_revision, fields.version, fields.lease), (0, 0, 0));
    assert!(events.iter().all(|event| event.prev_kv.is_none()));
}

async fn a_single_key_is_matched_exactly(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_key("a")).await;
    for name in ["a\0", "", "aa", "b", "a"] {
        if !name.is_empty() {
            client.write(name, "v").await;
        }
    }
    assert_eq!(all_shown(&watch.events(1).await), ["put a=v@5"]);
}

async fn a_range_is_half_open(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest { range_end: bytes("c"), ..watch_key("b") };
    watch.create(request).await;
    for name in ["a", "b", "c", "b\u{7f}", "bb"] {
        client.write(name, "").await;
    }
    let events = watch.events(3).await;
    assert_eq!(all_shown(&events), ["put b=@3", "put b\u{7f}=@5", "put bb=@6"]);
    let mut after = Watch::open(&client);
    let request =
        pb::WatchCreateRequest { range_end: bytes("\0"), start_revision: 2, ..watch_key("c") };
    after.create(request).await;
    client.write("zz", "").await;
    assert_eq!(all_shown(&after.events(2).await), ["put c=@4", "put zz=@7"]);
}

async fn an_empty_key_with_a_zero_end_watches_all_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest { range_end: bytes("\0"), ..watch_key("") };
    watch.create(request).await;
    client.write("\0", "").await;
    client.write(b"\xff\xff", "").await;
    assert_eq!(watch.events(2).await.len(), 2);
}

async fn history_is_replayed_before_live_events(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..50 {
        client.write("k", number.to_string()).await;
    }
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest { start_revision: 11, ..watch_key("k") };
    watch.create(request).await;
    for number in 50..100 {
        client.write("k", number.to_string()).await;
    }
    let expected: Vec<String> =
        (9..100).map(|number| format!("put k={number}@{}", number + 2)).collect();
    assert_eq!(all_shown(&watch.events(91).await), expected);
}

async fn a_watch_from_a_future_revision_waits_for_that_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest { start_revision: 5, ..watch_key("k") };
    let reply = watch.create(request).await;
    assert!(!reply.canceled);
    for number in 2..8 {
        client.write("k", number.to_string()).await;
    }
    assert_eq!(all_shown(&watch.events(3).await), ["put k=5@5", "put k=6@6", "put k=7@7"]);
}

async fn all_events_of_a_revision_are_in_one_response(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut live = Watch::open(&client);
    live.create(watch_prefix("k")).await;
    let puts: Vec<_> = (0..100).map(|number| put_op(format!("k{number:02}"), "v")).collect();
    client.txn(txn(puts)).await.unwrap();
    let response = live.next().await;
    assert_eq!(response.events.len(), 100);
    let order: Vec<_> =
        response.events.iter().map(|event| event.kv.as_ref().unwrap().key().to_vec()).collect();
    assert!(order.is_sorted());
    let mut replayed = Watch::open(&client);
    let request = pb::WatchCreateRequest { start_revision: 1, ..watch_prefix("k") };
    replayed.create(request).await;
    assert_eq!(replayed.next().await.events, response.events);
}

async fn a_transaction_that_deletes_and_puts_a_key_produces_both_events(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "1").await;
    let mut watch = Watch::open(&client);
    watch.create(watch_key("k")).await;
    // As in etcd, a transaction may put a key that it also deletes with an open-ended range.
    let request = txn(vec![write_op(delete("k", "\0")), put_op("k", "2")]);
    client.txn(request).await.unwrap();
    let response = watch.next().await;
    assert_eq!(all_shown(&response.events), ["delete k=@3", "put k=2@3"]);
}

async fn filtered_events_are_not_delivered(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    let filtered = |watch_id: i64, filters: &[i32]| pb::WatchCreateRequest {
        watch_id,
        filters: filters.to_vec(),
        ..watch_key("k")
    };
    let (no_put, no_delete) = (FilterType::Noput.into(), FilterType::Nodelete.into());
    watch.create(filtered(1, &[no_put])).await;
    watch.create(filtered(2, &[no_delete])).await;
    watch.create(filtered(3, &[no_put, no_delete])).await;
    watch.create(filtered(4, &[99])).await;
    client.write("k", "1").await;
    remove(&client, "k").await;
    client.write("k", "2").await;
    let mut seen = Vec::new();
    for _ in 0..6 {
        let response = watch.next().await;
        for event in &response.events {
            seen.push((response.watch_id, shown(event)));
        }
    }
    seen.sort();
    let expected = [
        (1, "delete k=@3"),
        (2, "put k=1@2"),
        (2, "put k=2@4"),
        (4, "delete k=@3"),
        (4, "put k=1@2"),
        (4, "put k=2@4"),
    ];
    assert_eq!(seen, expected.map(|(id, text)| (id, text.to_owned())));
}

async fn previous_records_are_delivered_on_request(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(pb::WatchCreateRequest { prev_kv: true, ..watch_key("k") }).await;
    client.write("k", "1").await;
    client.write("k", "2").await;
    remove(&client, "k").await;
    client.write("k", "3").await;
    let previous = |events: &[Event]| -> Vec<Option<(Vec<u8>, i64)>> {
        events
            .iter()
            .map(|event| {
                let record = event.prev_kv.as_ref()?;
                Some((record.value().to_vec(), record.fields().mod_revision))
            })
            .collect()
    };
    let expected = [None, Some((b"1".to_vec(), 2)), Some((b"2".to_vec(), 3)), None];
    assert_eq!(previous(&watch.events(4).await), expected);
    let mut replayed = Watch::open(&client);
    let request = pb::WatchCreateRequest { prev_kv: true, start_revision: 2, ..watch_key("k") };
    replayed.create(request).await;
    assert_eq!(previous(&replayed.events(4).await), expected);
}

async fn compacted_previous_records_are_omitted(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "1").await;
    client.write("k", "2").await;
    client.write("k", "3").await;
    client.compact_to(3).await;
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest { prev_kv: true, start_revision: 3, ..watch_key("k") };
    watch.create(request).await;
    let events = watch.events(2).await;
    assert_eq!(all_shown(&events), ["put k=2@3", "put k=3@4"]);
    assert!(events[0].prev_kv.is_none());
    assert_eq!(events[1].prev_kv.as_ref().unwrap().value(), b"2");
}

async fn the_server_chooses_unused_watch_ids(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    assert_eq!(watch.create(watch_key("a")).await.watch_id, 0);
    assert_eq!(watch.create(watch_key("a")).await.watch_id, 1);
    let own = pb::WatchCreateRequest { watch_id: 2, ..watch_key("a") };
    assert_eq!(watch.create(own).await.watch_id, 2);
    assert_eq!(watch.create(watch_key("a")).await.watch_id, 3, "2 is in use");
    let far = pb::WatchCreateRequest { watch_id: 100, ..watch_key("a") };
    watch.create(far).await;
    assert_eq!(
        watch.create(watch_key("a")).await.watch_id,
        4,
        "an id that a client chose does not change the counter"
    );
    watch.cancel(1).await;
    assert!(watch.next().await.canceled);
    assert_eq!(
        watch.create(watch_key("a")).await.watch_id,
        5,
        "a cancelled watcher does not change the counter"
    );
    let mut other = Watch::open(&client);
    assert_eq!(other.create(watch_key("a")).await.watch_id, 0, "each stream has its own counter");
}

async fn the_client_may_choose_watch_ids(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    let with_id = |watch_id| pb::WatchCreateRequest { watch_id, ..watch_key("a") };
    assert_eq!(watch.create(with_id(7)).await.watch_id, 7);
    assert_eq!(watch.create(with_id(i64::MAX)).await.watch_id, i64::MAX);
    assert_eq!(watch.create(with_id(-5)).await.watch_id, -5);
    watch.cancel(7).await;
    let reply = watch.next().await;
    assert!(reply.canceled && reply.watch_id == 7);
    assert_eq!(watch.create(with_id(7)).await.watch_id, 7, "a cancelled id is free again");
    client.write("a", "v").await;
    let mut ids = [watch.next().await, watch.next().await, watch.next().await]
        .map(|response| response.watch_id);
    ids.sort_unstable();
    assert_eq!(ids, [-5, 7, i64::MAX]);
}

async fn invalid_watches_are_rejected(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    let mut watch = Watch::open(&client);
    let mut rejected = async |request: pb::WatchCreateRequest, reason: &str| {
        let reply = watch.create(request).await;
        assert_eq!((reply.watch_id, reply.canceled), (-1, true), "{reply:?}");
        assert_eq!(reply.cancel_reason, reason);
        assert_eq!(reply.compact_revision, 0);
        assert_eq!(reply.header.unwrap().revision, 2);
    };
    let ranged =
        |key: &str, end: &str| pb::WatchCreateRequest { range_end: bytes(end), ..watch_key(key) };
    // Debian's release accepts a negative revision.
    if server.is_3_7() {
        let reason = "etcdserver: mvcc: required revision has been compacted";
        let negative = pb::WatchCreateRequest { start_revision: -1, ..watch_key("a") };
        rejected(negative, reason).await;
    }
    let empty = "mvcc: watcher range is empty";
    rejected(ranged("b", "a"), empty).await;
    rejected(ranged("b", "b"), empty).await;
    let mut watch = Watch::open(&client);
    let own = pb::WatchCreateRequest { watch_id: 9, ..watch_key("a") };
    watch.create(own.clone()).await;
    let reply = watch.create(own).await;
    assert_eq!((reply.watch_id, reply.canceled), (-1, true));
    assert_eq!(reply.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    // The stream and the first watcher continue.
    client.write("a", "2").await;
    assert_eq!(all_shown(&watch.events(1).await), ["put a=2@3"]);
}

async fn a_cancelled_watcher_gets_no_more_events(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_key("a")).await;
    let staying = pb::WatchCreateRequest { watch_id: 50, ..watch_key("a") };
    watch.create(staying).await;
    client.write("other", "").await;
    watch.cancel(0).await;
    let reply = watch.next().await;
    assert_eq!((reply.watch_id, reply.canceled, reply.created), (0, true, false));
    assert_eq!((reply.compact_revision, reply.cancel_reason.as_str()), (0, ""));
    assert_eq!(reply.header.unwrap().revision, 2);
    // Requests to cancel a watcher again, or to cancel an unknown watcher, are ignored.
    watch.cancel(0).await;
    watch.cancel(1234).await;
    client.write("a", "1").await;
    let response = watch.next().await;
    assert_eq!(response.watch_id, 50, "{response:?}");
    assert_eq!(all_shown(&response.events), ["put a=1@3"]);
}

async fn a_watch_from_a_compacted_revision_is_cancelled(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..5 {
        client.write("k", number.to_string()).await;
    }
    client.compact_to(5).await;
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest { start_revision: 3, watch_id: 4, ..watch_key("k") };
    let reply = watch.create(request).await;
    assert!(!reply.canceled && reply.watch_id == 4, "the watcher is created first");
    let reply = watch.next().await;
    assert_eq!((reply.watch_id, reply.canceled, reply.compact_revision), (4, true, 5));
    assert_eq!(reply.cancel_reason, "");
    let header = reply.header.unwrap();
    assert_eq!(header.revision, 0);
    assert!(header.cluster_id != 0 && header.member_id != 0 && header.raft_term != 0);
    // Although the server has cancelled the watcher, its id remains in use until the client cancels the watcher as
    // well.
    let again = pb::WatchCreateRequest { watch_id: 4, ..watch_key("k") };
    assert_eq!(watch.create(again.clone()).await.watch_id, -1);
    watch.cancel(4).await;
    let reply = watch.next().await;
    assert!(reply.canceled && reply.watch_id == 4 && reply.compact_revision == 0);
    assert_eq!(watch.create(again).await.watch_id, 4);
}

async fn a_watch_may_start_at_the_latest_compaction_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 2..7 {
        client.write("k", number.to_string()).await;
    }
    client.compact_to(5).await;
    let mut watch = Watch::open(&client);
    watch.create(pb::WatchCreateRequest { start_revision: 5, ..watch_key("k") }).await;
    assert_eq!(all_shown(&watch.events(2).await), ["put k=5@5", "put k=6@6"]);
}

async fn an_empty_request_is_ignored(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.send_empty().await;
    assert_eq!(watch.create(watch_key("k")).await.watch_id, 0);
}

async fn closing_the_request_side_leaves_the_watch_stream_open(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_key("k")).await;
    watch.close_requests();
    for number in 0..3 {
        client.write("k", number.to_string()).await;
    }
    assert_eq!(watch.events(3).await.len(), 3);
}

async fn closing_a_stream_with_many_watchers_leaves_the_server_running(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    // Each key is watched twice, and the watchers of a key are far apart.
    for number in (0..300).chain(0..300) {
        watch.create(watch_key(format!("k{number}"))).await;
    }
    drop(watch);
    let mut other = Watch::open(&client);
    other.create(watch_key("k0")).await;
    for round in 0..10 {
        client.write("k0", format!("{round}")).await;
        assert_eq!(other.next().await.events.len(), 1);
    }
}

async fn many_watchers_share_a_stream(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    let watchers = 200_i64;
    for number in 0..watchers {
        // Half of the watchers watch one key each, and the other half watch all keys.
        let request =
            if number % 2 == 0 { watch_key(format!("k{number}")) } else { watch_prefix("k") };
        assert_eq!(watch.create(request).await.watch_id, number);
    }
    client.write("k8", "v").await;
    let mut ids = Vec::new();
    for _ in 0..=watchers / 2 {
        let response = watch.next().await;
        assert_eq!(all_shown(&response.events), ["put k8=v@2"]);
        ids.push(response.watch_id);
    }
    ids.sort_unstable();
    let expected: Vec<i64> = (0..watchers).filter(|id| id % 2 == 1 || *id == 8).collect();
    assert_eq!(ids, expected);
}

async fn a_watch_stream_that_requires_a_leader_gets_events(kind: Kind) {
    let server = Options::new(kind).start().await;
    let client = server.client();
    let mut metadata = client.metadata();
    metadata.insert("hasleader", "true".parse().unwrap());
    let mut watch = Watch::open_with(&client, metadata);
    watch.create(watch_key("k")).await;
    client.put(put("k", "v")).await.unwrap();
    assert_eq!(watch.events(1).await.len(), 1);
    // Other readers are not affected.
    let seen = eventually("the write is visible", async || {
        let answer = client.range(prefix("k")).await.unwrap();
        (answer.count == 1).then_some(answer.count)
    })
    .await;
    assert_eq!(seen, 1);
}
