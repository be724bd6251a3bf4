//! Status, hashes, snapshots, defragmentation, alarms and members.

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_tests::{
    Client, DEADLINE, History, Kind, Options, Place, Server, delete, etcdutl, eventually,
    eventually_ok, has_etcd_tools, is_first_term, on_both_servers, put, put_op, refused, txn,
    write_op,
};
use sha2::{Digest as _, Sha256};
use tonic::{Code, Status};

on_both_servers! {
    status_reports_ids_and_raft_indexes,
    status_reports_the_backend_sizes,
    status_reports_the_quota,
    a_kv_hash_depends_only_on_the_history,
    a_kv_hash_after_a_compaction_depends_only_on_the_history,
    a_hash_after_a_compaction_at_revision_zero_covers_the_whole_history,
    the_hashes_of_the_last_ten_compactions_are_kept,
    hashes_at_future_and_compacted_revisions_are_refused,
    the_hash_of_the_whole_store_changes_with_every_change,
    a_snapshot_contains_the_backend_and_its_sha256_digest,
    a_snapshot_is_consistent_during_writes,
    defragmentation_shrinks_the_backend_file,
    alarms_are_raised_and_cleared,
    alarms_survive_a_restart,
    changes_are_refused_during_a_corrupt_alarm,
    members_are_listed,
}

on_both_servers! {
    alone:
    status_and_hashes_match_etcd_under_every_alarm,
}

async fn alarm(
    client: &Client,
    action: AlarmAction,
    member_id: u64,
    alarm: i32,
) -> Vec<(u64, i32)> {
    let request = pb::AlarmRequest { action: action.into(), member_id, alarm };
    let answer = client.alarm(request).await.unwrap();
    assert!(answer.header.unwrap().member_id != 0);
    answer.alarms.iter().map(|alarm| (alarm.member_id, alarm.alarm)).collect()
}

async fn hash_kv(client: &Client, revision: i64) -> Result<pb::HashKvResponse, Status> {
    client.hash_kv(pb::HashKvRequest { revision }).await
}

async fn status(client: &Client) -> pb::StatusResponse {
    client.status(pb::StatusRequest {}).await.unwrap()
}

async fn status_reports_ids_and_raft_indexes(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    if server.is_3_7() {
        // A new leader sets the cluster version to 3.0 while it does not know the versions of all members.
        eventually("the members agree on the version 3.7", async || {
            (status(&client).await.storage_version == "3.7.0").then_some(())
        })
        .await;
    }
    let before = status(&client).await;
    let header = before.header.unwrap();
    let leads = Place::of_suite().leads();
    assert_eq!(before.leader == header.member_id, leads);
    assert!(header.revision == 2 && is_first_term(header.raft_term), "{header:?}");
    assert_eq!(before.raft_term, header.raft_term);
    assert!(before.raft_applied_index <= before.raft_index);
    assert!(!before.is_learner);
    assert!(before.errors.is_empty(), "{:?}", before.errors);
    if server.is_3_7() {
        assert_eq!(before.version, "3.7.1");
        assert_eq!(before.downgrade_info, Some(pb::DowngradeInfo::default()));
    }
    client.write("k", "v").await;
    let after = status(&client).await;
    if Place::of_suite() == Place::Alone {
        assert_eq!(after.raft_index, before.raft_index + 1, "one write is one entry");
    }
    assert!(after.raft_applied_index > before.raft_applied_index);
}

async fn status_reports_the_backend_sizes(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let empty = status(&client).await;
    assert!(empty.db_size >= empty.db_size_in_use && empty.db_size_in_use > 0);
    for number in 0..50 {
        client.write(format!("k{number}"), vec![b'v'; 10_000]).await;
    }
    let grown = eventually("the backend file grows", async || {
        let now = status(&client).await;
        (now.db_size_in_use >= empty.db_size_in_use + 500_000).then_some(now)
    })
    .await;
    assert!(grown.db_size >= grown.db_size_in_use);
}

async fn status_reports_the_quota(kind: Kind) {
    for (flag, expected) in [("0", 2_147_483_648), ("123456789", 123_456_789), ("-1", -1)] {
        let server = Options::new(kind).flag(format!("--quota-backend-bytes={flag}")).start().await;
        let quota = status(&server.client()).await.db_size_quota;
        if server.is_3_7() {
            assert_eq!(quota, expected, "--quota-backend-bytes={flag}");
        } else {
            assert_eq!(quota, 0, "Debian's release does not report the quota");
        }
    }
}

