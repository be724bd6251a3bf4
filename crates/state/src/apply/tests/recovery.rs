//! Tests of recovery from the file after a restart, and from files that a leader sent.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quorate_api::etcdserverpb::{AlarmType, alarm_request::AlarmAction};
use quorate_storage::bolt::Options;
use quorate_storage::disk::{Disk, RealDisk};

use super::*;
use crate::alarm::Cause;
use crate::backend::Backend;
use crate::schema::Bucket;
use crate::watch::HeaderFields;

fn open(folder: &Path) -> Backend {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let mut options = Options::default();
    options.no_sync = true;
    Backend::open(&disk, &folder.join("db"), options).unwrap()
}

fn recovered(backend: &Backend) -> State {
    State::recover(backend, StateOptions::default()).unwrap()
}

fn commit(log: &mut Log, backend: &Backend) {
    let committed = backend.commit(&log.state.take_batch()).unwrap();
    log.state.store_mut().committed(committed);
}

/// Returns a log whose state has keys, leases, users, alarms and members.
fn log_with_data() -> Log {
    let mut log = Log::new();
    let meta = log.meta();
    let member = Member::new(MemberId(7), vec!["http://seven:2380".to_owned()]);
    let change = ConfChange {
        id: Some(1),
        r#type: Some(ConfChangeType::ConfChangeAddNode as i32),
        node_id: Some(7),
        context: Some(member.to_json().into()),
    };
    log.state.apply_conf_change(meta, &change).unwrap();
    let member_attributes = Some(Attributes { name: "seven".into(), client_urls: vec![] });
    let alarm = pb::AlarmRequest {
        action: AlarmAction::Activate as i32,
        member_id: 7,
        alarm: AlarmType::Corrupt as i32,
    };
    let downgrade = DowngradeInfoSetRequest { enabled: true, ver: "3.6.0".into() };
    let attributes = ClusterMemberAttrSetRequest { member_id: 7, member_attributes };
    for command in [
        Command::Cluster(ClusterCommand::MemberAttrSet(attributes)),
        Command::Cluster(ClusterCommand::VersionSet(ClusterVersionSetRequest {
            ver: "3.7.0".into(),
        })),
        Command::Cluster(ClusterCommand::DowngradeInfoSet(downgrade)),
        Command::LeaseGrant(pb::LeaseGrantRequest { id: 5, ttl: 60 }),
        Command::LeaseGrant(pb::LeaseGrantRequest { id: -6, ttl: 90 }),
        Command::Put(pb::PutRequest { lease: 5, ..put("leased", "1") }),
        Command::Put(pb::PutRequest { lease: 5, ..put("freed", "1") }),
        Command::Put(put("freed", "2")),
        Command::Put(pb::PutRequest { lease: -6, ..put("deleted", "1") }),
        Command::DeleteRange(delete("deleted", "")),
        Command::LeaseCheckpoint(pb::LeaseCheckpointRequest {
            checkpoints: vec![pb::LeaseCheckpoint { id: -6, remaining_ttl: 30 }],
        }),
        Command::Compaction(pb::CompactionRequest { revision: 3, physical: false }),
        Command::Alarm(AlarmCommand { request: alarm, cause: Cause::Other }),
    ] {
        log.outcome(command).unwrap();
    }
    log
}

