//! The history of one key.
//!
//! A walk reads the newest version of the key, then the version before it, and so on, with one small read for each
//! version. It ends at the creation of the key: a read at the revision before finds no key, and so nothing that points
//! to an earlier incarnation. A search watches the key from the oldest revision that the cluster still has. A search
//! also finds deletions, but makes the member read the whole history of the keyspace.
//!
//! # Bound
//!
//! * A walk returns at most [`ENTRIES_MAX`] entries, with at most [`VALUE_BYTES_SHOWN`] bytes of each value. A search
//!   returns the newest [`SEARCH_MAX`] entries, and ends after [`SEARCH_TIME`].

use std::collections::VecDeque;
use std::time::Duration;

use quorate_api::etcdserverpb::{RangeRequest, WatchCreateRequest, WatchResponse};
use quorate_api::mvccpb::event::EventType;
use quorate_client::events::{Events, Leader, is_progress};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, interval, timeout_at};

use crate::cluster::Caller;
use crate::encode::{base64, key_meta, put_key, put_value, revision};
use crate::input::Input;
use crate::keys::{Large, value_at};
use crate::refusal::{Kind, Refusal};

const ENTRIES_MAX: usize = 40;
const DEFAULT: usize = 20;
const VALUE_BYTES_SHOWN: usize = 16 << 10;
const SEARCH_MAX: usize = 40;
const SEARCH_TIME: Duration = Duration::from_secs(10);

/// Interval at which a search sends progress requests, to detect that the member has sent all of the history.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// Returns a part of a key's history, by a walk or a search.
pub(crate) async fn history(
    caller: &Caller,
    input: &Input,
    large: &Large,
) -> Result<Value, Refusal> {
    let key = input.key()?;
    if input.flag("search")? {
        return search(caller, key).await;
    }
    let limit = input.limit(DEFAULT, ENTRIES_MAX)?;
    let mut at = match input.number("before")? {
        Some(0 | 1) => return Err(Refusal::bad_request("\"before\" must be at least 2")),
        Some(before) => before - 1,
        None => 0,
    };
    let (mut entries, mut newest, mut end) = (Vec::new(), 0, None);
    while entries.len() < limit {
        let found = match value_at(caller, &key, at, large, VALUE_BYTES_SHOWN).await {
            Ok(found) => found,
            Err(refused) if refused.kind == Kind::Compacted && !entries.is_empty() => {
                end = Some("compacted");
                break;
            }
            Err(refused) => return Err(refused),
        };
        newest = found.revision.max(newest);
        let Some(mut entry) = found.entry else {
            end = Some("absent");
            break;
        };
        let number = |name: &str| entry.get(name).and_then(Value::as_i64).unwrap_or_default();
        let (changed, version) = (number("mod_revision"), number("version"));
        entry.insert("type".to_owned(), "put".into());
        entries.push(Value::Object(entry));
        at = changed - 1;
        if version <= 1 || at < 1 {
            end = Some("created");
            break;
        }
    }
    let next = if end.is_none() { Some(at + 1) } else { None };
    Ok(json!({ "revision": newest, "entries": entries, "next": next, "end": end }))
}

async fn search(caller: &Caller, key: Vec<u8>) -> Result<Value, Refusal> {
    let request =
        RangeRequest { key: key.clone().into(), count_only: true, ..RangeRequest::default() };
    let newest = revision(caller.range(request).await?.header.as_ref());
    let mut search = Search { newest, entries: VecDeque::new(), omitted: false, is_cut: false };
    let deadline = Instant::now() + SEARCH_TIME;
    let mut from = 1;
    let end = loop {
        let create = WatchCreateRequest {
            key: key.clone().into(),
            start_revision: from,
            fragment: true,
            ..WatchCreateRequest::default()
        };
        match timeout_at(deadline, search.listen(caller, create)).await {
            Err(_) => break "time",
            Ok(Err(refused)) => return Err(refused),
            Ok(Ok(Some(oldest))) => {
                (from, search.is_cut) = (oldest, true);
            }
            Ok(Ok(None)) if search.omitted => break "limit",
            Ok(Ok(None)) if search.is_cut => break "compacted",
            Ok(Ok(None)) => break "complete",
        }
    };
    let entries: Vec<_> = search.entries.into_iter().rev().collect();
    Ok(json!({ "revision": newest, "entries": entries, "next": null, "end": end }))
}

