//! Put, DeleteRange and Compact: effects, answers, and refused requests.

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Kind, Server, delete, eventually, from_key, is_first_term, key, on_both_servers, put,
    put_leased, refused,
};
use tonic::Code;

on_both_servers! {
    only_changes_increase_the_revision,
    a_put_returns_the_previous_record,
    a_put_can_keep_the_value,
    a_put_can_keep_the_lease,
    invalid_puts_are_refused,
    a_delete_removes_a_key,
    a_delete_removes_a_range,
    a_delete_returns_the_previous_records,
    a_deleted_key_restarts_at_version_one,
    invalid_deletes_are_refused,
    a_compaction_drops_superseded_records,
    a_tombstone_at_the_compacted_revision_stays_readable,
    invalid_compactions_are_refused,
    an_empty_store_can_be_compacted_at_revision_zero_only_once,
    a_finished_compaction_is_logged,
    large_values_are_returned_unchanged,
}

async fn only_changes_increase_the_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    assert_eq!(client.revision().await, 1);
    assert_eq!(client.write("a", "1").await, 2);
    assert_eq!(client.write("a", "1").await, 3, "a put of the same value increments the revision");
    let header = client.delete_range(delete("nothing", "")).await.unwrap().header.unwrap();
    assert_eq!(header.revision, 3, "a deletion without a match does not change the revision");
    let header = client.delete_range(delete("a", "")).await.unwrap().header.unwrap();
    assert_eq!(header.revision, 4);
    assert!(header.cluster_id != 0 && header.member_id != 0);
    assert!(is_first_term(header.raft_term), "{header:?}");
}

async fn a_put_returns_the_previous_record(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let asking = |value| pb::PutRequest { prev_kv: true, ..put("a", value) };
    assert_eq!(client.put(asking("1")).await.unwrap().prev_kv, None);
    let previous = client.put(asking("2")).await.unwrap().prev_kv.unwrap();
    let fields = previous.fields();
    assert_eq!((fields.key, fields.value), (&b"a"[..], &b"1"[..]));
    assert_eq!((fields.create_revision, fields.mod_revision, fields.version), (2, 2, 1));
    assert_eq!(
        client.put(put("a", "3")).await.unwrap().prev_kv,
        None,
        "the previous record was not requested"
    );
}

async fn a_put_can_keep_the_value(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(7, 600).await;
    client.put(put_leased("a", "kept", 7)).await.unwrap();
    let keep = pb::PutRequest { ignore_value: true, ..put("a", "") };
    client.put(keep).await.unwrap();
    let record = client.range(key("a")).await.unwrap().kvs[0].clone();
    assert_eq!((record.value(), record.fields().version), (&b"kept"[..], 2));
    assert_eq!(record.fields().lease, 0, "the lease was not kept");
}

async fn a_put_can_keep_the_lease(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(7, 600).await;
    client.put(put_leased("a", "1", 7)).await.unwrap();
    let keep = pb::PutRequest { ignore_lease: true, ..put("a", "2") };
    client.put(keep).await.unwrap();
    let record = client.range(key("a")).await.unwrap().kvs[0].clone();
    assert_eq!((record.value(), record.fields().lease), (&b"2"[..], 7));
    let both = pb::PutRequest { ignore_lease: true, ignore_value: true, ..put("a", "") };
    client.put(both).await.unwrap();
    let record = client.range(key("a")).await.unwrap().kvs[0].clone();
    let fields = record.fields();
    assert_eq!((fields.value, fields.lease, fields.version), (&b"2"[..], 7, 3));
    assert_eq!((fields.create_revision, fields.mod_revision), (2, 4));
}

async fn invalid_puts_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let invalid = Code::InvalidArgument;
    refused(client.put(put("", "v")).await, invalid, "etcdserver: key is not provided");
    let request = pb::PutRequest { ignore_value: true, ..put("a", "v") };
    refused(client.put(request).await, invalid, "etcdserver: value is provided");
    let request = pb::PutRequest { ignore_lease: true, ..put_leased("a", "v", 7) };
    refused(client.put(request).await, invalid, "etcdserver: lease is provided");
    let request = pb::PutRequest { ignore_value: true, ..put("a", "") };
    refused(client.put(request).await, invalid, "etcdserver: key not found");
    let request = pb::PutRequest { ignore_lease: true, ..put("a", "v") };
    refused(client.put(request).await, invalid, "etcdserver: key not found");
    let text = "etcdserver: requested lease not found";
    refused(client.put(put_leased("a", "v", 7)).await, Code::NotFound, text);
    // If there are several reasons for a refusal, the reason that is checked first is returned.
    let request = pb::PutRequest { ignore_value: true, lease: 7, ..put("", "v") };
    refused(client.put(request).await, invalid, "etcdserver: key is not provided");
    let request = pb::PutRequest { ignore_value: true, lease: 7, ..put("a", "") };
    refused(client.put(request).await, Code::NotFound, text);
    assert_eq!(client.revision().await, 1, "a refusal changes nothing");
}

async fn a_delete_removes_a_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    let answer = client.delete_range(delete("a", "")).await.unwrap();
    assert_eq!((answer.deleted, answer.prev_kvs.len()), (1, 0));
    assert_eq!(answer.header.unwrap().revision, 3);
    assert_eq!(client.read("a").await, None);
    assert_eq!(client.delete_range(delete("a", "")).await.unwrap().deleted, 0);
}

