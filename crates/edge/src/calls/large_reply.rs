//! Replies that are encoded while the client reads them.
//!
//! The gRPC library encodes a whole reply before it sends the first byte. A list of 100 MB would therefore occupy
//! another 100 MB until its client has read all of it, however slowly the client reads. Instead, a large reply is split
//! into its records, which are slices of the store's data, and the few bytes between them. The transport receives one
//! chunk at a time. The bytes on the wire are the same as with the gRPC library.
//!
//! A method wraps its reply in a [`Reply`] and takes a permit for it, because the amount of reply data that clients
//! have not read yet is limited (`admission`). The reply holds its permit until it is sent. Replies smaller than
//! [`COUNTED_BYTES_MIN`] use little more memory than their HTTP/2 stream and are not counted. [`Reply::into_response`]
//! returns an empty message with the parts attached; [`body_of`] then sends the parts instead of the message.
//!
//! A counted reply is dropped if its client reads too little of it within [`UNREAD_TIME_MAX`], or within
//! [`UNREAD_TIME_MAX_IF_SHORT`] while memory is short.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, message};
use quorate_api::etcdserverpb::response_op::Response as OpResponse;
use quorate_api::etcdserverpb::{
    DeleteRangeResponse, PutResponse, RangeResponse, ResponseOp, TxnResponse,
};
use quorate_api::record::KeyValue;
use tonic::{Response, Status};

use quorate_grpc::ending::Ending;
use quorate_grpc::framing::{HEAD_BYTES, message_head};
use quorate_net::listen::{Pace, ReadLimit, ReadPolicy};
use quorate_requests::RequestError;
use quorate_requests::admission::{Bound, OwnedPermit};
use quorate_requests::bound::Full;

/// Replies of at least this many bytes are counted and encoded in parts. Encoding in parts is also faster: allocating
/// and freeing one large buffer per reply costs a page fault for every 4 KiB.
pub(crate) const COUNTED_BYTES_MIN: usize = 4 * 1024;

/// Time within which a client must read at least [`READ_BYTES_MIN`] of a counted reply.
const UNREAD_TIME_MAX: Duration = Duration::from_secs(60);

/// Minimum number of bytes that a client must read within [`UNREAD_TIME_MAX`].
const READ_BYTES_MIN: u64 = 64 << 10;

/// Time within which a client must read at least [`READ_BYTES_MIN_IF_SHORT`] while the memory for replies or for lists is
/// nearly used up. It is shorter than the time for which a list waits for memory.
const UNREAD_TIME_MAX_IF_SHORT: Duration = Duration::from_secs(3);

/// Minimum number of bytes that a client must read within [`UNREAD_TIME_MAX_IF_SHORT`].
const READ_BYTES_MIN_IF_SHORT: u64 = 256 << 10;

/// Records of at least this many bytes are passed to the transport as separate chunks, without a copy.
const RECORD_APART_BYTES: usize = 8 * 1024;

/// Number of bytes at which a chunk is complete. Only the last chunk of a reply, and a chunk before a large record, may
/// be smaller.
const CHUNK_BYTES: usize = 64 * 1024;

/// Number of records prefetched ahead of the current record.
const FETCHED_AHEAD: usize = 8;

/// Number of cache lines prefetched per record. The hardware prefetches the rest.
const LINES_FETCHED_AHEAD: usize = 8;

const CACHE_LINE_BYTES: usize = 64;

/// A part of a message.
#[derive(Debug)]
enum Part {
    Encoded(Bytes),
    /// Records that are all encoded with this field number.
    Records(u32, std::vec::IntoIter<KeyValue>),
}

/// A message split into parts.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    parts: Vec<Part>,
}

impl Parts {
    fn push(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let mut encoded = BytesMut::new();
        encode(&mut encoded);
        if !encoded.is_empty() {
            self.parts.push(Part::Encoded(encoded.freeze()));
        }
    }

    fn push_message(&mut self, message: &impl Message) {
        self.push(|encoded| message.encode_raw(encoded));
    }

    /// Appends the key and length of a nested message.
    fn push_head(&mut self, field: u32, len: usize) {
        self.push(|encoded| {
            encode_key(field, WireType::LengthDelimited, encoded);
            encode_varint(len as u64, encoded);
        });
    }

    fn push_records(&mut self, field: u32, records: Vec<KeyValue>) {
        self.parts.push(Part::Records(field, records.into_iter()));
    }
}

