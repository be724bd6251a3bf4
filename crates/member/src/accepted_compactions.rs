//! Compactions on their way from the applier to whoever hashes them.

use std::sync::Arc;

use parking_lot::Mutex;
use quorate_state::mvcc::{Compaction, View};
use tokio::sync::Notify;

/// A compaction that was accepted, with the keyspace before it.
type Accepted = (Compaction, Arc<View>);

/// One place for an accepted compaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptedCompactions {
    place: Arc<Mutex<Option<Accepted>>>,
    is_taken: Arc<Notify>,
}

impl AcceptedCompactions {
    /// Leaves a compaction there, unless another one still waits. Does not block.
    pub(crate) fn offer(&self, compaction: Compaction, view: Arc<View>) {
        let mut place = self.place.lock();
        if place.is_none() {
            *place = Some((compaction, view));
            self.is_taken.notify_one();
        }
    }

    /// The next one.
    pub(crate) async fn next(&self) -> Accepted {
        loop {
            if let Some(accepted) = self.place.lock().take() {
                return accepted;
            }
            self.is_taken.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_state::mvcc::{Store, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn one_waits_and_others_are_passed_over() {
        let accepted = AcceptedCompactions::default();
        let view = Store::new(StoreOptions::default()).reader().view();
        let compaction =
            |revision| Compaction { revision, previous_revision: -1, previous_finished: true };
        for revision in [3, 4] {
            accepted.offer(compaction(revision), Arc::clone(&view));
        }
        assert_eq!(accepted.next().await.0, compaction(3));
        accepted.offer(compaction(5), view);
        assert_eq!(accepted.next().await.0, compaction(5));
    }
}
