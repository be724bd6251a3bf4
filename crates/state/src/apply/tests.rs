//! Tests of the apply path: guards, transactions, outcomes, watchers and leases.

mod alarms;
mod checks;
mod cost;
mod golden;
mod model;
mod recovery;
mod txns;
mod watching;

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_api::membershippb::{
    Attributes, ClusterMemberAttrSetRequest, ClusterVersionSetRequest, DowngradeInfoSetRequest,
};
use quorate_api::raftpb::{ConfChange, ConfChangeType};

use super::*;
use crate::lease::LeaseRefusal;
use crate::members::{Member, MemberChange, MembershipRefusal};
use crate::units::LeaseId;

/// A state, and the log index of its last entry.
struct Log {
    state: State,
    index: u64,
    file_bytes: u64,
}

impl Log {
    fn new() -> Self {
        Self::with(StateOptions { learner_count_max: 1, ..StateOptions::default() })
    }

    fn with(options: StateOptions) -> Self {
        Self { state: State::new(options), index: 0, file_bytes: 0 }
    }

    fn meta(&mut self) -> EntryMeta {
        self.index += 1;
        EntryMeta {
            index: self.index,
            term: 2,
            now: Millis(0),
            file_bytes: self.file_bytes,
            reply_wanted: true,
        }
    }

    fn applied(&mut self, command: Command) -> Applied {
        let request = Request { id: 1, username: String::new(), auth_revision: 0, command };
        let meta = self.meta();
        self.state.apply(meta, request).unwrap()
    }

    fn outcome(&mut self, command: Command) -> Result<Response, Refusal> {
        self.applied(command).outcome.unwrap()
    }

    fn put(&mut self, key: &str, value: &str) {
        self.outcome(Command::Put(put(key, value))).unwrap();
    }

    fn keys(&self) -> Vec<String> {
        let request = pb::RangeRequest { keys_only: true, ..range("\0", "\0") };
        let Ok(Response::Range(response)) = self.state.range(&request).unwrap() else {
            panic!("a range request at the newest revision failed");
        };
        response.kvs.iter().map(|kv| String::from_utf8_lossy(kv.key()).into_owned()).collect()
    }

    fn revision(&self) -> i64 {
        self.state.store.current_revision()
    }
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn range(key: &str, range_end: &str) -> pb::RangeRequest {
    pb::RangeRequest { key: text(key), range_end: text(range_end), ..pb::RangeRequest::default() }
}

fn put(key: &str, value: &str) -> pb::PutRequest {
    pb::PutRequest { key: text(key), value: text(value), ..pb::PutRequest::default() }
}

fn delete(key: &str, range_end: &str) -> pb::DeleteRangeRequest {
    let (key, range_end) = (text(key), text(range_end));
    pb::DeleteRangeRequest { key, range_end, prev_kv: false }
}

fn revision_of(header: Option<&pb::ResponseHeader>) -> i64 {
    header.unwrap().revision
}

#[test]
fn a_put_keeps_the_value_or_the_lease_on_request() {
    let mut log = Log::new();
    log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: 5, ttl: 60 })).unwrap();
    let with_lease = pb::PutRequest { lease: 5, ..put("k", "v1") };
    assert_eq!(
        log.outcome(Command::Put(pb::PutRequest { lease: 6, ..put("k", "v") })),
        Err(LeaseRefusal::NotFound.into())
    );
    let ignoring = |ignore_value, ignore_lease, value: &str| {
        let put = pb::PutRequest { ignore_value, ignore_lease, prev_kv: true, ..put("k", value) };
        Command::Put(put)
    };
    assert_eq!(log.outcome(ignoring(true, false, "")), Err(Refusal::KeyNotFound));
    assert_eq!(log.revision(), 1);
    log.outcome(Command::Put(with_lease)).unwrap();
    assert_eq!(log.state.lessor.keys(LeaseId(5)).unwrap().len(), 1);
    let Ok(Response::Put(response)) = log.outcome(ignoring(false, true, "v2")) else { panic!() };
    let previous = response.prev_kv.unwrap();
    assert_eq!((previous.value(), previous.fields().lease), (&b"v1"[..], 5));
    assert_eq!(revision_of(response.header.as_ref()), 3);
    let Ok(Response::Put(response)) = log.outcome(ignoring(true, false, "")) else { panic!() };
    let previous = response.prev_kv.unwrap();
    assert_eq!((previous.value(), previous.fields().lease), (&b"v2"[..], 5));
    // The put kept the value but not the lease.
    assert_eq!(log.state.lessor.keys(LeaseId(5)).unwrap().len(), 0);
    let Ok(Response::Range(response)) = log.outcome(Command::Range(range("k", ""))) else {
        panic!()
    };
    assert_eq!((response.kvs[0].value(), response.kvs[0].fields().version), (&b"v2"[..], 3));
}