/// Writes puts, deletions and a transaction, so that a hash depends on all of them.
async fn some_history(client: &Client) -> i64 {
    client.grant(9, 600).await;
    for number in 0..60 {
        let name = format!("k{}", number % 7);
        client
            .put(pb::PutRequest { lease: number % 2 * 9, ..put(name, number.to_string()) })
            .await
            .unwrap();
        if number % 5 == 0 {
            client.delete_range(delete("k2", "k4")).await.unwrap();
        }
    }
    let request = txn(vec![put_op("t1", ""), write_op(delete("k5", "")), put_op("t0", "x")]);
    client.txn(request).await.unwrap().header.unwrap().revision
}

async fn a_kv_hash_depends_only_on_the_history(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let last = some_history(&client).await;
    let history = History::read(&client, last).await;
    for revision in [1, 2, 3, 20, last - 1, last] {
        let answer = hash_kv(&client, revision).await.unwrap();
        assert_eq!(answer.hash, history.hash_kv(None, revision), "at {revision}");
        assert_eq!(answer.compact_revision, -1);
        assert_eq!(answer.header.unwrap().revision, last);
        if server.is_3_7() {
            assert_eq!(answer.hash_revision, revision);
        }
    }
    let current = hash_kv(&client, 0).await.unwrap();
    assert_eq!(current.hash, history.hash_kv(None, last));
    if server.is_3_7() {
        assert_eq!(current.hash_revision, last);
    }
}

async fn a_kv_hash_after_a_compaction_depends_only_on_the_history(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let last = some_history(&client).await;
    let history = History::read(&client, last).await;
    // The first compaction is at a revision that deleted a key, and the hash excludes the deletion's tombstone.
    let tombstone = history.tombstones().find(|revision| *revision > 30).unwrap();
    for compacted in [tombstone, last - 2, last] {
        client.compact_to(compacted).await;
        for revision in [compacted + 1, last - 1, last] {
            if revision <= compacted || revision > last {
                continue;
            }
            let answer = hash_kv(&client, revision).await.unwrap();
            assert_eq!(answer.compact_revision, compacted);
            let expected = history.hash_kv(Some(compacted), revision);
            assert_eq!(answer.hash, expected, "at {revision}, compacted at {compacted}");
        }
    }
}

async fn a_hash_after_a_compaction_at_revision_zero_covers_the_whole_history(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let last = some_history(&client).await;
    let history = History::read(&client, last).await;
    client.compact(pb::CompactionRequest { revision: 0, physical: true }).await.unwrap();
    let answer = hash_kv(&client, 0).await.unwrap();
    let covered = match kind {
        Kind::Quorate => last,
        // After a compaction at revision 0, etcd's newest hash covers an empty range.
        Kind::Etcd => 0,
    };
    assert_eq!(answer.hash, history.hash_kv(None, covered));
}

async fn the_hashes_of_the_last_ten_compactions_are_kept(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    let last = some_history(&client).await;
    let history = History::read(&client, last).await;
    let compactions: Vec<i64> = (0..11).map(|number| last - 22 + 2 * number).collect();
    let asked = async |compactions: &[i64]| {
        let mut answers = Vec::new();
        for revision in compactions {
            let answer = hash_kv(&client, *revision).await.unwrap();
            answers.push((answer.hash, answer.compact_revision));
        }
        answers
    };
    // Each hash covers the range since the previous compaction, and does not change with later compactions.
    let mut expected = Vec::new();
    for (position, revision) in compactions.iter().enumerate() {
        client.compact_to(*revision).await;
        let before = position.checked_sub(1).map(|before| compactions[before]);
        expected.push((history.hash_kv(before, *revision), before.unwrap_or(-1)));
        let kept = expected.len().saturating_sub(10)..=position;
        assert_eq!(asked(&compactions[kept.clone()]).await, expected[kept], "at {revision}");
    }
    let text = "etcdserver: mvcc: required revision has been compacted";
    refused(hash_kv(&client, compactions[0]).await, Code::OutOfRange, text);
    // For revisions after the newest compaction, and after a restart of the member, the hash is computed on request.
    let newest = *compactions.last().unwrap();
    let computed = hash_kv(&client, last).await.unwrap();
    assert_eq!(computed.hash, history.hash_kv(Some(newest), last));
    assert_eq!(computed.compact_revision, newest);
    server.stop().await;
    server.start_again().await;
    let client = server.client();
    let computed = hash_kv(&client, newest).await.unwrap();
    assert_eq!(computed.hash, history.hash_kv(Some(newest), newest));
    assert_eq!(computed.compact_revision, newest);
    refused(hash_kv(&client, newest - 2).await, Code::OutOfRange, text);
}

