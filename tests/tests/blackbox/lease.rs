//! Leases: grant, renewal, remaining time, expiry, and attached keys.

use std::time::Instant;

use quorate_api::etcdserverpb as pb;
use quorate_tests::{
    Client, Kind, Options, Place, Server, Watch, delete, eventually, key, on_both_servers, prefix,
    put, put_leased, refused, watch_prefix, within,
};
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

on_both_servers! {
    grant_returns_the_lease_id_and_ttl,
    a_short_ttl_is_raised_to_the_minimum,
    the_minimum_ttl_depends_on_the_election_timeout,
    existing_lease_ids_and_too_large_ttls_are_refused,
    negative_lease_ids_are_valid,
    a_grant_does_not_change_the_revision,
    revoking_a_lease_deletes_its_keys,
    revoking_a_lease_without_keys_does_not_change_the_revision,
    revoking_or_using_a_missing_lease_is_refused,
    keepalive_returns_the_full_ttl,
    keepalive_responses_contain_the_current_revision,
    keepalive_of_a_missing_lease_returns_ttl_zero,
    a_keepalive_stream_without_requests_ends_without_error,
    time_to_live_returns_the_remaining_ttl_and_keys,
    time_to_live_of_a_missing_lease_is_minus_one,
    leases_are_listed_in_order_of_expiry,
    an_expired_lease_deletes_its_keys,
    a_renewed_lease_does_not_expire,
    a_key_moves_between_leases,
    a_put_without_a_lease_detaches_the_key,
    leases_survive_a_restart,
    hundreds_of_leases_expire,
}

async fn look(client: &Client, id: i64) -> pb::LeaseTimeToLiveResponse {
    let request = pb::LeaseTimeToLiveRequest { id, keys: true };
    client.lease_time_to_live(request).await.unwrap()
}

async fn attached(client: &Client, id: i64) -> Vec<String> {
    let keys = look(client, id).await.keys;
    let mut keys: Vec<_> =
        keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
    keys.sort();
    keys
}

async fn ids(client: &Client) -> Vec<i64> {
    let answer = client.lease_leases(pb::LeaseLeasesRequest {}).await.unwrap();
    answer.leases.iter().map(|lease| lease.id).collect()
}

async fn revoke(client: &Client, id: i64) -> Result<pb::LeaseRevokeResponse, Status> {
    client.lease_revoke(pb::LeaseRevokeRequest { id }).await
}

/// Renews leases over one stream. Returns one answer for each lease.
async fn renew(client: &Client, ids: Vec<i64>) -> Vec<pb::LeaseKeepAliveResponse> {
    let requests = tokio_stream::iter(ids.into_iter().map(|id| pb::LeaseKeepAliveRequest { id }));
    let answers =
        client.lease().lease_keep_alive(client.signed(requests)).await.unwrap().into_inner();
    let answers = within("the responses to all renewals", answers.collect::<Vec<_>>()).await;
    answers.into_iter().map(Result::unwrap).collect()
}

async fn grant_returns_the_lease_id_and_ttl(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let grant =
        async |id, ttl| client.lease_grant(pb::LeaseGrantRequest { id, ttl }).await.unwrap();
    let own = grant(77, 60).await;
    assert_eq!((own.id, own.ttl, own.error.as_str()), (77, 60, ""));
    assert!(own.header.unwrap().member_id != 0);
    let first = grant(0, 60).await.id;
    let second = grant(0, 60).await.id;
    assert!(first > 0 && second > 0 && first != second);
    assert_eq!(grant(78, 9_000_000_000).await.ttl, 9_000_000_000);
}

async fn a_short_ttl_is_raised_to_the_minimum(kind: Kind) {
    let server = Options::new(kind).default_timing().start().await;
    let client = server.client();
    for (id, ttl) in [(1, 0), (2, -10), (3, 1), (4, 2)] {
        let answer = client.lease_grant(pb::LeaseGrantRequest { id, ttl }).await.unwrap();
        assert_eq!(answer.ttl, 2, "the requested TTL was {ttl}");
    }
}

