//! RangeStream: answers a range in chunks of roughly equal size.
//!
//! The first chunk is read when the call begins. Each later chunk is read when the transport requests it. It starts
//! after the last key of the previous chunk, and is read at the revision of the first chunk. Only the last key is kept
//! between chunks. The last chunk contains the fields of a Range response for the whole range.
//!
//! Chunks are in key order. If the client requests another sort target, only the records within each chunk are sorted
//! by it, in ascending order, as in etcd.
//!
//! # Bound
//!
//! A chunk ends once it reaches its size in bytes, even if more keys were read for it, because large records may follow
//! small records.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{RangeResponse, RangeStreamResponse, ResponseHeader};
use quorate_api::record::{Fields, KeyValue};
use quorate_requests::access::{AccessControl, Pass};
use quorate_requests::{DataStore, Listed, RequestError, ServerInfo};
use quorate_state::mvcc::{RangeQuery, RangeResult, SortTarget};
use quorate_telemetry::trace::Operation;
use tokio_stream::Stream;
use tonic::Status;

use crate::calls::large_reply::StreamPermits;
use crate::calls::status::status;

/// Number of keys read for the first chunk.
const FIRST_CHUNK_KEYS: i64 = 10;

/// A range that is read in chunks.
#[derive(Debug)]
pub(crate) struct ChunkedRange {
    /// The part of the range not read yet; `None` after the last chunk.
    rest: Option<RangeQuery>,
    /// The maximum number of keys requested by the client.
    limit: i64,
    /// The store's revision at the time of the first chunk.
    revision: Option<i64>,
    chunk_keys: i64,
    chunk_bytes: usize,
    sent_count: i64,
    /// The sort target applied within each chunk.
    sort_target: SortTarget,
    keys_only: bool,
}

impl ChunkedRange {
    /// Creates a range that is read in chunks of about this many bytes.
    pub(crate) fn new(query: RangeQuery, chunk_bytes: usize) -> Self {
        Self {
            limit: if query.limit > 0 { query.limit } else { i64::MAX },
            sort_target: query.sort_target,
            keys_only: query.keys_only,
            rest: Some(RangeQuery {
                // The next chunk starts after the last key of the current chunk, so chunks are read in key order.
                sort_target: SortTarget::Key,
                keys_only: query.keys_only && query.sort_target != SortTarget::Value,
                ..query
            }),
            revision: None,
            chunk_keys: FIRST_CHUNK_KEYS,
            chunk_bytes,
            sent_count: 0,
        }
    }

    /// Returns the query of the next chunk, or `None` after the last chunk. The caller passes the query's result to
    /// [`ChunkedRange::take`].
    fn next_query(&mut self) -> Option<RangeQuery> {
        let mut query = self.rest.take()?;
        if !query.count_only {
            query.limit = self.chunk_keys.min(self.limit - self.sent_count);
        }
        Some(query)
    }

    /// Returns the chunk that contains the result of a query. Only the last chunk has a header. The header contains the
    /// revision, and the caller adds the other fields.
    fn take(&mut self, mut query: RangeQuery, result: RangeResult) -> RangeResponse {
        let RangeResult { revision, mut kvs, more: _, count } = result;
        let first_revision = *self.revision.get_or_insert(revision);
        if query.revision == 0 {
            // Later chunks read the same revision as the first chunk.
            query.revision = first_revision;
        }
        let bytes = cut(&mut kvs, self.chunk_bytes);
        let read_count = query.limit;
        let chunk_count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
        // The result counts the rest of the range, so adding the keys already sent yields the total.
        let count = self.sent_count + count;
        self.sent_count += chunk_count;
        let next_key = kvs.last().map(|last| successor(last.key()));
        sort(&mut kvs, self.sort_target);
        if self.keys_only && !query.keys_only {
            kvs.iter_mut().for_each(|record| *record = without_value(record));
        }
        let mut response = RangeResponse { kvs, ..RangeResponse::default() };
        let more = !query.count_only && self.sent_count < count;
        if more
            && self.sent_count < self.limit
            && let Some(next_key) = next_key
        {
            self.size_next_chunk(chunk_count < read_count, chunk_count, bytes);
            query.key = next_key;
            self.rest = Some(query);
            return response;
        }
        response.header =
            Some(ResponseHeader { revision: first_revision, ..ResponseHeader::default() });
        response.more = more;
        response.count = count;
        response
    }

    /// Drops the part of the range that has not been read yet.
    fn end(&mut self) {
        self.rest = None;
    }

