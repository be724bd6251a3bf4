//! Range requests: filters, sorts, limits and counts over a snapshot.
//!
//! The options behave exactly as in etcd. `count` ignores limit and filters. A limit without an
//! explicit order is applied in key order, before sorting. Keys-only requests are answered from the
//! index, so their responses lack the lease.
//!
//! # Invariants
//!
//! * A range without filters, in key order and at the snapshot's own revision, visits only the part of the index that
//!   its response contains, however large the range is, and however many keys have been deleted from it.
//! * Keys with equal sort values stay in key order, so that every member returns the same response.
//!
//! # Not here
//!
//! Validating requests (`apply::check`), and dividing a range into a stream of responses
//! (`edge::services::range_stream`).

use std::cmp::Ordering;
use std::ops::ControlFlow;

use bytes::Bytes;
use quorate_api::etcdserverpb::{RangeRequest, range_request};
use quorate_api::record::{Fields, KeyValue};

use super::buffer::RecordBuffer;
use super::error::MvccError;
use super::key_range::KeyRange;
use super::snapshot::{Found, Snapshot};
use super::tree::Wanted;
use crate::backend::Fault;

/// The order of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SortOrder {
    /// No order was requested. The response is sorted in ascending order. A limit makes such a request cheaper, because
    /// the limit is applied before sorting.
    #[default]
    None,
    /// Smallest first.
    Ascend,
    /// Largest first.
    Descend,
}

/// The field by which the response is sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SortTarget {
    /// The key.
    #[default]
    Key,
    /// The number of changes since creation.
    Version,
    /// The revision of creation.
    Create,
    /// The revision of the last change.
    Mod,
    /// The value.
    Value,
}

/// A range request.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RangeQuery {
    /// The first key, or the only key.
    pub key: Bytes,
    /// The end of the range, as in [`KeyRange::new`].
    pub range_end: Bytes,
    /// The maximum number of keys to return; 0 or less for all.
    pub limit: i64,
    /// The revision to read at; 0 or less for the newest.
    pub revision: i64,
    /// The sort order.
    pub sort_order: SortOrder,
    /// The sort target.
    pub sort_target: SortTarget,
    /// Whether values are left out.
    pub keys_only: bool,
    /// Whether only the count is returned.
    pub count_only: bool,
    /// The minimum mod revision of returned keys; 0 for no minimum.
    pub min_mod_revision: i64,
    /// The maximum mod revision of returned keys; 0 for no maximum.
    pub max_mod_revision: i64,
    /// The minimum create revision of returned keys; 0 for no minimum.
    pub min_create_revision: i64,
    /// The maximum create revision of returned keys; 0 for no maximum.
    pub max_create_revision: i64,
}

/// The response to a [`RangeQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeResult {
    /// The newest revision at the time of reading.
    pub revision: i64,
    /// The records.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit excluded keys.
    pub more: bool,
    /// The number of live keys in the range, before limit and filters.
    pub count: i64,
}

impl RangeQuery {
    /// Builds the query from a request. An unknown sort order counts as no order, and an unknown target as the key: a
    /// log entry may contain such a request, because etcd 3.5 does not check the sort options.
    #[must_use]
    pub fn from_request(request: &RangeRequest) -> Self {
        let sort_order = match request.sort_order() {
            range_request::SortOrder::None => SortOrder::None,
            range_request::SortOrder::Ascend => SortOrder::Ascend,
            range_request::SortOrder::Descend => SortOrder::Descend,
        };
        let sort_target = match request.sort_target() {
            range_request::SortTarget::Key => SortTarget::Key,
            range_request::SortTarget::Version => SortTarget::Version,
            range_request::SortTarget::Create => SortTarget::Create,
            range_request::SortTarget::Mod => SortTarget::Mod,
            range_request::SortTarget::Value => SortTarget::Value,
        };
        Self {
            key: request.key.clone(),
            range_end: request.range_end.clone(),
            limit: request.limit,
            revision: request.revision,
            sort_order,
            sort_target,
            keys_only: request.keys_only,
            count_only: request.count_only,
            min_mod_revision: request.min_mod_revision,
            max_mod_revision: request.max_mod_revision,
            min_create_revision: request.min_create_revision,
            max_create_revision: request.max_create_revision,
        }
    }

