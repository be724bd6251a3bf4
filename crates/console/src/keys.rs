//! Reads keys: one level of the tree, a flat list, or one value.
//!
//! # Guarantees
//!
//! * No call reads all keys. A tree level is read without its subtrees: after the first key under a prefix, reading
//!   continues after the last possible key with that prefix. The counts in a tree level have a time limit, after which
//!   they are omitted.
//! * The pages of a list are consistent: all show the revision of the first page. A tree level is consistent only if
//!   the call names a revision. Otherwise, each part of the level is read at the revision that is the newest at that
//!   time.
//! * Even while clients are writing, a member does not visit all keys of a range to answer a call for a part of the
//!   range. A member counts the keys of the range for each read. For a read at an earlier revision, it visits every key
//!   of the range if more changes have been made since that revision than the range has keys. Older versions of Quorate
//!   visit every key for any such read. `first_keys` therefore reads only a small range at an earlier revision. There
//!   are two exceptions: the total count of a list at an earlier revision, which is requested only once per list, and a
//!   range whose first [`PARTS_MAX`] parts have no keys at that revision.
//!
//! # Bound
//!
//! * A page contains at most [`LIST_MAX`] or [`TREE_MAX`] entries, and [`PAGE_BYTES_MAX`] bytes of keys.
//! * A value of more than [`SMALL_BYTES_MAX`] bytes is fetched only with a permit ([`Large`]). A value that does not
//!   fit into a response (`cluster`) is not fetched.

use std::time::Duration;

use quorate_api::etcdserverpb::{RangeRequest, RangeResponse};
use quorate_client::key_range::{KeyRange, prefix_end};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::cluster::{Caller, RECEIVE_BYTES_MAX};
use crate::cursor::Cursor;
use crate::encode::{KEY_BYTES_SHOWN_MAX, base64, key_meta, put_too_large, put_value, revision};
use crate::input::Input;
use crate::refusal::{Kind, Refusal, refused_size};

/// Maximum number of entries in a page of a list, and of a level of the tree.
pub(crate) const LIST_MAX: usize = 500;
const TREE_MAX: usize = 200;
const DEFAULT: usize = 100;

/// Maximum total length of the shown parts of the keys in a page, in bytes.
const PAGE_BYTES_MAX: usize = 512 << 10;

/// Number of keys that one request for a level of the tree reads. It is small because, if each prefix of the level has
/// many keys, most of the keys read are discarded.
const TREE_KEYS: usize = 32;

/// Maximum number of parts of a range that are read at an earlier revision without finding keys. After these parts, the
/// rest of the range is read as a whole. A part has no keys if all its keys were created after that revision.
const PARTS_MAX: usize = 4;

/// Time limit of the counts of a tree level.
const COUNTS_TIME: Duration = Duration::from_secs(2);

/// Maximum length, in bytes, of a response that is fetched without a permit for large values.
const SMALL_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes of a value that are shown.
pub(crate) const VALUE_BYTES_SHOWN: usize = 256 << 10;

/// Permits for responses with large values. They limit the memory that these responses occupy.
#[derive(Debug)]
pub(crate) struct Large(Semaphore);

impl Large {
    pub(crate) const fn new() -> Self {
        Self(Semaphore::const_new(2))
    }
}

/// Maximum length of a separator, in bytes. Searching long keys for a long separator would be slow.
pub(crate) const SEPARATOR_BYTES_MAX: usize = 16;

pub(crate) fn wrong_separator() -> Refusal {
    let text = format!("\"separator\" must be from 1 to {SEPARATOR_BYTES_MAX} bytes long");
    Refusal::bad_request(text)
}