#[test]
fn a_restart_recovers_applied_entries() {
    let folder = tempfile::tempdir().unwrap();
    let backend = open(folder.path());
    let mut log = log_with_data();
    commit(&mut log, &backend);
    log.state.publish();
    let state = recovered(&backend);
    assert_eq!(state.facts(), log.state.facts());
    assert_eq!(state.applied(), log.state.applied());
    assert_eq!(state.auth.view().revision(), 1);
    let (before, after) = (log.state.published(), state.published());
    assert_eq!(after.view().current_revision(), before.view().current_revision());
    assert_eq!(after.view().compacted_revision(), 3);
    for id in [5, -6] {
        assert_eq!(after.leases.keys(LeaseId(id)), before.leases.keys(LeaseId(id)));
    }
    assert_eq!(after.leases.keys(LeaseId(5)).unwrap().len(), 1);
    after.leases.promote(1, 0, Millis(0));
    let remaining = |id| after.leases.time_to_live(LeaseId(id), Millis(0)).unwrap().remaining_secs;
    assert_eq!((remaining(5), remaining(-6)), (Some(59), Some(29)));
    assert_eq!(before.hub.stats(), after.hub.stats());

    // Replaying entries that the file contains has no effect. The next entry is applied.
    let mut log = Log { state, index: 0, file_bytes: 0 };
    assert_eq!(log.applied(Command::Put(put("x", ""))).outcome, None);
    log.index = log.state.applied().0;
    assert_eq!(log.outcome(Command::Put(put("x", ""))), Err(Refusal::Corrupt));
}

#[test]
fn the_cause_of_an_alarm_survives_a_restart_a_replay_and_a_snapshot() {
    let own = MemberId(7);
    let alarm = |action: AlarmAction, cause| {
        let (action, alarm) = (action as i32, AlarmType::Nospace as i32);
        let request = pb::AlarmRequest { action, member_id: own.0, alarm };
        Command::Alarm(AlarmCommand { request, cause })
    };
    let raise = alarm(AlarmAction::Activate, Cause::FullDisk);
    let due = |state: &State| state.alarms().due_for_disk(own, false);
    let folder = tempfile::tempdir().unwrap();
    let backend = open(folder.path());
    let mut log = Log::new();
    log.put("a", "1");
    commit(&mut log, &backend);

    // The process ends after the alarm is in the log, but before it is in the file.
    log.outcome(raise.clone()).unwrap();
    let mut log = Log { state: recovered(&backend), index: 1, file_bytes: 0 };
    assert_eq!(due(&log.state), None);
    log.outcome(raise).unwrap();
    assert_eq!(due(&log.state), Some(AlarmAction::Deactivate));

    // The file contains the cause, and so does the state of a member that receives the file.
    let hash_before = backend.read().hash().unwrap();
    commit(&mut log, &backend);
    assert_eq!(due(&recovered(&backend)), Some(AlarmAction::Deactivate));
    let mut other = Log::new();
    other.state.install(&backend).unwrap();
    assert_eq!(due(&other.state), Some(AlarmAction::Deactivate));

    // The hash of the file equals the hash of an etcd member's file, which does not contain the cause.
    let hash = backend.read().hash().unwrap();
    assert_ne!(hash, hash_before);
    let theirs = tempfile::tempdir().unwrap();
    let theirs = open(theirs.path());
    let mut plain = Log::new();
    plain.put("a", "1");
    plain.outcome(alarm(AlarmAction::Activate, Cause::Other)).unwrap();
    commit(&mut plain, &theirs);
    assert_eq!(theirs.read().hash().unwrap(), hash);

    // Deactivating the alarm also removes its cause.
    log.outcome(alarm(AlarmAction::Deactivate, Cause::Other)).unwrap();
    commit(&mut log, &backend);
    assert_eq!(due(&recovered(&backend)), None);
    assert_eq!(backend.read().hash().unwrap(), hash_before);
}

#[test]
fn a_restart_loses_changes_not_yet_in_the_backend_file() {
    let folder = tempfile::tempdir().unwrap();
    let backend = open(folder.path());
    let mut log = Log::new();
    log.put("a", "1");
    commit(&mut log, &backend);
    log.put("b", "1");
    let mut log = Log { state: recovered(&backend), index: 1, file_bytes: 0 };
    assert_eq!(log.keys(), ["a"]);
    log.put("b", "2");
    assert_eq!(log.revision(), 3);
}