    /// Returns the requested keys.
    #[must_use]
    pub fn range(&self) -> KeyRange<'_> {
        KeyRange::new(&self.key, &self.range_end)
    }

    pub(super) fn limit(&self) -> Option<usize> {
        usize::try_from(self.limit).ok().filter(|limit| *limit > 0)
    }

    const fn filters_mod(&self) -> bool {
        self.min_mod_revision != 0 || self.max_mod_revision != 0
    }

    const fn filters_create(&self) -> bool {
        self.min_create_revision != 0 || self.max_create_revision != 0
    }

    fn in_key_order(&self) -> bool {
        self.sort_target == SortTarget::Key && self.sort_order != SortOrder::Descend
    }

    /// Returns whether the create revision and version of every candidate are needed.
    fn needs_generation(&self) -> bool {
        self.filters_create()
            || matches!(self.sort_target, SortTarget::Create | SortTarget::Version)
    }

    /// Returns whether the response contains values, or is sorted by them.
    #[must_use]
    pub fn needs_values(&self) -> bool {
        !self.count_only && (!self.keys_only || self.sort_target == SortTarget::Value)
    }

    /// Returns the candidates that the index must return.
    #[must_use]
    pub fn candidates(&self) -> Candidates {
        // One candidate beyond the limit shows whether there are more.
        let wanted = self.limit().map_or(usize::MAX, |limit| limit.saturating_add(1));
        if self.filters_mod() || self.filters_create() {
            Candidates::First(usize::MAX)
        } else if self.in_key_order() || self.sort_order == SortOrder::None {
            Candidates::First(wanted)
        } else if self.sort_target == SortTarget::Key {
            Candidates::Last(wanted)
        } else {
            Candidates::First(usize::MAX)
        }
    }
}

/// The part of a range's live keys that a request needs, in addition to the count of all live keys. The keys are taken
/// in key order, from the start or from the end of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Candidates {
    /// Up to this many keys from the start.
    First(usize),
    /// Up to this many keys from the end.
    Last(usize),
}

impl<'a> Snapshot<'a> {
    /// Executes a range request.
    pub fn range(&self, query: &RangeQuery) -> Result<RangeResult, MvccError> {
        let revision = self.readable(query.revision)?;
        if query.count_only {
            let count = self.count_at(query.range(), revision);
            return Ok(self.result(Vec::new(), false, count));
        }
        if let KeyRange::One(key) = query.range() {
            return self.range_one(key, revision, query);
        }
        let (mut found, count) = self.collect(query.range(), revision, query.candidates());
        if query.needs_generation() {
            for candidate in &mut found {
                self.load_generation(candidate)?;
            }
        }
        if query.filters_mod() {
            let (min, max) = (query.min_mod_revision, query.max_mod_revision);
            found.retain(|found| within(found.modified.main, min, max));
        }
        if query.filters_create() {
            let (min, max) = (query.min_create_revision, query.max_create_revision);
            found.retain(|found| within(created(found), min, max));
        }
        let limit = query.limit().unwrap_or(usize::MAX);
        let more = found.len() > limit;
        if query.sort_target == SortTarget::Value {
            let kvs = self.sorted_by_value(&found, query, limit)?;
            return Ok(self.result(kvs, more, count));
        }
        sort(&mut found, query, limit);
        found.truncate(limit);
        let kvs = if query.keys_only {
            self.keys_without_values(&mut found)?
        } else {
            self.records_of(&found)?
        };
        Ok(self.result(kvs, more, count))
    }

    /// Executes a range of a single key, which needs neither sorting nor a limit.
    fn range_one(
        &self,
        key: &[u8],
        revision: i64,
        query: &RangeQuery,
    ) -> Result<RangeResult, MvccError> {
        let found = self.tree.get_key_value(key);
        let found = found.and_then(|(key, entry)| self.visible(key, entry, revision));
        let Some(mut found) = found else { return Ok(self.result(Vec::new(), false, 0)) };
        let (min, max) = (query.min_mod_revision, query.max_mod_revision);
        let mut wanted = within(found.modified.main, min, max);
        if query.filters_create() {
            self.load_generation(&mut found)?;
            let (min, max) = (query.min_create_revision, query.max_create_revision);
            wanted &= within(created(&found), min, max);
        }
        let kvs = if !wanted {
            Vec::new()
        } else if !query.keys_only {
            vec![self.record(found.modified)?]
        } else if query.sort_target == SortTarget::Value {
            let record = self.record(found.modified)?;
            vec![KeyValue::new(&Fields { value: b"", ..record.fields() })]
        } else {
            self.keys_without_values(&mut [found])?
        };
        Ok(self.result(kvs, false, 1))
    }

    /// Returns the number of keys of a range that were live at a readable revision.
    pub(super) fn count_at(&self, range: KeyRange<'_>, revision: i64) -> usize {
        self.collect(range, revision, Candidates::First(0)).1
    }

    /// Returns the number of keys of a range that were live at a readable revision, unless all keys must be visited to
    /// count them.
    ///
    /// The count at an earlier revision is computed from the newest count, by undoing the later changes. This is
    /// worthwhile if there are fewer changes than keys in the range. Without this method, every page would visit all
    /// keys when a client lists a range in pages at the revision of the first page.
    pub(super) fn known_count(&self, range: KeyRange<'_>, revision: i64) -> Option<usize> {
        let newest = self.count(range);
        if revision == self.tree_revision {
            return Some(newest);
        }
        let window = self.records.window;
        if window.first_main()? > revision + 1 {
            return None;
        }
        let (mut created, mut deleted) = (0, 0);
        for (read, (_, record)) in window.since(revision + 1).enumerate() {
            if read == newest {
                return None;
            }
            let fields = Fields::decode(record).expect("the window contains valid records");
            if range.contains(fields.key) {
                created += usize::from(fields.version == 1);
                // Only deletions have no version.
                deleted += usize::from(fields.version == 0);
            }
        }
        Some(newest + deleted - created)
    }