/// Returns one tree level: the keys and the prefixes directly below a prefix.
pub(crate) async fn tree(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    let prefix = input.bytes("prefix")?.unwrap_or_default();
    let separator = input.bytes("separator")?.unwrap_or_else(|| b"/".to_vec());
    if !(1..=SEPARATOR_BYTES_MAX).contains(&separator.len()) {
        return Err(wrong_separator());
    }
    let limit = input.limit(DEFAULT, TREE_MAX)?;
    let mut level = Level {
        range: KeyRange::prefix(prefix.clone()),
        prefix,
        separator,
        entries: Vec::new(),
        bytes: 0,
        next: None,
    };
    let cursor = Cursor::of(input)?;
    let (at, mut shown) = (cursor.revision, cursor.revision);
    if let Some(key) = cursor.key {
        level.range.key = key;
    }
    loop {
        let page = first_keys(caller, &level.range, TREE_KEYS, at).await?;
        shown = if shown == 0 { revision(page.header.as_ref()) } else { shown };
        if !level.take(&page, limit) {
            break;
        }
    }
    let deadline = Instant::now() + COUNTS_TIME;
    let mut entries = Vec::with_capacity(level.entries.len());
    for entry in level.entries {
        entries.push(match entry {
            Entry::Key(meta) => meta,
            Entry::Prefix(name) => {
                let range = KeyRange::prefix(name.clone());
                let count = match timeout_at(deadline, count(caller, &range, at)).await {
                    Ok(counted) => Some(counted?),
                    Err(_) => None,
                };
                json!({ "type": "prefix", "prefix": base64(&name), "count": count })
            }
        });
    }
    let next = level.next.map(|key| Cursor { revision: at, key: Some(key), count: None }.text());
    Ok(json!({ "revision": shown, "entries": entries, "next": next }))
}

/// A level of the tree that is being read.
struct Level {
    /// The range of keys not read yet.
    range: KeyRange,
    prefix: Vec<u8>,
    separator: Vec<u8>,
    entries: Vec<Entry>,
    bytes: usize,
    /// The first key of the next page; `None` if there is no next page.
    next: Option<Vec<u8>>,
}

enum Entry {
    Key(Value),
    Prefix(Vec<u8>),
}

impl Level {
    /// Adds the keys of a response to the level. Returns whether more keys must be read.
    fn take(&mut self, page: &RangeResponse, limit: usize) -> bool {
        let mut last = None;
        for record in &page.kvs {
            let fields = record.fields();
            let is_below = matches!(self.entries.last(), Some(Entry::Prefix(name)) if fields.key.starts_with(name));
            if !is_below {
                if self.entries.len() == limit || self.bytes >= PAGE_BYTES_MAX {
                    self.next = Some(fields.key.to_vec());
                    return false;
                }
                let entry = match self.child(fields.key) {
                    Some(name) => Entry::Prefix(name),
                    None => {
                        let mut meta = key_meta(&fields);
                        meta.insert("type".to_owned(), "key".into());
                        Entry::Key(Value::Object(meta))
                    }
                };
                self.bytes += fields.key.len().min(KEY_BYTES_SHOWN_MAX);
                self.entries.push(entry);
            }
            last = Some(fields.key);
        }
        let Some(last) = last.filter(|_| page.more) else { return false };
        self.range.key = match self.entries.last() {
            Some(Entry::Prefix(name)) if last.starts_with(name) => prefix_end(name),
            _ => [last, &[0]].concat(),
        };
        let is_over =
            self.range.key == [0] || (self.range.end != [0] && self.range.key >= self.range.end);
        !is_over
    }

    /// Returns the child prefix that contains a key, or `None` if the key is directly at this level.
    fn child(&self, key: &[u8]) -> Option<Vec<u8>> {
        let rest = key.get(self.prefix.len()..)?;
        let at = rest.windows(self.separator.len()).position(|part| part == self.separator)?;
        Some(key[..self.prefix.len() + at + self.separator.len()].to_vec())
    }
}

