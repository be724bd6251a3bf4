//! Waits until a condition becomes true.

use std::time::{Duration, Instant};

/// Timeout for an event that should happen immediately.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Time after which an unanswered membership change is requested again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(10);

/// Repeats a query until it returns a value. Fails at the deadline.
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

/// Repeats a query until it succeeds. Fails with the last error at the deadline.
pub async fn eventually_ok<T, E: std::fmt::Debug>(
    deadline: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let start = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(why) => assert!(
                start.elapsed() < deadline,
                "timed out; expected: {what}; last result: {why:?}"
            ),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for a future. Fails at the deadline.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("timed out after {DEADLINE:?}; expected: {what}"),
    }
}

/// Requests a membership change repeatedly until it is answered. etcd drops a change that arrives before the previous
/// change is complete, even though it has already answered the previous request. Without the repetition, the caller
/// would wait forever.
pub async fn changed<T>(ask: impl AsyncFn() -> T) -> T {
    loop {
        if let Ok(answer) = tokio::time::timeout(ASKED_AGAIN_AFTER, ask()).await {
            return answer;
        }
    }
}
