//! Waiting for something to become true.

use std::time::{Duration, Instant};

/// How long a test waits for what should happen at once.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How often a condition is looked at.
const PAUSE: Duration = Duration::from_millis(10);

/// Asks until there is an answer, and fails when there is none before the deadline.
pub async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < DEADLINE, "waited in vain: {what}");
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
