//! One side of a comparison: the keys of a range at one revision, in order, read page by page.
//!
//! # Bounds
//!
//! Pages are read ahead: while one page is being compared, the next is queued and another is being fetched. The target
//! size of a page is [`PAGE_BYTES`], and the number of keys to request is estimated from earlier pages. A response
//! larger than [`ANSWER_BYTES_MAX`] is rejected, and the page is requested again with fewer keys.

use std::time::Duration;
use std::vec;

use quorate_api::etcdserverpb::{RangeRequest, RangeResponse};
use quorate_api::record::KeyValue;
use tokio::sync::mpsc;
use tonic::Code;

use crate::client::{Client, Repeat};
use crate::failure::{Failure, status_text};
use crate::key_range::KeyRange;
use crate::session::Ranges;

/// Target size of a page, in bytes.
const PAGE_BYTES: usize = 4 << 20;
/// Maximum size of a response, in bytes. It is larger than any record that etcd's clients can write unless their limit
/// on requests is raised.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const FIRST_PAGE_KEYS: i64 = 64;
const PAGE_KEYS_MAX: i64 = 4_096;

/// The source from which a side is read.
pub(super) enum Source {
    Cluster(Box<Client>),
    File(Ranges),
}

/// A side that is being read.
pub(super) struct Side {
    name: &'static str,
    pages: mpsc::Receiver<Result<RangeResponse, String>>,
    page: vec::IntoIter<KeyValue>,
    revision: i64,
    /// Previous key, to check that keys arrive in order.
    last_key: Option<KeyValue>,
    /// Whether there are more pages.
    has_more: bool,
}

impl Side {
    /// Starts reading at a revision; 0 selects the current one. `timeout` applies to each page that is read from a
    /// cluster.
    pub(super) fn open(
        name: &'static str,
        source: Source,
        range: KeyRange,
        revision: i64,
        timeout: Duration,
    ) -> Self {
        let (sender, pages) = mpsc::channel(1);
        let cursor = Cursor::new(range, revision);
        match source {
            Source::Cluster(client) => {
                tokio::task::spawn_local(read_cluster(*client, cursor, timeout, sender));
            }
            Source::File(ranges) => {
                tokio::task::spawn_blocking(move || read_file(&ranges, cursor, &sender));
            }
        }
        let page = Vec::new().into_iter();
        Self { name, pages, page, revision: 0, last_key: None, has_more: true }
    }

    /// Returns the next record, or `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<KeyValue>, Failure> {
        loop {
            if let Some(record) = self.page.next() {
                if self.last_key.as_ref().is_some_and(|last| last.key() >= record.key()) {
                    return Err(self.failed("keys are out of order"));
                }
                self.last_key = Some(record.clone());
                return Ok(Some(record));
            }
            if !self.has_more {
                return Ok(None);
            }
            let page = self
                .pages
                .recv()
                .await
                .ok_or_else(|| self.failed("the server ended the list before the last key"))?;
            let page = page.map_err(|text| self.failed(&text))?;
            self.has_more = page.more;
            if self.revision == 0 {
                self.revision = page.header.as_ref().map_or(0, |header| header.revision);
            }
            self.page = page.kvs.into_iter();
        }
    }

    /// Returns the revision at which the side is read, which is known once a page has arrived.
    pub(super) const fn revision(&self) -> i64 {
        self.revision
    }

    fn failed(&self, text: &str) -> Failure {
        Failure::error(format!("{}: {text}", self.name))
    }
}

/// Position in the range.
#[derive(Clone, Debug)]
struct Cursor {
    /// Request for the next page.
    request: RangeRequest,
}

impl Cursor {
    fn new(range: KeyRange, revision: i64) -> Self {
        let request = RangeRequest {
            key: range.key.into(),
            range_end: range.end.into(),
            revision,
            limit: FIRST_PAGE_KEYS,
            ..Default::default()
        };
        Self { request }
    }

    /// Advances past a page. Returns false after the last page. All pages are read at the revision of the first page.
    fn advance(&mut self, page: &mut RangeResponse) -> bool {
        let header = page.header.get_or_insert_default();
        if self.request.revision == 0 {
            self.request.revision = header.revision;
        }
        header.revision = self.request.revision;
        let bytes: usize =
            page.kvs.iter().map(|record| record.key().len() + record.value().len()).sum();
        let keys = self.request.limit;
        self.request.limit = match bytes {
            0..PAGE_BYTES_SMALL => (keys * 2).min(PAGE_KEYS_MAX),
            PAGE_BYTES_SMALL..=PAGE_BYTES => keys,
            _ => (keys / 2).max(1),
        };
        match page.kvs.last() {
            Some(last) if page.more => {
                self.request.key = [last.key(), b"\0"].concat().into();
                true
            }
            Some(_) | None => false,
        }
    }