#[test]
fn a_delete_returns_keys_in_order_and_detaches_them_from_leases() {
    let mut log = Log::new();
    log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: 5, ttl: 60 })).unwrap();
    for key in ["b", "a", "c"] {
        log.outcome(Command::Put(pb::PutRequest { lease: 5, ..put(key, key) })).unwrap();
    }
    let request = pb::DeleteRangeRequest { prev_kv: true, ..delete("a", "c") };
    let Ok(Response::DeleteRange(response)) = log.outcome(Command::DeleteRange(request)) else {
        panic!()
    };
    let deleted: Vec<_> = response.prev_kvs.iter().map(|kv| kv.key().to_vec()).collect();
    assert_eq!((response.deleted, deleted), (2, vec![b"a".to_vec(), b"b".to_vec()]));
    assert_eq!(log.state.lessor.keys(LeaseId(5)).unwrap().len(), 1);
    let nothing = log.outcome(Command::DeleteRange(delete("x", "")));
    let Ok(Response::DeleteRange(response)) = nothing else { panic!() };
    assert_eq!((response.deleted, revision_of(response.header.as_ref())), (0, 5));
}

#[test]
fn revoking_a_lease_deletes_its_keys_in_one_revision() {
    let mut log = Log::new();
    let revoke = |id| Command::LeaseRevoke(pb::LeaseRevokeRequest { id });
    assert_eq!(log.outcome(revoke(0)), Err(LeaseRefusal::NotFound.into()));
    let Ok(Response::LeaseGrant(response)) =
        log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: -3, ttl: 0 }))
    else {
        panic!()
    };
    assert_eq!((response.id, response.ttl), (-3, 2));
    for key in ["b", "a"] {
        log.outcome(Command::Put(pb::PutRequest { lease: -3, ..put(key, "") })).unwrap();
    }
    log.put("c", "");
    log.state.publish();
    let Ok(Response::LeaseRevoke(response)) = log.outcome(revoke(-3)) else { panic!() };
    assert_eq!(revision_of(response.header.as_ref()), 5);
    assert_eq!(log.keys(), ["c"]);
    let changes = log.state.unpublished.last().unwrap();
    let order: Vec<_> = changes.events.iter().map(|change| change.record.key().to_vec()).collect();
    assert_eq!(order, [b"a", b"b"]);
    assert_eq!(log.outcome(revoke(-3)), Err(LeaseRefusal::NotFound.into()));
    let tally = log.state.take_tally();
    assert_eq!((tally.lease_ttls, tally.leases_revoked), (vec![2], 1));
}

#[test]
fn lease_checkpoints_are_stored_from_cluster_version_3_6_on() {
    let mut log = Log::new();
    log.outcome(Command::LeaseGrant(pb::LeaseGrantRequest { id: 1, ttl: 600 })).unwrap();
    let checkpoint = || {
        let checkpoints = [1, 2].map(|id| pb::LeaseCheckpoint { id, remaining_ttl: 60 });
        Command::LeaseCheckpoint(pb::LeaseCheckpointRequest { checkpoints: checkpoints.into() })
    };
    let version = |ver: &str| {
        let request = ClusterVersionSetRequest { ver: ver.into() };
        Command::Cluster(ClusterCommand::VersionSet(request))
    };
    for (ver, stored) in [("3.5.0", 0), ("3.6.0", 1)] {
        log.outcome(version(ver)).unwrap();
        drop(log.state.take_batch());
        log.outcome(checkpoint()).unwrap();
        assert_eq!(log.state.take_batch().op_count(), stored, "{ver}");
    }
}

#[test]
fn a_compaction_returns_a_notice() {
    let mut log = Log::new();
    let compact =
        |revision| Command::Compaction(pb::CompactionRequest { revision, physical: false });
    log.put("a", "1");
    log.put("a", "2");
    assert_eq!(log.outcome(compact(9)), Err(Refusal::FutureRevision));
    assert_eq!(log.outcome(compact(-1)), Err(Refusal::Compacted));
    let applied = log.applied(compact(3));
    let compaction = Compaction { revision: 3, previous_revision: -1, previous_finished: true };
    assert_eq!(applied.notice, Some(Notice::Compaction(compaction)));
    assert_eq!(log.outcome(compact(3)), Err(Refusal::Compacted));
    let past = pb::RangeRequest { revision: 2, ..range("a", "") };
    assert_eq!(log.outcome(Command::Range(past)), Err(Refusal::Compacted));
    let step = log.state.compaction_step(1000);
    assert_eq!((step.deleted_count, step.finished), (1, Some(3)));
}

