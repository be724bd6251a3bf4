//! Waiting for something to become true.

use std::time::{Duration, Instant};

/// How long a test waits for what should happen at once.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How long a change of the members is waited for before it is asked for again.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// How often a condition is looked at.
const PAUSE: Duration = Duration::from_millis(10);

/// Asks until there is an answer, and fails when there is none before the deadline.
pub async fn eventually<T>(what: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(DEADLINE, what, ask).await
}

/// The same with a deadline of its own.
pub async fn eventually_within<T>(
    deadline: Duration,
    what: &str,
    mut ask: impl AsyncFnMut() -> Option<T>,
) -> T {
    eventually_ok(deadline, what, async || ask().await.ok_or("not yet")).await
}

/// Asks until the answer is good, and fails with the last one that was not.
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

/// Waits for one thing to happen, and fails when it does not before the deadline.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(answer) => answer,
        Err(_) => panic!("waited in vain: {what}"),
    }
}

/// What a change of the members is told. etcd drops one that comes before it is done with the last, whose answer it has
/// given already, and lets the caller wait for ever: it is asked for again.
pub async fn changed<T>(ask: impl AsyncFn() -> T) -> T {
    loop {
        if let Ok(answer) = tokio::time::timeout(ASKED_AGAIN_AFTER, ask()).await {
            return answer;
        }
    }
}
