//! Waits for the deletion of other owners' leasing keys.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The waiters by leasing key. A lost notification only causes a delay, because a waiter checks again after a timeout.
#[derive(Debug, Default)]
pub(super) struct DeletionWaiters(Mutex<HashMap<Bytes, Vec<oneshot::Sender<()>>>>);

/// A waiter for several leasing keys.
#[derive(Debug)]
pub(super) struct Waiting(Vec<oneshot::Receiver<()>>);

impl DeletionWaiters {
    /// Registers a waiter for these leasing keys.
    pub(super) fn watch<'a>(&self, names: impl Iterator<Item = &'a Bytes>) -> Waiting {
        let mut waiting = self.0.lock();
        let watch = |name: &Bytes| {
            let (gone, receiver) = oneshot::channel();
            let others = waiting.entry(name.clone()).or_default();
            // Remove waiters that have timed out.
            others.retain(|other| !other.is_closed());
            others.push(gone);
            receiver
        };
        Waiting(names.map(watch).collect())
    }

    /// Notifies the waiters of a deleted leasing key.
    pub(super) fn notify(&self, name: &Bytes) {
        for waiting in self.0.lock().remove(name).unwrap_or_default() {
            // Sending fails if the waiter has timed out.
            _ = waiting.send(());
        }
    }

    /// Removes the waiters that have timed out, for all keys.
    pub(super) fn remove_abandoned(&self) {
        self.0.lock().retain(|_, waiting| {
            waiting.retain(|one| !one.is_closed());
            !waiting.is_empty()
        });
    }
}

impl Waiting {
    /// Waits until all keys are deleted or the timeout expires.
    pub(super) async fn until_gone(self, time: Duration) {
        let all = async {
            for one in self.0 {
                // A dropped sender counts as a deletion, because the waiter checks the key again.
                drop(one.await);
            }
        };
        drop(tokio::time::timeout(time, all).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_waiter_is_notified_when_all_leasing_keys_are_deleted() {
        let waiters = DeletionWaiters::default();
        let names = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let waiting = waiters.watch(names.iter());
        let abandoned = waiters.watch(names.iter());
        drop(abandoned);
        let waiter = tokio::spawn(waiting.until_gone(LONG));
        waiters.notify(&names[0]);
        waiters.notify(&Bytes::from_static(b"other"));
        assert!(!waiter.is_finished());
        waiters.notify(&names[1]);
        waiter.await.unwrap();
        let abandoned = waiters.watch(names.iter());
        drop(abandoned);
        waiters.remove_abandoned();
        assert!(waiters.0.lock().is_empty());
    }
}
