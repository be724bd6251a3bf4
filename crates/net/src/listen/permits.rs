//! Permits for connections, and the selection of connections to close when no permit is left.
//!
//! Most connections are usually idle and may stay open. When a new connection waits for a permit, idle connections are
//! asked to close. gRPC clients reconnect when they need to. A connection is idle if it has no request in progress and
//! its activity has not changed for [`CLOSE_REQUEST_INTERVAL`], since it was opened or checked. The least recently
//! checked connection is checked first. No further connection is asked to close if at least as many connections are
//! already closing as new connections are waiting. A connection that does not close in time no longer counts as
//! closing.
//!
//! Probes and scrapers need no connection after a response. On a metrics listener, a connection is therefore also asked
//! to close after a response if its client keeps sending requests. Otherwise, a few such clients would exclude the
//! probes of an orchestrator, which would then restart the server.
//!
//! # Bound
//!
//! There are at most as many connections as permits. Further connections wait, one at each listener and the rest in the
//! kernel's queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::{CONNECTION_WINDOW_BYTES, WINDOW_BYTES_MAX};

/// Interval at which idle connections are asked to close while a new connection waits for a permit. Also the time
/// without activity after which a connection is idle.
const CLOSE_REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of connections checked in each round to find an idle one.
const CHECKED_MAX: usize = 64;

/// Maximum number of connections with large receive windows.
const LARGE_WINDOWS_MAX: usize = WINDOW_BYTES_MAX / CONNECTION_WINDOW_BYTES as usize;

/// The kind of connections that share a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Connections of clients.
    Client,
    /// Connections of other members.
    Peer,
    /// Connections of probes and scrapers to metrics listeners.
    Metrics,
}

impl ConnectionKind {
    /// Returns the name of the kind in the log.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Peer => "peer",
            Self::Metrics => "metrics",
        }
    }

    /// Returns whether a connection may be asked to close although its client keeps sending requests.
    const fn closes_after_responses(self) -> bool {
        match self {
            Self::Client | Self::Peer => false,
            Self::Metrics => true,
        }
    }
}

/// The permits for one budget of connections.
#[derive(Debug)]
pub struct ConnectionPermits {
    kind: ConnectionKind,
    free: Arc<Semaphore>,
    count: usize,
    windows: Arc<Semaphore>,
    window_count: usize,
    small_windows_logged: AtomicBool,
    check_requested: Notify,
    /// Number of connections still to be checked in this round.
    checks_left: AtomicUsize,
    waiting: AtomicUsize,
    /// Number of connections that were asked to close recently and are still open.
    closing: AtomicUsize,
    waited: AtomicU64,
    closed_idle: AtomicU64,
}

/// The activity of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Number of requests started so far.
    pub begun: u64,
    /// Number of requests in progress.
    pub under_way: u64,
    /// Number of bytes sent, counted because the client may still be receiving the last response. Over HTTP/2 only
    /// closing connections count them, because pings would otherwise keep an idle connection open.
    pub sent: u64,
}

/// The use of the permits, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPermitsLoad {
    /// Number of connections that hold a permit.
    pub taken: usize,
    /// Number of connections with large receive windows.
    pub large_windows: usize,
    /// Number of connections that had to wait.
    pub waited: u64,
    /// Number of connections that were asked to close.
    pub closed_idle: u64,
}

impl ConnectionPermits {
    /// Creates `count` permits.
    pub fn new(kind: ConnectionKind, count: u64) -> Self {
        Self::with_windows(kind, count, LARGE_WINDOWS_MAX)
    }