/// A message that may be large.
pub(crate) trait Large: Message + Default + Sized {
    /// Appends the message's parts in field order.
    fn into_parts(self, parts: &mut Parts);
}

impl Large for RangeResponse {
    fn into_parts(self, parts: &mut Parts) {
        parts.push_message(&Self { header: self.header, ..Self::default() });
        parts.push_records(2, self.kvs);
        parts.push_message(&Self { more: self.more, count: self.count, ..Self::default() });
    }
}

impl Large for PutResponse {
    fn into_parts(self, parts: &mut Parts) {
        parts.push_message(&Self { header: self.header, prev_kv: None });
        parts.push_records(2, self.prev_kv.into_iter().collect());
    }
}

impl Large for DeleteRangeResponse {
    fn into_parts(self, parts: &mut Parts) {
        let prev_kvs = self.prev_kvs;
        parts.push_message(&Self { prev_kvs: Vec::new(), ..self });
        parts.push_records(3, prev_kvs);
    }
}

impl Large for TxnResponse {
    fn into_parts(self, parts: &mut Parts) {
        let Self { header, succeeded, responses } = self;
        parts.push_message(&Self { header, succeeded, responses: Vec::new() });
        for response in responses {
            parts.push_head(3, response.encoded_len());
            take_apart_operation(response, parts);
        }
    }
}

fn take_apart_operation(operation: ResponseOp, parts: &mut Parts) {
    fn nested(field: u32, message: impl Large, parts: &mut Parts) {
        parts.push_head(field, message.encoded_len());
        message.into_parts(parts);
    }
    match operation.response {
        Some(OpResponse::ResponseRange(range)) => nested(1, range, parts),
        Some(OpResponse::ResponseDeleteRange(delete)) => nested(3, delete, parts),
        Some(OpResponse::ResponseTxn(txn)) => nested(4, txn, parts),
        Some(put @ OpResponse::ResponsePut(_)) => {
            parts.push_message(&ResponseOp { response: Some(put) });
        }
        None => {}
    }
}

/// A large reply, which a method passes to the transport in the extensions of its response. Response extensions must be
/// clonable, so the reply is stored in a shared cell, from which the transport takes it.
#[derive(Clone)]
struct Deferred(Arc<Mutex<Option<LargeReply>>>);

/// A reply and the permits that it holds until it is sent.
#[derive(Debug)]
pub(crate) struct Reply<M> {
    message: M,
    len: usize,
    list: Option<OwnedPermit>,
    bytes: Option<OwnedPermit>,
}

impl<M: Large> Reply<M> {
    /// Creates a reply. `list` is the permit for the memory of the message's records, if reading them required one.
    pub(crate) fn new(message: M, list: Option<OwnedPermit>) -> Self {
        let len = message.encoded_len();
        Self { message, len, list, bytes: None }
    }

    pub(crate) const fn message(&self) -> &M {
        &self.message
    }

    pub(crate) const fn encoded_len(&self) -> usize {
        self.len
    }

    /// Takes a permit for the reply. If the limit is reached, returns the number of bytes required. The caller then
    /// drops the data, waits for a permit, and reads again.
    pub(crate) fn admit(mut self, replies: &Arc<Bound>) -> Result<Self, u64> {
        if self.len >= COUNTED_BYTES_MIN {
            let len = self.len as u64;
            self.bytes = Some(Bound::take_now(replies, len).ok_or(len)?);
        }
        Ok(self)
    }

    /// Attaches a permit for which the caller has waited.
    pub(crate) fn admit_to(mut self, mut permit: OwnedPermit) -> Self {
        permit.resize(self.len as u64);
        self.bytes = Some(permit);
        self
    }

    /// Counts a reply even if this exceeds the limit, because the request was already executed and cannot be repeated.
    pub(crate) fn admit_regardless(mut self, replies: &Arc<Bound>) -> Self {
        if self.len >= COUNTED_BYTES_MIN {
            self.bytes = Some(Bound::take_regardless(replies, self.len as u64));
        }
        self
    }

    /// Returns the message without its permits, for callers that convert it.
    pub(crate) fn into_message(self) -> M {
        self.message
    }