async fn hashes_at_future_and_compacted_revisions_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..10 {
        client.write("k", number.to_string()).await;
    }
    let text = "etcdserver: mvcc: required revision is a future revision";
    refused(hash_kv(&client, 12).await, Code::OutOfRange, text);
    // Two compactions are needed, because the hash of the last compaction may still be stored.
    client.compact_to(4).await;
    client.compact_to(8).await;
    let text = "etcdserver: mvcc: required revision has been compacted";
    refused(hash_kv(&client, 3).await, Code::OutOfRange, text);
    refused(hash_kv(&client, 7).await, Code::OutOfRange, text);
    hash_kv(&client, 9).await.unwrap();
}

async fn the_hash_of_the_whole_store_changes_with_every_change(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let hash = async || {
        let answer = client.hash(pb::HashRequest {}).await.unwrap();
        assert!(answer.header.unwrap().member_id != 0);
        answer.hash
    };
    // The member may still be publishing its attributes.
    let empty = eventually("the hash no longer changes", async || {
        let first = hash().await;
        (hash().await == first && server.metric("etcd_server_proposals_pending") == Some(0.0))
            .then_some(first)
    })
    .await;
    client.write("k", "v").await;
    let written = hash().await;
    assert_ne!(written, empty);
    client.grant(1, 600).await;
    assert_ne!(hash().await, written, "the hash covers leases");
}

/// Fetches a complete snapshot. Returns its data and the digest from its end.
async fn snapshot(server: &Server, client: &Client) -> (Vec<u8>, Bytes) {
    if server.is_3_7() {
        // A new cluster sets its version shortly after it starts to serve.
        eventually("the member reports a storage version", async || {
            let status = client.status(pb::StatusRequest {}).await.unwrap();
            (status.storage_version == "3.7.0").then_some(())
        })
        .await;
    }
    let messages = client.snapshot().await.unwrap();
    let (digest, data) = messages.split_last().unwrap();
    let total: usize = data.iter().map(|message| message.blob.len()).sum();
    let mut sent = 0;
    for (place, message) in data.iter().enumerate() {
        assert!(message.header.is_none());
        let last = place + 1 == data.len();
        assert!(message.blob.len() == 32_768 || last && message.blob.len() < 32_768);
        sent += message.blob.len();
        assert_eq!(message.remaining_bytes, (total - sent) as u64);
        let version = if server.is_3_7() { "3.7.0" } else { "" };
        assert_eq!(message.version, version);
    }
    assert_eq!((digest.remaining_bytes, digest.blob.len()), (0, 32));
    (data.iter().flat_map(|message| message.blob.to_vec()).collect(), digest.blob.clone())
}

async fn a_snapshot_contains_the_backend_and_its_sha256_digest(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let last = some_history(&client).await;
    let expected = hash_kv(&client, last).await.unwrap().hash;
    let (data, digest) = snapshot(&server, &client).await;
    assert_eq!(Sha256::digest(&data).as_slice(), &digest[..]);
    assert_eq!(data.len() % 512, 0);
    eventually("the log contains the line that tools wait for", async || {
        server.log().contains("sent database snapshot").then_some(())
    })
    .await;
    // etcd's own tool can read the snapshot, and a store restored from it has the same hash.
    if !has_etcd_tools() {
        return;
    }
    let file = server.scratch().join("snapshot.db");
    std::fs::write(&file, [&data[..], &digest[..]].concat()).unwrap();
    let file = file.to_str().unwrap();
    let seen = etcdutl(&["snapshot", "status", file, "-w", "json"]).success();
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen["revision"], last);
    let restored = server.scratch().join("restored");
    let place = restored.to_str().unwrap();
    drop(etcdutl(&["snapshot", "restore", file, "--data-dir", place]).success());
    let again = Options::new(Kind::Etcd).data(&restored).start().await;
    assert_eq!(hash_kv(&again.client(), last).await.unwrap().hash, expected);
}