/// A search in progress.
struct Search {
    /// The revision at which the search ends.
    newest: i64,
    /// The newest entries found so far, oldest first.
    entries: VecDeque<Value>,
    /// Whether older entries were dropped.
    omitted: bool,
    /// Whether the cluster has compacted older revisions.
    is_cut: bool,
}

impl Search {
    /// Watches the key up to the newest revision. If the watch starts at a compacted revision, returns the oldest
    /// revision that the cluster still has.
    async fn listen(
        &mut self,
        caller: &Caller,
        create: WatchCreateRequest,
    ) -> Result<Option<i64>, Refusal> {
        let mut events = Events::new(&caller.client, create, Leader::Awaited);
        let mut due = interval(PROGRESS_INTERVAL);
        loop {
            let response = tokio::select! {
                response = events.next() => response.map_err(|status| caller.refusal(&status))?,
                _ = due.tick() => {
                    events.ask_progress();
                    continue;
                }
            };
            if response.compact_revision > 0 {
                return Ok(Some(response.compact_revision));
            }
            if response.canceled {
                return Err(Refusal::new(Kind::PermissionDenied, response.cancel_reason));
            }
            if self.take(&response) {
                return Ok(None);
            }
        }
    }

    /// Adds the events of a response to the entries, and drops the oldest entries beyond the limit. Returns whether the
    /// newest revision has been reached.
    fn take(&mut self, response: &WatchResponse) -> bool {
        let mut seen = 0;
        for event in &response.events {
            let Some(record) = &event.kv else { continue };
            let fields = record.fields();
            seen = fields.mod_revision;
            if seen > self.newest {
                return true;
            }
            let mut entry = Map::new();
            if event.r#type == EventType::Put as i32 {
                entry = key_meta(&fields);
                put_value(&mut entry, fields.value, VALUE_BYTES_SHOWN);
                entry.insert("type".to_owned(), "put".into());
            } else {
                put_key(&mut entry, fields.key);
                entry.insert("mod_revision".to_owned(), seen.into());
                entry.insert("type".to_owned(), "delete".into());
            }
            if self.entries.len() == SEARCH_MAX {
                self.entries.pop_front();
                self.omitted = true;
            }
            self.entries.push_back(Value::Object(entry));
        }
        let is_synchronised = is_progress(response)
            && response.header.as_ref().is_some_and(|header| header.revision >= self.newest);
        is_synchronised || seen >= self.newest
    }
}

/// Returns an event as JSON, with the first bytes of its value.
pub(crate) fn event_json(
    event: &quorate_api::mvccpb::Event,
    value_bytes: usize,
    shows_previous: bool,
) -> Option<Value> {
    let record = event.kv.as_ref()?;
    let fields = record.fields();
    let is_put = event.r#type == EventType::Put as i32;
    let mut entry = if is_put { key_meta(&fields) } else { Map::new() };
    if is_put {
        put_value(&mut entry, fields.value, value_bytes);
    } else {
        put_key(&mut entry, fields.key);
        entry.insert("mod_revision".to_owned(), fields.mod_revision.into());
    }
    entry.insert("type".to_owned(), if is_put { "put" } else { "delete" }.into());
    let previous = event.prev_kv.as_ref().filter(|_| shows_previous).map(|record| {
        let value = record.fields().value;
        json!({ "value": base64(&value[..value.len().min(value_bytes)]), "size": value.len() })
    });
    entry.insert("previous".to_owned(), previous.unwrap_or_default());
    Some(Value::Object(entry))
}