    /// Returns the response to a unary call. A small reply is encoded immediately. A large reply is encoded in parts
    /// while it is sent.
    pub(crate) fn into_response(self) -> Result<Response<M>, Status> {
        let Self { message, len, list, bytes } = self;
        if len < COUNTED_BYTES_MIN {
            return Ok(Response::new(message));
        }
        let head = message_head(len)?;
        let mut parts = Parts::default();
        parts.push(|encoded| encoded.extend_from_slice(&head));
        message.into_parts(&mut parts);
        let body = LargeReply {
            parts: parts.parts.into_iter(),
            current: None,
            apart: None,
            unsent: HEAD_BYTES + len,
            ending: Ending::With(Status::ok("")),
            permits: Arc::new(Permits { list, bytes }),
        };
        let mut response = Response::new(M::default());
        response.extensions_mut().insert(Deferred(Arc::new(Mutex::new(Some(body)))));
        Ok(response)
    }
}

/// Permits of messages that the library encodes. Each permit is held until the frames of its message are sent.
#[derive(Clone, Debug)]
pub(crate) struct StreamPermits {
    replies: Arc<Bound>,
    taken: Arc<Mutex<Vec<OwnedPermit>>>,
}

impl StreamPermits {
    /// Creates an empty list of permits for bytes of replies.
    pub(crate) fn new(replies: &Arc<Bound>) -> Self {
        Self { replies: Arc::clone(replies), taken: Arc::default() }
    }

    /// Takes a permit for the next message if the message is large. Fails if the limit is reached.
    pub(crate) fn count(&self, message: &impl Message) -> Result<(), Full> {
        let len = message.encoded_len();
        if len >= COUNTED_BYTES_MIN {
            // The library's buffer may be twice the size of its content.
            let permit = Bound::take_owned(&self.replies, 2 * len as u64)?;
            self.taken.lock().push(permit);
        }
        Ok(())
    }
}

/// The bound on bytes of replies. It determines how slowly a client may read.
struct Replies(Arc<Bound>);

impl ReadPolicy for Replies {
    fn required_pace(&self) -> Pace {
        required_pace(self.0.is_nearly_full())
    }
}

/// Returns the read limit of a reply that is counted against this bound.
pub(crate) fn read_limit(replies: &Arc<Bound>) -> ReadLimit {
    ReadLimit(Arc::new(Replies(Arc::clone(replies))))
}

/// Returns the pace at which the client of a counted reply must read.
const fn required_pace(is_memory_short: bool) -> Pace {
    if is_memory_short {
        Pace { bytes: READ_BYTES_MIN_IF_SHORT, time: UNREAD_TIME_MAX_IF_SHORT }
    } else {
        Pace { bytes: READ_BYTES_MIN, time: UNREAD_TIME_MAX }
    }
}

/// Returns a reply that the library encodes as a whole, or an error if the limit is reached.
pub(crate) fn counted<M: Message>(
    message: M,
    replies: &Arc<Bound>,
) -> Result<Response<M>, RequestError> {
    let permits = StreamPermits::new(replies);
    permits.count(&message)?;
    let mut response = Response::new(message);
    response.extensions_mut().insert(permits);
    Ok(response)
}

/// Returns the body of a response: the parts attached by the method, or the library's body. Adds the read limit of a
/// counted response to the extensions.
pub(crate) fn body_of(
    extensions: &mut http::Extensions,
    encoded: tonic::body::Body,
) -> tonic::body::Body {
    if let Some(deferred) = extensions.remove::<Deferred>() {
        let Some(reply) = deferred.0.lock().take() else { return encoded };
        extensions.insert(ReadLimit(Arc::clone(&reply.permits) as Arc<dyn ReadPolicy>));
        return tonic::body::Body::new(reply);
    }
    let Some(permits) = extensions.remove::<StreamPermits>() else { return encoded };
    extensions.insert(read_limit(&permits.replies));
    tonic::body::Body::new(Counted { inner: encoded, permits })
}

/// A body whose frames hold the permits of their messages.
struct Counted {
    inner: tonic::body::Body,
    permits: StreamPermits,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let permits = std::mem::take(&mut *self.permits.taken.lock());
        if permits.is_empty() {
            return Poll::Ready(frame);
        }
        let counted = |frame: Frame<Bytes>| frame.map_data(|bytes| hold(bytes, permits));
        Poll::Ready(frame.map(|frame| frame.map(counted)))
    }
}

/// A large reply as a response body.
#[derive(Debug)]
struct LargeReply {
    parts: std::vec::IntoIter<Part>,
    current: Option<Part>,
    /// A large record whose prefix is at the end of the last chunk. The record itself becomes the next chunk.
    apart: Option<Bytes>,
    unsent: usize,
    ending: Ending,
    permits: Arc<Permits>,
}

