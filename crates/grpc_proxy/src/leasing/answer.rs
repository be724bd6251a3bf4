//! Builds responses from the records of owned keys. The responses are identical to a member's responses.
//!
//! Requests that cannot be answered from the records of individual keys (ranges of keys, past revisions, nested
//! transactions) and malformed requests are forwarded to members, which also return the correct error text.

use std::cmp::Ordering;

use bytes::Bytes;
use quorate_api::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use quorate_api::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    Compare, RangeRequest, RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
    TxnResponse,
};
use quorate_api::record::{Fields, KeyValue};

/// The known state of a key: its record, or `None` if the key does not exist.
pub(super) type Known = Option<KeyValue>;

/// Returns whether the record of a single key is sufficient to answer the request.
pub(super) fn is_of_one_record(request: &RangeRequest) -> bool {
    !request.key.is_empty()
        && request.range_end.is_empty()
        && request.revision <= 0
        && SortOrder::try_from(request.sort_order).is_ok()
        && SortTarget::try_from(request.sort_target).is_ok()
}

/// Returns the response that a member with this record would return.
pub(super) fn range(
    request: &RangeRequest,
    record: Option<&KeyValue>,
    header: ResponseHeader,
) -> RangeResponse {
    let kvs = record.filter(|_| !request.count_only).and_then(|record| shown(request, record));
    RangeResponse {
        header: Some(header),
        kvs: kvs.into_iter().collect(),
        more: false,
        count: i64::from(record.is_some()),
    }
}

/// Returns the parts of the record selected by the request.
fn shown(request: &RangeRequest, record: &KeyValue) -> Option<KeyValue> {
    let fields = record.fields();
    let is_within =
        |revision: i64, min: i64, max: i64| revision >= min && (max == 0 || revision <= max);
    let is_wanted =
        is_within(fields.mod_revision, request.min_mod_revision, request.max_mod_revision)
            && is_within(
                fields.create_revision,
                request.min_create_revision,
                request.max_create_revision,
            );
    is_wanted.then(|| {
        if request.keys_only {
            KeyValue::new(&Fields { value: b"", ..fields })
        } else {
            record.clone()
        }
    })
}

/// Returns whether a transaction only reads individual keys at the current revision.
pub(super) fn only_reads_records(request: &TxnRequest) -> bool {
    let is_plain = |RequestOp { request }: &RequestOp| matches!(request, Some(Request::RequestRange(range)) if is_of_one_record(range));
    let has_operations = !request.compare.is_empty() || !request.success.is_empty();
    has_operations
        && request.compare.iter().all(|it| !it.key.is_empty() && it.range_end.is_empty())
        && request.success.iter().chain(&request.failure).all(is_plain)
}

/// Returns the response to a read-only transaction, if all records on which it depends are known.
pub(super) fn txn(
    request: &TxnRequest,
    header: &ResponseHeader,
    mut known: impl FnMut(&Bytes) -> Option<Known>,
) -> Option<TxnResponse> {
    let mut succeeded = true;
    for compare in &request.compare {
        let record = known(&compare.key)?;
        succeeded = holds(compare, record.as_ref())?;
        if !succeeded {
            break;
        }
    }
    let chosen = if succeeded { &request.success } else { &request.failure };
    let inner = || ResponseHeader { revision: header.revision, ..ResponseHeader::default() };
    let answer = |RequestOp { request }: &RequestOp| {
        let Some(Request::RequestRange(wanted)) = request else { return None };
        let record = known(&wanted.key)?;
        let found = range(wanted, record.as_ref(), inner());
        Some(ResponseOp { response: Some(Response::ResponseRange(found)) })
    };
    let responses = chosen.iter().map(answer).collect::<Option<Vec<_>>>()?;
    Some(TxnResponse { header: Some(*header), succeeded, responses })
}

/// Raises the revision in the headers of a response to at least `revision`.
pub(super) fn raise(answer: &mut TxnResponse, revision: i64) {
    let inner = answer.responses.iter_mut().filter_map(|it| match &mut it.response {
        Some(Response::ResponseRange(range)) => range.header.as_mut(),
        _ => None,
    });
    for header in inner.chain(answer.header.as_mut()) {
        header.revision = header.revision.max(revision);
    }
}

