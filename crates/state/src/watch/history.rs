//! What the hub needs of the keyspace: reading back what it has published.

use std::error::Error;

use quorate_api::record::KeyValue;

use super::events::Event;

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
    /// or `visit` says false. `first` is not below the compacted revision.
    fn visit_changes(
        &self,
        first: i64,
        visit: &mut dyn FnMut(i64, &Event<'_>) -> bool,
    ) -> Result<(), HistoryFault>;

    /// The record that `key` had at `revision`, if it was there and the revision can be read.
    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>, HistoryFault>;
}