/// Returns a page of the keys with a prefix.
pub(crate) async fn list(caller: &Caller, input: &Input) -> Result<Value, Refusal> {
    let mut range = KeyRange::prefix(input.bytes("prefix")?.unwrap_or_default());
    let limit = input.limit(DEFAULT, LIST_MAX)?;
    let cursor = Cursor::of(input)?;
    let page = match cursor.key {
        Some(key) => {
            range.key = key;
            first_keys(caller, &range, limit, cursor.revision).await?
        }
        // This response contains the count of the whole list. The cursor of the next page repeats the count.
        None => range_of_keys(caller, keys_only(&range, limit, cursor.revision)).await?,
    };
    let at = match cursor.revision {
        0 => revision(page.header.as_ref()),
        given => given,
    };
    let (mut entries, mut bytes, mut next) = (Vec::new(), 0, None);
    for record in &page.kvs {
        let fields = record.fields();
        if bytes >= PAGE_BYTES_MAX {
            next = Some(fields.key.to_vec());
            break;
        }
        bytes += fields.key.len().min(KEY_BYTES_SHOWN_MAX);
        entries.push(Value::Object(key_meta(&fields)));
    }
    if next.is_none() && page.more {
        next = page.kvs.last().map(|last| [last.fields().key, &[0]].concat());
    }
    let count = cursor.count.unwrap_or(page.count);
    let next = next.map(|key| Cursor { revision: at, key: Some(key), count: Some(count) }.text());
    Ok(json!({ "revision": at, "count": count, "entries": entries, "next": next }))
}

/// Returns a key with the shown part of its value.
pub(crate) async fn get(caller: &Caller, input: &Input, large: &Large) -> Result<Value, Refusal> {
    let key = input.key()?;
    let at = input.number("revision")?.unwrap_or_default();
    let found = value_at(caller, &key, at, large, VALUE_BYTES_SHOWN).await?;
    let Found { revision, entry: Some(mut entry) } = found else {
        return Err(Refusal::new(Kind::NotFound, "the key does not exist at this revision"));
    };
    entry.insert("revision".to_owned(), revision.into());
    Ok(Value::Object(entry))
}

/// The result of reading one key.
pub(crate) struct Found {
    /// The store's revision at the time of the read.
    pub(crate) revision: i64,
    pub(crate) entry: Option<serde_json::Map<String, Value>>,
}

/// Reads one key at the revision `at`, or at the newest revision if `at` is 0.
pub(crate) async fn value_at(
    caller: &Caller,
    key: &[u8],
    at: i64,
    large: &Large,
    shown_max: usize,
) -> Result<Found, Refusal> {
    let request = RangeRequest { key: key.to_vec().into(), revision: at, ..Default::default() };
    let shown = |response: &RangeResponse| Found {
        revision: revision(response.header.as_ref()),
        entry: response.kvs.first().map(|record| {
            let fields = record.fields();
            let mut entry = key_meta(&fields);
            put_value(&mut entry, fields.value, shown_max);
            entry
        }),
    };
    let small = Caller {
        client: caller.client.for_user(caller.client.token()).receiving_at_most(SMALL_BYTES_MAX),
        is_logged_in: caller.is_logged_in,
    };
    let refused = match small.range(request.clone()).await {
        Ok(response) => return Ok(shown(&response)),
        Err(refused) if refused.kind == Kind::TooLarge => refused,
        Err(refused) => return Err(refused),
    };
    let size = refused_size(&refused);
    if size.is_none_or(|size| size <= RECEIVE_BYTES_MAX as u64) {
        let _permit = large.0.acquire().await;
        match caller.range(request.clone()).await {
            Ok(response) => return Ok(shown(&response)),
            Err(refused) if refused.kind == Kind::TooLarge => {}
            Err(refused) => return Err(refused),
        }
    }
    let response = caller.range(RangeRequest { keys_only: true, ..request }).await?;
    let entry = response.kvs.first().map(|record| {
        let mut entry = key_meta(&record.fields());
        put_too_large(&mut entry, size.map(|size| size.saturating_sub(key.len() as u64)));
        entry
    });
    Ok(Found { revision: revision(response.header.as_ref()), entry })
}

fn keys_only(range: &KeyRange, limit: usize, at: i64) -> RangeRequest {
    RangeRequest {
        key: range.key.clone().into(),
        range_end: range.end.clone().into(),
        limit: i64::try_from(limit).unwrap_or(i64::MAX),
        revision: at,
        keys_only: true,
        ..Default::default()
    }
}

