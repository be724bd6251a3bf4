//! Tests that the engine and a plain state give the same responses to random requests.

use bytes::Bytes;
use quorate_api::etcdserverpb as pb;
use quorate_engine::Engine;
use quorate_seeded_random::SplitMix64;
use quorate_state::apply::{
    EntryMeta, Notice, PublishedState, Refusal, Request, Response, State, StateOptions, read_range,
    read_txn,
};
use quorate_state::mvcc::{MvccError, RangeQuery};

use crate::postgres::shared;
use crate::support::{read, start_one};

/// The member with which the engine is compared: a state that contains all keys.
struct Member {
    state: State,
    index: u64,
}

impl Member {
    fn new(options: StateOptions) -> Self {
        Self { state: State::new(options), index: 0 }
    }

    fn apply(&mut self, request: &pb::InternalRaftRequest) -> Result<Response, Refusal> {
        self.index += 1;
        let mut request = request.clone();
        request.header.get_or_insert_default();
        let entry =
            EntryMeta { index: self.index, term: 1, reply_wanted: true, ..EntryMeta::default() };
        let applied = self.state.apply(entry, Request::from_message(request).unwrap()).unwrap();
        if let Some(Notice::Compaction(_)) = applied.notice {
            while self.state.compaction_step(1_000).more {}
        }
        drop(self.state.take_batch());
        self.state.publish();
        applied.outcome.unwrap()
    }
}

const KEYS: usize = 24;

struct Generator {
    random: SplitMix64,
    revision: i64,
}

