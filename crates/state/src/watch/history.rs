//! The traits through which the hub reads published revisions from the keyspace.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;

use quorate_api::record::KeyValue;

use crate::mvcc::{Change, ChangeKind, StoreReader, View};

/// One change of a key, as read from the keyspace.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Whether the key was deleted.
    pub deleted: bool,
    /// The key.
    pub key: &'a [u8],
    /// The encoded record. For a deletion, it contains only the key and the mod revision.
    pub record: &'a [u8],
}

/// The error returned if this member's store cannot be read. The member then stops.
pub type HistoryFault = Box<dyn Error + Send + Sync>;

/// The keyspace from which the hub reads history. A source is replaced when the member replaces its
/// store.
pub trait Source: Send + Sync {
    /// Returns the newest published state.
    fn latest(&self) -> Box<dyn History>;
}

/// One published, immutable state of the keyspace.
pub trait History {
    /// Returns the newest revision in this state.
    fn current_revision(&self) -> i64;

    /// Returns the compacted revision, or -1 before the first compaction. Revisions below it cannot
    /// be read.
    fn compacted_revision(&self) -> i64;

    /// Returns whether the changes from revision `first` on can be read without waiting for another machine. Other
    /// changes are not read under the hub's lock, because publications and registrations wait for it.
    fn is_local(&self, _first: i64) -> bool {
        true
    }

    /// Calls `visit` with the changes of the revisions from `first` on, in order, until there are
    /// no more or `visit` returns false. Changes are read one at a time, as they are visited.
    /// `first` must not be below the compacted revision.
    ///
    /// A history that is read from a database may be compacted meanwhile. If the next changes may be missing as a
    /// result, the visit ends and returns the new compacted revision, which is higher than all visited revisions.
    fn visit_changes(
        &self,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> Result<Option<i64>, HistoryFault>;

    /// Returns the record of `key` at `revision`, if the key existed and the revision can be read.
    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, HistoryFault>;
}

impl Source for StoreReader {
    fn latest(&self) -> Box<dyn History> {
        Box::new(self.view())
    }
}

impl History for Arc<View> {
    fn current_revision(&self) -> i64 {
        View::current_revision(self)
    }

    fn compacted_revision(&self) -> i64 {
        View::compacted_revision(self)
    }

    fn visit_changes(
        &self,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> Result<Option<i64>, HistoryFault> {
        View::visit_changes(self, first, &mut |change| {
            let deleted = change.kind == ChangeKind::Delete;
            let event = Event { deleted, key: change.key, record: change.record };
            if visit(change.revision, &event) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        Ok(None)
    }

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, HistoryFault> {
        if revision < View::compacted_revision(self) {
            return Ok(None);
        }
        Ok(self.snapshot().record_at(key, revision)?)
    }
}

/// Converts a change to the event that watchers receive.
pub(super) fn event_of(change: &Change) -> Event<'_> {
    Event {
        deleted: change.kind == ChangeKind::Delete,
        key: change.record.key(),
        record: change.record.encoded(),
    }
}