/// Reads the first keys of a range at the revision `at`, or at the newest revision if `at` is 0.
///
/// If `at` is an earlier revision, first reads the same number of keys at the newest revision, and then reads at `at`
/// only up to the last of these keys.
async fn first_keys(
    caller: &Caller,
    range: &KeyRange,
    limit: usize,
    at: i64,
) -> Result<RangeResponse, Refusal> {
    let mut rest = range.clone();
    for _ in 0..if at == 0 { 0 } else { PARTS_MAX } {
        let newest = range_of_keys(caller, keys_only(&rest, limit, 0)).await?;
        let Some(last) = newest.kvs.last().filter(|_| newest.more) else { break };
        let end = [last.fields().key, &[0]].concat();
        let part = KeyRange { key: rest.key, end: end.clone() };
        let mut page = range_of_keys(caller, keys_only(&part, limit, at)).await?;
        if !page.kvs.is_empty() {
            page.more = true;
            return Ok(page);
        }
        rest.key = end;
    }
    range_of_keys(caller, keys_only(&rest, limit, at)).await
}

/// Reads keys without values. If the response is refused because the keys are too long, reads fewer keys.
async fn range_of_keys(
    caller: &Caller,
    mut request: RangeRequest,
) -> Result<RangeResponse, Refusal> {
    loop {
        match caller.range(request.clone()).await {
            Err(refused) if refused.kind == Kind::TooLarge && request.limit > 1 => {
                request.limit = (request.limit / 8).max(1);
            }
            outcome => return outcome,
        }
    }
}

async fn count(caller: &Caller, range: &KeyRange, at: i64) -> Result<i64, Refusal> {
    let request = RangeRequest {
        key: range.key.clone().into(),
        range_end: range.end.clone().into(),
        revision: at,
        count_only: true,
        ..Default::default()
    };
    Ok(caller.range(request).await?.count)
}

#[cfg(test)]
mod tests {
    use quorate_api::record::{Fields, KeyValue};

    use super::*;

    fn page(keys: &[&str], more: bool) -> RangeResponse {
        let record =
            |key: &&str| KeyValue::new(&Fields { key: key.as_bytes(), ..Fields::default() });
        RangeResponse { kvs: keys.iter().map(record).collect(), more, ..RangeResponse::default() }
    }

    fn level(prefix: &str) -> Level {
        Level {
            range: KeyRange::prefix(prefix.into()),
            prefix: prefix.into(),
            separator: b"/".to_vec(),
            entries: Vec::new(),
            bytes: 0,
            next: None,
        }
    }

    fn names(level: &Level) -> Vec<String> {
        let name = |entry: &Entry| match entry {
            Entry::Key(meta) => meta["key"].as_str().unwrap().to_owned(),
            Entry::Prefix(name) => String::from_utf8(name.clone()).unwrap(),
        };
        level.entries.iter().map(name).collect()
    }

    #[test]
    fn a_tree_level_continues_after_the_prefix_in_which_a_response_ends() {
        let mut level = level("a/");
        assert!(level.take(&page(&["a/b/1", "a/b/2"], true), 10));
        assert_eq!(level.range.key, b"a/b0");
        assert!(!level.take(&page(&["a/c"], false), 10));
        assert_eq!(names(&level), ["a/b/", &base64(b"a/c")]);
        assert_eq!(level.next, None);
    }

    #[test]
    fn a_full_tree_level_names_the_first_key_of_the_next_page() {
        let mut level = level("");
        assert!(!level.take(&page(&["a/1", "a/2", "b/1", "c"], true), 2));
        assert_eq!(names(&level), ["a/", "b/"]);
        assert_eq!(level.next.as_deref(), Some(&b"c"[..]));
    }

    #[test]
    fn a_tree_level_ends_after_a_prefix_that_no_key_can_follow() {
        let mut level = level("");
        level.separator = vec![0xff];
        let record = KeyValue::new(&Fields { key: &[0xff, 1], ..Fields::default() });
        let response = RangeResponse { kvs: vec![record], more: true, ..RangeResponse::default() };
        assert!(!level.take(&response, 10), "no key follows the prefix 0xff");
    }
}
