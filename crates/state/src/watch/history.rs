//! What the hub needs of the keyspace: reading back what it has published.

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::Arc;

use quorate_api::record::KeyValue;

use crate::mvcc::{Change, ChangeKind, StoreReader, View};

/// One change of a key, as the keyspace tells it.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Whether the key was deleted.
    pub deleted: bool,
    /// The key.
    pub key: &'a [u8],
    /// The record's encoding; after a deletion only key and mod revision are set in it.
    pub record: &'a [u8],
}

/// This member's store could not be read. The member stops.
pub type HistoryFault = Box<dyn Error + Send + Sync>;

/// Where the hub gets history from. There is one for as long as the member uses one store.
pub trait Source: Send + Sync {
    /// The newest published state.
    fn latest(&self) -> Box<dyn History>;
}

/// One published state of the keyspace, which does not change.
pub trait History {
    /// The newest revision in it.
    fn current_revision(&self) -> i64;

    /// The revision below which nothing can be read, -1 for none.
    fn compacted_revision(&self) -> i64;

    /// Calls `visit` with the changes of the revisions from `first` on, in order, until there are no more
    /// or `visit` says false; nothing is read ahead of it. `first` is not below the compacted revision.
    fn visit_changes(
        &self,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> Result<(), HistoryFault>;

    /// The record that `key` had at `revision`, if it was there and the revision can be read.
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
    ) -> Result<(), HistoryFault> {
        Ok(View::visit_changes(self, first, &mut |change| {
            let deleted = change.kind == ChangeKind::Delete;
            let event = Event { deleted, key: change.key, record: change.record };
            if visit(change.revision, &event) {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?)
    }

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, HistoryFault> {
        if revision < View::compacted_revision(self) {
            return Ok(None);
        }
        Ok(self.snapshot().record_at(key, revision)?)
    }
}

/// A change as watchers are told of it.
pub(super) fn event_of(change: &Change) -> Event<'_> {
    Event {
        deleted: change.kind == ChangeKind::Delete,
        key: change.record.key(),
        record: change.record.encoded(),
    }
}
