//! Guarded writes: a write is performed only if no other proxy owns the keys that it writes.
//!
//! A write becomes a transaction whose conditions cover the leasing keys of all keys that it may write. This proxy's
//! leasing keys must still have their creation revisions. No other leasing key may have a lease, because a leasing key
//! with a lease has an owner. If the conditions hold, the transaction performs the write and then reads the owned keys
//! that it may have changed, within the limit on operations. Otherwise it reads the existing leasing keys.
//!
//! A client's transaction with conditions is nested unchanged, so that its conditions select its own
//! branches. A transaction without conditions is flattened, because members limit the number of operations
//! over all nesting levels.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, ResponseHeader, ResponseOp,
    TxnRequest, TxnResponse,
};
use quorate_api::record::KeyValue;
use tonic::Status;

use super::answer::Known;
use super::names::{Names, REVOKE};
use crate::span::{Span, Spans};

/// Maximum number of operations in a transaction: the members' default limit.
const OPERATIONS_MAX: usize = 128;

/// Maximum number of leasing keys that one attempt reads per condition. The next attempt finds the remaining keys.
const LISTED_MAX: i64 = 256;

/// Maximum number of leasing keys that one transaction changes.
const CHANGED_MAX: usize = 32;

/// Maximum total size of the names of the leasing keys that one transaction changes. The transaction contains each name
/// twice, and members refuse requests larger than 1.5 MiB by default.
const CHANGED_BYTES_MAX: usize = 512 << 10;

/// An existing leasing key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeasingKey {
    pub(super) name: Bytes,
    pub(super) created: i64,
    pub(super) lease: i64,
    pub(super) is_revoked: bool,
}

/// Owned keys with the creation revisions of their leasing keys.
pub(super) type Owned = BTreeMap<Bytes, i64>;

/// A guarded write, with the data needed to read its response.
#[derive(Debug)]
pub(super) struct Guarded {
    /// Number of responses that belong to the client's flattened transaction; `None` if the client's request is one
    /// operation, such as a nested transaction.
    flat: Option<usize>,
    /// The owned keys that are read after the write.
    refreshed: Vec<Bytes>,
}

/// The result of a guarded write.
#[derive(Debug)]
pub(super) enum Outcome {
    Done(Done),
    /// The write was not performed because these leasing keys exist.
    Owned(Vec<LeasingKey>),
}

/// The result of a performed write.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) response: Response,
    pub(super) header: ResponseHeader,
    /// The new states of owned keys.
    pub(super) refreshed: Vec<(Bytes, Known)>,
}

impl Guarded {
    /// Builds the transaction for a write to these spans. `owned` contains the keys owned by this proxy among the
    /// single-key spans. With `has_few_conditions`, a single condition covers the smallest span that contains all spans
    /// of leasing keys. The condition fails if any leasing key in that span has an owner, even if this proxy is the
    /// owner.
    pub(super) fn new(
        names: &Names,
        request: Request,
        spans: &Spans,
        owned: &Owned,
        has_few_conditions: bool,
    ) -> (TxnRequest, Self) {
        let guards = guards(names, spans, owned);
        let (compare, listed) = if has_few_conditions {
            let all = hull(guards.iter().map(|(span, _)| span));
            (all.iter().map(without_owner).collect(), all)
        } else {
            let compare = guards.iter().map(|(span, made)| match made {
                Some(revision) => made_at(span.key(), *revision),
                None => without_owner(span),
            });
            (compare.collect(), guards.into_iter().map(|(span, _)| span).collect::<Vec<_>>())
        };
        let (mut success, flat) = match request {
            Request::RequestTxn(txn) if txn.compare.is_empty() && txn.failure.is_empty() => {
                let count = txn.success.len();
                (txn.success, Some(count))
            }
            request => (vec![RequestOp { request: Some(request) }], None),
        };
        let remaining = OPERATIONS_MAX.saturating_sub(success.len());
        let refreshed: Vec<Bytes> = if has_few_conditions {
            Vec::new()
        } else {
            owned.keys().take(remaining).cloned().collect()
        };
        success.extend(refreshed.iter().map(|key| get(&Span::of(key.clone()), 0)));
        let failure = listed.iter().map(|span| get(span, LISTED_MAX)).collect();
        (TxnRequest { compare, success, failure }, Self { flat, refreshed })
    }