#[test]
fn entries_in_the_backend_file_are_not_applied_again() {
    let mut log = Log::new();
    log.put("a", "1");
    log.index = 0;
    let applied = log.applied(Command::Put(put("a", "2")));
    assert_eq!(applied.outcome, None);
    assert_eq!(log.revision(), 2);
    log.index = 0;
    let downgrade = DowngradeInfoSetRequest { enabled: true, ver: "3.6.0".into() };
    let before = log.state.take_batch();
    assert_eq!(before.consistent_index(), Some((1, 2)));
    let applied = log.applied(Command::Cluster(ClusterCommand::DowngradeInfoSet(downgrade)));
    assert_eq!((applied.outcome, applied.notice), (None, Some(Notice::Downgrade)));
    assert!(log.state.versions().downgrade().enabled);
    assert_eq!(log.state.take_batch().op_count(), 0);
}

#[test]
fn every_entry_advances_the_applied_index() {
    let mut log = Log::new();
    drop(log.state.take_batch());
    log.outcome(Command::LeaseRevoke(pb::LeaseRevokeRequest { id: 1 })).unwrap_err();
    assert_eq!(log.state.take_batch().consistent_index(), Some((1, 2)));
    let meta = log.meta();
    log.state.apply_noop(meta);
    assert_eq!(log.state.take_batch().consistent_index(), Some((2, 2)));
    assert_eq!(log.state.published().applied_index(), 0);
    log.state.publish();
    let published = log.state.published();
    assert_eq!((published.applied_index(), published.applied_term()), (2, 2));
}

#[test]
fn changes_to_the_cluster_version_and_member_attributes_return_notices() {
    let mut log = Log::new();
    let mut set = |command| log.applied(Command::Cluster(command)).notice;
    let version =
        |ver: &str| ClusterCommand::VersionSet(ClusterVersionSetRequest { ver: ver.into() });
    let [v36, v37] = [Version::new(3, 6), Version::new(3, 7)];
    let first = Notice::ClusterVersion { from: None, to: v37 };
    assert_eq!(set(version("3.7.0")), Some(first));
    let lowered = Notice::ClusterVersion { from: Some(v37), to: v36 };
    assert_eq!(set(version("3.6.0")), Some(lowered));
    let attributes = Attributes { name: "m".into(), client_urls: vec!["u".into()] };
    let attributes =
        ClusterMemberAttrSetRequest { member_id: 7, member_attributes: Some(attributes) };
    assert_eq!(set(ClusterCommand::MemberAttrSet(attributes)), None);
    let meta = log.meta();
    for ver in ["3.8.0", "four"] {
        let request = Request {
            id: 1,
            username: String::new(),
            auth_revision: 0,
            command: Command::Cluster(version(ver)),
        };
        assert!(log.state.apply(meta, request).is_err());
    }
}

#[test]
fn conf_changes_are_validated_and_applied() {
    let mut log = Log::new();
    let mut change = |kind: ConfChangeType, id: u64, context: String| {
        let meta = log.meta();
        let change = ConfChange {
            id: Some(9),
            r#type: Some(kind as i32),
            node_id: Some(id),
            context: Some(context.into()),
        };
        let outcome = log.state.apply_conf_change(meta, &change).unwrap();
        (outcome, log.state.members().conf_state().voters)
    };
    let member = |id| Member::new(MemberId(id), vec![format!("http://{id}:2380")]);
    let add = ConfChangeType::ConfChangeAddNode;
    for id in [1, 2] {
        let (outcome, _) = change(add, id, member(id).to_json());
        assert_eq!(outcome, Some(Ok(MemberChange::Add(member(id)))));
    }
    let refused = change(add, 2, member(2).to_json());
    assert_eq!(refused, (Some(Err(MembershipRefusal::Exists)), vec![1, 2]));
    let (_, voters) = change(ConfChangeType::ConfChangeRemoveNode, 1, String::new());
    assert_eq!(voters, [2]);
    log.index = 0;
    let meta = log.meta();
    let replayed = log.state.apply_conf_change(meta, &ConfChange::default()).unwrap();
    assert_eq!(replayed, None);
    log.state.publish();
    assert_eq!(log.state.published().facts().members.iter().len(), 1);
}
