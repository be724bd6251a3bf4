//! The requests of a Kubernetes API server, and the properties that the API server expects of the answers.
//!
//! The API server's storage layer sends these requests: paged lists at one revision, watches from that revision with
//! progress requests, transactions that compare `mod_revision`, one lease for many keys, and compactions that the API
//! servers coordinate through a key.

use std::collections::BTreeMap;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::mvccpb::event::EventType;
use quorate_tests::{
    Client, Kind, Server, Watch, compare, delete, get_op, key, on_both_servers, op, put,
    put_leased, refused, txn_when, watch_prefix,
};
use tonic::Code;

on_both_servers! {
    all_pages_of_a_list_show_the_same_revision,
    a_watch_continues_from_the_revision_of_the_list,
    progress_is_sent_after_the_events,
    only_one_of_two_concurrent_updates_succeeds,
    keys_of_one_lease_expire_together,
    api_servers_agree_on_the_compacting_server,
}

const PODS: &str = "/registry/pods/";

fn pod(number: usize) -> String {
    format!("{PODS}default/pod-{number:04}")
}

/// Writes an object unless it has changed since the given revision. Revision 0 means that the object must not exist
/// yet. Returns the new revision, or the current value as an error.
async fn update(
    client: &Client,
    name: &str,
    read_at: i64,
    value: &str,
) -> Result<i64, Option<(String, i64)>> {
    let unchanged = compare(name, CompareResult::Equal, TargetUnion::ModRevision(read_at));
    let write = op(pb::request_op::Request::RequestPut(put(name, value)));
    let reply =
        client.txn(txn_when(vec![unchanged], vec![write], vec![get_op(name)])).await.unwrap();
    let revision = reply.header.unwrap().revision;
    if reply.succeeded {
        return Ok(revision);
    }
    let Some(Response::ResponseRange(found)) = reply.responses.into_iter().next().unwrap().response
    else {
        panic!("the other branch must return a range");
    };
    Err(found.kvs.first().map(|record| {
        let fields = record.fields();
        (String::from_utf8(fields.value.to_vec()).unwrap(), fields.mod_revision)
    }))
}

async fn create(client: &Client, name: &str, value: &str) -> i64 {
    update(client, name, 0, value).await.unwrap()
}

/// Requests a page of a prefix. Later pages start at a given key and use the first page's revision.
async fn page(client: &Client, from: &str, revision: i64, limit: i64) -> pb::RangeResponse {
    let request =
        pb::RangeRequest { range_end: "/registry/pods0".into(), limit, revision, ..key(from) };
    client.range(request).await.unwrap()
}

async fn all_pages_of_a_list_show_the_same_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..120 {
        create(&client, &pod(number), "listed").await;
    }
    client.write("/registry/podsecurity/other", "of another kind").await;
    let first = page(&client, PODS, 0, 50).await;
    let revision = first.header.as_ref().unwrap().revision;
    assert_eq!((first.kvs.len(), first.more, first.count), (50, true, 120));
    // Changes made between two pages are not part of this list.
    client.delete_range(delete(pod(60), "")).await.unwrap();
    client.write(pod(70), "changed").await;
    create(&client, &pod(999), "late").await;
    let mut seen: Vec<_> = first.kvs;
    let mut remaining = 120 - 50;
    loop {
        let from = [seen.last().unwrap().key(), b"\0"].concat();
        let page = page(&client, std::str::from_utf8(&from).unwrap(), revision, 50).await;
        // The count is the number of remaining keys.
        assert_eq!(page.count, remaining);
        remaining -= i64::try_from(page.kvs.len()).unwrap();
        seen.extend(page.kvs);
        if !page.more {
            break;
        }
    }
    let names: Vec<_> =
        seen.iter().map(|record| String::from_utf8(record.key().to_vec()).unwrap()).collect();
    assert_eq!(names, (0..120).map(pod).collect::<Vec<_>>());
    assert!(
        seen.iter()
            .all(|record| record.value() == b"listed" && record.fields().mod_revision <= revision)
    );
    // A client that requests the next page too late must start over.
    client.compact_to(revision + 1).await;
    let late = pb::RangeRequest { revision, limit: 50, ..quorate_tests::prefix(PODS) };
    let text = "etcdserver: mvcc: required revision has been compacted";
    refused(client.range(late).await, Code::OutOfRange, text);
}

async fn a_watch_continues_from_the_revision_of_the_list(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..10 {
        create(&client, &pod(number), "1").await;
    }
    let list = page(&client, PODS, 0, 0).await;
    let mut cache: BTreeMap<Vec<u8>, Vec<u8>> =
        list.kvs.iter().map(|record| (record.key().to_vec(), record.value().to_vec())).collect();
    let start_revision = list.header.unwrap().revision + 1;
    for number in 0..10 {
        client.write(pod(number), "2").await;
    }
    client.delete_range(delete(pod(3), "")).await.unwrap();
    client.write("/registry/leases/other", "").await;
    create(&client, &pod(10), "1").await;
    let mut watch = Watch::open(&client);
    let request = pb::WatchCreateRequest {
        start_revision,
        prev_kv: true,
        progress_notify: true,
        ..watch_prefix(PODS)
    };
    watch.create(request).await;
    let mut revision = start_revision - 1;
    for event in watch.events(12).await {
        let record = event.kv.unwrap();
        let fields = record.fields();
        assert!(fields.mod_revision > revision, "events are in order and unique");
        revision = fields.mod_revision;
        // A deletion event contains the previous value.
        let before = event.prev_kv.map(|record| record.value().to_vec());
        assert_eq!(before, cache.get(fields.key).cloned());
        if event.r#type == EventType::Delete as i32 {
            cache.remove(fields.key);
        } else {
            cache.insert(fields.key.to_vec(), fields.value.to_vec());
        }
    }
    let now = page(&client, PODS, 0, 0).await;
    let listed = now.kvs.iter().map(|record| (record.key().to_vec(), record.value().to_vec()));
    assert_eq!(cache, listed.collect());
}