    /// Returns the result of the write, from the member's response to the transaction.
    pub(super) fn outcome(&self, answer: TxnResponse) -> Result<Outcome, Status> {
        let header = answer.header.unwrap_or_default();
        let mut responses = answer.responses.into_iter().filter_map(|it| it.response);
        if !answer.succeeded {
            let ranges = responses.filter_map(|response| match response {
                Response::ResponseRange(range) => Some(range.kvs),
                Response::ResponsePut(_)
                | Response::ResponseDeleteRange(_)
                | Response::ResponseTxn(_) => None,
            });
            let mut found: Vec<LeasingKey> = ranges.flatten().map(|it| leasing_key(&it)).collect();
            found.sort_by(|one, other| one.name.cmp(&other.name));
            found.dedup();
            return Ok(Outcome::Owned(found));
        }
        let short =
            || Status::internal("grpc: the response to the transaction has too few results");
        let response = match self.flat {
            None => with_header(responses.next().ok_or_else(short)?, header),
            Some(count) => {
                let own = responses.by_ref().take(count);
                let responses = own.map(|it| ResponseOp { response: Some(it) }).collect();
                let header = Some(header);
                Response::ResponseTxn(TxnResponse { header, succeeded: true, responses })
            }
        };
        let records = responses.map(|response| match response {
            Response::ResponseRange(range) => Some(range.kvs.into_iter().next()),
            Response::ResponsePut(_)
            | Response::ResponseDeleteRange(_)
            | Response::ResponseTxn(_) => None,
        });
        let pairs = self.refreshed.iter().cloned().zip(records);
        let refreshed = pairs.filter_map(|(key, known)| Some((key, known?))).collect();
        Ok(Outcome::Done(Done { response, header, refreshed }))
    }
}

/// Adds the header that the response would have if the operation were a separate call.
fn with_header(mut response: Response, header: ResponseHeader) -> Response {
    let own = Some(header);
    match &mut response {
        Response::ResponseRange(it) => it.header = own,
        Response::ResponsePut(it) => it.header = own,
        Response::ResponseDeleteRange(it) => it.header = own,
        Response::ResponseTxn(it) => it.header = own,
    }
    response
}

/// Returns the spans of leasing keys to compare, without duplicates, and the creation revisions of the leasing keys
/// created by this proxy.
fn guards(names: &Names, spans: &Spans, owned: &Owned) -> Vec<(Span, Option<i64>)> {
    let mut guards: Vec<(Span, Option<i64>)> = Vec::new();
    let mut known = HashSet::new();
    let mut add = |span: Span, made: Option<i64>| {
        if known.insert(span.clone()) {
            guards.push((span, made));
        }
    };
    for span in spans.iter() {
        let made = owned.get(span.key()).filter(|_| span.is_single());
        add(names.of(span), made.copied());
        if let Some(touched) = names.touched(span) {
            add(touched, None);
        }
    }
    guards
}

/// Returns the smallest span that contains all spans.
fn hull<'a>(spans: impl Iterator<Item = &'a Span>) -> Vec<Span> {
    spans.cloned().reduce(|one, other| one.hull(&other)).into_iter().collect()
}

fn condition(
    span: &Span,
    result: CompareResult,
    target: CompareTarget,
    union: TargetUnion,
) -> Compare {
    Compare {
        result: result as i32,
        target: target as i32,
        key: span.key().clone(),
        target_union: Some(union),
        range_end: span.range_end(),
    }
}

/// Returns the condition that no key in the span has a lease.
pub(super) fn without_owner(span: &Span) -> Compare {
    condition(span, CompareResult::Equal, CompareTarget::Lease, TargetUnion::Lease(0))
}

/// Returns the condition that the key was created at this revision; zero stands for a key that does not exist.
pub(super) fn made_at(key: &Bytes, revision: i64) -> Compare {
    let union = TargetUnion::CreateRevision(revision);
    condition(&Span::of(key.clone()), CompareResult::Equal, CompareTarget::Create, union)
}

pub(super) fn get(span: &Span, limit: i64) -> RequestOp {
    let request = RangeRequest {
        key: span.key().clone(),
        range_end: span.range_end(),
        limit,
        ..RangeRequest::default()
    };
    RequestOp { request: Some(Request::RequestRange(request)) }
}

pub(super) fn leasing_key(record: &KeyValue) -> LeasingKey {
    let fields = record.fields();
    LeasingKey {
        name: Bytes::copy_from_slice(fields.key),
        created: fields.create_revision,
        lease: fields.lease,
        is_revoked: fields.value == REVOKE,
    }
}

/// Builds the transaction that acquires a key and reads it, if the key has neither a leasing key nor a lease. Otherwise
/// the transaction reads the key and its leasing key.
pub(super) fn acquire(names: &Names, key: &Bytes, lease: i64) -> TxnRequest {
    let (span, name) = (Span::of(key.clone()), names.leasing_key(key));
    let put = PutRequest { key: name.clone(), lease, ..PutRequest::default() };
    let put = RequestOp { request: Some(Request::RequestPut(put)) };
    TxnRequest {
        compare: vec![made_at(&name, 0), without_owner(&span)],
        success: vec![get(&span, 0), put],
        failure: vec![get(&span, 0), get(&Span::of(name), 0)],
    }
}

