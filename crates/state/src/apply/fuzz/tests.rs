//! Runs the fuzz target on samples that together contain every command.

use prost::Message as _;
use quorate_api::membershippb::{ClusterVersionSetRequest, DowngradeInfoSetRequest};
use quorate_test_support::mutate::bounded;

use super::*;

/// A sequence of encoded steps.
#[derive(Default)]
struct Steps(Vec<u8>);

impl Steps {
    fn entry(&mut self, request: pb::InternalRaftRequest) -> &mut Self {
        let header = Some(pb::RequestHeader { id: 1, ..pb::RequestHeader::default() });
        let data = pb::InternalRaftRequest { header, ..request }.encode_to_vec();
        let len = u16::try_from(data.len()).unwrap().to_le_bytes();
        self.0.extend([&[ENTRY], &len[..], &data].concat());
        self
    }

    fn put(&mut self, key: &'static str, value: &'static str, lease: i64) -> &mut Self {
        let put = put(key, value, lease);
        self.entry(pb::InternalRaftRequest { put: Some(put), ..Default::default() })
    }

    fn range(&mut self, range: pb::RangeRequest) -> &mut Self {
        self.entry(pb::InternalRaftRequest { range: Some(Box::new(range)), ..Default::default() })
    }

    fn delete(&mut self, key: &'static str, range_end: &'static str) -> &mut Self {
        let delete = delete(key, range_end);
        self.entry(pb::InternalRaftRequest {
            delete_range: Some(Box::new(delete)),
            ..Default::default()
        })
    }

    fn txn(&mut self, txn: pb::TxnRequest) -> &mut Self {
        self.entry(pb::InternalRaftRequest { txn: Some(txn), ..Default::default() })
    }

    fn compact(&mut self, revision: i64) -> &mut Self {
        let compaction = Some(pb::CompactionRequest { revision, physical: true });
        self.entry(pb::InternalRaftRequest { compaction, ..Default::default() })
    }

    fn step(&mut self, step: u8) -> &mut Self {
        self.0.push(step);
        self
    }
}

fn put(key: &'static str, value: &'static str, lease: i64) -> pb::PutRequest {
    let (key, value) = (key.into(), value.into());
    pb::PutRequest { key, value, lease, prev_kv: true, ..Default::default() }
}

fn delete(key: &'static str, range_end: &'static str) -> pb::DeleteRangeRequest {
    pb::DeleteRangeRequest { key: key.into(), range_end: range_end.into(), prev_kv: true }
}

fn everything() -> pb::RangeRequest {
    pb::RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() }
}

fn txn() -> pb::TxnRequest {
    use pb::request_op::Request as Op;
    let compare = pb::Compare {
        result: 0,
        target: 0,
        key: "a".into(),
        target_union: Some(pb::compare::TargetUnion::Version(2)),
        range_end: Bytes::new(),
    };
    let operation = |op| pb::RequestOp { request: Some(op) };
    let kept = pb::PutRequest { ignore_value: true, ..put("b", "", 0) };
    let inner = pb::TxnRequest {
        compare: vec![pb::Compare { key: "z".into(), ..compare.clone() }],
        success: vec![operation(Op::RequestPut(put("n", "1", 0)))],
        failure: vec![operation(Op::RequestPut(put("n", "2", 0)))],
    };
    pb::TxnRequest {
        compare: vec![compare],
        success: vec![
            operation(Op::RequestPut(put("a", "3", 0))),
            operation(Op::RequestPut(kept)),
            operation(Op::RequestRange(pb::RangeRequest { revision: 2, ..everything() })),
            operation(Op::RequestDeleteRange(delete("c", "d"))),
            operation(Op::RequestTxn(inner)),
        ],
        failure: vec![operation(Op::RequestRange(everything()))],
    }
}

fn keys() -> Vec<u8> {
    let mut steps = Steps::default();
    steps.put("a", "1", 0).put("b", "1", 0).put("c", "1", 0).put("a", "2", 0);
    steps.range(pb::RangeRequest { limit: 2, ..everything() }).txn(txn()).step(RESTART);
    steps.delete("a", "b").compact(5).step(CLEAR).step(RESTART).put("d", "1", 0);
    steps.range(pb::RangeRequest { revision: 6, ..everything() }).compact(8).step(CLEAR);
    steps.0
}

fn leases() -> Vec<u8> {
    let grant = |id| pb::InternalRaftRequest {
        lease_grant: Some(pb::LeaseGrantRequest { id, ttl: 60 }),
        ..Default::default()
    };
    let checkpoints = vec![pb::LeaseCheckpoint { id: 5, remaining_ttl: 30 }];
    let checkpoint = pb::InternalRaftRequest {
        lease_checkpoint: Some(pb::LeaseCheckpointRequest { checkpoints }),
        ..Default::default()
    };
    let revoke = pb::InternalRaftRequest {
        lease_revoke: Some(pb::LeaseRevokeRequest { id: 5 }),
        ..Default::default()
    };
    let mut steps = Steps::default();
    steps.entry(grant(5)).entry(grant(-6)).put("a", "1", 5).put("b", "1", 5).put("a", "2", -6);
    steps.entry(checkpoint).step(RESTART).put("c", "1", 5).entry(revoke).step(RESTART);
    steps.0
}

fn cluster() -> Vec<u8> {
    let version = pb::InternalRaftRequest {
        cluster_version_set: Some(Box::new(ClusterVersionSetRequest { ver: "3.7.0".into() })),
        ..Default::default()
    };
    let downgrade = pb::InternalRaftRequest {
        downgrade_info_set: Some(Box::new(DowngradeInfoSetRequest {
            enabled: true,
            ver: "3.6.0".into(),
        })),
        ..Default::default()
    };
    let alarm = |action, alarm| pb::InternalRaftRequest {
        alarm: Some(pb::AlarmRequest { action, member_id: 3, alarm }),
        ..Default::default()
    };
    let mut steps = Steps::default();
    steps.entry(version).entry(downgrade).put("a", "1", 0).entry(alarm(1, 1)).put("a", "2", 0);
    steps.step(RESTART).entry(alarm(2, 1)).put("a", "3", 0).entry(alarm(1, 2)).delete("a", "");
    steps.0
}

#[test]
fn arbitrary_entries_produce_the_same_state_as_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let samples = [("keys", keys()), ("leases", leases()), ("cluster", cluster())];
    bounded("apply", &samples, 1500, |data| entries(folder.path(), data));
}
