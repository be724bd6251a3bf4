//! The life cycle of a full store: refused writes, cleanup, and the return to normal service.

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_tests::{
    Client, Kind, Options, Place, Server, delete, eventually, get_op, key, on_both_servers,
    on_quorate, put, put_op, refused, txn, txn_when, write_op,
};
use tonic::Code;

on_both_servers! {
    requests_that_need_no_space_are_accepted,
    a_negative_quota_disables_the_limit,
}

on_both_servers! {
    alone:
    a_full_store_accepts_writes_again_after_cleanup,
    a_larger_quota_applies_after_a_restart,
}

on_quorate! {
    alone:
    a_full_store_disarms_its_alarm_if_a_flag_permits_it,
    headroom_is_reserved_for_operations_that_free_space,
}

const TEXT: &str = "etcdserver: mvcc: database space exceeded";
const QUOTA: i64 = 4 * 1024 * 1024;

async fn small(kind: Kind) -> Server {
    Options::new(kind).flag(format!("--quota-backend-bytes={QUOTA}")).start().await
}

async fn alarms(client: &Client) -> Vec<pb::AlarmMember> {
    client.alarm(pb::AlarmRequest::default()).await.unwrap().alarms
}

/// Writes one key repeatedly until the store is full.
async fn fill(client: &Client) {
    let value = vec![b'v'; 200_000];
    for _ in 0..200 {
        if let Err(status) = client.put(put("fill", &value)).await {
            assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, TEXT));
            return;
        }
    }
    panic!("forty megabytes must not fit into a quota of four megabytes");
}

async fn disarm(client: &Client) {
    for raised in alarms(client).await {
        let request = pb::AlarmRequest {
            action: AlarmAction::Deactivate.into(),
            member_id: raised.member_id,
            alarm: raised.alarm,
        };
        client.alarm(request).await.unwrap();
    }
}

async fn a_full_store_accepts_writes_again_after_cleanup(kind: Kind) {
    let mut server = small(kind).await;
    let client = server.client();
    client.write("before", "v").await;
    client.grant(5, 600).await;
    fill(&client).await;
    let raised =
        eventually("an alarm is raised", async || alarms(&client).await.first().copied()).await;
    assert_eq!(
        (raised.member_id, raised.alarm),
        (client.status(pb::StatusRequest {}).await.unwrap().leader, 1)
    );
    if kind == Kind::Quorate {
        let said = eventually("a log line about the quota", async || {
            let log = server.log();
            log.lines().find(|line| line.contains("raising alarm")).map(str::to_owned)
        })
        .await;
        assert!(said.contains(&format!("\"quota-size-bytes\":{QUOTA},")), "{said}");
        assert!(said.contains("\"backend-size-bytes\":") && said.contains("disarm"), "{said}");
    }
    // Operations that would grow the store are refused. Reads and operations that shrink the store are accepted.
    refused(client.put(put("k", "v")).await, Code::ResourceExhausted, TEXT);
    let write = client.txn(txn(vec![put_op("k", "v")])).await;
    refused(write, Code::ResourceExhausted, TEXT);
    let grant = client.lease_grant(pb::LeaseGrantRequest { id: 6, ttl: 60 }).await;
    refused(grant, Code::ResourceExhausted, TEXT);
    assert_eq!(client.read("before").await.unwrap(), b"v");
    client.delete_range(delete("before", "")).await.unwrap();
    client.lease_revoke(pb::LeaseRevokeRequest { id: 5 }).await.unwrap();
    let health = server.get("/health");
    assert_eq!(health.status, 503);
    assert_eq!(health.text().trim(), "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}");
    assert_eq!(server.get("/health?exclude=NOSPACE").status, 200);
    // A restart does not clear the alarm.
    server.kill();
    server.start_again().await;
    let client = server.client();
    refused(client.put(put("k", "v")).await, Code::ResourceExhausted, TEXT);
    // After compaction, defragmentation and disarming, the store accepts writes again.
    let revision = client.revision().await;
    client.compact_to(revision).await;
    client.defragment(pb::DefragmentRequest {}).await.unwrap();
    eventually("the file shrinks", async || {
        let size = client.status(pb::StatusRequest {}).await.unwrap().db_size;
        (size < QUOTA / 2).then_some(())
    })
    .await;
    refused(client.put(put("k", "v")).await, Code::ResourceExhausted, TEXT);
    disarm(&client).await;
    client.write("k", "v").await;
    assert_eq!(server.get("/health").status, 200);
}

