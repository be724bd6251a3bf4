//! Fuzz targets: the hand-written decoders, compared with the generated ones.

use bytes::Bytes;
use prost::{Message, Name};

use crate::deep_txn::{self, STACK_BYTES};
use crate::etcdserverpb::{
    InternalRaftRequest, PutRequest, RangeRequest, TxnRequest, WatchRequest,
};
use crate::record::{Fields, KeyValue};
use crate::shape;

/// Data of at most this length (in bytes) cannot be nested too deeply for any stack, so it is decoded without a
/// separate thread, which would slow down the fuzzer.
const SHALLOW_BYTES_MAX: usize = 400;

/// Decodes arbitrary bytes as a request. If the generated decoder succeeds, both results must be equal. Otherwise the
/// result must be a valid message.
pub fn shape(data: &[u8]) {
    fn check<M: Message + Name + Default + PartialEq>(data: &Bytes) {
        let usual = M::decode(data.clone());
        match (shape::decode::<M>(data.clone()), usual) {
            (Ok(decoded), Ok(usual)) => assert!(decoded == usual),
            (Ok(decoded), Err(_)) => {
                let again = M::decode(Bytes::from(decoded.encode_to_vec()));
                assert!(
                    again.is_ok_and(|again| again == decoded),
                    "a re-encoded message is decoded unchanged"
                );
            }
            (Err(error), usual) => {
                assert!(usual.is_err(), "only our decoder refuses the message: {error}");
            }
        }
    }
    let data = Bytes::copy_from_slice(data);
    check::<PutRequest>(&data);
    check::<RangeRequest>(&data);
    check::<TxnRequest>(&data);
    check::<WatchRequest>(&data);
}

/// Decodes arbitrary bytes as a record in several ways, which must agree. A record has only one encoding.
pub fn record(data: &[u8]) {
    let stored = KeyValue::from_encoded(Bytes::copy_from_slice(data));
    _ = stored.fields();
    let Some(fields) = Fields::decode(data) else { return };
    let written = KeyValue::new(&fields);
    assert_eq!(written.encoded().len(), fields.encoded_len());
    assert_eq!(Fields::decode(written.encoded()), Some(fields));
    let received = KeyValue::decode(Bytes::copy_from_slice(data))
        .expect("a valid record is a valid KeyValue message");
    assert_eq!(Fields::decode(received.encoded()), Some(fields));
}

/// Decodes arbitrary bytes as a transaction of any depth. The result must equal the result of the generated decoder,
/// unless the generated decoder fails only because of the depth.
pub fn deep_txn(data: &[u8]) {
    let data = Bytes::copy_from_slice(data);
    if data.len() <= SHALLOW_BYTES_MAX {
        return judge_txn(&data);
    }
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let judged = thread.spawn(move || judge_txn(&data)).expect("a thread can be started");
    if let Err(panic) = judged.join() {
        std::panic::resume_unwind(panic);
    }
}

fn judge_txn(data: &Bytes) {
    let deep = deep_txn::decode(data);
    match TxnRequest::decode(data.clone()) {
        Ok(usual) => assert_eq!(deep, Some(usual)),
        Err(error) => {
            let is_deep = error.to_string().contains("recursion limit");
            assert!(deep.is_none() || is_deep, "only our decoder accepts the transaction: {error}");
        }
    }
    let entry = deep_txn::decode_entry(data);
    if let (Some(entry), Ok(usual)) = (entry, InternalRaftRequest::decode(data.clone())) {
        assert_eq!(entry, usual);
    }
}

#[cfg(test)]
mod tests {
    use quorate_test_support::mutate::bounded;

    use super::*;
    use crate::etcdserverpb::{
        Compare, DeleteRangeRequest, RequestHeader, RequestOp, WatchCreateRequest,
        compare::TargetUnion, request_op::Request, watch_request::RequestUnion,
    };

    fn operation(request: Request) -> RequestOp {
        RequestOp { request: Some(request) }
    }

    fn put() -> PutRequest {
        PutRequest {
            key: "key".into(),
            value: "value".into(),
            lease: 7,
            prev_kv: true,
            ..Default::default()
        }
    }

    /// Returns every operation, nested in this many transactions.
    fn txn(depth: usize) -> TxnRequest {
        let range =
            RangeRequest { key: "a".into(), range_end: "b".into(), limit: 3, ..Default::default() };
        let delete = DeleteRangeRequest { key: "a".into(), ..Default::default() };
        let target_union = Some(TargetUnion::Version(5));
        let compare = Compare { key: "k".into(), result: 1, target_union, ..Default::default() };
        let mut success = vec![operation(Request::RequestPut(put()))];
        if depth > 0 {
            success.push(operation(Request::RequestTxn(txn(depth - 1))));
        }
        let range = operation(Request::RequestRange(range));
        let failure = vec![range, operation(Request::RequestDeleteRange(delete))];
        TxnRequest { compare: vec![compare], success, failure }
    }

    fn watch() -> WatchRequest {
        let create = WatchCreateRequest {
            key: "k".into(),
            start_revision: 300,
            filters: vec![0, 1],
            ..Default::default()
        };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    }

    #[test]
    fn any_request_is_decoded_or_refused_without_panic() {
        let samples = [
            ("put", put().encode_to_vec()),
            ("mistyped", [&b"\x08\x01"[..], &put().encode_to_vec()].concat()),
            ("txn", txn(2).encode_to_vec()),
            ("watch", watch().encode_to_vec()),
        ];
        bounded("api_shape", &samples, 20_000, shape);
    }

    #[test]
    fn any_record_is_decoded_or_refused_without_panic() {
        let fields = Fields {
            key: b"key",
            create_revision: 2,
            mod_revision: 300,
            version: 3,
            value: b"value",
            lease: -1,
        };
        let samples = [("record", KeyValue::new(&fields).encoded().to_vec())];
        bounded("api_record", &samples, 20_000, record);
    }

    #[test]
    fn any_transaction_equals_the_one_decoded_by_prost() {
        let header = Some(RequestHeader { id: 9, ..RequestHeader::default() });
        let entry = InternalRaftRequest { id: 3, header, txn: Some(txn(1)), ..Default::default() };
        let samples = [
            ("txn", txn(1).encode_to_vec()),
            ("deep", txn(60).encode_to_vec()),
            ("entry", entry.encode_to_vec()),
        ];
        bounded("api_deep_txn", &samples, 2000, deep_txn);
    }
}
