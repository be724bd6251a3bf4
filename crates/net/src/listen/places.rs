//! Permits for connections, and the choice of idle connections to close when none is left.
//!
//! Most connections are usually idle and may stay. When a new connection waits for a permit, idle ones are
//! asked to close. A connection is idle if it has no request in progress, and its activity is the same as at a
//! check at least [`ASKED_EVERY`] ago. The connection that was checked longest ago is checked first; gRPC
//! clients reconnect when they need to. No further connection is asked while as many are closing as wait.
//!
//! # Bound
//!
//! There are as many connections as permits. Further connections wait: one at each listener, and the others
//! in the kernel's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{CONNECTION_WINDOW_BYTES, WINDOW_BYTES_MAX};

/// How often idle connections are asked to close while a connection waits, and the time without activity after
/// which a connection is idle.
const ASKED_EVERY: Duration = Duration::from_secs(1);

/// The most connections that are checked each time, until an idle one is found.
const LOOKED_AT_MAX: usize = 64;

/// Connections with large receive windows.
const LARGE_WINDOWS_MAX: usize = WINDOW_BYTES_MAX / CONNECTION_WINDOW_BYTES as usize;

/// The permits of one budget.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    count: usize,
    windows: Arc<Semaphore>,
    window_count: usize,
    small_windows_told: AtomicBool,
    wanted: Notify,
    /// How many connections are still to be checked in this round.
    looks_left: AtomicUsize,
    waiting: AtomicUsize,
    /// Connections that were asked to close and are still open.
    leaving: AtomicUsize,
    waited: AtomicU64,
    given_up: AtomicU64,
}

/// The activity of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Requests that have started.
    pub begun: u64,
    /// Requests in progress.
    pub under_way: u64,
    /// Bytes sent, because the client may still be receiving the last answer. Over HTTP/2 only a closing
    /// connection counts them: pings would keep an idle connection.
    pub sent: u64,
}

/// The use of the permits, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacesLoad {
    /// Connections.
    pub taken: usize,
    /// Connections with large receive windows.
    pub large_windows: usize,
    /// Connections that had to wait.
    pub waited: u64,
    /// Idle connections that were asked to close.
    pub given_up: u64,
}

impl Places {
    /// Creates this many permits.
    pub fn new(count: u64) -> Self {
        Self::with_windows(count, LARGE_WINDOWS_MAX)
    }

    /// Creates this many permits, for this many large receive windows.
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

    /// Returns the use of the permits.
    pub fn load(&self) -> PlacesLoad {
        let taken = |of: &Semaphore, count: usize| count - of.available_permits().min(count);
        PlacesLoad {
            taken: taken(&self.free, self.count),
            large_windows: taken(&self.windows, self.window_count),
            waited: self.waited.load(Ordering::Relaxed),
            given_up: self.given_up.load(Ordering::Relaxed),
        }
    }

    /// Takes a permit, if there is one.
    pub(super) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// Takes the right to large receive windows, if there is one.
    pub(super) fn try_take_window(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.windows).try_acquire_owned().ok()
    }

    /// Returns true at the first call only, so that small windows are logged once.
    pub(super) fn is_first_small_window(&self) -> bool {
        !self.small_windows_told.swap(true, Ordering::Relaxed)
    }

    /// Waits for a permit, and asks idle connections to close meanwhile.
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
            // Wakes the connection that has waited longest.
            self.wanted.notify_one();
        }
    }

    /// Waits until the connection is idle and its permit is needed. The returned value is held until the
    /// connection has closed.
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

/// Counts its owner while it exists.
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
    async fn only_idle_connections_are_asked_to_close() {
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
    async fn a_connection_that_was_just_checked_is_not_idle() {
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
    async fn no_other_connection_is_asked_while_one_is_closing() {
        let places = Places::new(2);
        let (first, _second) = (places.try_take().unwrap(), places.try_take().unwrap());
        let slow = async {
            let _leaving = places.is_wanted_from(Activity::default).await;
            tokio::time::sleep(ASKED_EVERY * 10).await;
            drop(first);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // The order in which they are checked.
            biased;
            () = slow => {}
            _ = places.is_wanted_from(Activity::default) => panic!("one closing connection is enough"),
            _ = places.take() => {}
        }
        assert_eq!((places.load().waited, places.load().given_up), (1, 1));
    }
}
