//! RangeStream: a range answered in chunks of about the size of a request.
//!
//! Each chunk is read when the transport asks for it, at the revision of the first, from where the last
//! one ended; nothing is held in between but a key. What a chunk takes is counted until it has been sent
//! (`admission`); where there is no room for it the stream ends. The last chunk carries what a Range would have said of
//! the whole.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{RangeResponse, RangeStreamResponse};
use quorate_state::mvcc::{RangeQuery, SortTarget};

use super::large_reply::{COUNTED_BYTES_MIN, StreamRooms};
use crate::admission::Bound;
use crate::member::{Member, RequestError};

/// Keys in the first chunk.
const FIRST_CHUNK_KEYS: i64 = 10;

/// A range under way.
#[derive(Debug)]
pub(super) struct ChunkedRange {
    member: Arc<Member>,
    /// What is left to be read; `None` when the last chunk has been made.
    rest: Option<RangeQuery>,
    /// The whole range, for its count.
    whole: RangeQuery,
    /// Store revision when the first chunk was read.
    revision: Option<i64>,
    chunk_keys: i64,
    sent_count: i64,
    rooms: StreamRooms,
}

impl ChunkedRange {
    pub(super) fn new(member: Arc<Member>, query: RangeQuery) -> Self {
        // A sort by anything but the key makes no sense chunk by chunk: key order is given.
        let query = RangeQuery { sort_target: SortTarget::Key, ..query };
        let rest = Some(query.clone());
        Self {
            member,
            rest,
            whole: query,
            revision: None,
            chunk_keys: FIRST_CHUNK_KEYS,
            sent_count: 0,
            rooms: StreamRooms::default(),
        }
    }

    /// Where the places of chunks wait for the frames that carry them.
    pub(super) fn rooms(&self) -> StreamRooms {
        self.rooms.clone()
    }

    /// The next chunk, or `None` after the last.
    pub(super) fn next(&mut self) -> Option<Result<RangeStreamResponse, RequestError>> {
        let query = self.rest.take()?;
        let chunk = self.read(query).and_then(|response| {
            let len = response.encoded_len();
            if len >= COUNTED_BYTES_MIN {
                let replies = &self.member.admission().replies;
                // The library's buffer may be twice as large as what is in it.
                self.rooms.push(Bound::take_owned(replies, 2 * len as u64)?);
            }
            Ok(RangeStreamResponse { range_response: Some(response) })
        });
        if chunk.is_err() {
            self.rest = None;
        }
        Some(chunk)
    }

    fn read(&mut self, mut query: RangeQuery) -> Result<RangeResponse, RequestError> {
        let whole_limit = self.whole.limit;
        let is_one_chunk = query.count_only || whole_limit < 0;
        if !is_one_chunk {
            let left = if whole_limit == 0 { i64::MAX } else { whole_limit - self.sent_count };
            query.limit = self.chunk_keys.min(left);
        }
        let result = self.member.range(&query)?;
        let revision = *self.revision.get_or_insert(result.revision);
        if query.revision == 0 {
            // Later chunks read what the first one saw.
            query.revision = revision;
            self.whole.revision = revision;
        }
        self.sent_count += i64::try_from(result.kvs.len()).unwrap_or(i64::MAX);
        let limit_reached = whole_limit > 0 && self.sent_count >= whole_limit;
        let mut response = RangeResponse { kvs: result.kvs, ..RangeResponse::default() };
        if !is_one_chunk && result.more && !limit_reached {
            self.size_next_chunk(response.encoded_len());
            let last = response.kvs.last().map_or(&[][..], |kv| kv.key());
            query.key = successor(last);
            self.rest = Some(query);
            return Ok(response);
        }
        response.header = Some(self.member.header(revision));
        response.more = result.more;
        response.count = if self.sent_count == result.count || is_one_chunk {
            result.count
        } else {
            self.member.range(&RangeQuery { count_only: true, ..self.whole.clone() })?.count
        };
        Ok(response)
    }

    fn size_next_chunk(&mut self, bytes: usize) {
        let target = self.member.limits().request_bytes_max;
        if bytes < target / 2 {
            self.chunk_keys = self.chunk_keys.saturating_mul(2);
        } else if bytes > target * 2 {
            self.chunk_keys = (self.chunk_keys / 2).max(1);
        }
    }
}

/// The smallest key above `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}
