//! RangeStream: a range answered in chunks of about the size of a request.
//!
//! Each chunk is read when the transport asks for it, at the revision of the first, from where the last
//! one ended; nothing is held in between but a key. The last chunk carries what a Range would have said of
//! the whole.
//!
//! Chunks follow each other in key order. A sort target other than the key orders the records within each chunk, ascending,
//! as in etcd.
//!
//! # Bound
//!
//! A chunk takes no further record once it has the bytes asked for, however many keys were read for it: what
//! follows small records may be large.

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{RangeResponse, ResponseHeader};
use quorate_api::record::{Fields, KeyValue};
use quorate_state::mvcc::{RangeQuery, RangeResult, SortTarget};

/// Keys in the first chunk.
const FIRST_CHUNK_KEYS: i64 = 10;

/// A range under way.
#[derive(Debug)]
pub(crate) struct ChunkedRange {
    /// What is left to be read; `None` when the last chunk has been made.
    rest: Option<RangeQuery>,
    /// Keys that the client wants at most.
    limit: i64,
    /// Store revision when the first chunk was read.
    revision: Option<i64>,
    chunk_keys: i64,
    chunk_bytes: usize,
    sent_count: i64,
    /// What each chunk is sorted by.
    sort_target: SortTarget,
    keys_only: bool,
}

impl ChunkedRange {
    /// A range in chunks of about so many bytes.
    pub(crate) fn new(query: RangeQuery, chunk_bytes: usize) -> Self {
        Self {
            limit: if query.limit > 0 { query.limit } else { i64::MAX },
            sort_target: query.sort_target,
            keys_only: query.keys_only,
            rest: Some(RangeQuery {
                // The next chunk begins after the last key of this one.
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

    /// The next chunk, or `None` after the last, which alone has a header: with the revision, to be
    /// completed.
    pub(crate) fn next<E>(
        &mut self,
        read: impl FnOnce(&RangeQuery) -> Result<RangeResult, E>,
    ) -> Option<Result<RangeResponse, E>> {
        let mut query = self.rest.take()?;
        if !query.count_only {
            query.limit = self.chunk_keys.min(self.limit - self.sent_count);
        }
        Some(read(&query).map(|result| self.take(query, result)))
    }

    fn take(&mut self, mut query: RangeQuery, result: RangeResult) -> RangeResponse {
        let RangeResult { revision, mut kvs, more: _, count } = result;
        let first_revision = *self.revision.get_or_insert(revision);
        if query.revision == 0 {
            // Later chunks read what the first one saw.
            query.revision = first_revision;
        }
        let bytes = cut(&mut kvs, self.chunk_bytes);
        let read_count = query.limit;
        let chunk_count = i64::try_from(kvs.len()).unwrap_or(i64::MAX);
        // What was read is the rest of the range: its count, and what went before, are all.
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

    fn size_next_chunk(&mut self, was_cut: bool, chunk_count: i64, bytes: usize) {
        if was_cut {
            self.chunk_keys = chunk_count;
        } else if bytes < self.chunk_bytes / 2 {
            self.chunk_keys = self.chunk_keys.saturating_mul(2);
        }
    }
}

/// Leaves the records up to the one that reaches so many bytes. Says how many bytes those are.
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

/// Sorts the records of a chunk, which come in key order.
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

/// The smallest key above `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

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

    /// Answers as a store that holds these records.
    fn read(records: &[KeyValue], query: &RangeQuery) -> Result<RangeResult, Infallible> {
        let rest = records.iter().filter(|record| *record.key() >= query.key[..]);
        let limit = usize::try_from(query.limit).unwrap();
        assert!(limit > 0, "a limit of zero is none");
        let shown = |record: &KeyValue| {
            if query.keys_only { without_value(record) } else { record.clone() }
        };
        let kvs: Vec<KeyValue> = rest.clone().take(limit).map(shown).collect();
        let count = rest.count();
        let more = kvs.len() < count;
        Ok(RangeResult { revision: 7, kvs, more, count: count as i64 })
    }

    fn chunks(records: &[KeyValue], limit: i64) -> Vec<RangeResponse> {
        let mut range =
            ChunkedRange::new(RangeQuery { limit, ..RangeQuery::default() }, CHUNK_BYTES);
        std::iter::from_fn(|| range.next(|query| read(records, query)))
            .map(Result::unwrap)
            .collect()
    }

    fn check(records: &[KeyValue], limit: i64) {
        let chunks = chunks(records, limit);
        let wanted = usize::try_from(limit).ok().filter(|limit| *limit > 0);
        let wanted = wanted.unwrap_or(usize::MAX).min(records.len());
        let joined: Vec<KeyValue> = chunks.iter().flat_map(|chunk| chunk.kvs.clone()).collect();
        assert!(joined == records[..wanted], "{} of {wanted}", joined.len());
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
            assert!(bytes < CHUNK_BYTES, "a chunk goes on after {bytes} bytes");
        }
    }

    #[test]
    fn the_count_is_that_of_the_whole_range_also_where_the_rest_has_as_many_as_were_sent() {
        check(&records(&[0; 25]), 15);
    }

    #[test]
    fn each_chunk_is_sorted_and_none_repeats_or_skips_a_key() {
        // The larger the key, the smaller all else.
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
                let chunks = std::iter::from_fn(|| range.next(|query| read(&records, query)));
                let mut first = 0;
                for chunk in chunks.map(Result::unwrap) {
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
    fn large_records_behind_many_small_ones_come_in_chunks_of_their_own() {
        let mut sizes = vec![0; 2000];
        sizes.resize(2100, CHUNK_BYTES);
        check(&records(&sizes), 0);
    }

    proptest! {
        #[test]
        fn a_list_in_chunks_is_the_list(
            sizes in prop::collection::vec(prop_oneof![0..4usize, 0..2 * CHUNK_BYTES], 0..120),
            limit in -1..130i64,
        ) {
            check(&records(&sizes), limit);
        }
    }
}
