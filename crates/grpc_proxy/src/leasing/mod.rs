//! Leasing: the proxy owns keys and answers reads of them without asking a member.
//!
//! ```text
//! kv ─► range ─► owned_keys ─────────────────── not owned ──► acquire ──► members
//!   └─► write ─► guard (on condition that no other proxy owns them) ────► members
//!                  ▲ owners are asked to release keys; deletion_waiters waits until they have
//! session (the lease) ─► follow (requests of other proxies) ─► owned_keys
//! ```
//!
//! The protocol is the leasing protocol of etcd's client library. Quorate's proxies, etcd's proxies and clients of that
//! library can use it together. A client or proxy owns a key if it has created the leasing key
//! (`--experimental-leasing-prefix` followed by the key) with the lease of its session. While the leasing key exists,
//! no other participant in the protocol writes the key. A participant that has to write the key first writes `REVOKE`
//! to the leasing key, and waits until the owner deletes the leasing key or the owner's lease ends.
//!
//! # Guarantees
//!
//! * If all writers take part in the protocol, a response from the proxy is as current as a response from a member.
//!   `owned_keys` and `session` explain why.
//! * Owned keys are returned only to clients without a token. While authentication is on, the proxy owns no key.
//!   `authority` detects that authentication was turned on by a request that did not pass through this proxy.
//! * A response from owned keys never has a lower revision than a response that this proxy received before the request
//!   (`latest`).
//!
//! # Not here
//!
//! Writes outside the protocol. As with etcd's proxy, the owner does not notice writes by clients that connect to
//! members directly, or writes that members perform for locks and elections (except writes handled by `reserve`). Keys
//! with a lease and the leasing keys themselves cannot be owned.

mod answer;
mod clock;
mod deletion_queue;
mod deletion_waiters;
mod excluded_keys;
mod follow;
mod guard;
mod latest;
mod members;
mod names;
mod owned_keys;
mod reads;
mod session;
mod writes;

use std::sync::Arc;

use quorate_telemetry::metrics::ProxyMetrics;
use tokio::sync::Notify;

pub(crate) use self::latest::Latest;

use self::deletion_waiters::DeletionWaiters;
use self::members::{Members, Store};
use self::names::Names;
use self::owned_keys::OwnedKeys;
use crate::namespace::Namespace;
use crate::upstream::Upstream;

/// The leasing state of a proxy. `S` is the store in which keys are owned.
#[derive(Debug)]
pub(crate) struct Leasing<S = Members> {
    members: S,
    names: Names,
    owned_keys: OwnedKeys,
    deletion_waiters: DeletionWaiters,
    latest: Arc<Latest>,
    metrics: Arc<ProxyMetrics>,
    /// Signals that the session must end.
    is_over: Notify,
}

impl Leasing {
    pub(crate) fn new(
        upstream: Arc<Upstream>,
        metrics: Arc<ProxyMetrics>,
        namespace: Option<Namespace>,
        prefix: &str,
    ) -> Self {
        Self::over(Members { upstream, namespace }, metrics, prefix)
    }
}

impl<S: Store> Leasing<S> {
    fn over(members: S, metrics: Arc<ProxyMetrics>, prefix: &str) -> Self {
        let names = Names::new(prefix);
        Self {
            members,
            owned_keys: OwnedKeys::new(names.clone()),
            names,
            deletion_waiters: DeletionWaiters::default(),
            latest: Arc::default(),
            metrics,
            is_over: Notify::new(),
        }
    }

    /// Returns the latest revision, which must be updated with every response from a member.
    pub(crate) const fn latest(&self) -> &Arc<Latest> {
        &self.latest
    }

    /// Updates the metrics of the owned keys.
    fn report_load(&self) {
        let (count, bytes) = self.owned_keys.load();
        self.metrics.owned_keys.set_unsigned(count as u64);
        self.metrics.owned_bytes.set_unsigned(bytes as u64);
    }
}

#[cfg(test)]
mod tests;