async fn a_snapshot_is_consistent_during_writes(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    let pairs = |number: usize| {
        txn(vec![put_op("left", number.to_string()), put_op("right", number.to_string())])
    };
    for number in 0..200 {
        client.write(format!("fill{number}"), vec![b'f'; 5_000]).await;
        client.txn(pairs(number)).await.unwrap();
    }
    let writing = client.clone();
    let writer = tokio::spawn(async move {
        for number in 200..600 {
            writing.txn(pairs(number)).await.unwrap();
        }
    });
    let (data, digest) = snapshot(&server, &client).await;
    writer.await.unwrap();
    assert_eq!(Sha256::digest(&data).as_slice(), &digest[..]);
    if !has_etcd_tools() {
        return;
    }
    let file = server.scratch().join("snapshot.db");
    std::fs::write(&file, [&data[..], &digest[..]].concat()).unwrap();
    let restored = server.scratch().join("restored");
    let (file, place) = (file.to_str().unwrap(), restored.to_str().unwrap());
    drop(etcdutl(&["snapshot", "restore", file, "--data-dir", place]).success());
    let again = Options::new(Kind::Etcd).data(&restored).start().await;
    let again = again.client();
    let left = again.read("left").await.unwrap();
    assert_eq!(again.read("right").await.unwrap(), left);
    let revision = again.revision().await;
    let expected = hash_kv(&client, revision).await.unwrap().hash;
    assert_eq!(hash_kv(&again, revision).await.unwrap().hash, expected);
}

async fn defragmentation_shrinks_the_backend_file(kind: Kind) {
    let mut server = Server::start(kind).await;
    let client = server.client();
    for number in 0..200 {
        client.write("k", vec![number; 50_000]).await;
    }
    let last = client.write("k", "small").await;
    client.compact_to(last).await;
    let before = eventually_ok(DEADLINE, "the compaction changes the sizes", async || {
        // etcd counts the released pages as free only after a later write.
        client.write("later", "").await;
        let now = status(&client).await;
        if now.db_size > 8_000_000 && now.db_size_in_use < 2_000_000 { Ok(now) } else { Err(now) }
    })
    .await;
    let hash = hash_kv(&client, 0).await.unwrap().hash;
    let answer = client.defragment(pb::DefragmentRequest {}).await.unwrap();
    assert!(answer.header.is_none());
    assert_eq!(client.read("k").await.unwrap(), b"small");
    assert_eq!(hash_kv(&client, 0).await.unwrap().hash, hash);
    eventually_ok(DEADLINE, "the backend file shrinks", async || {
        let size = status(&client).await.db_size;
        let file = std::fs::metadata(server.backend()).unwrap().len();
        let half = before.db_size / 2;
        if size < half && i64::try_from(file).unwrap() < half {
            return Ok(());
        }
        // If a reader needs the end of the file for longer than the defragmentation waits, a later write truncates it.
        client.write("other", "v").await;
        Err((size, file))
    })
    .await;
    client.write("after", "v").await;
    server.kill();
    server.start_again().await;
    assert_eq!(server.client().read("after").await.unwrap(), b"v");
    assert_eq!(server.client().read("k").await.unwrap(), b"small");
}

async fn alarms_are_raised_and_cleared(kind: Kind) {
    use AlarmAction::{Activate, Deactivate, Get};
    let server = Server::start(kind).await;
    let client = server.client();
    let member = status(&client).await.header.unwrap().member_id;
    let (none, no_space, corrupt) = (0, 1, 2);
    assert!(alarm(&client, Get, 0, none).await.is_empty());
    assert!(
        alarm(&client, Activate, member, none).await.is_empty(),
        "the alarm NONE is never raised"
    );
    assert_eq!(alarm(&client, Activate, member, no_space).await, [(member, no_space)]);
    assert_eq!(alarm(&client, Activate, member, no_space).await, [(member, no_space)]);
    assert_eq!(alarm(&client, Activate, 77, corrupt).await, [(77, corrupt)]);
    let mut all = alarm(&client, Get, 0, none).await;
    all.sort_unstable();
    let mut expected = vec![(member, no_space), (77, corrupt)];
    expected.sort_unstable();
    assert_eq!(all, expected);
    assert_eq!(
        alarm(&client, Get, 1234, corrupt).await,
        [(77, corrupt)],
        "the member id of the request is ignored"
    );
    assert!(
        alarm(&client, Deactivate, 0, corrupt).await.is_empty(),
        "0 does not stand for all members"
    );
    assert_eq!(alarm(&client, Deactivate, 77, corrupt).await, [(77, corrupt)]);
    assert!(alarm(&client, Deactivate, 77, corrupt).await.is_empty());
    let errors = status(&client).await.errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    let words: Vec<_> = errors[0].split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, [format!("memberID:{member}"), "alarm:NOSPACE".to_owned()]);
    alarm(&client, Deactivate, member, no_space).await;
    assert!(status(&client).await.errors.is_empty());
}