async fn the_minimum_ttl_depends_on_the_election_timeout(kind: Kind) {
    let options = Options::new(kind).default_timing();
    let server =
        options.flag("--heartbeat-interval=300").flag("--election-timeout=1600").start().await;
    let request = pb::LeaseGrantRequest { id: 1, ttl: 1 };
    assert_eq!(server.client().lease_grant(request).await.unwrap().ttl, 3);
}

async fn existing_lease_ids_and_too_large_ttls_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    let grant = async |id, ttl| client.lease_grant(pb::LeaseGrantRequest { id, ttl }).await;
    let text = "etcdserver: lease already exists";
    refused(grant(5, 60).await, Code::FailedPrecondition, text);
    let text = "etcdserver: too large lease TTL";
    refused(grant(6, 9_000_000_001).await, Code::OutOfRange, text);
    refused(grant(5, 9_000_000_001).await, Code::OutOfRange, text);
    assert_eq!(ids(&client).await, [5]);
}

async fn negative_lease_ids_are_valid(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for id in [-1, i64::MIN, i64::MAX] {
        assert_eq!(client.grant(id, 60).await, id);
        client.put(put_leased(format!("k{id}"), "v", id)).await.unwrap();
        assert_eq!(attached(&client, id).await, [format!("k{id}")]);
        revoke(&client, id).await.unwrap();
    }
}

async fn a_grant_does_not_change_the_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    let answer = client.lease_grant(pb::LeaseGrantRequest { id: 1, ttl: 60 }).await.unwrap();
    assert_eq!(answer.header.unwrap().revision, 2);
    assert_eq!(client.revision().await, 2);
}

async fn revoking_a_lease_deletes_its_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    for name in ["c", "a", "b"] {
        client.put(put_leased(name, "v", 5)).await.unwrap();
    }
    client.write("stays", "v").await;
    let mut watch = Watch::open(&client);
    watch.create(watch_prefix("")).await;
    let answer = revoke(&client, 5).await.unwrap();
    assert_eq!(answer.header.unwrap().revision, 6);
    let response = watch.next().await;
    let seen: Vec<_> = response
        .events
        .iter()
        .map(|event| {
            let fields = event.kv.as_ref().unwrap().fields();
            (event.r#type, fields.key.to_vec(), fields.mod_revision, fields.lease)
        })
        .collect();
    let gone = |name: &str| (1, name.as_bytes().to_vec(), 6, 0);
    assert_eq!(
        seen,
        [gone("a"), gone("b"), gone("c")],
        "all deletions have one revision and are in key order"
    );
    assert_eq!(client.range(prefix("")).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(client.read("stays").await.unwrap(), b"v");
    assert_eq!(client.read("a").await, None);
}

async fn revoking_a_lease_without_keys_does_not_change_the_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    assert_eq!(revoke(&client, 5).await.unwrap().header.unwrap().revision, 1);
    assert!(ids(&client).await.is_empty());
}

async fn revoking_or_using_a_missing_lease_is_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let text = "etcdserver: requested lease not found";
    for id in [0, 5, -1] {
        refused(revoke(&client, id).await, Code::NotFound, text);
    }
    client.grant(5, 60).await;
    revoke(&client, 5).await.unwrap();
    refused(revoke(&client, 5).await, Code::NotFound, text);
    refused(client.put(put_leased("k", "v", 5)).await, Code::NotFound, text);
}

async fn keepalive_returns_the_full_ttl(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    client.grant(6, 90).await;
    let answers = renew(&client, vec![5, 6, 5]).await;
    let seen: Vec<_> = answers.iter().map(|answer| (answer.id, answer.ttl)).collect();
    assert_eq!(seen, [(5, 60), (6, 90), (5, 60)]);
    assert!(answers.iter().all(|answer| answer.header.as_ref().unwrap().revision == 1));
}

