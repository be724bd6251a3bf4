//! One side of a comparison: the keys of a range at one revision, in their order, a page at a time.
//!
//! # Bounds
//!
//! Pages are read ahead: one is being looked at, one waits, and one is on its way. A page is aimed at
//! [`PAGE_BYTES`]: how many keys that is, is learned from those before. No answer over [`ANSWER_BYTES_MAX`] is taken
//! in: the page is asked for again with fewer keys.

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

/// What a page should come to.
const PAGE_BYTES: usize = 4 << 20;
/// What an answer may come to. A record is smaller in any cluster that takes etcd's clients.
const ANSWER_BYTES_MAX: usize = 64 << 20;
const FIRST_PAGE_KEYS: i64 = 64;
const PAGE_KEYS_MAX: i64 = 4_096;

/// Who answers ranges.
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
    /// The key before, to see that they come in order.
    last_key: Option<KeyValue>,
    /// Whether pages are to come.
    has_more: bool,
}

impl Side {
    /// Begins to read: a revision of 0 is the newest of this moment. `timeout` is for each page of a cluster.
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

    /// The next record; nothing at the end.
    pub(super) async fn next(&mut self) -> Result<Option<KeyValue>, Failure> {
        loop {
            if let Some(record) = self.page.next() {
                if self.last_key.as_ref().is_some_and(|last| last.key() >= record.key()) {
                    return Err(self.failed("keys are not in their order"));
                }
                self.last_key = Some(record.clone());
                return Ok(Some(record));
            }
            if !self.has_more {
                return Ok(None);
            }
            let page = self.pages.recv().await.ok_or_else(|| self.failed("it is not read on"))?;
            let page = page.map_err(|text| self.failed(&text))?;
            self.has_more = page.more;
            if self.revision == 0 {
                self.revision = page.header.as_ref().map_or(0, |header| header.revision);
            }
            self.page = page.kvs.into_iter();
        }
    }

    /// What it is read at, once a page has come.
    pub(super) const fn revision(&self) -> i64 {
        self.revision
    }

    fn failed(&self, text: &str) -> Failure {
        Failure::error(format!("{}: {text}", self.name))
    }
}

/// Where the reading of a range stands.
#[derive(Clone, Debug)]
struct Cursor {
    /// The next page.
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

    /// Goes behind a page; false after the last. From the first on, all are of one revision.
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

    /// Asks for less; false where there is no less.
    fn shrink(&mut self) -> bool {
        let is_less = self.request.limit > 1;
        self.request.limit = (self.request.limit / 4).max(1);
        is_less
    }
}

/// A page that has room for as much again.
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
        // Who does not wait for it any more has failed on the other side.
        if pages.send(page).await.is_err() || !has_more {
            return;
        }
    }
}

fn read_file(ranges: &Ranges, mut cursor: Cursor, pages: &Pages) {
    loop {
        let mut page = ranges(&cursor.request);
        let has_more = page.as_mut().is_ok_and(|page| cursor.advance(page));
        // As above.
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

    /// Answers ranges of numbered keys, with values of so many bytes, as a server does.
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
            // Writes go on meanwhile.
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
    async fn all_keys_come_in_order_of_one_revision() {
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
    fn pages_fit_what_their_keys_come_to() {
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
    async fn a_side_that_fails_says_which_it_is() {
        let mut side = side(Box::new(|_| Err("torn page".to_owned())));
        assert_eq!(side.next().await.unwrap_err(), Failure::error("source: torn page"));
    }

    #[tokio::test]
    async fn keys_out_of_order_are_not_compared() {
        let mut side = side(Box::new(|_| {
            let record = |key| KeyValue::new(&Fields { key, ..Fields::default() });
            Ok(RangeResponse { kvs: vec![record(b"b"), record(b"a")], ..Default::default() })
        }));
        assert!(side.next().await.is_ok());
        assert!(side.next().await.is_err());
    }
}