/// Builds the transaction that asks the owners to release these keys.
pub(super) fn revoke(keys: &[LeasingKey]) -> TxnRequest {
    each(keys.iter().map(|key| {
        let put = PutRequest {
            key: key.name.clone(),
            value: Bytes::from_static(REVOKE),
            ignore_lease: true,
            ..PutRequest::default()
        };
        (made_at(&key.name, key.created), Request::RequestPut(put))
    }))
}

/// Builds the transaction that deletes these leasing keys, each only if it has the given creation revision.
pub(super) fn give_up(keys: &[(Bytes, i64)]) -> TxnRequest {
    each(keys.iter().map(|(name, created)| {
        let delete = DeleteRangeRequest { key: name.clone(), ..DeleteRangeRequest::default() };
        (made_at(name, *created), Request::RequestDeleteRange(delete))
    }))
}

/// Returns how many leasing keys, starting with the first, fit into one transaction.
pub(super) fn batch_len<'a>(names: impl Iterator<Item = &'a Bytes>) -> usize {
    let mut bytes = 0;
    let fits = |(index, name): &(usize, &Bytes)| {
        bytes += name.len();
        *index == 0 || bytes <= CHANGED_BYTES_MAX
    };
    names.take(CHANGED_MAX).enumerate().take_while(fits).count()
}