    fn result(&self, kvs: Vec<KeyValue>, more: bool, count: usize) -> RangeResult {
        let count = i64::try_from(count).expect("keys fit in memory");
        RangeResult { revision: self.current, kvs, more, count }
    }

    /// Returns the candidates in key order, and the number of live keys in the whole range.
    fn collect(
        &self,
        range: KeyRange<'_>,
        revision: i64,
        candidates: Candidates,
    ) -> (Vec<Found<'a>>, usize) {
        let newest = revision == self.tree_revision;
        let known = self.known_count(range, revision);
        let mut count = known.unwrap_or_default();
        let (skip, wanted) = match candidates {
            Candidates::First(wanted) => (0, wanted),
            Candidates::Last(wanted) if newest => (count.saturating_sub(wanted), wanted),
            Candidates::Last(_) => (0, usize::MAX),
        };
        // If the count is known, the walk ends at the last key that was live.
        let wanted = known.map_or(wanted, |known| wanted.min(known));
        let mut found = Vec::with_capacity(wanted.min(count));
        if known.is_some() && wanted == 0 {
            return (found, count);
        }
        let visited = if newest { Wanted::Live } else { Wanted::All };
        self.walk(range, visited, skip, |key, entry| {
            if let Some(visible) = self.visible(key, entry, revision) {
                count += usize::from(known.is_none());
                if found.len() < wanted {
                    found.push(visible);
                }
                if known.is_some() && found.len() == wanted {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        (found, count)
    }

    fn load_generation(&self, found: &mut Found<'_>) -> Result<(i64, i64), Fault> {
        if let Some(generation) = found.generation {
            return Ok(generation);
        }
        let record = self.record(found.modified)?;
        let fields = record.fields();
        Ok(*found.generation.insert((fields.create_revision, fields.version)))
    }

    fn records_of(&self, found: &[Found<'_>]) -> Result<Vec<KeyValue>, Fault> {
        let records = self.records.get_all(found.iter().map(|found| found.modified))?;
        Ok(records.into_iter().map(KeyValue::from_encoded).collect())
    }

    /// Builds records from the index, without values and leases.
    fn keys_without_values(&self, found: &mut [Found<'_>]) -> Result<Vec<KeyValue>, Fault> {
        let mut buffer = RecordBuffer::default();
        found
            .iter_mut()
            .map(|found| {
                let (create_revision, version) = self.load_generation(found)?;
                let fields = Fields {
                    key: found.key,
                    create_revision,
                    mod_revision: found.modified.main,
                    version,
                    ..Fields::default()
                };
                Ok(KeyValue::from_encoded(buffer.encode(&fields)))
            })
            .collect()
    }

    fn sorted_by_value(
        &self,
        found: &[Found<'_>],
        query: &RangeQuery,
        limit: usize,
    ) -> Result<Vec<KeyValue>, Fault> {
        let mut kvs = self.records_of(found)?;
        kvs.sort_by(|a, b| in_order(query.sort_order, a.value().cmp(b.value())));
        kvs.truncate(limit);
        if query.keys_only {
            let mut buffer = RecordBuffer::default();
            for kv in &mut kvs {
                *kv = KeyValue::from_encoded(buffer.encode(&Fields { value: b"", ..kv.fields() }));
            }
        }
        Ok(kvs)
    }
}

/// Returns whether a value is within two bounds, where a bound of 0 does not apply.
const fn within(value: i64, min: i64, max: i64) -> bool {
    (min == 0 || value >= min) && (max == 0 || value <= max)
}

fn created(found: &Found<'_>) -> i64 {
    found.generation.expect("the generation is loaded before it is used").0
}

fn version(found: &Found<'_>) -> i64 {
    found.generation.expect("the generation is loaded before it is used").1
}

const fn in_order(order: SortOrder, ordering: Ordering) -> Ordering {
    match order {
        SortOrder::None | SortOrder::Ascend => ordering,
        SortOrder::Descend => ordering.reverse(),
    }
}

/// Sorts the candidates so that the first `limit` are in order. The caller passes them in key
/// order.
fn sort(found: &mut [Found<'_>], query: &RangeQuery, limit: usize) {
    let order = query.sort_order;
    let compare = |a: &Found<'_>, b: &Found<'_>| match query.sort_target {
        SortTarget::Key | SortTarget::Value => in_order(order, a.key.cmp(b.key)),
        SortTarget::Version => in_order(order, version(a).cmp(&version(b))).then(a.key.cmp(b.key)),
        SortTarget::Create => in_order(order, created(a).cmp(&created(b))).then(a.key.cmp(b.key)),
        SortTarget::Mod => {
            in_order(order, a.modified.main.cmp(&b.modified.main)).then(a.key.cmp(b.key))
        }
    };
    if query.in_key_order() {
        return;
    }
    if query.sort_target == SortTarget::Key {
        found.reverse();
        return;
    }
    let first = if limit < found.len() {
        let (first, _, _) = found.select_nth_unstable_by(limit, compare);
        first
    } else {
        found
    };
    first.sort_unstable_by(compare);
}