impl Generator {
    fn below(&mut self, end: usize) -> usize {
        self.random.position(end)
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    fn key(&mut self) -> Bytes {
        // Some keys are prefixes of others, and some contain zero bytes.
        let number = self.below(KEYS);
        match number % 4 {
            0 => Bytes::from(format!("k{number}")),
            1 => Bytes::from(format!("k{}", number / 4)),
            2 => Bytes::from(format!("k\0{number}")),
            _ => Bytes::from(vec![b'k', 0xff, u8::try_from(number).unwrap()]),
        }
    }

    fn range_end(&mut self) -> Bytes {
        match self.below(5) {
            0 => Bytes::from_static(&[0]),
            1 => Bytes::from_static(b"l"),
            2 => self.key(),
            _ => Bytes::new(),
        }
    }

    fn past(&mut self) -> i64 {
        if self.chance(70) {
            return 0;
        }
        let back = i64::try_from(self.below(12)).unwrap();
        self.revision + 1 - back
    }

    fn range(&mut self) -> pb::RangeRequest {
        let filtered = self.chance(20);
        let bound = |generator: &mut Self| {
            if filtered && generator.chance(50) {
                i64::try_from(generator.below(60)).unwrap()
            } else {
                0
            }
        };
        pb::RangeRequest {
            key: self.key(),
            range_end: self.range_end(),
            limit: if self.chance(50) { i64::try_from(self.below(6)).unwrap() } else { 0 },
            revision: self.past(),
            sort_order: i32::try_from(self.below(3)).unwrap(),
            sort_target: i32::try_from(self.below(5)).unwrap(),
            keys_only: self.chance(25),
            count_only: self.chance(10),
            min_mod_revision: bound(self),
            max_mod_revision: bound(self),
            min_create_revision: bound(self),
            max_create_revision: bound(self),
            ..pb::RangeRequest::default()
        }
    }

    fn put(&mut self) -> pb::PutRequest {
        let (ignore_value, ignore_lease) = (self.chance(10), self.chance(10));
        let value = Bytes::from(format!("v{}", self.below(1_000)));
        pb::PutRequest {
            key: self.key(),
            value: if ignore_value { Bytes::new() } else { value },
            lease: if !ignore_lease && self.chance(30) {
                i64::try_from(self.below(5)).unwrap()
            } else {
                0
            },
            prev_kv: self.chance(30),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete(&mut self) -> pb::DeleteRangeRequest {
        pb::DeleteRangeRequest {
            key: self.key(),
            range_end: if self.chance(15) { self.range_end() } else { Bytes::new() },
            prev_kv: self.chance(50),
        }
    }

    fn compare(&mut self) -> pb::Compare {
        use pb::compare::TargetUnion;
        let number = i64::try_from(self.below(6)).unwrap();
        let operand = match self.below(5) {
            0 => TargetUnion::Version(number),
            1 => TargetUnion::CreateRevision(number),
            2 => TargetUnion::ModRevision(self.revision - number),
            3 => TargetUnion::Value(Bytes::from(format!("v{}", self.below(1_000)))),
            _ => TargetUnion::Lease(number),
        };
        pb::Compare {
            result: i32::try_from(self.below(4)).unwrap(),
            target: i32::try_from(self.below(5)).unwrap(),
            key: self.key(),
            range_end: if self.chance(20) { self.range_end() } else { Bytes::new() },
            target_union: Some(operand),
        }
    }

    fn operations(&mut self, depth: usize) -> Vec<pb::RequestOp> {
        let count = self.below(4);
        let mut operations = Vec::new();
        for _ in 0..count {
            let request = match self.below(if depth > 0 { 4 } else { 3 }) {
                0 => pb::request_op::Request::RequestRange(self.range()),
                1 => pb::request_op::Request::RequestPut(self.put()),
                2 => pb::request_op::Request::RequestDeleteRange(self.delete()),
                _ => pb::request_op::Request::RequestTxn(self.txn(depth - 1)),
            };
            operations.push(pb::RequestOp { request: Some(request) });
        }
        operations
    }

    fn txn(&mut self, depth: usize) -> pb::TxnRequest {
        let count = self.below(3);
        pb::TxnRequest {
            compare: (0..count).map(|_| self.compare()).collect(),
            success: self.operations(depth),
            failure: self.operations(depth),
        }
    }

    fn request(&mut self) -> pb::InternalRaftRequest {
        let mut request = pb::InternalRaftRequest::default();
        match self.below(100) {
            0..45 => request.put = Some(self.put()),
            45..60 => request.delete_range = Some(Box::new(self.delete())),
            60..85 => request.txn = Some(self.txn(2)),
            85..90 => {
                let id = i64::try_from(self.below(4)).unwrap();
                request.lease_grant = Some(pb::LeaseGrantRequest { id, ttl: 1_000 });
            }
            90..94 => {
                let id = i64::try_from(self.below(4)).unwrap();
                request.lease_revoke = Some(pb::LeaseRevokeRequest { id });
            }
            94..97 => {
                let revision = self.revision + 1 - i64::try_from(self.below(20)).unwrap();
                request.compaction = Some(pb::CompactionRequest { revision, physical: false });
            }
            97 => {
                let name = format!("r{}", self.below(3));
                request.auth_role_add = Some(Box::new(pb::AuthRoleAddRequest { name }));
            }
            98 => {
                let role = format!("r{}", self.below(3));
                request.auth_role_delete = Some(Box::new(pb::AuthRoleDeleteRequest { role }));
            }
            _ => request.auth_role_list = Some(Box::new(pb::AuthRoleListRequest::default())),
        }
        request
    }
}

/// Returns whether a request passes the checks that a member makes before a request reaches the state.
fn is_valid(request: &pb::InternalRaftRequest) -> bool {
    use quorate_state::apply::{check_delete_range, check_put, check_txn};
    let put = request.put.as_ref().is_none_or(|put| check_put(put).is_ok());
    let delete =
        request.delete_range.as_ref().is_none_or(|delete| check_delete_range(delete).is_ok());
    let txn = request.txn.as_ref().is_none_or(|txn| check_txn(txn, 128).is_ok());
    put && delete && txn
}

async fn compare(seed: u64, count: usize) {
    let Some(postgres) = shared() else { return };
    let url = postgres.url(&format!("differential_{seed}"));
    let mut engine = start_one(&url).await;
    let mut member = Member::new(StateOptions { quota_bytes: -1, ..StateOptions::default() });
    let mut generator = Generator { random: SplitMix64::new(seed), revision: 1 };
    for step in 0..count {
        let request = generator.request();
        if is_valid(&request) {
            let expected = member.apply(&request);
            let answer = engine.propose(request.clone()).await.unwrap();
            assert_eq!(answer, expected, "seed {seed}, step {step}: {request:?}");
            generator.revision = member.state.store().current_revision();
        }
        if generator.chance(40) {
            let range = generator.range();
            let view = member.state.published().view();
            let expected = read_range(&view, &range).unwrap();
            let query = RangeQuery::from_request(&range);
            let answer = read(&engine, &query).await;
            let expected = expected.map(|response| (response.kvs, response.count, response.more));
            let answer = answer.map(|result| (result.kvs, result.count, result.more));
            assert_eq!(answer, expected, "seed {seed}, step {step}: {range:?}");
        }
        if generator.chance(15) {
            let mut txn = generator.txn(0);
            let is_range = |op: &pb::RequestOp| {
                matches!(op.request, Some(pb::request_op::Request::RequestRange(_)))
            };
            txn.success.retain(is_range);
            txn.failure.retain(is_range);
            let (expected, _) = read_txn(&member.state.published().view(), &txn).unwrap();
            engine.barrier().await.unwrap();
            let answer = engine.read_txn(&txn, &mut |_| true).await.unwrap();
            assert_eq!(answer, expected, "seed {seed}, step {step}: {txn:?}");
        }
        if step % 50 == 49 {
            compare_hashes(&engine, &member, &mut generator).await;
        }
        if step % 150 == 149 {
            engine.stop().await;
            engine = start_one(&url).await;
        }
    }
    compare_snapshot(&engine, &member).await;
    engine.stop().await;
}

/// Compares the hashes at the newest revision and at an older revision.
async fn compare_hashes(engine: &Engine, member: &Member, generator: &mut Generator) {
    engine.wait_compacted().await.unwrap();
    let view = member.state.published().view();
    for revision in [0, generator.past()] {
        let expected = match view.hash_kv(revision) {
            Ok(hash) => Ok(hash),
            Err(MvccError::Refusal(refusal)) => Err(refusal.into()),
            Err(MvccError::Fault(fault)) => panic!("{fault}"),
        };
        assert_eq!(
            engine.hash_kv(revision, std::future::pending()).await.unwrap(),
            expected,
            "at {revision}"
        );
    }
}

/// Recovers a member's state from a snapshot of the engine, and compares it with the expected state.
async fn compare_snapshot(engine: &Engine, member: &Member) {
    let dir = tempfile::tempdir().unwrap();
    let backend = engine.snapshot(dir.path(), std::future::pending()).await.unwrap();
    let recovered = State::recover(&backend, StateOptions::default()).unwrap();
    let (recovered, expected) = (recovered.published(), member.state.published());
    let (now, compacted) =
        (expected.view().current_revision(), expected.view().compacted_revision());
    assert_eq!(recovered.view().current_revision(), now);
    assert_eq!(recovered.view().compacted_revision(), compacted);
    for revision in compacted.max(1)..=now {
        let range = pb::RangeRequest {
            key: Bytes::from_static(b"k"),
            range_end: Bytes::from_static(b"l"),
            revision,
            ..pb::RangeRequest::default()
        };
        let at = |view| read_range(view, &range).unwrap();
        assert_eq!(at(&recovered.view()), at(&expected.view()), "at {revision}");
    }
    assert_eq!(recovered.leases.list(), expected.leases.list());
    let roles = |published: &PublishedState| -> Vec<String> {
        published.auth.view().role_names().map(str::to_owned).collect()
    };
    assert_eq!(roles(&recovered), roles(&expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_and_a_member_give_the_same_responses_to_random_requests() {
    let base = std::env::var("QUORATE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for seed in base..base + 3 {
        compare(seed, 400).await;
    }
}