    fn size_next_chunk(&mut self, was_cut: bool, chunk_count: i64, bytes: usize) {
        if was_cut {
            self.chunk_keys = chunk_count;
        } else if bytes < self.chunk_bytes / 2 {
            self.chunk_keys = self.chunk_keys.saturating_mul(2);
        }
    }
}

/// Reads the chunks of a range. A chunk counts against the limit on replies until it is sent.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub(crate) range: ChunkedRange,
    pub(crate) info: Arc<ServerInfo>,
    pub(crate) store: Arc<dyn DataStore>,
    pub(crate) access_control: Arc<AccessControl>,
    /// The permissions with which the stream began.
    pub(crate) pass: Pass,
    pub(crate) permits: StreamPermits,
}

impl Chunks {
    /// Returns the next chunk, or `None` after the last chunk. Fails if the limit on replies is reached or if users or
    /// roles have changed. After an error there are no more chunks.
    pub(crate) async fn next(&mut self) -> Option<Result<RangeStreamResponse, Status>> {
        let query = self.range.next_query()?;
        let chunk = self.read(query).await.map_err(status);
        Some(chunk.map(|chunk| RangeStreamResponse { range_response: Some(chunk) }))
    }

    async fn read(&mut self, query: RangeQuery) -> Result<RangeResponse, RequestError> {
        let Listed { result, permit: _permit } = self.store.range(&query).await?;
        self.access_control.still_holds(self.pass)?;
        let mut chunk = self.range.take(query, result);
        if chunk.header.is_some() {
            chunk.header = self.info.complete(chunk.header);
        }
        let counted = self.permits.count(&chunk);
        // Without the permit, the stream ends with an error, so the rest of the range is not read.
        counted.inspect_err(|_| self.range.end())?;
        Ok(chunk)
    }

    /// Returns the stream of the chunks, beginning with `first`, which has already been read. The span `operation` ends
    /// with the stream.
    pub(crate) fn after(
        self,
        first: Option<RangeStreamResponse>,
        operation: Option<Operation>,
    ) -> impl Stream<Item = Result<RangeStreamResponse, Status>> + Send {
        ChunkStream { first, chunks: Some(self), reading: None, _operation: operation }
    }
}

type Reading = Pin<Box<dyn Future<Output = (Chunks, Option<ChunkResult>)> + Send>>;
type ChunkResult = Result<RangeStreamResponse, Status>;

/// The stream returned by [`Chunks::after`].
struct ChunkStream {
    first: Option<RangeStreamResponse>,
    /// `None` while a chunk is being read.
    chunks: Option<Chunks>,
    reading: Option<Reading>,
    _operation: Option<Operation>,
}

impl Stream for ChunkStream {
    type Item = ChunkResult;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ChunkResult>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        if let Some(mut chunks) = self.chunks.take() {
            self.reading = Some(Box::pin(async move {
                let chunk = chunks.next().await;
                (chunks, chunk)
            }));
        }
        let reading = self.reading.as_mut().expect("a chunk is being read");
        let (chunks, chunk) = ready!(reading.as_mut().poll(cx));
        self.chunks = Some(chunks);
        Poll::Ready(chunk)
    }
}

/// Keeps the first records, up to and including the record with which their total size reaches `bytes_max`, and removes
/// the rest. Returns the size of the kept records.
fn cut(kvs: &mut Vec<KeyValue>, bytes_max: usize) -> usize {
    let mut bytes = 0;
    let mut kept = 0;
    while let Some(record) = kvs.get(kept)
        && (kept == 0 || bytes < bytes_max)
    {
        bytes += record.encoded_len();
        kept += 1;
    }
    kvs.truncate(kept);
    bytes
}

/// Sorts the records of a chunk, which arrive in key order.
fn sort(kvs: &mut [KeyValue], target: SortTarget) {
    match target {
        SortTarget::Key => {}
        SortTarget::Version => kvs.sort_by_key(|record| record.fields().version),
        SortTarget::Create => kvs.sort_by_key(|record| record.fields().create_revision),
        SortTarget::Mod => kvs.sort_by_key(|record| record.fields().mod_revision),
        SortTarget::Value => kvs.sort_by(|a, b| a.value().cmp(b.value())),
    }
}

fn without_value(record: &KeyValue) -> KeyValue {
    KeyValue::new(&Fields { value: b"", ..record.fields() })
}

