//! Namespaces: add a prefix to the keys in requests and remove it from the keys in responses.
//!
//! # Guarantees
//!
//! * No KV or Watch request can access a key without the prefix. A range without an upper bound is limited to keys with
//!   the prefix, and a KV request with an empty key is refused before the prefix would make the key valid.
//!
//! # Not here
//!
//! Locks and elections. Members derive the keys from the names of locks and elections, so clients of all namespaces
//! share these keys, as with etcd's proxy.

use bytes::Bytes;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_api::etcdserverpb::response_op::Response;
use quorate_api::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
    RequestOp, ResponseOp, TxnRequest, TxnResponse, WatchCreateRequest,
};
use quorate_api::mvccpb::Event;
use quorate_api::record::{Fields, KeyValue};
use tonic::Status;

use crate::span::{OPEN_END, after};

/// The namespace of this proxy, as the prefix of its keys.
#[derive(Clone, Debug)]
pub(crate) struct Namespace(Vec<u8>);

impl Namespace {
    /// Returns the namespace with this prefix, or `None` if the prefix is empty.
    pub(crate) fn new(prefix: &str) -> Option<Self> {
        (!prefix.is_empty()).then(|| Self(prefix.as_bytes().to_vec()))
    }

    fn key(&self, key: &[u8]) -> Bytes {
        [&self.0, key].concat().into()
    }

    fn given_key(&self, key: &[u8]) -> Result<Bytes, Status> {
        match key {
            [] => Err(Status::invalid_argument("etcdserver: key is not provided")),
            key => Ok(self.key(key)),
        }
    }

    fn end(&self, end: &[u8]) -> Bytes {
        match end {
            [] => Bytes::new(),
            OPEN_END => after(&self.0),
            end => self.key(end),
        }
    }

    pub(crate) fn range(&self, request: &mut RangeRequest) -> Result<(), Status> {
        request.key = self.given_key(&request.key)?;
        request.range_end = self.end(&request.range_end);
        Ok(())
    }

    pub(crate) fn put(&self, request: &mut PutRequest) -> Result<(), Status> {
        request.key = self.given_key(&request.key)?;
        Ok(())
    }

    fn delete(&self, request: &mut DeleteRangeRequest) -> Result<(), Status> {
        request.key = self.given_key(&request.key)?;
        request.range_end = self.end(&request.range_end);
        Ok(())
    }

    pub(crate) fn txn(&self, request: &mut TxnRequest) -> Result<(), Status> {
        for compare in &mut request.compare {
            compare.key = self.given_key(&compare.key)?;
            compare.range_end = self.end(&compare.range_end);
        }
        let operations = request.success.iter_mut().chain(&mut request.failure);
        for RequestOp { request } in operations {
            if let Some(request) = request {
                self.request(request)?;
            }
        }
        Ok(())
    }

    pub(crate) fn request(&self, request: &mut Request) -> Result<(), Status> {
        match request {
            Request::RequestRange(range) => self.range(range),
            Request::RequestPut(put) => self.put(put),
            Request::RequestDeleteRange(delete) => self.delete(delete),
            Request::RequestTxn(txn) => self.txn(txn),
        }
    }

    /// Adds the prefix to a watch request. An empty key stands for the first possible key.
    pub(crate) fn watch(&self, request: &mut WatchCreateRequest) {
        let key: &[u8] = if request.key.is_empty() { OPEN_END } else { &request.key };
        request.key = self.key(key);
        request.range_end = self.end(&request.range_end);
    }

    /// Removes the prefix from a key. Returns `None` if the key is outside the namespace.
    pub(crate) fn strip(&self, key: &Bytes) -> Option<Bytes> {
        key.starts_with(&self.0).then(|| key.slice(self.0.len()..))
    }

    fn strip_record(&self, record: &mut KeyValue) {
        let fields = record.fields();
        // Requests ask only for keys with the prefix. A record without the prefix is unexpected, and its key is left
        // unchanged.
        if let Some(key) = fields.key.strip_prefix(&*self.0) {
            *record = KeyValue::new(&Fields { key, ..fields });
        }
    }