async fn requests_that_need_no_space_are_accepted(kind: Kind) {
    let server = small(kind).await;
    let client = server.client();
    fill(&client).await;
    eventually("an alarm is raised", async || alarms(&client).await.first().copied()).await;
    client.txn(txn(vec![get_op("fill"), write_op(delete("nothing", ""))])).await.unwrap();
    client.txn(txn(vec![write_op(delete("fill", ""))])).await.unwrap();
    // A transaction with a put is refused even if the put is in a branch that is not executed, or in a nested
    // transaction.
    let unlikely = txn_when(vec![], vec![get_op("a")], vec![put_op("a", "v")]);
    refused(client.txn(unlikely).await, Code::ResourceExhausted, TEXT);
    let inner = pb::RequestOp {
        request: Some(pb::request_op::Request::RequestTxn(txn(vec![put_op("a", "v")]))),
    };
    // Debian's release does not check nested transactions.
    if server.is_3_7() {
        refused(client.txn(txn(vec![inner])).await, Code::ResourceExhausted, TEXT);
    }
    if Place::of_suite() == Place::Alone {
        // A full member refuses a put before it checks whether the request is valid.
        let keyless = client.put(put("", vec![0; 200_000])).await;
        refused(keyless, Code::ResourceExhausted, TEXT);
    }
    assert_eq!(client.range(key("a")).await.unwrap().count, 0);
}

async fn a_larger_quota_applies_after_a_restart(kind: Kind) {
    let mut server = small(kind).await;
    let client = server.client();
    fill(&client).await;
    eventually("an alarm is raised", async || alarms(&client).await.first().copied()).await;
    assert!(
        server.stop().await.code().is_none(),
        "the server was not ended by the signal that stopped it"
    );
    server.set_flags(&["--quota-backend-bytes=100000000"]);
    server.start_again().await;
    let client = server.client();
    refused(client.put(put("k", "v")).await, Code::ResourceExhausted, TEXT);
    disarm(&client).await;
    client.write("k", "v").await;
}

async fn a_negative_quota_disables_the_limit(kind: Kind) {
    let server = Options::new(kind).flag("--quota-backend-bytes=-1").start().await;
    let client = server.client();
    for _ in 0..20 {
        client.write("k", vec![b'v'; 1_000_000]).await;
    }
    assert!(alarms(&client).await.is_empty());
}

/// Once a compaction has freed space, the member disarms its alarm without an operator.
async fn a_full_store_disarms_its_alarm_if_a_flag_permits_it(kind: Kind) {
    let server = Options::new(kind)
        .flag(format!("--quota-backend-bytes={QUOTA}"))
        .flag("--quota-warning-percent=60")
        .flag("--quota-disarm-percent=80")
        .start()
        .await;
    let client = server.client();
    assert_eq!(server.metric("quorate_quota_warning"), Some(0.0));
    fill(&client).await;
    eventually("an alarm is raised", async || alarms(&client).await.first().copied()).await;
    eventually("a warning is logged", async || {
        let is_logged = server.log().contains("is close to its quota");
        (is_logged && server.metric("quorate_quota_warning") == Some(1.0)).then_some(())
    })
    .await;
    // No space is free yet, so the alarm remains however often it is checked.
    let revision = client.delete_range(delete("fill", "")).await.unwrap().header.unwrap().revision;
    refused(client.put(put("k", "v")).await, Code::ResourceExhausted, TEXT);
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    eventually("writes are accepted again", async || client.put(put("k", "v")).await.ok()).await;
    assert!(alarms(&client).await.is_empty());
    server.wait_for_log("disarmed the NOSPACE alarm of this member").await;
    eventually("the warning is withdrawn", async || {
        (server.metric("quorate_quota_warning") == Some(0.0)).then_some(())
    })
    .await;
    // The alarm is raised and disarmed a second time.
    fill(&client).await;
    eventually("the alarm is raised again", async || alarms(&client).await.first().copied()).await;
    let revision = client.delete_range(delete("fill", "")).await.unwrap().header.unwrap().revision;
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
    eventually("writes are accepted again", async || client.put(put("k", "v")).await.ok()).await;
}

async fn headroom_is_reserved_for_operations_that_free_space(kind: Kind) {
    // The space that remains for writes is enough for seven of these values, but not for eight.
    let (value, headroom) = (vec![b'v'; 200_000], QUOTA - 1_500_000);
    let server = Options::new(kind)
        .flag(format!("--quota-backend-bytes={QUOTA}"))
        .flag(format!("--quota-headroom-bytes={headroom}"))
        .start()
        .await;
    let client = server.client();
    client.write("before", "v").await;
    client.grant(5, 600).await;
    for number in 0..7 {
        client.put(put(format!("key {number}"), &value)).await.unwrap();
    }
    let bytes = eventually("the backend file contains all writes", async || {
        let bytes = client.status(pb::StatusRequest {}).await.unwrap().db_size;
        (bytes >= 1_400_000).then_some(bytes)
    })
    .await;
    assert!(bytes < QUOTA / 2, "{bytes}");
    refused(client.put(put("key 7", &value)).await, Code::ResourceExhausted, TEXT);
    let grant = client.lease_grant(pb::LeaseGrantRequest { id: 6, ttl: 60 }).await;
    refused(grant, Code::ResourceExhausted, TEXT);
    client.lease_revoke(pb::LeaseRevokeRequest { id: 5 }).await.unwrap();
    let revision =
        client.delete_range(delete("before", "")).await.unwrap().header.unwrap().revision;
    client.compact(pb::CompactionRequest { revision, physical: true }).await.unwrap();
}