/// A cache that is waiting for a revision sends a progress request. The answer must not overtake any event.
async fn progress_is_sent_after_the_events(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let start_revision = create(&client, &pod(0), "1").await;
    let mut watch = Watch::open(&client);
    watch.create(pb::WatchCreateRequest { start_revision, ..watch_prefix(PODS) }).await;
    let mut received = watch.events(1).await.len();
    for round in 0..20 {
        client.write(pod(0), round.to_string()).await;
        let elsewhere = client.write("/registry/events/other", "").await;
        let written = elsewhere - 1;
        let mut seen = 0;
        loop {
            watch.progress().await;
            let response = watch.next().await;
            seen += response.events.len();
            let revision = response.header.unwrap().revision;
            if response.events.is_empty() && revision >= written {
                break;
            }
        }
        assert_eq!(seen, 1, "the event precedes the notification");
        received += seen;
    }
    assert_eq!(received, 21);
}

async fn only_one_of_two_concurrent_updates_succeeds(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let created = create(&client, &pod(0), "1").await;
    assert_eq!(update(&client, &pod(0), 0, "again").await, Err(Some(("1".to_owned(), created))));
    let updated = update(&client, &pod(0), created, "2").await.unwrap();
    // The other writer gets the current value and can retry with it.
    assert_eq!(
        update(&client, &pod(0), created, "other").await,
        Err(Some(("2".to_owned(), updated)))
    );
    update(&client, &pod(0), updated, "3").await.unwrap();
    let racing = (0..20).map(|number| {
        let client = client.clone();
        tokio::spawn(async move { update(&client, &pod(1), 0, &number.to_string()).await })
    });
    let mut winners = 0;
    for race in racing.collect::<Vec<_>>() {
        winners += usize::from(race.await.unwrap().is_ok());
    }
    assert_eq!(winners, 1);
    // After the deletion, a write that expects the old revision fails.
    let stale = client.range(key(pod(0))).await.unwrap().kvs[0].fields().mod_revision;
    client.delete_range(delete(pod(0), "")).await.unwrap();
    assert_eq!(update(&client, &pod(0), stale, "late").await, Err(None));
}

/// Kubernetes `Event` objects of the same minute share a lease, so that a single log entry deletes them all.
async fn keys_of_one_lease_expire_together(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let lease = client.grant(0, 600).await;
    let kept = client.grant(0, 600).await;
    let mut watch = Watch::open(&client);
    watch.create(watch_prefix("/registry/events/")).await;
    for number in 0..100 {
        let name = format!("/registry/events/{number}");
        client
            .put(put_leased(name, "happened", if number < 90 { lease } else { kept }))
            .await
            .unwrap();
    }
    watch.events(100).await;
    // Revoking the lease has the same effect as its expiry.
    client.lease_revoke(pb::LeaseRevokeRequest { id: lease }).await.unwrap();
    let ended = watch.events(90).await;
    assert!(ended.iter().all(|event| event.r#type == EventType::Delete as i32));
    let revisions = ended.iter().map(|event| event.kv.as_ref().unwrap().fields().mod_revision);
    assert_eq!(revisions.clone().min(), revisions.max());
    let left = client.range(quorate_tests::prefix("/registry/events/")).await.unwrap();
    assert_eq!(left.count, 10);
}

/// Key through which the API servers agree on which of them compacts.
const COMPACTOR: &str = "compact_rev_key";

/// Claims the compaction, unless another server has claimed it since the last read. Returns whether the claim
/// succeeded, the version to expect next time, and the current revision.
async fn take_turn(client: &Client, version: i64) -> (bool, i64, i64) {
    let unchanged = compare(COMPACTOR, CompareResult::Equal, TargetUnion::Version(version));
    let write = op(pb::request_op::Request::RequestPut(put(COMPACTOR, "1000")));
    let request = txn_when(vec![unchanged], vec![write], vec![get_op(COMPACTOR)]);
    let reply = client.txn(request).await.unwrap();
    let revision = reply.header.unwrap().revision;
    if reply.succeeded {
        return (true, version + 1, revision);
    }
    let Some(Response::ResponseRange(found)) = &reply.responses[0].response else {
        panic!("the other branch must return a range");
    };
    (false, found.kvs[0].fields().version, revision)
}

async fn api_servers_agree_on_the_compacting_server(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let (mut versions, mut compacted) = ([0, 0], 0);
    for round in 0..5 {
        for number in 0..20 {
            client.write(pod(number), round.to_string()).await;
        }
        let mut turns = 0;
        for version in &mut versions {
            let (is_mine, next, revision) = take_turn(&client, *version).await;
            *version = next;
            if is_mine {
                turns += 1;
                // Compact at the revision of the previous turn. In production, that turn was five minutes earlier.
                if compacted > 0 {
                    client.compact_to(compacted).await;
                }
                compacted = revision;
            }
        }
        assert_eq!(turns, 1, "in round {round}");
    }
    let old = pb::RangeRequest { revision: 2, ..key(pod(0)) };
    let text = "etcdserver: mvcc: required revision has been compacted";
    refused(client.range(old).await, Code::OutOfRange, text);
    assert_eq!(client.read(pod(0)).await.unwrap(), b"4");
}