async fn alarms_survive_a_restart(kind: Kind) {
    let mut server = Server::start(kind).await;
    alarm(&server.client(), AlarmAction::Activate, 5, 1).await;
    server.kill();
    server.start_again().await;
    let client = server.client();
    assert_eq!(alarm(&client, AlarmAction::Get, 0, 0).await, [(5, 1)]);
    let text = "etcdserver: mvcc: database space exceeded";
    refused(client.put(put("k", "v")).await, Code::ResourceExhausted, text);
}

async fn changes_are_refused_during_a_corrupt_alarm(kind: Kind) {
    let server = Server::start(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    client.grant(1, 600).await;
    alarm(&client, AlarmAction::Activate, 9, 2).await;
    let text = "etcdserver: corrupt cluster";
    let lost = Code::DataLoss;
    refused(client.put(put("k", "w")).await, lost, text);
    refused(client.delete_range(delete("k", "")).await, lost, text);
    refused(client.txn(txn(vec![put_op("k", "w")])).await, lost, text);
    refused(
        client.compact(pb::CompactionRequest { revision: 2, physical: false }).await,
        lost,
        text,
    );
    refused(client.lease_grant(pb::LeaseGrantRequest { id: 2, ttl: 60 }).await, lost, text);
    if server.is_3_7() {
        refused(client.lease_revoke(pb::LeaseRevokeRequest { id: 1 }).await, lost, text);
    }
    assert_eq!(client.read("k").await.unwrap(), b"v", "reads continue");
    client.txn(txn(vec![quorate_tests::get_op("k")])).await.unwrap();
    hash_kv(&client, 0).await.unwrap();
    alarm(&client, AlarmAction::Deactivate, 9, 2).await;
    client.write("k", "w").await;
}

/// The alarms in force during each round of requests.
const ALARM_STATES: [&[pb::AlarmType]; 5] = [
    &[],
    &[pb::AlarmType::Nospace],
    &[pb::AlarmType::Corrupt],
    &[pb::AlarmType::Nospace, pb::AlarmType::Corrupt],
    &[],
];

type Fields = Vec<(&'static str, String)>;

/// Returns the answers to Status, HashKV and Hash. The fields of etcd 3.5 are returned separately from the fields added
/// in etcd 3.6 and later.
async fn shown(client: &Client, last: i64) -> (Fields, Fields, u32) {
    // The log's last entry may not be applied yet.
    let status = eventually("all entries are applied", async || {
        let status = status(client).await;
        (status.raft_applied_index == status.raft_index).then_some(status)
    })
    .await;
    let header = status.header.unwrap();
    let own_id = header.member_id;
    let name = |error: &String| {
        let error = error.replace(&own_id.to_string(), "OWN");
        error.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let mut errors: Vec<String> = status.errors.iter().map(name).collect();
    errors.sort();
    let kv = hash_kv(client, 0).await.unwrap();
    let at_last = hash_kv(client, last).await.unwrap();
    let all = client.hash(pb::HashRequest {}).await.unwrap();
    let is_about =
        |header: &pb::ResponseHeader| format!("{} {}", header.member_id == own_id, header.revision);
    let old = vec![
        ("status.header", is_about(&header)),
        ("status.header.cluster_id", (header.cluster_id != 0).to_string()),
        ("status.header.raft_term", (header.raft_term == status.raft_term).to_string()),
        ("status.version", (!status.version.is_empty()).to_string()),
        ("status.dbSize", (status.db_size >= status.db_size_in_use).to_string()),
        ("status.dbSizeInUse", (status.db_size_in_use > 0).to_string()),
        ("status.leader", (status.leader == own_id).to_string()),
        ("status.raftIndex", (status.raft_index > 0).to_string()),
        ("status.isLearner", status.is_learner.to_string()),
        ("status.errors", errors.join("; ")),
        ("hashKV.header", is_about(&kv.header.unwrap())),
        ("hashKV.hash", kv.hash.to_string()),
        ("hashKV.hash of the last revision", at_last.hash.to_string()),
        ("hashKV.compact_revision", kv.compact_revision.to_string()),
        ("hash.header", is_about(&all.header.unwrap())),
        ("hash.hash", (all.hash != 0).to_string()),
    ];
    let new = vec![
        ("status.storageVersion", status.storage_version),
        ("status.dbSizeQuota", status.db_size_quota.to_string()),
        ("status.downgradeInfo", format!("{:?}", status.downgrade_info)),
        ("hashKV.hash_revision", kv.hash_revision.to_string()),
    ];
    (old, new, all.hash)
}

/// Returns the answers of a single member of this kind in every alarm state.
async fn shown_under_alarms(kind: Kind) -> Vec<(Fields, Fields)> {
    let server = Server::start(kind).await;
    let client = server.client();
    for number in 0..20 {
        client.write(format!("k{}", number % 3), number.to_string()).await;
    }
    let last = client.revision().await;
    let own_id = status(&client).await.header.unwrap().member_id;
    // A new cluster stores its version shortly after it starts to serve.
    eventually("the cluster version is decided", async || {
        let version = server.get("/version").text();
        let version: serde_json::Value = serde_json::from_str(&version).unwrap();
        let has_cluster = version["etcdcluster"].as_str().unwrap().starts_with("3.");
        let has_storage = status(&client).await.storage_version == "3.7.0";
        (has_cluster && (has_storage || !server.is_3_7())).then_some(())
    })
    .await;
    let mut answers = Vec::new();
    let mut hashes = Vec::new();
    for kinds in ALARM_STATES {
        for kind in kinds {
            alarm(&client, AlarmAction::Activate, own_id, (*kind).into()).await;
        }
        let (old, new, hash) = shown(&client, last).await;
        answers.push((old, new));
        hashes.push(hash);
        for kind in kinds {
            alarm(&client, AlarmAction::Deactivate, own_id, (*kind).into()).await;
        }
    }
    // The hash of the whole store covers the alarms, too.
    let [none, nospace, corrupt, both, none_again] = hashes[..] else { panic!("{hashes:?}") };
    assert_eq!(none, none_again);
    let distinct: std::collections::BTreeSet<u32> = [none, nospace, corrupt, both].into();
    assert_eq!(distinct.len(), 4, "{hashes:?}");
    answers
}

async fn status_and_hashes_match_etcd_under_every_alarm(kind: Kind) {
    let own = shown_under_alarms(kind).await;
    // The fields added in etcd 3.6 and later do not depend on the alarm.
    for (_, new) in &own {
        assert_eq!(*new, own[0].1);
    }
    if kind == Kind::Quorate {
        assert_eq!(own[0].1[0], ("status.storageVersion", "3.7.0".to_owned()));
    }
    if Kind::Etcd.is_present() && kind != Kind::Etcd {
        let etcd = shown_under_alarms(Kind::Etcd).await;
        for ((state, (own, _)), (etcd, _)) in ALARM_STATES.iter().zip(own).zip(etcd) {
            assert_eq!(own, etcd, "{state:?}");
        }
    }
}

async fn members_are_listed(kind: Kind) {
    let server = Options::new(kind).name("alone").start().await;
    let client = server.client();
    for linearizable in [true, false] {
        let request = pb::MemberListRequest { linearizable };
        let answer = client.member_list(request).await.unwrap();
        let header = answer.header.unwrap();
        assert_eq!(header.revision, 0);
        assert_eq!(answer.members.len(), Place::of_suite().members());
        let own = answer.members.iter().find(|member| member.id == header.member_id);
        let member = own.unwrap_or_else(|| panic!("{:?}", answer.members));
        assert_eq!(member.name, server.name());
        assert_eq!(member.client_urls, [server.url()]);
        assert_eq!(member.peer_urls, [server.peer_url()]);
        assert!(!member.is_learner);
    }
}