/// Permits that a reply holds until all of it is sent. Each frame holds the permits too, because the transport takes
/// frames before the client reads them.
#[derive(Debug)]
struct Permits {
    list: Option<OwnedPermit>,
    bytes: Option<OwnedPermit>,
}

impl ReadPolicy for Permits {
    fn required_pace(&self) -> Pace {
        let mut permits = self.list.iter().chain(&self.bytes);
        required_pace(permits.any(|permit| permit.bound().is_nearly_full()))
    }
}

/// Bytes being sent, with a value that is dropped once the bytes are sent.
struct Held<T> {
    bytes: Bytes,
    _held: T,
}

impl<T> AsRef<[u8]> for Held<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Attaches a value to bytes. The value is dropped once the bytes are sent.
pub(crate) fn hold<T: Send + 'static>(bytes: Bytes, held: T) -> Bytes {
    Bytes::from_owner(Held { bytes, _held: held })
}

impl LargeReply {
    fn next_chunk(&mut self) -> Bytes {
        let chunk = self.apart.take().unwrap_or_else(|| self.gather());
        self.unsent = self.unsent.saturating_sub(chunk.len());
        chunk
    }

    fn gather(&mut self) -> Bytes {
        // With its last record, a chunk may become longer than `CHUNK_BYTES`, so the buffer has space for one more
        // record.
        let capacity = (CHUNK_BYTES + RECORD_APART_BYTES).min(self.unsent);
        let mut chunk = BytesMut::with_capacity(capacity);
        while chunk.len() < CHUNK_BYTES && self.apart.is_none() {
            if self.current.is_none() {
                self.current = self.parts.next();
            }
            match &mut self.current {
                None => break,
                Some(Part::Encoded(bytes)) => {
                    chunk.extend_from_slice(bytes);
                    self.current = None;
                }
                Some(Part::Records(field, records)) => {
                    if let Some(soon) = records.as_slice().get(FETCHED_AHEAD) {
                        fetch_ahead(soon.encoded());
                    }
                    match records.next() {
                        Some(record) if record.encoded().len() >= RECORD_APART_BYTES => {
                            encode_key(*field, WireType::LengthDelimited, &mut chunk);
                            encode_varint(record.encoded().len() as u64, &mut chunk);
                            self.apart = Some(record.encoded().clone());
                        }
                        Some(record) => message::encode(*field, &record, &mut chunk),
                        None => self.current = None,
                    }
                }
            }
        }
        chunk.freeze()
    }
}

