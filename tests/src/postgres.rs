//! The PostgreSQL server that stores the data of the tested servers.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::postgres_server;

/// Returns the URL of an empty keyspace, or `None` if PostgreSQL is not installed.
#[must_use]
pub fn try_new_url() -> Option<String> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    postgres_server::shared().map(|server| server.url(&format!("test{count}")))
}

/// A PostgreSQL server of one test, which may stop it.
#[derive(Debug)]
pub struct Database(postgres_server::Postgres);

impl Database {
    /// Starts a server. Returns `None` if PostgreSQL is not installed.
    #[must_use]
    pub fn start() -> Option<Self> {
        postgres_server::Postgres::start().map(Self)
    }

    /// Returns the URL of a keyspace.
    #[must_use]
    pub fn url(&self) -> String {
        self.0.url("test")
    }

    /// Stops the server immediately, without an orderly shutdown.
    pub fn stop(&mut self) {
        self.0.halt();
    }

    /// Starts the stopped server with the same data.
    pub fn start_again(&mut self) {
        self.0.launch();
    }
}

/// Returns the URL of an empty keyspace.
#[must_use]
pub(crate) fn new_url() -> String {
    try_new_url().expect("PostgreSQL is installed")
}
