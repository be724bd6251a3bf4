//! The PostgreSQL server that stores the data of the tested servers.

use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::postgres_server;

/// Returns the URL of an empty keyspace, or `None` if PostgreSQL is not installed.
#[must_use]
pub fn try_new_url() -> Option<String> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    postgres_server::shared().map(|server| server.url(&format!("test{count}")))
}

/// A PostgreSQL server that belongs to one test, so that the test may stop it.
#[derive(Debug)]
pub struct Database(postgres_server::Postgres);

impl Database {
    /// Starts a server. Returns `None` if PostgreSQL is not installed.
    #[must_use]
    pub fn start() -> Option<Self> {
        postgres_server::Postgres::start().map(Self)
    }

    /// Starts a server and a synchronous standby: a commit on the server waits for the standby. Returns `None` if
    /// PostgreSQL is not installed.
    #[must_use]
    pub fn start_with_standby() -> Option<(Self, Self)> {
        let settings = "-c synchronous_standby_names=*";
        let primary = postgres_server::Postgres::start_with(settings, &[])?;
        let standby = primary.start_standby();
        Some((Self(primary), Self(standby)))
    }

    /// Returns the URL of a keyspace.
    #[must_use]
    pub fn url(&self) -> String {
        self.0.url("test")
    }

    /// Returns the URL of a keyspace, for a client that reaches the server through this port.
    #[must_use]
    pub fn url_through(&self, port: u16) -> String {
        self.0.url_through(port, "test")
    }

    /// Returns the URL of a keyspace on this server or, after a failover, on its standby.
    #[must_use]
    pub fn url_with_standby(&self, standby: &Self) -> String {
        let ports = format!("127.0.0.1:{},127.0.0.1:{}", self.port(), standby.port());
        self.url().replace(&format!("127.0.0.1:{}", self.port()), &ports)
    }

    /// Returns the port of the server.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.0.port()
    }

    /// Locks a table of the keyspace, so that statements that read it wait until the returned process is passed to
    /// [`Self::unlock`].
    #[must_use]
    pub fn lock(&self, table: &str) -> Child {
        self.0.lock(&format!("test.{table}"))
    }

    /// Unlocks a table.
    pub fn unlock(&self, client: Child) {
        self.0.unlock(client);
    }

    /// Returns the number of rows of a table of the keyspace.
    #[must_use]
    pub fn row_count(&self, table: &str) -> usize {
        self.0.row_count(&format!("test.{table}"))
    }

    /// Returns the number of sessions that wait for a locked table.
    #[must_use]
    pub fn waiting_for_locks(&self) -> usize {
        self.0.waiting_for_locks()
    }

    /// Makes this standby accept writes.
    pub fn promote(&self) {
        self.0.promote();
    }

    /// Returns the number of workers of a Citus database; 0 if this server is not the coordinator of one.
    pub fn worker_count(&mut self) -> usize {
        self.0.workers().len()
    }

    /// Stops a worker immediately, without an orderly shutdown.
    pub fn stop_worker(&mut self, number: usize) {
        self.0.workers()[number].halt();
    }

    /// Starts a stopped worker with the same data.
    pub fn start_worker_again(&mut self, number: usize) {
        self.0.workers()[number].launch();
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
