//! Leasing keys that somebody waits for to go.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// See the module. Nobody depends on it: who waits looks again after a while.
#[derive(Debug, Default)]
pub(super) struct Departures(Mutex<HashMap<Bytes, Vec<oneshot::Sender<()>>>>);

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiting(Vec<oneshot::Receiver<()>>);

impl Departures {
    /// Begins to look at these.
    pub(super) fn watch<'a>(&self, names: impl Iterator<Item = &'a Bytes>) -> Waiting {
        let mut waiting = self.0.lock();
        let watch = |name: &Bytes| {
            let (gone, receiver) = oneshot::channel();
            let others = waiting.entry(name.clone()).or_default();
            // Those who have given up are not kept.
            others.retain(|other| !other.is_closed());
            others.push(gone);
            receiver
        };
        Waiting(names.map(watch).collect())
    }

    /// A leasing key is gone.
    pub(super) fn tell(&self, name: &Bytes) {
        for waiting in self.0.lock().remove(name).unwrap_or_default() {
            // Who has given up need not know.
            _ = waiting.send(());
        }
    }

    /// Forgets those who have given up, of keys that have not gone.
    pub(super) fn tidy(&self) {
        self.0.lock().retain(|_, waiting| {
            waiting.retain(|one| !one.is_closed());
            !waiting.is_empty()
        });
    }
}

impl Waiting {
    /// Until all are gone, or time is up.
    pub(super) async fn until_gone(self, time: Duration) {
        let all = async {
            for one in self.0 {
                // One whose sender is lost is looked at again.
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
    async fn who_waits_is_told_when_all_are_gone() {
        let departures = Departures::default();
        let names = [Bytes::from_static(b"a"), Bytes::from_static(b"b")];
        let waiting = departures.watch(names.iter());
        let given_up = departures.watch(names.iter());
        drop(given_up);
        let told = tokio::spawn(waiting.until_gone(LONG));
        departures.tell(&names[0]);
        departures.tell(&Bytes::from_static(b"other"));
        assert!(!told.is_finished());
        departures.tell(&names[1]);
        told.await.unwrap();
        let given_up = departures.watch(names.iter());
        drop(given_up);
        departures.tidy();
        assert!(departures.0.lock().is_empty());
    }
}
