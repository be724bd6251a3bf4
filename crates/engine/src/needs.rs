//! Determines the keys that a request reads or changes. These keys must be loaded before the request is
//! applied.
//!
//! # Invariants
//!
//! * The needs of a request contain every key that `State::apply` looks up for this request. For a
//!   transaction, they contain the keys of both branches, because the conditions are evaluated only
//!   when the request is applied.

use std::collections::BTreeMap;

use bytes::Bytes;
use quorate_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare::CompareTarget,
    request_op::Request,
};
use quorate_state::apply::Command;
use quorate_state::lease::Leases;
use quorate_state::mvcc::{KeyRange, RangeQuery};
use quorate_state::units::LeaseId;

/// The part of a key's newest version that must be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// The revisions and the version number, without the record.
    Facts,
    /// The record, which includes the value and the lease.
    Whole,
}

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
}

/// The keys that requests need.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    pub(crate) keys: BTreeMap<Bytes, Level>,
    pub(crate) spans: Vec<(Span, Level)>,
    /// Ranges that are read at older revisions.
    pub(crate) histories: Vec<Span>,
}

impl Span {
    pub(crate) fn range(&self) -> KeyRange<'_> {
        KeyRange::new(&self.key, &self.range_end)
    }
}

impl Needs {
    pub(crate) fn add(&mut self, command: &Command, leases: &Leases) {
        match command {
            Command::Range(range) => self.add_range(range),
            Command::Put(put) => self.add_put(put),
            Command::DeleteRange(delete) => self.add_delete(delete),
            Command::Txn(txn) => self.add_txn(txn),
            Command::LeaseRevoke(revoke) => {
                for key in leases.keys(LeaseId(revoke.id)).unwrap_or_default() {
                    self.add_key(Bytes::copy_from_slice(&key), Level::Facts);
                }
            }
            Command::Compaction(_)
            | Command::LeaseGrant(_)
            | Command::LeaseCheckpoint(_)
            | Command::Alarm(_)
            | Command::Auth(_)
            | Command::Cluster(_)
            | Command::Nothing => {}
        }
    }

    fn add_put(&mut self, put: &PutRequest) {
        let reads_record = put.prev_kv || put.ignore_value || put.ignore_lease;
        self.add_key(put.key.clone(), if reads_record { Level::Whole } else { Level::Facts });
    }

    fn add_delete(&mut self, delete: &DeleteRangeRequest) {
        let level = if delete.prev_kv { Level::Whole } else { Level::Facts };
        self.add_span(&delete.key, &delete.range_end, level);
    }

    fn add_range(&mut self, range: &RangeRequest) {
        if range.revision > 0 {
            let (key, range_end) = (range.key.clone(), range.range_end.clone());
            self.histories.push(Span { key, range_end });
            return;
        }
        let needs_values = RangeQuery::from_request(range).needs_values();
        let level = if needs_values { Level::Whole } else { Level::Facts };
        self.add_span(&range.key, &range.range_end, level);
    }

    fn add_txn(&mut self, txn: &TxnRequest) {
        for compare in &txn.compare {
            let reads_record = [CompareTarget::Value as i32, CompareTarget::Lease as i32]
                .contains(&compare.target);
            let level = if reads_record { Level::Whole } else { Level::Facts };
            self.add_span(&compare.key, &compare.range_end, level);
        }
        for RequestOp { request } in txn.success.iter().chain(&txn.failure) {
            match request {
                Some(Request::RequestRange(range)) => self.add_range(range),
                Some(Request::RequestPut(put)) => self.add_put(put),
                Some(Request::RequestDeleteRange(delete)) => self.add_delete(delete),
                Some(Request::RequestTxn(txn)) => self.add_txn(txn),
                None => {}
            }
        }
    }

    fn add_span(&mut self, key: &Bytes, range_end: &Bytes, level: Level) {
        if range_end.is_empty() {
            return self.add_key(key.clone(), level);
        }
        self.spans.push((Span { key: key.clone(), range_end: range_end.clone() }, level));
    }

    fn add_key(&mut self, key: Bytes, level: Level) {
        let held = self.keys.entry(key).or_insert(level);
        *held = level.max(*held);
    }
}