    /// Creates `count` connection permits and `window_count` permits for large receive windows.
    pub(super) fn with_windows(kind: ConnectionKind, count: u64, window_count: usize) -> Self {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            kind,
            free: Arc::new(Semaphore::new(count)),
            count,
            windows: Arc::new(Semaphore::new(window_count)),
            window_count,
            small_windows_logged: AtomicBool::new(false),
            check_requested: Notify::new(),
            checks_left: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            closing: AtomicUsize::new(0),
            waited: AtomicU64::new(0),
            closed_idle: AtomicU64::new(0),
        }
    }

    /// Returns the kind of the connections, and their maximum number.
    pub(super) const fn limit(&self) -> (ConnectionKind, usize) {
        (self.kind, self.count)
    }

    /// Returns the use of the permits.
    pub fn load(&self) -> ConnectionPermitsLoad {
        let taken = |of: &Semaphore, count: usize| count - of.available_permits().min(count);
        ConnectionPermitsLoad {
            taken: taken(&self.free, self.count),
            large_windows: taken(&self.windows, self.window_count),
            waited: self.waited.load(Ordering::Relaxed),
            closed_idle: self.closed_idle.load(Ordering::Relaxed),
        }
    }

    /// Takes a permit, if one is free.
    pub(super) fn try_take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).try_acquire_owned().ok()
    }

    /// Takes a permit for large receive windows, if one is free.
    pub(super) fn try_take_window(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.windows).try_acquire_owned().ok()
    }

    /// Returns true only for the first call, so that small windows are logged once.
    pub(super) fn is_first_small_window(&self) -> bool {
        !self.small_windows_logged.swap(true, Ordering::Relaxed)
    }

    /// Waits for a permit. In the meantime, other connections are asked to close.
    pub(super) async fn take(&self) -> OwnedSemaphorePermit {
        self.waited.fetch_add(1, Ordering::Relaxed);
        let _waiting = Counted::new(&self.waiting);
        loop {
            if self.closing.load(Ordering::Relaxed) < self.waiting.load(Ordering::Relaxed) {
                self.checks_left.store(CHECKED_MAX.min(self.count), Ordering::Relaxed);
                self.check_next();
            }
            let permit = Arc::clone(&self.free).acquire_owned();
            if let Ok(permit) = tokio::time::timeout(CLOSE_REQUEST_INTERVAL, permit).await {
                return permit.expect("the semaphore is never closed");
            }
        }
    }

    fn check_next(&self) {
        let one_less = |left: usize| left.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.checks_left.fetch_update(set, fetch, one_less).is_ok() {
            // Wakes the least recently checked connection.
            self.check_requested.notify_one();
        }
    }

    /// Waits until the connection's permit is needed and the connection may be asked to close. The caller then lets the
    /// current request finish. It holds the returned value until the connection is closed or has failed to close in
    /// time.
    pub(super) async fn close_requested(&self, activity: impl Fn() -> Activity) -> Closing<'_> {
        let (mut since, mut known) = (Instant::now(), activity());
        loop {
            self.check_requested.notified().await;
            let (now, seen) = (Instant::now(), activity());
            let is_unchanged = seen == known && now.duration_since(since) >= CLOSE_REQUEST_INTERVAL;
            let is_idle = seen.under_way == 0 && is_unchanged;
            let has_had_response = seen.begun > seen.under_way;
            if is_idle || (has_had_response && self.kind.closes_after_responses()) {
                self.closed_idle.fetch_add(1, Ordering::Relaxed);
                return Closing { _counted: Counted::new(&self.closing) };
            }
            if seen != known {
                (since, known) = (now, seen);
            }
            self.check_next();
        }
    }
}

/// Counts a connection as closing until this value is dropped.
#[derive(Debug)]
pub(super) struct Closing<'a> {
    _counted: Counted<'a>,
}

