//! Limits the number of hashes that are computed at the same time. A hash reads the whole keyspace, on a blocking thread
//! of its own. With `--engine`, a snapshot does the same, and needs such a permit, too.
//!
//! # Bound
//!
//! At most [`HASHES_MAX`] hashes are computed at the same time. A further request waits until the request timeout, and is
//! then refused.

use std::sync::Arc;
use std::time::Duration;

use quorate_net::runtime::blocking;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::RequestError;

/// Maximum number of hashes that are computed at the same time for clients and other members.
const HASHES_MAX: usize = 2;

/// The permits for hashes.
#[derive(Debug)]
pub struct HashPermits(Arc<Semaphore>);

impl Default for HashPermits {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(HASHES_MAX)))
    }
}

impl HashPermits {
    /// Waits for a permit, for at most `timeout`.
    pub async fn take(&self, timeout: Duration) -> Result<HashPermit, RequestError> {
        let taken = tokio::time::timeout(timeout, Arc::clone(&self.0).acquire_owned()).await;
        let taken = taken.map_err(|_| RequestError::TooManyRequests)?;
        Ok(HashPermit { _permit: taken.expect("the semaphore is never closed") })
    }
}

/// A permit to compute one hash.
#[derive(Debug)]
pub struct HashPermit {
    _permit: OwnedSemaphorePermit,
}

impl HashPermit {
    /// Computes a hash on a blocking thread. The permit is released when the computation ends, even if the caller no
    /// longer waits for it.
    pub async fn compute<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> T {
        blocking(move || {
            let hash = work();
            drop(self);
            hash
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn only_a_few_hashes_are_computed_at_a_time() {
        let permits = Arc::new(HashPermits::default());
        let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (permits, counts) = (Arc::clone(&permits), Arc::clone(&counts));
            requests.spawn(async move {
                let permit = permits.take(Duration::from_secs(60)).await.unwrap();
                let compute = move || {
                    let (running, most) = &*counts;
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                };
                permit.compute(compute).await;
            });
        }
        requests.join_all().await;
        assert!((1..=HASHES_MAX).contains(&counts.1.load(Ordering::SeqCst)));
    }

    #[tokio::test]
    async fn a_hash_whose_caller_has_gone_keeps_its_permit_until_it_ends() {
        let permits = HashPermits::default();
        let (end, ended) = mpsc::channel::<()>();
        let permit = permits.take(Duration::from_secs(60)).await.unwrap();
        let compute = permit.compute(move || _ = ended.recv());
        assert!(tokio::time::timeout(Duration::from_millis(1), compute).await.is_err());
        let other = permits.take(Duration::from_secs(60)).await.unwrap();
        let refused = permits.take(Duration::from_millis(1)).await;
        assert!(matches!(refused, Err(RequestError::TooManyRequests)));
        drop(end);
        permits.take(Duration::from_secs(60)).await.unwrap();
        drop(other);
    }
}