    pub(crate) fn strip_range(&self, response: &mut RangeResponse) {
        response.kvs.iter_mut().for_each(|record| self.strip_record(record));
    }

    pub(crate) fn strip_put(&self, response: &mut PutResponse) {
        response.prev_kv.iter_mut().for_each(|record| self.strip_record(record));
    }

    pub(crate) fn strip_delete(&self, response: &mut DeleteRangeResponse) {
        response.prev_kvs.iter_mut().for_each(|record| self.strip_record(record));
    }

    pub(crate) fn strip_txn(&self, response: &mut TxnResponse) {
        for ResponseOp { response } in &mut response.responses {
            match response {
                Some(Response::ResponseRange(range)) => self.strip_range(range),
                Some(Response::ResponsePut(put)) => self.strip_put(put),
                Some(Response::ResponseDeleteRange(delete)) => self.strip_delete(delete),
                Some(Response::ResponseTxn(txn)) => self.strip_txn(txn),
                None => {}
            }
        }
    }

    pub(crate) fn strip_event(&self, event: &mut Event) {
        let records = event.kv.iter_mut().chain(&mut event.prev_kv);
        records.for_each(|record| self.strip_record(record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(prefix: &str, key: &[u8], end: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let namespace = Namespace::new(prefix).unwrap();
        let mut request = RangeRequest {
            key: Bytes::copy_from_slice(key),
            range_end: Bytes::copy_from_slice(end),
            ..RangeRequest::default()
        };
        namespace.range(&mut request).unwrap();
        (request.key.to_vec(), request.range_end.to_vec())
    }

    fn pair(key: &[u8], end: &[u8]) -> (Vec<u8>, Vec<u8>) {
        (key.to_vec(), end.to_vec())
    }

    #[test]
    fn ranges_are_translated_into_the_namespace() {
        assert_eq!(range("n/", b"a", b""), pair(b"n/a", b""));
        assert_eq!(range("n/", b"a", b"b"), pair(b"n/a", b"n/b"));
        assert_eq!(range("n/", b"\0", b"\0"), pair(b"n/\0", b"n0"));
        assert!(Namespace::new("").is_none());
    }

    #[test]
    fn requests_without_a_key_are_refused_at_any_nesting_level() {
        let namespace = Namespace::new("n/").unwrap();
        let put = RequestOp { request: Some(Request::RequestPut(PutRequest::default())) };
        let inner = TxnRequest { success: vec![put], ..TxnRequest::default() };
        let outer = RequestOp { request: Some(Request::RequestTxn(inner)) };
        let mut txn = TxnRequest { failure: vec![outer], ..TxnRequest::default() };
        let error = namespace.txn(&mut txn).unwrap_err();
        assert_eq!(error.message(), "etcdserver: key is not provided");
        let mut watch = WatchCreateRequest::default();
        namespace.watch(&mut watch);
        assert_eq!(watch.key, &b"n/\0"[..]);
    }

    #[test]
    fn only_the_prefix_is_removed_from_responses() {
        let namespace = Namespace::new("n/").unwrap();
        let fields =
            Fields { key: b"n/a", value: b"v", mod_revision: 7, lease: 3, ..Fields::default() };
        let record = KeyValue::new(&fields);
        let mut range = RangeResponse { kvs: vec![record.clone()], ..RangeResponse::default() };
        namespace.strip_range(&mut range);
        assert_eq!(range.kvs[0].fields(), Fields { key: b"a", ..fields });
        let mut event =
            Event { kv: Some(record.clone()), prev_kv: Some(record), ..Event::default() };
        namespace.strip_event(&mut event);
        assert_eq!(event.prev_kv.unwrap().key(), b"a");
        assert_eq!(namespace.strip(&Bytes::from_static(b"other")), None);
        assert_eq!(namespace.strip(&Bytes::from_static(b"n/k")).unwrap(), &b"k"[..]);
    }
}