async fn a_delete_removes_a_range(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for name in ["a", "b", "c", "d", "e"] {
        client.write(name, name).await;
    }
    let deleted = async |start: &str, end: &str| {
        client.delete_range(delete(start, end)).await.unwrap().deleted
    };
    assert_eq!(deleted("d", "b").await, 0, "an inverted range is empty");
    assert_eq!(deleted("b", "d").await, 2);
    assert_eq!(
        deleted("d", "\0").await,
        2,
        "a range that ends with a zero byte includes all keys from its start"
    );
    assert_eq!(client.revision().await, 8, "the deletion of a range increments the revision once");
    assert_eq!(client.range(from_key("\0")).await.unwrap().count, 1);
}

async fn a_delete_returns_the_previous_records(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for name in ["c", "a", "b"] {
        client.write(name, name).await;
    }
    let request = pb::DeleteRangeRequest { prev_kv: true, ..delete("a", "z") };
    let answer = client.delete_range(request).await.unwrap();
    let found: Vec<_> =
        answer.prev_kvs.iter().map(|record| (record.key(), record.fields().mod_revision)).collect();
    assert_eq!(found, [(&b"a"[..], 3), (b"b", 4), (b"c", 2)]);
}

async fn a_deleted_key_restarts_at_version_one(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    client.write("a", "2").await;
    client.delete_range(delete("a", "")).await.unwrap();
    client.write("a", "3").await;
    let record = client.range(key("a")).await.unwrap().kvs[0].clone();
    let fields = record.fields();
    assert_eq!((fields.create_revision, fields.mod_revision, fields.version), (5, 5, 1));
}

async fn invalid_deletes_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    let text = "etcdserver: key is not provided";
    for end in ["", "\0", "z"] {
        refused(client.delete_range(delete("", end)).await, Code::InvalidArgument, text);
    }
    assert_eq!(client.revision().await, 2, "a refusal changes nothing");
}

async fn a_compaction_drops_superseded_records(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    client.write("a", "2").await;
    client.write("b", "1").await;
    client.write("a", "3").await;
    let header = client.compact_to(4).await.header.unwrap();
    assert_eq!(header.revision, 5);
    let at = async |revision| {
        let request = pb::RangeRequest { revision, ..from_key("\0") };
        client.range(request).await.map(|answer| {
            answer.kvs.iter().map(|record| record.value().to_vec()).collect::<Vec<_>>().concat()
        })
    };
    assert_eq!(at(4).await.unwrap(), b"21", "the compacted revision itself is kept");
    assert_eq!(at(5).await.unwrap(), b"31");
    let text = "etcdserver: mvcc: required revision has been compacted";
    refused(at(3).await, Code::OutOfRange, text);
}

async fn a_tombstone_at_the_compacted_revision_stays_readable(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("a", "1").await;
    client.delete_range(delete("a", "")).await.unwrap();
    client.compact_to(3).await;
    assert_eq!(client.range(pb::RangeRequest { revision: 3, ..key("a") }).await.unwrap().count, 0);
    client.write("a", "2").await;
    client.compact_to(4).await;
    let record = client.range(key("a")).await.unwrap().kvs[0].clone();
    assert_eq!((record.fields().version, record.fields().create_revision), (1, 4));
}

async fn invalid_compactions_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for value in ["1", "2", "3"] {
        client.write("a", value).await;
    }
    let compact =
        async |revision| client.compact(pb::CompactionRequest { revision, physical: false }).await;
    let future = "etcdserver: mvcc: required revision is a future revision";
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    refused(compact(5).await, Code::OutOfRange, future);
    refused(compact(-1).await, Code::OutOfRange, compacted);
    compact(3).await.unwrap();
    refused(compact(3).await, Code::OutOfRange, compacted);
    refused(compact(2).await, Code::OutOfRange, compacted);
    refused(compact(0).await, Code::OutOfRange, compacted);
    refused(compact(5).await, Code::OutOfRange, future);
    let physical = pb::CompactionRequest { revision: 3, physical: true };
    refused(client.compact(physical).await, Code::OutOfRange, compacted);
    compact(4).await.unwrap();
    assert_eq!(client.revision().await, 4);
    assert_eq!(client.read("a").await.unwrap(), b"3");
}

async fn an_empty_store_can_be_compacted_at_revision_zero_only_once(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let zero = pb::CompactionRequest { revision: 0, physical: false };
    client.compact(zero).await.unwrap();
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    refused(client.compact(zero).await, Code::OutOfRange, compacted);
}

async fn a_finished_compaction_is_logged(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for value in ["1", "2", "3"] {
        client.write("a", value).await;
    }
    client.compact(pb::CompactionRequest { revision: 3, physical: false }).await.unwrap();
    eventually("the log contains the line that tools wait for", async || {
        server.log().contains("finished scheduled compaction").then_some(())
    })
    .await;
}

async fn large_values_are_returned_unchanged(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for size in [0, 1, 4095, 4096, 65_536, 1_000_000] {
        let value: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
        let name = format!("size/{size}");
        client.write(&name, &value).await;
        assert_eq!(client.read(&name).await.unwrap(), value, "{size} bytes");
    }
}