/// Returns the smallest key greater than `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CHUNK_BYTES: usize = 400;

    fn records(sizes: &[usize]) -> Vec<KeyValue> {
        let record = |(number, size): (usize, &usize)| {
            let (key, value) = (format!("{number:04}"), vec![b'v'; *size]);
            KeyValue::new(&Fields { key: key.as_bytes(), value: &value, ..Fields::default() })
        };
        sizes.iter().enumerate().map(record).collect()
    }

    /// Answers a query as a store with these records would.
    fn read(records: &[KeyValue], query: &RangeQuery) -> RangeResult {
        let rest = records.iter().filter(|record| *record.key() >= query.key[..]);
        let limit = usize::try_from(query.limit).unwrap();
        assert!(limit > 0, "the query has a limit");
        let credentials = |record: &KeyValue| {
            if query.keys_only { without_value(record) } else { record.clone() }
        };
        let kvs: Vec<KeyValue> = rest.clone().take(limit).map(credentials).collect();
        let count = rest.count();
        let more = kvs.len() < count;
        RangeResult { revision: 7, kvs, more, count: count as i64 }
    }

    fn next(range: &mut ChunkedRange, records: &[KeyValue]) -> Option<RangeResponse> {
        let query = range.next_query()?;
        let result = read(records, &query);
        Some(range.take(query, result))
    }

    fn chunks(records: &[KeyValue], limit: i64) -> Vec<RangeResponse> {
        let mut range =
            ChunkedRange::new(RangeQuery { limit, ..RangeQuery::default() }, CHUNK_BYTES);
        std::iter::from_fn(|| next(&mut range, records)).collect()
    }

    fn check(records: &[KeyValue], limit: i64) {
        let chunks = chunks(records, limit);
        let wanted = usize::try_from(limit).ok().filter(|limit| *limit > 0);
        let wanted = wanted.unwrap_or(usize::MAX).min(records.len());
        let joined: Vec<KeyValue> = chunks.iter().flat_map(|chunk| chunk.kvs.clone()).collect();
        assert!(
            joined == records[..wanted],
            "the chunks contain {} records, which are not the first {wanted} records",
            joined.len()
        );
        let (last, earlier) = chunks.split_last().unwrap();
        assert_eq!(last.header.as_ref().unwrap().revision, 7);
        assert_eq!((last.count, last.more), (records.len() as i64, wanted < records.len()));
        for chunk in earlier {
            assert_eq!((&chunk.header, chunk.count, chunk.more), (&None, 0, false));
            assert!(!chunk.kvs.is_empty());
        }
        for chunk in &chunks {
            let but_last = chunk.kvs.split_last().map_or(&[][..], |(_, before)| before);
            let bytes: usize = but_last.iter().map(KeyValue::encoded_len).sum();
            assert!(bytes < CHUNK_BYTES, "a record was added to a full chunk of {bytes} bytes");
        }
    }

    #[test]
    fn the_count_of_a_range_is_the_total_of_all_chunks() {
        check(&records(&[0; 25]), 15);
    }

    #[test]
    fn chunks_are_sorted_and_contain_each_key_exactly_once() {
        // A record with a larger key has smaller values in all other fields.
        let records: Vec<KeyValue> = (0..25_u8)
            .map(|number| {
                let (key, value) = ([number], [100 - number]);
                let down = i64::from(100 - number);
                KeyValue::new(&Fields {
                    key: &key,
                    value: &value,
                    version: down,
                    create_revision: down,
                    mod_revision: down,
                    lease: 0,
                })
            })
            .collect();
        for sort_target in
            [SortTarget::Value, SortTarget::Version, SortTarget::Create, SortTarget::Mod]
        {
            for keys_only in [false, true] {
                let query = RangeQuery { sort_target, keys_only, ..RangeQuery::default() };
                let mut range = ChunkedRange::new(query, CHUNK_BYTES);
                let chunks = std::iter::from_fn(|| next(&mut range, &records));
                let mut first = 0;
                for chunk in chunks {
                    let keys: Vec<u8> = chunk.kvs.iter().map(|record| record.key()[0]).collect();
                    let next = first + u8::try_from(keys.len()).unwrap();
                    assert_eq!(keys, (first..next).rev().collect::<Vec<_>>(), "{sort_target:?}");
                    first = next;
                    let has_values = chunk.kvs.iter().any(|record| !record.value().is_empty());
                    assert_eq!(has_values, !keys_only);
                }
                assert_eq!(first, 25);
            }
        }
    }

    #[test]
    fn a_chunk_ends_at_its_size_limit_if_large_records_follow_small_ones() {
        let mut sizes = vec![0; 2000];
        sizes.resize(2100, CHUNK_BYTES);
        check(&records(&sizes), 0);
    }

    proptest! {
        #[test]
        fn the_chunks_of_a_range_form_the_complete_list(
            sizes in prop::collection::vec(prop_oneof![0..4usize, 0..2 * CHUNK_BYTES], 0..120),
            limit in -1..130i64,
        ) {
            check(&records(&sizes), limit);
        }
    }
}
