//! Compares answers to random requests with a simple model of the store, which uses lists, scans and sorts where the
//! server has indexes. The same tests verify the model against etcd.

use std::collections::BTreeMap;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::compare::{CompareResult, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_tests::{
    Client, Kind, Random, Server, bytes, compare, delete, is_long, on_both_servers, op, put, range,
    txn_when,
};

on_both_servers! {
    responses_to_random_requests_match_the_model,
    responses_match_the_model_after_restarts,
}

#[derive(Clone, Debug, PartialEq)]
struct Record {
    key: Vec<u8>,
    value: Vec<u8>,
    create: i64,
    modified: i64,
    version: i64,
}

type State = BTreeMap<Vec<u8>, Record>;

/// The model of the store: a list of its states, one for each revision.
struct Model {
    states: Vec<State>,
    compacted: i64,
}

/// An answer, reduced to its specified parts.
#[derive(Debug)]
enum Answer {
    Refused(&'static str),
    /// The records that the answer may contain, and the sort keys of the records that it does contain, in order.
    Range {
        keys: Vec<(i64, Vec<u8>)>,
        records: State,
        more: bool,
        count: i64,
    },
    Put {
        previous: Option<Record>,
    },
    Delete {
        previous: Vec<Record>,
        deleted: i64,
    },
    Txn {
        succeeded: bool,
        answers: Vec<Self>,
    },
}

impl Answer {
    /// Returns whether the model's answer permits this answer. The order of records with equal sort keys, and the
    /// choice among them at a limit, is unspecified.
    fn is_allowed_by(&self, model: &Self) -> bool {
        match (self, model) {
            (Self::Refused(text), Self::Refused(expected)) => text == expected,
            (
                Self::Range { keys, records, more, count },
                Self::Range { keys: sorted, records: candidates, more: rest, count: whole },
            ) => {
                (keys, more, count) == (sorted, rest, whole)
                    && records.len() == keys.len()
                    && records.iter().all(|(key, record)| candidates.get(key) == Some(record))
            }
            (Self::Put { previous }, Self::Put { previous: expected }) => previous == expected,
            (
                Self::Delete { previous, deleted },
                Self::Delete { previous: expected, deleted: count },
            ) => (previous, deleted) == (expected, count),
            (
                Self::Txn { succeeded, answers },
                Self::Txn { succeeded: branch, answers: expected },
            ) => {
                succeeded == branch
                    && answers.len() == expected.len()
                    && answers.iter().zip(expected).all(|(one, other)| one.is_allowed_by(other))
            }
            _ => false,
        }
    }
}

const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";

impl Model {
    fn new() -> Self {
        // Revision 0 does not exist, and revision 1 is the empty store.
        Self { states: vec![State::new(), State::new()], compacted: -1 }
    }

    fn revision(&self) -> i64 {
        i64::try_from(self.states.len()).unwrap() - 1
    }

    fn state(&self, revision: i64) -> Result<&State, &'static str> {
        if revision > self.revision() {
            return Err(FUTURE);
        }
        if revision > 0 && revision < self.compacted {
            return Err(COMPACTED);
        }
        let at = if revision <= 0 { self.revision() } else { revision };
        Ok(&self.states[usize::try_from(at).unwrap()])
    }

    fn put(&mut self, request: &pb::PutRequest) -> Answer {
        let mut change = Change::of(self);
        let answer = change.put(request);
        change.commit(self);
        answer
    }

    fn delete(&mut self, request: &pb::DeleteRangeRequest) -> Answer {
        let mut change = Change::of(self);
        let answer = change.delete(request);
        change.commit(self);
        answer
    }

    fn txn(&mut self, request: &pb::TxnRequest) -> Answer {
        let state = self.states.last().unwrap();
        let succeeded = request.compare.iter().all(|condition| holds(state, condition));
        let operations = if succeeded { &request.success } else { &request.failure };
        let mut change = Change::of(self);
        let mut answers = Vec::new();
        for operation in operations {
            answers.push(match operation.request.as_ref().unwrap() {
                Request::RequestRange(request) if request.revision == 0 => {
                    list(&change.state, request)
                }
                Request::RequestRange(request) => match self.state(request.revision) {
                    Ok(state) => list(state, request),
                    Err(text) => return Answer::Refused(text),
                },
                Request::RequestPut(request) => change.put(request),
                Request::RequestDeleteRange(request) => change.delete(request),
                Request::RequestTxn(_) => panic!("the model does not support nested transactions"),
            });
        }
        change.commit(self);
        Answer::Txn { succeeded, answers }
    }
}

/// A revision under construction.
struct Change {
    state: State,
    main: i64,
    changed: bool,
}

impl Change {
    fn of(model: &Model) -> Self {
        let state = model.states.last().unwrap().clone();
        Self { state, main: model.revision() + 1, changed: false }
    }

    fn put(&mut self, request: &pb::PutRequest) -> Answer {
        let previous = self.state.get(&request.key[..]).cloned();
        let record = Record {
            key: request.key.to_vec(),
            value: request.value.to_vec(),
            create: previous.as_ref().map_or(self.main, |record| record.create),
            modified: self.main,
            version: previous.as_ref().map_or(1, |record| record.version + 1),
        };
        self.state.insert(record.key.clone(), record);
        self.changed = true;
        Answer::Put { previous: previous.filter(|_| request.prev_kv) }
    }

    fn delete(&mut self, request: &pb::DeleteRangeRequest) -> Answer {
        let inside = |key: &[u8]| within(key, &request.key, &request.range_end);
        let gone: Vec<Record> =
            self.state.values().filter(|record| inside(&record.key)).cloned().collect();
        for record in &gone {
            self.state.remove(&record.key);
            self.changed = true;
        }
        let deleted = i64::try_from(gone.len()).unwrap();
        Answer::Delete { previous: if request.prev_kv { gone } else { Vec::new() }, deleted }
    }

    fn commit(self, model: &mut Model) {
        if self.changed {
            model.states.push(self.state);
        }
    }
}

fn within(key: &[u8], start: &[u8], end: &[u8]) -> bool {
    match end {
        [] => key == start,
        [0] => key >= start,
        _ => key >= start && key < end,
    }
}

fn holds(state: &State, condition: &pb::Compare) -> bool {
    let record = state.get(&condition.key[..]);
    let of = |field: fn(&Record) -> i64| record.map_or(0, field);
    let order = match condition.target_union.as_ref().unwrap() {
        TargetUnion::Version(operand) => of(|record| record.version).cmp(operand),
        TargetUnion::CreateRevision(operand) => of(|record| record.create).cmp(operand),
        TargetUnion::ModRevision(operand) => of(|record| record.modified).cmp(operand),
        TargetUnion::Lease(operand) => 0.cmp(operand),
        TargetUnion::Value(operand) => match record {
            Some(record) => record.value[..].cmp(&operand[..]),
            None => return false,
        },
    };
    match condition.result() {
        CompareResult::Equal => order.is_eq(),
        CompareResult::Greater => order.is_gt(),
        CompareResult::Less => order.is_lt(),
        CompareResult::NotEqual => order.is_ne(),
    }
}

/// Returns the sort key of a record. Answers are compared by sort keys, because the order of records with equal sort
/// keys is unspecified.
fn rank(record: &Record, target: i32) -> (i64, Vec<u8>) {
    match target {
        1 => (record.version, Vec::new()),
        2 => (record.create, Vec::new()),
        3 => (record.modified, Vec::new()),
        4 => (0, record.value.clone()),
        _ => (0, record.key.clone()),
    }
}

fn list(state: &State, request: &pb::RangeRequest) -> Answer {
    let mut found: Vec<&Record> = state
        .values()
        .filter(|record| within(&record.key, &request.key, &request.range_end))
        .collect();
    let count = i64::try_from(found.len()).unwrap();
    if request.count_only {
        return Answer::Range { keys: Vec::new(), records: State::new(), more: false, count };
    }
    let bounds = [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ];
    let [min_mod, max_mod, min_create, max_create] = bounds;
    found.retain(|record| {
        (min_mod == 0 || record.modified >= min_mod)
            && (max_mod == 0 || record.modified <= max_mod)
            && (min_create == 0 || record.create >= min_create)
            && (max_create == 0 || record.create <= max_create)
    });
    let limit = usize::try_from(request.limit).unwrap_or(0);
    let unfiltered = bounds.iter().all(|bound| *bound == 0);
    if request.sort_order == 0 && limit > 0 && unfiltered {
        found.truncate(limit + 1);
    }
    let records = found.iter().map(|record| (record.key.clone(), (*record).clone())).collect();
    found.sort_by_key(|record| rank(record, request.sort_target));
    if request.sort_order == 2 {
        found.reverse();
    }
    let more = limit > 0 && found.len() > limit;
    if more {
        found.truncate(limit);
    }
    let keys = found.iter().map(|record| rank(record, request.sort_target)).collect();
    Answer::Range { keys, records, more, count }
}

fn record_of(record: &quorate_api::record::KeyValue) -> Record {
    let at = record.fields();
    Record {
        key: at.key.to_vec(),
        value: at.value.to_vec(),
        create: at.create_revision,
        modified: at.mod_revision,
        version: at.version,
    }
}

fn answer_of(response: Response, request: &Request) -> Answer {
    match (response, request) {
        (Response::ResponseRange(answer), Request::RequestRange(request)) => {
            let found: Vec<Record> = answer.kvs.iter().map(record_of).collect();
            let keys = found.iter().map(|record| rank(record, request.sort_target)).collect();
            let records = found.into_iter().map(|record| (record.key.clone(), record)).collect();
            Answer::Range { keys, records, more: answer.more, count: answer.count }
        }
        (Response::ResponsePut(answer), _) => {
            Answer::Put { previous: answer.prev_kv.as_ref().map(record_of) }
        }
        (Response::ResponseDeleteRange(answer), _) => Answer::Delete {
            previous: answer.prev_kvs.iter().map(record_of).collect(),
            deleted: answer.deleted,
        },
        (Response::ResponseTxn(answer), Request::RequestTxn(request)) => {
            let taken = if answer.succeeded { &request.success } else { &request.failure };
            let operations = taken.iter().map(|operation| operation.request.as_ref().unwrap());
            let answers = answer
                .responses
                .into_iter()
                .zip(operations)
                .map(|(answer, request)| answer_of(answer.response.unwrap(), request))
                .collect();
            Answer::Txn { succeeded: answer.succeeded, answers }
        }
        (answer, request) => panic!("{answer:?} is not a response to {request:?}"),
    }
}

/// Generates requests that use only a few keys, so that the requests affect each other.
struct Requests {
    random: Random,
    written: u64,
    /// Whether reads in a transaction may name a revision. Before version 3.7, etcd refuses a transaction because of
    /// such a read, but applies the transaction when it replays its log.
    named_revisions: bool,
}

impl Requests {
    fn key(&mut self) -> Vec<u8> {
        let keys: [&[u8]; 12] = [
            b"a",
            b"a\0",
            b"aa",
            b"ab",
            b"b",
            b"b\xff",
            b"b\xff\xff",
            b"c",
            b"\0",
            b"\xff",
            b"d",
            b"dd",
        ];
        keys[usize::try_from(self.random.below(12)).unwrap()].to_vec()
    }

    fn end(&mut self) -> Vec<u8> {
        match self.random.below(4) {
            0 => Vec::new(),
            1 => vec![0],
            _ => self.key(),
        }
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.random.below(chances) == 0
    }

    fn put(&mut self) -> pb::PutRequest {
        self.written += 1;
        // Every value is written only once, so no two values have equal sort keys.
        let value = format!("{:06}", self.written * 7919 % 999_983);
        pb::PutRequest { prev_kv: self.one_in(2), ..put(self.key(), value) }
    }

    fn delete(&mut self) -> pb::DeleteRangeRequest {
        let end = if self.one_in(3) { self.end() } else { Vec::new() };
        pb::DeleteRangeRequest { prev_kv: self.one_in(2), ..delete(self.key(), end) }
    }

    fn range(&mut self, model: &Model) -> pb::RangeRequest {
        let (key, end) = (self.key(), self.end());
        let current = u64::try_from(model.revision()).unwrap();
        let mut number = |chances: u64, bound: u64| {
            if self.random.below(chances) == 0 { self.random.below(bound) } else { 0 }
        };
        let signed = |number: u64| i64::try_from(number).unwrap();
        pb::RangeRequest {
            limit: signed(number(2, 8)),
            revision: signed(number(3, current + 3)),
            sort_order: i32::try_from(number(1, 3)).unwrap(),
            sort_target: i32::try_from(number(1, 5)).unwrap(),
            count_only: number(8, 2) == 1,
            serializable: number(2, 2) == 1,
            min_mod_revision: signed(number(6, current + 2)),
            max_mod_revision: signed(number(6, current + 2)),
            min_create_revision: signed(number(6, current + 2)),
            max_create_revision: signed(number(6, current + 2)),
            ..range(key, end)
        }
    }

    fn condition(&mut self, model: &Model) -> pb::Compare {
        let current = u64::try_from(model.revision()).unwrap();
        let number = i64::try_from(self.random.below(current + 2)).unwrap();
        let operand = match self.random.below(4) {
            0 => TargetUnion::Version(number % 4),
            1 => TargetUnion::CreateRevision(number),
            2 => TargetUnion::ModRevision(number),
            _ => TargetUnion::Value(bytes("500000")),
        };
        let result = i32::try_from(self.random.below(4)).unwrap();
        compare(self.key(), CompareResult::try_from(result).unwrap(), operand)
    }

    /// Returns a transaction branch whose writes do not conflict: at most one put per key, and deletions only of other
    /// keys.
    fn branch(&mut self, model: &Model) -> Vec<pb::RequestOp> {
        let mut used = Vec::new();
        let mut operations = Vec::new();
        for _ in 0..self.random.below(5) {
            let mut read = self.range(model);
            if !self.named_revisions {
                read.revision = 0;
            }
            let read = op(Request::RequestRange(read));
            let (put, delete) =
                (self.put(), pb::DeleteRangeRequest { range_end: bytes(""), ..self.delete() });
            match self.random.below(3) {
                0 => operations.push(read),
                1 if !used.contains(&put.key) => {
                    used.push(put.key.clone());
                    operations.push(op(Request::RequestPut(put)));
                }
                2 if !used.contains(&delete.key) => {
                    used.push(delete.key.clone());
                    operations.push(op(Request::RequestDeleteRange(delete)));
                }
                _ => {}
            }
        }
        operations
    }

    fn next(&mut self, model: &Model) -> Request {
        match self.random.below(10) {
            0..4 => Request::RequestPut(self.put()),
            4 => Request::RequestDeleteRange(self.delete()),
            5..8 => Request::RequestRange(self.range(model)),
            _ => {
                let conditions = (0..self.random.below(3)).map(|_| self.condition(model)).collect();
                let (success, failure) = (self.branch(model), self.branch(model));
                Request::RequestTxn(txn_when(conditions, success, failure))
            }
        }
    }
}

async fn ask(client: &Client, request: &Request) -> (Answer, Option<i64>) {
    let response = match request.clone() {
        Request::RequestRange(request) => client.range(request).await.map(Response::ResponseRange),
        Request::RequestPut(request) => client.put(request).await.map(Response::ResponsePut),
        Request::RequestDeleteRange(request) => {
            client.delete_range(request).await.map(Response::ResponseDeleteRange)
        }
        Request::RequestTxn(request) => client.txn(request).await.map(Response::ResponseTxn),
    };
    match response {
        Ok(response) => {
            let header = match &response {
                Response::ResponseRange(answer) => &answer.header,
                Response::ResponsePut(answer) => &answer.header,
                Response::ResponseDeleteRange(answer) => &answer.header,
                Response::ResponseTxn(answer) => &answer.header,
            };
            let revision = header.as_ref().unwrap().revision;
            (answer_of(response, request), Some(revision))
        }
        Err(status) if status.message() == COMPACTED => (Answer::Refused(COMPACTED), None),
        Err(status) if status.message() == FUTURE => (Answer::Refused(FUTURE), None),
        Err(status) => panic!("{status:?}"),
    }
}

fn predict(model: &mut Model, request: &Request) -> Answer {
    match request {
        Request::RequestRange(request) => match model.state(request.revision) {
            Ok(state) => list(state, request),
            Err(text) => Answer::Refused(text),
        },
        Request::RequestPut(request) => model.put(request),
        Request::RequestDeleteRange(request) => model.delete(request),
        Request::RequestTxn(request) => model.txn(request),
    }
}

/// Sends random requests and compares each answer with the model's.
async fn compare_with_model(
    client: &Client,
    model: &mut Model,
    requests: &mut Requests,
    count: u32,
) {
    for _ in 0..count {
        if requests.one_in(40) && model.revision() > model.compacted.max(1) {
            let room = u64::try_from(model.revision() - model.compacted.max(1)).unwrap();
            model.compacted =
                model.compacted.max(1) + 1 + i64::try_from(requests.random.below(room)).unwrap();
            client.compact_to(model.compacted).await;
        }
        let request = requests.next(model);
        let (seen, revision) = ask(client, &request).await;
        let expected = predict(model, &request);
        let at = model.revision();
        assert!(seen.is_allowed_by(&expected), "{request:?} at {at}: {seen:?}, not {expected:?}");
        if let Some(revision) = revision {
            assert_eq!(revision, model.revision(), "{request:?}");
        }
    }
}

fn requests(named_revisions: bool) -> Requests {
    Requests { random: Random::by_chance(), written: 0, named_revisions }
}

async fn responses_to_random_requests_match_the_model(kind: Kind) {
    let server = Server::start(kind).await;
    let count = if is_long() { 20_000 } else { 1_000 };
    compare_with_model(&server.client(), &mut Model::new(), &mut requests(true), count).await;
}

async fn responses_match_the_model_after_restarts(kind: Kind) {
    let mut server = Server::start(kind).await;
    let (mut model, mut requests) = (Model::new(), requests(server.is_3_7()));
    for round in 0..if is_long() { 40 } else { 4 } {
        compare_with_model(&server.client(), &mut model, &mut requests, 150).await;
        if round % 2 == 0 {
            server.kill();
        } else {
            server.stop().await;
        }
        server.start_again().await;
        // A serializable read may return older data while the log is being applied, but this linearizable read may not.
        assert_eq!(server.client().revision().await, model.revision());
    }
    compare_with_model(&server.client(), &mut model, &mut requests, 150).await;
}