async fn keepalive_responses_contain_the_current_revision(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    let (requests, queue) = tokio::sync::mpsc::channel(1);
    let renew = async || requests.send(pb::LeaseKeepAliveRequest { id: 5 }).await.unwrap();
    renew().await;
    let queue = client.signed(tokio_stream::wrappers::ReceiverStream::new(queue));
    let mut answers = client.lease().lease_keep_alive(queue).await.unwrap().into_inner();
    for revision in [1, 2, 3] {
        let answer = answers.message().await.unwrap().unwrap();
        assert_eq!((answer.header.unwrap().revision, answer.id, answer.ttl), (revision, 5, 60));
        client.write("k", "v").await;
        renew().await;
    }
}

async fn keepalive_of_a_missing_lease_returns_ttl_zero(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    let answers = renew(&client, vec![404, 5, 0]).await;
    let seen: Vec<_> = answers.iter().map(|answer| (answer.id, answer.ttl)).collect();
    assert_eq!(seen, [(404, 0), (5, 60), (0, 0)], "there is no error, and the stream continues");
}

async fn a_keepalive_stream_without_requests_ends_without_error(kind: Kind) {
    let server = Server::start(kind).await;
    assert!(renew(&server.client(), Vec::new()).await.is_empty());
}

async fn time_to_live_returns_the_remaining_ttl_and_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 600).await;
    for name in ["b", "a"] {
        client.put(put_leased(name, "v", 5)).await.unwrap();
    }
    let seen = look(&client, 5).await;
    assert_eq!((seen.id, seen.granted_ttl), (5, 600));
    assert!((590..=600).contains(&seen.ttl), "{}", seen.ttl);
    assert_eq!(seen.header.unwrap().revision, 3);
    assert_eq!(attached(&client, 5).await, ["a", "b"]);
    let request = pb::LeaseTimeToLiveRequest { id: 5, keys: false };
    assert!(client.lease_time_to_live(request).await.unwrap().keys.is_empty());
}

async fn time_to_live_of_a_missing_lease_is_minus_one(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for id in [404, 0] {
        let seen = look(&client, id).await;
        assert_eq!((seen.id, seen.ttl, seen.granted_ttl), (id, -1, 0));
        assert!(seen.keys.is_empty() && seen.header.is_some());
    }
}

async fn leases_are_listed_in_order_of_expiry(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    assert!(ids(&client).await.is_empty());
    for (id, ttl) in [(1, 300), (2, 100), (3, 200)] {
        client.grant(id, ttl).await;
    }
    if Place::of_suite() == Place::Follower {
        // Only the leader knows when leases expire.
        let mut listed = ids(&client).await;
        listed.sort_unstable();
        assert_eq!(listed, [1, 2, 3]);
    } else {
        assert_eq!(ids(&client).await, [2, 3, 1], "the lease that expires first is listed first");
    }
}

