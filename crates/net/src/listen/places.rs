//! Places for connections, and who gives one up when there is none.
//!
//! Most connections are idle at any moment, and welcome to be. When somebody waits for a place, connections on which
//! nothing has been asked for since a look at least [`ASKED_EVERY`] ago, and nothing is under way, are asked to leave,
//! the one that was looked at longest ago first: gRPC clients connect again when they have something to ask. No more
//! are asked than wait, those that are still leaving included.
//!
//! # Bound
//!
//! As many connections as there are places. Further ones wait: one at each listener, the others in the kernel's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{CONNECTION_WINDOW_BYTES, WINDOW_BYTES_MAX};

/// How often who waits for a place asks for one.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// Connections that are looked at each time, at most.
const LOOKED_AT_MAX: usize = 64;

/// Connections with large receive windows.
const LARGE_WINDOWS_MAX: usize = WINDOW_BYTES_MAX / CONNECTION_WINDOW_BYTES as usize;

/// See the module.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    count: usize,
    windows: Arc<Semaphore>,
    window_count: usize,
    small_windows_told: AtomicBool,
    wanted: Notify,
    /// Connections that are still to be looked at, this time.
    looks_left: AtomicUsize,
    waiting: AtomicUsize,
    /// Connections that were asked to leave and have not left yet.
    leaving: AtomicUsize,
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
            small_windows_told: AtomicBool::new(false),
            wanted: Notify::new(),
            looks_left: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            leaving: AtomicUsize::new(0),
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

    /// Whether it is still to be told that there are connections without that right.
    pub(super) fn is_first_small_window(&self) -> bool {
        !self.small_windows_told.swap(true, Ordering::Relaxed)
    }

    /// Waits until there is a place, and sees to it that there will be.
    pub(super) async fn take(&self) -> OwnedSemaphorePermit {
        self.waited.fetch_add(1, Ordering::Relaxed);
        let _waiting = Counted::one_more(&self.waiting);
        loop {
            if self.leaving.load(Ordering::Relaxed) < self.waiting.load(Ordering::Relaxed) {
                self.looks_left.store(LOOKED_AT_MAX.min(self.count), Ordering::Relaxed);
                self.look_at_next();
            }
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

    /// Waits until the connection's place is wanted and the connection is idle. What is returned is held until it has
    /// left.
    pub(super) async fn is_wanted_from(&self, activity: impl Fn() -> Activity) -> Counted<'_> {
        let mut last_change: Option<(Instant, Activity)> = None;
        loop {
            self.wanted.notified().await;
            let (now, seen) = (Instant::now(), activity());
            match last_change {
                Some((since, known)) if known == seen => {
                    if seen.under_way == 0 && now.duration_since(since) >= ASKED_EVERY {
                        self.given_up.fetch_add(1, Ordering::Relaxed);
                        return Counted::one_more(&self.leaving);
                    }
                }
                Some(_) | None => last_change = Some((now, seen)),
            }
            self.look_at_next();
        }
    }
}

/// Counts its owner for as long as it is held.
#[derive(Debug)]
pub(super) struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn one_more(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
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
                _ = places.is_wanted_from(streaming) => {}
                _ = places.is_wanted_from(asking) => {}
                _ = places.is_wanted_from(taking) => {}
            }
            drop(first);
        };
        let idle = async {
            let _leaving = places.is_wanted_from(Activity::default).await;
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

    #[tokio::test(start_paused = true)]
    async fn who_was_looked_at_just_now_is_not_idle() {
        let places = Places::new(1);
        let only = places.try_take().unwrap();
        let started = Instant::now();
        let leaving = async {
            let _leaving = places.is_wanted_from(Activity::default).await;
            drop(only);
        };
        let (_place, ()) = tokio::join!(places.take(), leaving);
        assert!(started.elapsed() >= ASKED_EVERY, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_else_is_asked_while_one_is_leaving() {
        let places = Places::new(2);
        let (first, _second) = (places.try_take().unwrap(), places.try_take().unwrap());
        let slow = async {
            let _leaving = places.is_wanted_from(Activity::default).await;
            tokio::time::sleep(ASKED_EVERY * 10).await;
            drop(first);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // In this order they are looked at.
            biased;
            () = slow => {}
            _ = places.is_wanted_from(Activity::default) => panic!("one place was enough"),
            _ = places.take() => {}
        }
        assert_eq!((places.load().waited, places.load().given_up), (1, 1));
    }
}