/// Returns whether a record meets a condition, or `None` if the condition is malformed.
pub(super) fn holds(compare: &Compare, record: Option<&KeyValue>) -> Option<bool> {
    let target = CompareTarget::try_from(compare.target).ok()?;
    // A missing key has no value, but its version, revisions and lease compare as zero.
    let fields = record.map(KeyValue::fields).unwrap_or_default();
    let ordering: Ordering = match (target, compare.target_union.as_ref()?) {
        (CompareTarget::Version, TargetUnion::Version(wanted)) => fields.version.cmp(wanted),
        (CompareTarget::Create, TargetUnion::CreateRevision(wanted)) => {
            fields.create_revision.cmp(wanted)
        }
        (CompareTarget::Mod, TargetUnion::ModRevision(wanted)) => fields.mod_revision.cmp(wanted),
        (CompareTarget::Lease, TargetUnion::Lease(wanted)) => fields.lease.cmp(wanted),
        (CompareTarget::Value, TargetUnion::Value(_)) if record.is_none() => return Some(false),
        (CompareTarget::Value, TargetUnion::Value(wanted)) => fields.value.cmp(wanted),
        (
            CompareTarget::Version
            | CompareTarget::Create
            | CompareTarget::Mod
            | CompareTarget::Lease
            | CompareTarget::Value,
            _,
        ) => return None,
    };
    Some(match CompareResult::try_from(compare.result).ok()? {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::NotEqual => ordering.is_ne(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> KeyValue {
        let key = b"a";
        KeyValue::new(&Fields {
            key,
            create_revision: 5,
            mod_revision: 7,
            version: 2,
            value: b"v",
            lease: 0,
        })
    }

    fn of(key: &'static str) -> RangeRequest {
        RangeRequest { key: Bytes::from_static(key.as_bytes()), ..RangeRequest::default() }
    }

    fn header() -> ResponseHeader {
        ResponseHeader { revision: 9, ..ResponseHeader::default() }
    }

    #[test]
    fn range_options_have_the_same_effect_as_on_a_member() {
        let record = record();
        let ask = |request: RangeRequest| {
            assert!(is_of_one_record(&request));
            let answer = range(&request, Some(&record), header());
            (answer.kvs.first().map(|it| it.value().to_vec()), answer.count)
        };
        let whole = Some(b"v".to_vec());
        assert_eq!(ask(of("a")), (whole.clone(), 1));
        assert_eq!(ask(RangeRequest { keys_only: true, ..of("a") }), (Some(vec![]), 1));
        assert_eq!(ask(RangeRequest { count_only: true, ..of("a") }), (None, 1));
        assert_eq!(ask(RangeRequest { limit: 1, serializable: true, ..of("a") }), (whole, 1));
        for (min, max, is_there) in [(0, 0, true), (7, 7, true), (8, 0, false), (0, 6, false)] {
            let request = RangeRequest { min_mod_revision: min, max_mod_revision: max, ..of("a") };
            assert_eq!(ask(request).0.is_some(), is_there, "{min} {max}");
        }
        for (min, max, is_there) in [(5, 5, true), (6, 0, false), (0, 4, false)] {
            let request =
                RangeRequest { min_create_revision: min, max_create_revision: max, ..of("a") };
            assert_eq!(ask(request).0.is_some(), is_there, "{min} {max}");
        }
        assert_eq!(range(&of("a"), None, header()).count, 0);
        let end = Bytes::from_static(b"b");
        for request in [
            of(""),
            RangeRequest { range_end: end, ..of("a") },
            RangeRequest { revision: 3, ..of("a") },
            RangeRequest { sort_order: 7, ..of("a") },
        ] {
            assert!(!is_of_one_record(&request), "{request:?}");
        }
    }

    fn when(target: CompareTarget, result: CompareResult, union: TargetUnion) -> Compare {
        Compare {
            key: Bytes::from_static(b"a"),
            target: target as i32,
            result: result as i32,
            target_union: Some(union),
            range_end: Bytes::new(),
        }
    }

    #[test]
    fn conditions_are_evaluated_as_on_a_member() {
        use CompareResult::{Equal, Greater, Less, NotEqual};
        let value = |text: &'static str| TargetUnion::Value(Bytes::from_static(text.as_bytes()));
        let record = record();
        for (compare, is_there, is_not) in [
            (when(CompareTarget::Value, Equal, value("v")), true, false),
            (when(CompareTarget::Value, NotEqual, value("v")), false, false),
            (when(CompareTarget::Value, Less, value("w")), true, false),
            (when(CompareTarget::Create, Equal, TargetUnion::CreateRevision(5)), true, false),
            (when(CompareTarget::Create, Equal, TargetUnion::CreateRevision(0)), false, true),
            (when(CompareTarget::Mod, Greater, TargetUnion::ModRevision(6)), true, false),
            (when(CompareTarget::Version, Less, TargetUnion::Version(2)), false, true),
            (when(CompareTarget::Lease, Equal, TargetUnion::Lease(0)), true, true),
        ] {
            assert_eq!(holds(&compare, Some(&record)), Some(is_there), "{compare:?}");
            assert_eq!(holds(&compare, None), Some(is_not), "{compare:?}");
        }
        let crooked = when(CompareTarget::Version, Equal, TargetUnion::Lease(0));
        assert_eq!(holds(&crooked, None), None);
    }

    #[test]
    fn a_transaction_is_answered_if_the_keys_of_its_conditions_and_chosen_branch_are_owned() {
        let get = |key| RequestOp { request: Some(Request::RequestRange(of(key))) };
        let compare = when(CompareTarget::Version, CompareResult::Equal, TargetUnion::Version(2));
        let request = TxnRequest {
            compare: vec![compare],
            success: vec![get("a"), get("b")],
            failure: vec![get("c")],
        };
        assert!(only_reads_records(&request));
        let known = |key: &Bytes| match &**key {
            b"a" => Some(Some(record())),
            b"b" => Some(None),
            _ => None,
        };
        let answer = txn(&request, &header(), known).unwrap();
        assert!(answer.succeeded);
        assert_eq!(answer.responses.len(), 2);
        assert!(txn(&request, &header(), |_| Some(None)).is_some_and(|it| !it.succeeded));
        assert!(txn(&request, &header(), |_| None).is_none());
        assert!(!only_reads_records(&TxnRequest::default()));
    }
}