/// Prefetches the start of a record that will be copied soon. The records are spread over many megabytes, so without
/// prefetching, a copy would spend most of its time waiting for memory.
#[cfg(target_arch = "x86_64")]
#[expect(
    unsafe_code,
    reason = "measured: prefetching saves a quarter of the CPU time of a list of 10,000 keys"
)]
fn fetch_ahead(record: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in record.chunks(CACHE_LINE_BYTES).take(LINES_FETCHED_AHEAD) {
        // SAFETY: a prefetch is only a hint, without observable effects for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
const fn fetch_ahead(_: &[u8]) {}

impl Body for LargeReply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let chunk = self.next_chunk();
        if !chunk.is_empty() {
            let held = hold(chunk, Arc::clone(&self.permits));
            return Poll::Ready(Some(Ok(Frame::data(held))));
        }
        self.ending.poll_frame()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.unsent as u64)
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use http_body_util::BodyExt;
    use quorate_api::etcdserverpb::{LeaseLeasesResponse, LeaseStatus, ResponseHeader};
    use quorate_api::record::Fields;

    use proptest::prelude::*;

    use super::*;

    fn records(count: usize) -> Vec<KeyValue> {
        let record = |i: usize| {
            let (key, value) = (i.to_be_bytes(), vec![7; i % 3000]);
            KeyValue::new(&Fields { key: &key, value: &value, version: 1, ..Fields::default() })
        };
        (0..count).map(record).collect()
    }

    fn records_of(sizes: &[usize]) -> Vec<KeyValue> {
        let record = |size: &usize| {
            let value = vec![7; *size];
            KeyValue::new(&Fields { key: b"k", value: &value, version: 1, ..Fields::default() })
        };
        sizes.iter().map(record).collect()
    }

    fn range(count: usize) -> RangeResponse {
        let header = Some(ResponseHeader { revision: 5, ..ResponseHeader::default() });
        RangeResponse { header, kvs: records(count), more: true, count: 9 }
    }

    /// Sends a message and checks that the chunks on the wire, joined together, equal the message's normal encoding.
    async fn check<M: Large + Clone>(message: M) {
        let replies = Arc::new(Bound::new(u64::MAX));
        let reply = Reply::new(message.clone(), None).admit(&replies).unwrap();
        let mut response = reply.into_response().unwrap();
        if message.encoded_len() < COUNTED_BYTES_MIN {
            assert_eq!(replies.used(), 0);
            assert_eq!(response.get_ref().encode_to_vec(), message.encode_to_vec());
            return;
        }
        assert_eq!(replies.used(), message.encoded_len() as u64);
        assert_eq!(response.get_ref().encoded_len(), 0);
        let body = body_of(response.extensions_mut(), tonic::body::Body::empty());
        let mut body = std::pin::pin!(body);
        let (mut sent, mut trailers) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            match frame.unwrap().into_data() {
                Ok(chunk) => {
                    // Only a chunk that consists of a single record may be longer than this.
                    assert!(
                        chunk.len() < CHUNK_BYTES + RECORD_APART_BYTES
                            || Fields::decode(&chunk).is_some()
                    );
                    sent.extend_from_slice(&chunk);
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        assert_eq!(trailers.unwrap().get("grpc-status").unwrap(), "0");
        let mut expected = vec![0];
        expected.put_u32(u32::try_from(message.encoded_len()).unwrap());
        message.encode(&mut expected).unwrap();
        assert!(sent == expected);
    }

    #[tokio::test]
    async fn large_replies_are_sent_as_the_bytes_that_prost_would_produce() {
        check(range(2000)).await;
        let delete = DeleteRangeResponse { deleted: 3, prev_kvs: records(1500), header: None };
        check(delete.clone()).await;
        let put = PutResponse { prev_kv: records(9).pop(), header: None };
        let operation = |response| ResponseOp { response: Some(response) };
        let inner = TxnResponse {
            responses: vec![operation(OpResponse::ResponseRange(range(3)))],
            ..TxnResponse::default()
        };
        check(TxnResponse {
            header: range(0).header,
            succeeded: true,
            responses: vec![
                operation(OpResponse::ResponsePut(put)),
                operation(OpResponse::ResponseRange(range(2000))),
                ResponseOp::default(),
                operation(OpResponse::ResponseTxn(inner)),
                operation(OpResponse::ResponseDeleteRange(delete)),
            ],
        })
        .await;
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn replies_of_any_size_are_sent_as_the_bytes_that_prost_would_produce(
            sizes in proptest::collection::vec(prop_oneof![0..10usize, 0..3 * CHUNK_BYTES], 0..6),
        ) {
            let header = Some(ResponseHeader { revision: 5, ..ResponseHeader::default() });
            let kvs = records_of(&sizes);
            let range = RangeResponse { header, kvs: kvs.clone(), more: true, count: 9 };
            let delete = DeleteRangeResponse { header, deleted: 2, prev_kvs: kvs };
            let operations = [
                OpResponse::ResponseRange(range.clone()),
                OpResponse::ResponseDeleteRange(delete.clone()),
            ];
            let responses = operations.map(|op| ResponseOp { response: Some(op) }).to_vec();
            let txn = TxnResponse { header, succeeded: false, responses };
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
                check(range).await;
                check(delete).await;
                check(txn).await;
            });
        }
    }

    #[tokio::test]
    async fn large_records_are_not_copied() {
        let value = vec![7; 1 << 20];
        let record = KeyValue::new(&Fields { key: b"k", value: &value, ..Fields::default() });
        let address = record.encoded().as_ptr();
        let message = RangeResponse { kvs: vec![record], count: 1, ..RangeResponse::default() };
        check(message.clone()).await;
        let replies = Arc::new(Bound::new(1));
        let reply = Reply::new(message, None).admit(&replies).unwrap();
        let mut response = reply.into_response().unwrap();
        let body = body_of(response.extensions_mut(), tonic::body::Body::empty());
        let mut body = std::pin::pin!(body);
        let mut addresses = Vec::new();
        while let Some(frame) = body.frame().await {
            addresses.extend(frame.unwrap().data_ref().map(|chunk| chunk.as_ptr()));
        }
        assert!(addresses.contains(&address));
    }

    #[test]
    fn small_replies_are_encoded_by_tonic() {
        let replies = Arc::new(Bound::new(0));
        let mut response =
            Reply::new(range(10), None).admit(&replies).unwrap().into_response().unwrap();
        assert_eq!(response.get_ref(), &range(10));
        let body = body_of(response.extensions_mut(), tonic::body::Body::empty());
        assert!(body.is_end_stream(), "tonic encodes a small reply");
    }

    #[tokio::test]
    async fn a_reply_holds_its_permit_until_it_is_sent() {
        let replies = Arc::new(Bound::new(1));
        let first = Reply::new(range(100), None).admit(&replies).unwrap();
        let len = range(100).encoded_len() as u64;
        assert_eq!(replies.used(), len);
        assert_eq!(Reply::new(range(100), None).admit(&replies).unwrap_err(), len);
        let mut response = first.into_response().unwrap();
        assert_eq!(replies.used(), len, "the reply is being sent");
        let body = body_of(response.extensions_mut(), tonic::body::Body::empty());
        let mut body = Box::pin(body);
        let mut frames = Vec::new();
        while let Some(frame) = body.frame().await {
            frames.extend(frame.unwrap().into_data());
        }
        drop((body, response));
        assert_eq!(replies.used(), len, "the transport still holds the frames");
        drop(frames);
        assert_eq!(replies.used(), 0);
        let written = Reply::new(range(100), None).admit_regardless(&replies);
        let again = Reply::new(range(200), None).admit_regardless(&replies);
        drop(written);
        assert_eq!(replies.used(), range(200).encoded_len() as u64);
        drop(again);
    }

    /// Returns a message that the library encodes as a whole.
    fn list(count: i64) -> LeaseLeasesResponse {
        LeaseLeasesResponse {
            header: None,
            leases: (0..count).map(|id| LeaseStatus { id: id + 1_000_000 }).collect(),
        }
    }

    #[test]
    fn large_replies_without_records_are_refused_at_the_byte_limit() {
        let replies = Arc::new(Bound::new(1));
        let first = counted(list(2_000), &replies).unwrap();
        assert_eq!(replies.used(), 2 * list(2_000).encoded_len() as u64);
        let refused = counted(list(2_000), &replies).unwrap_err();
        assert!(matches!(refused, RequestError::TooManyRequests));
        assert_eq!(
            counted(list(10), &replies).unwrap().get_ref(),
            &list(10),
            "a small reply is not counted"
        );
        drop(first);
        assert_eq!((replies.used(), replies.refused()), (0, 1));
    }

    #[test]
    fn the_client_of_a_counted_reply_must_read_faster_while_memory_is_short() {
        let replies = Arc::new(Bound::new(100 << 20));
        let reply = Reply::new(range(2_000), None).admit(&replies).unwrap();
        let mut response = reply.into_response().unwrap();
        drop(body_of(response.extensions_mut(), tonic::body::Body::empty()));
        let ReadLimit(of_parts) = response.extensions_mut().remove().unwrap();
        let mut response = counted(list(2_000), &replies).unwrap();
        drop(body_of(response.extensions_mut(), tonic::body::Body::empty()));
        let ReadLimit(of_whole) = response.extensions_mut().remove().unwrap();
        for policy in [of_parts, of_whole] {
            assert_eq!(policy.required_pace().time, UNREAD_TIME_MAX);
            let _others = Bound::take_owned(&replies, 80 << 20).unwrap();
            assert_eq!(policy.required_pace().time, UNREAD_TIME_MAX_IF_SHORT);
        }
    }

    #[tokio::test]
    async fn a_frame_of_a_stream_holds_the_permit_of_its_message() {
        let replies = Arc::new(Bound::new(1));
        let permits = StreamPermits::new(&replies);
        permits.count(&list(10)).unwrap();
        assert_eq!(replies.used(), 0, "a small message is not counted");
        permits.count(&list(2_000)).unwrap();
        let used = replies.used();
        assert_eq!(used, 2 * list(2_000).encoded_len() as u64);
        permits.count(&list(2_000)).unwrap_err();
        let mut extensions = http::Extensions::new();
        extensions.insert(permits);
        let encoded = http_body_util::Full::new(Bytes::from_static(b"message"));
        let mut body = Box::pin(body_of(&mut extensions, tonic::body::Body::new(encoded)));
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        assert_eq!((&frame[..], replies.used()), (&b"message"[..], used));
        drop(frame);
        assert_eq!(replies.used(), 0);
    }
}