    /// Reduces the page size to a quarter. Returns false if the page size is already one key.
    fn shrink(&mut self) -> bool {
        let is_less = self.request.limit > 1;
        self.request.limit = (self.request.limit / 4).max(1);
        is_less
    }
}

/// Size of a page, in bytes, below which the number of keys per page is doubled.
const PAGE_BYTES_SMALL: usize = PAGE_BYTES / 2;

type Pages = mpsc::Sender<Result<RangeResponse, String>>;

async fn read_cluster(client: Client, mut cursor: Cursor, timeout: Duration, pages: Pages) {
    let bytes_max = client.receive_bytes_max().min(ANSWER_BYTES_MAX);
    let range = async |channel, request| {
        client.kv(channel).max_decoding_message_size(bytes_max).range(request).await
    };
    loop {
        let request = cursor.request.clone();
        let (page, has_more) = match client.call(Some(timeout), Repeat::Safe, request, range).await
        {
            Ok(mut page) => {
                let has_more = cursor.advance(&mut page);
                (Ok(page), has_more)
            }
            Err(status) if status.code() == Code::ResourceExhausted && cursor.shrink() => continue,
            Err(status) => (Err(status_text(&status)), false),
        };
        // The receiver no longer exists if the comparison has ended early, for example because reading the other side
        // has failed. Reading this side then stops as well.
        if pages.send(page).await.is_err() || !has_more {
            return;
        }
    }
}

fn read_file(ranges: &Ranges, mut cursor: Cursor, pages: &Pages) {
    loop {
        let mut page = ranges(&cursor.request);
        let has_more = page.as_mut().is_ok_and(|page| cursor.advance(page));
        // The receiver no longer exists if the comparison has ended early, for example because reading the other side
        // has failed. Reading this side then stops as well.
        if pages.blocking_send(page).is_err() || !has_more {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_api::etcdserverpb::ResponseHeader;
    use quorate_api::record::Fields;

    use super::*;

    /// Answers range requests like a server, with numbered keys and values of this size.
    fn numbered(count: usize, value_bytes: usize) -> Ranges {
        Box::new(move |request| {
            let records = (0..count).map(|number| format!("{number:08}"));
            let mut wanted = records.filter(|key| key.as_bytes() >= &request.key[..]);
            let limit = usize::try_from(request.limit).unwrap();
            let kvs = wanted.by_ref().take(limit).map(|key| {
                let value = vec![b'v'; value_bytes];
                KeyValue::new(&Fields { key: key.as_bytes(), value: &value, ..Fields::default() })
            });
            let kvs = kvs.collect();
            // The revision grows, as if other clients were writing.
            let header = ResponseHeader {
                revision: 7 + i64::from(request.revision > 0),
                ..Default::default()
            };
            let more = wanted.next().is_some();
            Ok(RangeResponse { header: Some(header), kvs, more, ..Default::default() })
        })
    }

    fn side(ranges: Ranges) -> Side {
        let range = KeyRange::prefix(Vec::new());
        Side::open("source", Source::File(ranges), range, 0, Duration::MAX)
    }

    #[tokio::test]
    async fn all_keys_are_read_in_order_at_one_revision() {
        for (count, value_bytes) in [(0, 0), (1, 1), (10_000, 3), (40, 1 << 20)] {
            let mut side = side(numbered(count, value_bytes));
            for number in 0..count {
                let record = side.next().await.unwrap().unwrap();
                assert_eq!(record.key(), format!("{number:08}").as_bytes());
            }
            assert!(side.next().await.unwrap().is_none());
            assert_eq!(side.revision(), 7);
        }
    }

    #[test]
    fn page_sizes_adapt_to_the_size_of_records() {
        let limits = |value_bytes| {
            let (ranges, mut cursor) =
                (numbered(1_000_000, value_bytes), Cursor::new(KeyRange::prefix(Vec::new()), 0));
            let mut limits = Vec::new();
            for _ in 0..8 {
                let mut page = ranges(&cursor.request).unwrap();
                assert!(cursor.advance(&mut page));
                limits.push(cursor.request.limit);
            }
            limits
        };
        assert_eq!(limits(1).last(), Some(&PAGE_KEYS_MAX));
        assert_eq!(limits(1 << 20).last(), Some(&2));
    }

    #[tokio::test]
    async fn an_error_names_the_side_that_failed() {
        let mut side = side(Box::new(|_| Err("torn page".to_owned())));
        assert_eq!(side.next().await.unwrap_err(), Failure::error("source: torn page"));
    }

    #[tokio::test]
    async fn keys_that_arrive_out_of_order_cause_an_error() {
        let mut side = side(Box::new(|_| {
            let record = |key| KeyValue::new(&Fields { key, ..Fields::default() });
            Ok(RangeResponse { kvs: vec![record(b"b"), record(b"a")], ..Default::default() })
        }));
        assert!(side.next().await.is_ok());
        assert!(side.next().await.is_err());
    }
}
