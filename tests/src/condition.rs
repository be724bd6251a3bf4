//! Waiting for a condition.

use std::time::{Duration, Instant};

/// Timeout for an event that should happen at once.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Time to wait for a membership change before it is requested again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Interval between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats a query until it returns a value, and fails at the deadline.
pub async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(DEADLINE, what, ask).await
}

/// Repeats a query until it returns a value, with the given deadline.
pub async fn eventually_within<T>(
    deadline: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    eventually_ok(deadline, what, async || ask().await.ok_or("not yet")).await
}

/// Repeats a query until it succeeds, and fails with the last error.
pub async fn eventually_ok<T, E: std::fmt::Debug>(
    deadline: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(why) => assert!(start.elapsed() < deadline, "waited in vain: {what}: {why:?}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a future, and fails at the deadline.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited in vain: {what}"),
    }
}

/// Requests a membership change. etcd drops a change that arrives before it has completed the previous one, although it
/// has already answered that one, and the caller then waits forever. So the change is requested again.
pub async fn changed<T>(ask: impl AsyncFn() -> T) -> T {
    loop {
        if let Ok(answer) = tokio::time::timeout(ASKED_AGAIN_AFTER, ask()).await {
            return answer;
        }
    }
}