/// Counts the owner of this value until the value is dropped.
#[derive(Debug)]
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
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
        let permits = Arc::new(ConnectionPermits::new(ConnectionKind::Client, 2));
        let (first, second) = (permits.try_take().unwrap(), permits.try_take().unwrap());
        assert!(permits.try_take().is_none());
        let count = AtomicU64::new(0);
        let streaming = || Activity { under_way: 1, ..Activity::default() };
        let next = || count.fetch_add(1, Ordering::Relaxed);
        let asking = || Activity { begun: next(), ..Activity::default() };
        let taking = || Activity { sent: next(), ..Activity::default() };
        let busy = async {
            tokio::select! {
                _ = permits.close_requested(streaming) => {}
                _ = permits.close_requested(asking) => {}
                _ = permits.close_requested(taking) => {}
            }
            drop(first);
        };
        let idle = async {
            let _closing = permits.close_requested(Activity::default).await;
            drop(second);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = busy => panic!("a connection in use was closed"),
            () = idle => {}
            _ = permits.take() => {}
        }
        assert_eq!((permits.load().waited, permits.load().closed_idle), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_metrics_connection_is_asked_to_close_after_a_response_even_if_it_is_active() {
        let permits = ConnectionPermits::new(ConnectionKind::Metrics, 2);
        let (_first, second) = (permits.try_take().unwrap(), permits.try_take().unwrap());
        let waits_for_its_first_response =
            || Activity { begun: 1, under_way: 1, ..Activity::default() };
        let count = AtomicU64::new(2);
        let keeps_asking = || {
            let begun = count.fetch_add(1, Ordering::Relaxed);
            Activity { begun, under_way: 1, ..Activity::default() }
        };
        let started = Instant::now();
        let active = async {
            let _closing = permits.close_requested(keeps_asking).await;
            drop(second);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // Polls the connections in the order in which they are to be checked.
            biased;
            _ = permits.close_requested(waits_for_its_first_response) => {
                panic!("a connection without a response was asked to close")
            }
            () = active => {}
            _ = permits.take() => {}
            () = tokio::time::sleep(CLOSE_REQUEST_INTERVAL * 60) => panic!("no connection closed"),
        }
        assert_eq!((started.elapsed(), permits.load().closed_idle), (Duration::ZERO, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_has_been_silent_since_it_was_opened_is_idle_at_the_first_check() {
        let permits = ConnectionPermits::new(ConnectionKind::Client, 1);
        let only = permits.try_take().unwrap();
        let silent = async {
            let _closing = permits.close_requested(Activity::default).await;
            drop(only);
        };
        let next = async {
            tokio::time::advance(CLOSE_REQUEST_INTERVAL).await;
            let started = Instant::now();
            drop(permits.take().await);
            assert_eq!(started.elapsed(), Duration::ZERO);
        };
        tokio::join!(silent, next);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_just_opened_is_not_idle() {
        let permits = ConnectionPermits::new(ConnectionKind::Client, 1);
        let only = permits.try_take().unwrap();
        let started = Instant::now();
        let closing = async {
            let _closing = permits.close_requested(Activity::default).await;
            drop(only);
        };
        let (_permit, ()) = tokio::join!(permits.take(), closing);
        assert!(started.elapsed() >= CLOSE_REQUEST_INTERVAL, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn another_connection_is_asked_to_close_if_the_first_one_does_not_close_in_time() {
        let permits = ConnectionPermits::new(ConnectionKind::Client, 2);
        let (_first, second) = (permits.try_take().unwrap(), permits.try_take().unwrap());
        let busy = async {
            let closing = permits.close_requested(Activity::default).await;
            let closing = Some((closing, CLOSE_REQUEST_INTERVAL * 5));
            let streaming = || Activity { under_way: 1, ..Activity::default() };
            super::super::end(std::future::pending::<Result<(), ()>>(), closing, streaming).await
        };
        let idle = async {
            let _closing = permits.close_requested(Activity::default).await;
            drop(second);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // Polls the connections in the order in which they are to be checked.
            biased;
            _ = busy => panic!("a connection with a request in progress was closed"),
            () = idle => {}
            permit = permits.take() => drop(permit),
            () = tokio::time::sleep(CLOSE_REQUEST_INTERVAL * 60) => panic!("no connection closed"),
        }
        assert_eq!(permits.load().closed_idle, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn no_other_connection_is_asked_to_close_while_one_is_closing() {
        let permits = ConnectionPermits::new(ConnectionKind::Client, 2);
        let (first, _second) = (permits.try_take().unwrap(), permits.try_take().unwrap());
        let slow = async {
            let _closing = permits.close_requested(Activity::default).await;
            tokio::time::sleep(CLOSE_REQUEST_INTERVAL * 10).await;
            drop(first);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            // Polls the connections in the order in which they are to be checked.
            biased;
            () = slow => {}
            _ = permits.close_requested(Activity::default) => panic!("a second connection was asked to close"),
            _ = permits.take() => {}
        }
        assert_eq!((permits.load().waited, permits.load().closed_idle), (1, 1));
    }
}