#[test]
fn a_backend_file_from_the_leader_replaces_the_state() {
    let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let backend = open(ours.path());
    let mut log = Log::new();
    log.put("leased", "0");
    commit(&mut log, &backend);
    log.state.publish();
    let published = log.state.published();
    let mut stream = published.hub.open_stream(1 << 20);
    let create = pb::WatchCreateRequest {
        key: text("freed"),
        prev_kv: true,
        ..pb::WatchCreateRequest::default()
    };
    stream.create(create, |_, _| Ok(()));
    log.put("lost", "");

    let theirs = open(theirs.path());
    commit(&mut log_with_data(), &theirs);
    let before = published.auth.stamp().unwrap();
    log.state.install(&theirs).unwrap();
    let after = published.auth.stamp();
    assert!(after.is_some_and(|after| after != before), "concurrent reads check permissions again");
    assert_eq!(log.state.take_batch().op_count(), 0);
    assert_eq!(log.state.applied(), (14, 2));
    assert_eq!(published.view().current_revision(), 6);
    assert_eq!(published.applied_index(), 14);
    assert_eq!(log.keys(), ["freed", "leased"]);
    assert_eq!(published.leases.count(), 2);
    assert!(published.facts().alarms.is_corrupt());
    while published.hub.catch_up().unwrap() {}
    let mut responses = 0;
    while let Poll::Ready(frame) =
        stream.poll_next(&Context::from_waker(Waker::noop()), &HeaderFields::default())
    {
        responses += usize::from(frame.unwrap().has_events());
    }
    // Revisions 3 and 4 arrive in one response.
    assert_eq!(responses, 1);
}

#[test]
fn watchers_are_cancelled_if_the_revision_of_a_leaders_file_is_lower() {
    let [ours, theirs] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (backend, theirs) = (open(ours.path()), open(theirs.path()));
    let mut log = Log::new();
    for value in 0..20 {
        log.put("a", &value.to_string());
    }
    commit(&mut log, &backend);
    log.state.publish();
    let hub = log.state.published().hub;
    let mut stream = hub.open_stream(1 << 20);
    let create = |start_revision| pb::WatchCreateRequest {
        key: text("a"),
        start_revision,
        ..pb::WatchCreateRequest::default()
    };
    stream.create(create(0), |_, _| Ok(()));
    stream.create(create(15), |_, _| Ok(()));
    commit(&mut log_with_data(), &theirs);
    log.state.install(&theirs).unwrap();
    assert!(log.revision() < 15);
    while hub.catch_up().unwrap() {}
    let mut cancelled = 0;
    while let Poll::Ready(frame) =
        stream.poll_next(&Context::from_waker(Waker::noop()), &HeaderFields::default())
    {
        let mut encoded = bytes::BytesMut::new();
        frame.unwrap().encode(&mut encoded);
        let response: pb::WatchResponse = prost::Message::decode(encoded).unwrap();
        cancelled += usize::from(response.canceled);
    }
    assert_eq!(cancelled, 2);
}

#[test]
fn invalid_backend_rows_are_refused() {
    let version = crate::schema::meta::STORAGE_VERSION;
    let cases: [(Bucket, &'static [u8], &'static [u8], &str); 8] = [
        (Bucket::AuthUsers, b"u", b"\xff", "not a user"),
        (Bucket::Auth, b"authRevision", b"short", "not a number"),
        (Bucket::Meta, version, b"3.8.0", "version \"3.8.0\" is not supported"),
        (Bucket::Cluster, b"clusterVersion", b"3.8.0", "invalid downgrade"),
        (Bucket::Cluster, b"downgrade", b"{", "downgrade cannot be read"),
        (Bucket::Members, b"zz", b"{}", "not a member id"),
        (Bucket::Lease, b"12345678", b"\x08", "key 12345678 (entry 0): the value is not a lease"),
        (Bucket::Alarm, b"\x08", b"", "bucket alarm, key \\x08: the key is not an alarm"),
    ];
    for (bucket, key, value, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let backend = open(folder.path());
        let mut batch = Batch::new();
        batch.put(bucket, key, value);
        batch.set_consistent_index(1, 1);
        backend.commit(&batch).unwrap();
        let refused = State::recover(&backend, StateOptions::default()).unwrap_err().to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}
