//! Queue of accepted compactions between the applier and the task that hashes the keyspace.
//!
//! While one compaction is being hashed, at most one other compaction is queued, because each queued compaction holds a
//! view of the keyspace as it was before that compaction. Further compactions are not hashed. etcd does the same: a
//! compaction that begins before the previous compaction has finished leaves no hash.

use std::sync::Arc;

use parking_lot::Mutex;
use quorate_state::mvcc::{Compaction, View};
use tokio::sync::Notify;

/// An accepted compaction and the keyspace as it was before the compaction.
type Accepted = (Compaction, Arc<View>);

#[derive(Debug, Default)]
struct Progress {
    waiting: Option<Accepted>,
    /// Whether a compaction is being hashed.
    is_hashing: bool,
}

/// Holds at most one waiting compaction, and records whether another one is being hashed.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptedCompactions {
    progress: Arc<Mutex<Progress>>,
    is_offered: Arc<Notify>,
    is_hashed: Arc<Notify>,
}

impl AcceptedCompactions {
    /// Queues a compaction for hashing, unless another one is waiting. Does not block.
    pub(crate) fn offer(&self, compaction: Compaction, view: Arc<View>) {
        let mut progress = self.progress.lock();
        if progress.waiting.is_none() {
            progress.waiting = Some((compaction, view));
            self.is_offered.notify_one();
        }
    }

    /// Returns the next compaction to hash. The call also marks the previous compaction as hashed.
    pub(crate) async fn next(&self) -> Accepted {
        loop {
            {
                let mut progress = self.progress.lock();
                progress.is_hashing = progress.waiting.is_some();
                if let Some(accepted) = progress.waiting.take() {
                    return accepted;
                }
            }
            self.is_hashed.notify_waiters();
            self.is_offered.notified().await;
        }
    }

    /// Waits until all queued compactions are hashed.
    pub(crate) async fn all_hashed(&self) {
        loop {
            let hashed = self.is_hashed.notified();
            {
                let progress = self.progress.lock();
                if progress.waiting.is_none() && !progress.is_hashing {
                    return;
                }
            }
            hashed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_state::mvcc::{Store, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn only_the_first_pending_compaction_is_kept() {
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

    #[tokio::test]
    async fn a_compaction_counts_as_hashed_only_after_the_next_compaction_is_requested() {
        let accepted = AcceptedCompactions::default();
        accepted.all_hashed().await;
        let view = Store::new(StoreOptions::default()).reader().view();
        let compaction = Compaction { revision: 3, previous_revision: -1, previous_finished: true };
        accepted.offer(compaction, view);
        let mut all_hashed = std::pin::pin!(accepted.all_hashed());
        assert!(is_pending(all_hashed.as_mut()).await, "one compaction waits");
        let hashing = accepted.next().await;
        assert!(is_pending(all_hashed.as_mut()).await, "a compaction is being hashed: {hashing:?}");
        let mut next = std::pin::pin!(accepted.next());
        assert!(is_pending(next.as_mut()).await, "no compaction is left");
        all_hashed.await;
    }

    /// Returns whether the future is still pending.
    async fn is_pending(future: std::pin::Pin<&mut impl Future>) -> bool {
        let mut future = Some(future);
        std::future::poll_fn(|cx| {
            let future = future.as_mut().expect("the future is polled once");
            std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())
        })
        .await
    }
}
