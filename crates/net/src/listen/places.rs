//! Places for connections, and who gives one up when there is none.
//!
//! Most connections are idle at any moment, and welcome to be. When somebody waits for a place, connections on which
//! nothing has been asked for since the last look, and nothing is under way, are asked to leave, the one that was
//! looked at longest ago first: gRPC clients connect again when they have something to ask.
//!
//! # Bound
//!
//! As many connections as there are places. Further ones wait: one at each listener, the others in the kernel's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::{CONNECTION_WINDOW_BYTES, WINDOW_BYTES_MAX};

/// How often who waits for a place asks for one.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// Connections that are looked at each time, at most.
const LOOKED_AT_MAX: usize = 64;

/// Connections with large receive windows.
const LARGE_WINDOWS_MAX: usize = (WINDOW_BYTES_MAX / CONNECTION_WINDOW_BYTES as u64) as usize;

/// See the module.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    count: usize,
    windows: Arc<Semaphore>,
    window_count: usize,
    wanted: Notify,
    /// Connections that are still to be looked at, this time.
    looks_left: AtomicUsize,
    waited: AtomicU64,
    given_up: AtomicU64,
}

/// What has been going on at a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Requests so far.
    pub begun: u64,
    /// Requests under way.
    pub under_way: u64,
    /// Bytes that have left, where nothing but answers does: somebody may still be taking the last one.
    pub sent: u64,
}

/// The places, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacesLoad {
    /// Connections.
    pub taken: usize,
    /// Connections with large receive windows.
    pub large_windows: usize,
    /// Connections that had to wait.
    pub waited: u64,
    /// Idle connections that were asked to leave.
    pub given_up: u64,
}

impl Places {
    /// So many places.
    pub fn new(count: u64) -> Self {
        Self::with_windows(count, LARGE_WINDOWS_MAX)
    }

    /// So many places, and so many large receive windows.
    pub(super) fn with_windows(count: u64, window_count: usize) -> Self {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(count)),
            count,
            windows: Arc::new(Semaphore::new(window_count)),
            window_count,
            wanted: Notify::new(),
            looks_left: AtomicUsize::new(0),
            waited: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    /// How they are taken.
    pub fn load(&self) -> PlacesLoad {
        let taken = |of: &Semaphore, count: usize| count - of.available_permits().min(count);
        PlacesLoad {
            taken: taken(&self.free, self.count),
            large_windows: taken(&self.windows, self.window_count),
            waited: self.waited.load(Ordering::Relaxed),
            given_up: self.given_up.load(Ordering::Relaxed),
        }
    }

    /// A place, if there is one.
    pub(super) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// The right to large receive windows, if there are not too many that have it.
    pub(super) fn try_take_window(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.windows).try_acquire_owned().ok()
    }

    /// Waits until there is a place, and sees to it that there will be.
    pub(super) async fn take(&self) -> OwnedSemaphorePermit {
        self.waited.fetch_add(1, Ordering::Relaxed);
        loop {
            self.looks_left.store(LOOKED_AT_MAX, Ordering::Relaxed);
            self.look_at_next();
            let place = Arc::clone(&self.free).acquire_owned();
            if let Ok(place) = tokio::time::timeout(ASKED_EVERY, place).await {
                return place.expect("the semaphore is never closed");
            }
        }
    }

    fn look_at_next(&self) {
        let one_less = |left: usize| left.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.looks_left.fetch_update(set, fetch, one_less).is_ok() {
            // Whoever has waited longest.
            self.wanted.notify_one();
        }
    }

    /// Waits until the connection's place is wanted and the connection is idle.
    pub(super) async fn is_wanted_from(&self, activity: impl Fn() -> Activity) {
        let mut last_seen = None;
        loop {
            self.wanted.notified().await;
            let seen = activity();
            if seen.under_way == 0 && last_seen == Some(seen) {
                self.given_up.fetch_add(1, Ordering::Relaxed);
                return;
            }
            last_seen = Some(seen);
            self.look_at_next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_is_busy_stays() {
        let places = Arc::new(Places::new(2));
        let (first, second) = (places.try_take().unwrap(), places.try_take().unwrap());
        assert!(places.try_take().is_none());
        let count = AtomicU64::new(0);
        let streaming = || Activity { under_way: 1, ..Activity::default() };
        let next = || count.fetch_add(1, Ordering::Relaxed);
        let asking = || Activity { begun: next(), ..Activity::default() };
        let taking = || Activity { sent: next(), ..Activity::default() };
        let busy = async {
            tokio::select! {
                () = places.is_wanted_from(streaming) => {}
                () = places.is_wanted_from(asking) => {}
                () = places.is_wanted_from(taking) => {}
            }
            drop(first);
        };
        let idle = async {
            places.is_wanted_from(Activity::default).await;
            drop(second);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = busy => panic!("a connection in use was closed"),
            () = idle => {}
            _ = places.take() => {}
        }
        assert_eq!((places.load().waited, places.load().given_up), (1, 1));
    }
}