/// Divides leasing keys into batches, each small enough for one transaction.
pub(super) fn batches(mut keys: &[LeasingKey]) -> impl Iterator<Item = &[LeasingKey]> {
    std::iter::from_fn(move || {
        let (batch, rest) = keys.split_at(batch_len(keys.iter().map(|key| &key.name)));
        keys = rest;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Builds a transaction of independent operations, each with its own condition.
fn each(operations: impl Iterator<Item = (Compare, Request)>) -> TxnRequest {
    let one = |(compare, request)| {
        let success = vec![RequestOp { request: Some(request) }];
        let txn = TxnRequest { compare: vec![compare], success, failure: Vec::new() };
        RequestOp { request: Some(Request::RequestTxn(txn)) }
    };
    TxnRequest { success: operations.map(one).collect(), ..TxnRequest::default() }
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::{PutResponse, RangeResponse};
    use quorate_api::record::Fields;

    use super::*;
    use crate::span::written;

    fn bytes(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn put(key: &'static str) -> RequestOp {
        let put = PutRequest { key: bytes(key), ..PutRequest::default() };
        RequestOp { request: Some(Request::RequestPut(put)) }
    }

    fn delete(key: &'static str, end: &'static str) -> RequestOp {
        let (key, range_end) = (bytes(key), bytes(end));
        let delete = DeleteRangeRequest { key, range_end, ..DeleteRangeRequest::default() };
        RequestOp { request: Some(Request::RequestDeleteRange(delete)) }
    }

    fn guarded(request: Request, owned: &Owned, has_few: bool) -> (TxnRequest, Guarded) {
        let spans = written(&request);
        Guarded::new(&Names::new("own/"), request, &spans, owned, has_few)
    }

    fn shown(compare: &Compare) -> String {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let (key, end) = (text(&compare.key), text(&compare.range_end));
        match &compare.target_union {
            Some(TargetUnion::Lease(0)) => format!("{key}..{end} free"),
            Some(TargetUnion::CreateRevision(revision)) => format!("{key}..{end} of {revision}"),
            other => format!("{key}..{end} {other:?}"),
        }
    }

    #[test]
    fn a_guard_has_a_condition_for_every_key_that_may_be_written() {
        let inner = TxnRequest { success: vec![put("b")], ..TxnRequest::default() };
        let txn = TxnRequest {
            compare: vec![made_at(&bytes("x"), 1)],
            success: vec![put("a"), RequestOp { request: Some(Request::RequestTxn(inner)) }],
            failure: vec![
                put("a"),
                delete("c", "e"),
                delete("z", "\0"),
                get(&Span::of(bytes("r")), 0),
            ],
        };
        let owned = Owned::from([(bytes("b"), 7)]);
        let request = Request::RequestTxn(txn);
        let (asked, _) = guarded(request.clone(), &owned, false);
        let conditions: Vec<String> = asked.compare.iter().map(shown).collect();
        let wanted = ["own/a.. free", "own/b.. of 7", "own/c..own/e free", "own/z..own0 free"];
        assert_eq!(conditions, wanted);
        // On success, the client's unchanged transaction is followed by a read of the owned key.
        assert_eq!(asked.success.len(), 2);
        assert_eq!(asked.failure.len(), 4);
        let (asked, _) = guarded(request, &owned, true);
        let conditions: Vec<String> = asked.compare.iter().map(shown).collect();
        assert_eq!(conditions, ["own/a..own0 free"]);
        assert_eq!((asked.success.len(), asked.failure.len()), (1, 1));
    }

    #[test]
    fn a_range_deletion_that_includes_leasing_keys_requires_that_no_key_has_an_owner() {
        let Some(request) = delete("o", "p").request else { panic!() };
        let (asked, _) = guarded(request, &Owned::new(), false);
        let conditions: Vec<String> = asked.compare.iter().map(shown).collect();
        assert_eq!(conditions, ["own/o..own/p free", "own/..own0 free"]);
    }

    #[test]
    fn the_number_and_size_of_leasing_keys_per_transaction_are_bounded() {
        let key = |bytes: usize| {
            let name = vec![b'n'; bytes].into();
            LeasingKey { name, created: 3, lease: 4, is_revoked: false }
        };
        let of = |bytes: usize, count: usize| -> Vec<usize> {
            batches(&vec![key(bytes); count]).map(<[LeasingKey]>::len).collect()
        };
        assert_eq!(of(10, 70), [CHANGED_MAX, CHANGED_MAX, 6]);
        assert_eq!(of(CHANGED_BYTES_MAX / 4, 10), [4, 4, 2]);
        assert_eq!(of(CHANGED_BYTES_MAX + 1, 2), [1, 1]);
        assert!(of(10, 0).is_empty());
    }

    #[test]
    fn unconditional_transactions_are_flattened() {
        let puts: Vec<RequestOp> =
            ["a", "b"].into_iter().cycle().take(OPERATIONS_MAX).map(put).collect();
        let txn = TxnRequest { success: puts, ..TxnRequest::default() };
        let owned = Owned::from([(bytes("a"), 7)]);
        let (asked, reading) = guarded(Request::RequestTxn(txn), &owned, false);
        assert_eq!(asked.success.len(), OPERATIONS_MAX);
        let put = || ResponseOp { response: Some(Response::ResponsePut(PutResponse::default())) };
        let answer = TxnResponse {
            succeeded: true,
            responses: (0..OPERATIONS_MAX).map(|_| put()).collect(),
            ..TxnResponse::default()
        };
        let Outcome::Done(Done { response: Response::ResponseTxn(txn), refreshed, .. }) =
            reading.outcome(answer).unwrap()
        else {
            panic!("the write has an unexpected outcome");
        };
        assert_eq!(txn.responses.len(), OPERATIONS_MAX);
        assert!(txn.succeeded && refreshed.is_empty());
    }

    #[test]
    fn a_guarded_call_returns_the_response_of_the_original_call() {
        let Some(request) = put("a").request else { panic!() };
        let owned = Owned::from([(bytes("a"), 7)]);
        let (_, reading) = guarded(request, &owned, false);
        let record = KeyValue::new(&Fields { key: b"a", mod_revision: 9, ..Fields::default() });
        let header = ResponseHeader { revision: 9, ..ResponseHeader::default() };
        let range = RangeResponse { kvs: vec![record.clone()], ..RangeResponse::default() };
        let responses =
            [Response::ResponsePut(PutResponse::default()), Response::ResponseRange(range)];
        let responses = responses.map(|it| ResponseOp { response: Some(it) }).to_vec();
        let answer = TxnResponse { header: Some(header), succeeded: true, responses };
        let Outcome::Done(Done { response: Response::ResponsePut(put), refreshed, .. }) =
            reading.outcome(answer).unwrap()
        else {
            panic!("the write has an unexpected outcome");
        };
        assert_eq!(put.header, Some(header));
        assert_eq!(refreshed, [(bytes("a"), Some(record))]);
        // If another proxy owns the key, the response lists the existing leasing keys without duplicates.
        let fields = Fields {
            key: b"own/a",
            create_revision: 3,
            lease: 4,
            value: REVOKE,
            ..Fields::default()
        };
        let range =
            RangeResponse { kvs: vec![KeyValue::new(&fields); 2], ..RangeResponse::default() };
        let responses = vec![ResponseOp { response: Some(Response::ResponseRange(range)) }];
        let answer = TxnResponse { responses, ..TxnResponse::default() };
        let Outcome::Owned(found) = reading.outcome(answer).unwrap() else { panic!() };
        let name = bytes("own/a");
        assert_eq!(found, [LeasingKey { name, created: 3, lease: 4, is_revoked: true }]);
    }
}