async fn an_expired_lease_deletes_its_keys(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let mut watch = Watch::open(&client);
    watch.create(watch_prefix("k")).await;
    let start = Instant::now();
    let ttl = client.lease_grant(pb::LeaseGrantRequest { id: 5, ttl: 1 }).await.unwrap().ttl;
    assert_eq!(ttl, 1, "a short election timeout permits short leases");
    client.put(put_leased("k1", "v", 5)).await.unwrap();
    client.put(put_leased("k2", "v", 5)).await.unwrap();
    assert_eq!(watch.events(2).await.len(), 2);
    let response = watch.next().await;
    assert!(start.elapsed().as_secs_f64() >= 1.0, "the lease expired before its TTL");
    let seen: Vec<_> =
        response.events.iter().map(|event| event.kv.as_ref().unwrap().key().to_vec()).collect();
    assert_eq!(seen, [b"k1", b"k2"]);
    assert!(response.events.iter().all(|event| event.r#type == 1));
    assert_eq!(client.read("k1").await, None);
    assert_eq!(look(&client, 5).await.ttl, -1);
    assert!(ids(&client).await.is_empty());
    assert_eq!(renew(&client, vec![5]).await[0].ttl, 0);
}

async fn a_renewed_lease_does_not_expire(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 1).await;
    client.grant(6, 1).await;
    client.put(put_leased("renewed", "v", 5)).await.unwrap();
    client.put(put_leased("left", "v", 6)).await.unwrap();
    let start = Instant::now();
    // The lease is renewed until well after the other lease has expired.
    eventually("the other lease expires", async || {
        assert_eq!(renew(&client, vec![5]).await[0].ttl, 1);
        let gone = client.read("left").await.is_none();
        (gone && start.elapsed().as_secs_f64() > 2.5).then_some(())
    })
    .await;
    assert_eq!(client.read("renewed").await.unwrap(), b"v");
    eventually("the lease expires", async || client.read("renewed").await.is_none().then_some(()))
        .await;
}

async fn a_key_moves_between_leases(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    client.grant(6, 60).await;
    client.put(put_leased("k", "1", 5)).await.unwrap();
    client.put(put_leased("k", "2", 5)).await.unwrap();
    assert_eq!(attached(&client, 5).await, ["k"]);
    client.put(put_leased("k", "3", 6)).await.unwrap();
    assert!(attached(&client, 5).await.is_empty());
    assert_eq!(attached(&client, 6).await, ["k"]);
    revoke(&client, 5).await.unwrap();
    assert_eq!(client.read("k").await.unwrap(), b"3");
    revoke(&client, 6).await.unwrap();
    assert_eq!(client.read("k").await, None);
}

async fn a_put_without_a_lease_detaches_the_key(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 60).await;
    client.put(put_leased("put", "v", 5)).await.unwrap();
    client.put(put_leased("deleted", "v", 5)).await.unwrap();
    client.put(put_leased("kept", "v", 5)).await.unwrap();
    client.put(put("put", "v")).await.unwrap();
    client.delete_range(delete("deleted", "")).await.unwrap();
    client.put(pb::PutRequest { ignore_lease: true, ..put("kept", "new") }).await.unwrap();
    assert_eq!(attached(&client, 5).await, ["kept"]);
    client.write("deleted", "again").await;
    revoke(&client, 5).await.unwrap();
    assert_eq!(client.read("put").await.unwrap(), b"v");
    assert_eq!(client.read("deleted").await.unwrap(), b"again");
    assert_eq!(client.read("kept").await, None);
}

async fn leases_survive_a_restart(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    client.grant(5, 600).await;
    client.grant(6, 1).await;
    client.put(put_leased("long", "v", 5)).await.unwrap();
    client.put(put_leased("short", "v", 6)).await.unwrap();
    client.grant(7, 600).await;
    revoke(&client, 7).await.unwrap();
    server.kill();
    server.start_again().await;
    let client = server.client();
    assert_eq!(attached(&client, 5).await, ["long"]);
    assert_eq!(look(&client, 5).await.granted_ttl, 600);
    assert_eq!(look(&client, 7).await.ttl, -1, "a revoked lease remains revoked");
    // The new leader restores the short lease's full TTL. The lease then expires.
    eventually("the short lease expires", async || {
        client.range(key("short")).await.unwrap().kvs.is_empty().then_some(())
    })
    .await;
    assert_eq!(client.read("long").await.unwrap(), b"v");
}

async fn hundreds_of_leases_expire(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let count = 300;
    for id in 1..=count {
        client.grant(id, 1).await;
        client.put(put_leased(format!("k{id}"), "v", id)).await.unwrap();
    }
    eventually("all leases expire", async || {
        let left = client.range(prefix("k")).await.unwrap().count;
        (left == 0).then_some(())
    })
    .await;
    eventually("the list of leases is empty", async || ids(&client).await.is_empty().then_some(()))
        .await;
}
