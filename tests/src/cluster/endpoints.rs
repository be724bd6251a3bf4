//! A client of several members, which tries another member if a request fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use tonic::Status;

use super::{QUESTION, TIMEOUT};
use crate::Client;

/// Connections to several members. The member that last answered is tried first.
#[derive(Clone, Debug)]
pub struct Endpoints {
    clients: Arc<[Client]>,
    favourite: Arc<AtomicUsize>,
}

impl Endpoints {
    /// Creates a client of these members.
    #[must_use]
    pub fn new(clients: Vec<Client>) -> Self {
        assert!(!clients.is_empty(), "there are no endpoints");
        Self { clients: clients.into(), favourite: Arc::default() }
    }

    /// Sends a request once. If it fails, the next request goes to another member.
    pub async fn try_ask<T>(
        &self,
        ask: impl AsyncFnOnce(Client) -> Result<T, Status>,
    ) -> Result<T, Status> {
        let current = self.favourite.load(Ordering::Relaxed);
        let client = self.clients[current % self.clients.len()].clone();
        let answer = tokio::time::timeout(QUESTION, ask(client)).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no response")));
        if answer.is_err() {
            self.favourite.store(current + 1, Ordering::Relaxed);
        }
        answer
    }

    /// Sends the request to one member after another until it succeeds. The request may be executed more than once, so
    /// it must be idempotent.
    pub async fn ask<T>(
        &self,
        what: &str,
        mut ask: impl AsyncFnMut(Client) -> Result<T, Status>,
    ) -> T {
        let start = Instant::now();
        loop {
            match self.try_ask(&mut ask).await {
                Ok(answer) => return answer,
                Err(status) => {
                    assert!(
                        start.elapsed() < TIMEOUT,
                        "no member responded to a request for {what} within {TIMEOUT:?}: {status:?}"
                    );
                }
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}