/// The keys and ranges that are already loaded into a working set.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    keys: BTreeMap<Bytes, Level>,
    spans: Vec<(Span, Level)>,
}

/// The maximum number of ranges in a coverage. If there are more, the oldest ranges are dropped from the coverage, and
/// are loaded again if they are needed.
const SPANS_MAX: usize = 64;

impl Coverage {
    /// Removes from `needs` the keys and ranges that are already loaded, and marks the remaining ones as
    /// loaded.
    pub(crate) fn take(&mut self, needs: &mut Needs) {
        needs.keys.retain(|key, level| {
            let is_known = self.keys.get(key).is_some_and(|held| held >= level)
                || self
                    .spans
                    .iter()
                    .any(|(span, held)| *held >= *level && span.range().contains(key));
            if !is_known {
                self.keys.insert(key.clone(), *level);
            }
            !is_known
        });
        needs.spans.sort_unstable();
        needs.spans.dedup();
        needs.spans.retain(|(span, level)| {
            let is_known =
                self.spans.iter().any(|(held, of)| of >= level && held.contains_span(span));
            if !is_known {
                self.spans.push((span.clone(), *level));
            }
            !is_known
        });
        let excess = self.spans.len().saturating_sub(SPANS_MAX);
        self.spans.drain(..excess);
    }

    /// Returns the number of keys that were loaded individually, not as part of a range.
    pub(crate) fn key_count(&self) -> usize {
        self.keys.len()
    }
}

impl Span {
    fn contains_span(&self, other: &Self) -> bool {
        let is_open = |span: &Self| span.range_end[..] == [0];
        let ends_within = is_open(self) || (!is_open(other) && other.range_end <= self.range_end);
        self.key <= other.key && ends_within
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(key: &'static str, range_end: &'static [u8]) -> Span {
        Span { key: Bytes::from_static(key.as_bytes()), range_end: Bytes::from_static(range_end) }
    }

    fn needs(keys: &[(&'static str, Level)], spans: Vec<(Span, Level)>) -> Needs {
        let key =
            |(key, level): &(&'static str, Level)| (Bytes::from_static(key.as_bytes()), *level);
        Needs { keys: keys.iter().map(key).collect(), spans, histories: Vec::new() }
    }

    #[test]
    fn a_loaded_key_is_loaded_again_only_if_its_record_is_needed_too() {
        let mut coverage = Coverage::default();
        coverage.take(&mut needs(&[("a", Level::Facts)], vec![(span("m", b"p"), Level::Whole)]));
        let mut second = needs(
            &[("a", Level::Facts), ("b", Level::Facts), ("n", Level::Whole), ("p", Level::Facts)],
            vec![(span("n", b"o"), Level::Facts), (span("n", &[0]), Level::Facts)],
        );
        coverage.take(&mut second);
        let left: Vec<_> = second.keys.keys().map(|key| &key[..]).collect();
        assert_eq!(left, [b"b", b"p"]);
        assert_eq!(second.spans, [(span("n", &[0]), Level::Facts)]);
        let mut third = needs(&[("a", Level::Whole)], Vec::new());
        coverage.take(&mut third);
        assert_eq!(third.keys.len(), 1);
    }

    #[test]
    fn a_transaction_needs_the_keys_of_both_branches() {
        let put = |key: &'static str| RequestOp {
            request: Some(Request::RequestPut(PutRequest {
                key: Bytes::from_static(key.as_bytes()),
                ..PutRequest::default()
            })),
        };
        let inner =
            TxnRequest { success: vec![put("c")], failure: vec![put("d")], compare: vec![] };
        let nested = RequestOp { request: Some(Request::RequestTxn(inner)) };
        let txn = TxnRequest {
            success: vec![put("a")],
            failure: vec![put("b"), nested],
            compare: vec![],
        };
        let mut needs = Needs::default();
        needs.add_txn(&txn);
        let keys: Vec<_> = needs.keys.keys().map(|key| &key[..]).collect();
        assert_eq!(keys, [b"a", b"b", b"c", b"d"]);
    }
}
