//! Leasing: keys that this proxy owns, which it can tell of without asking a member.
//!
//! ```text
//! kv ─► range ─► holdings (what is owned) ─── not there ──► acquire ──► members
//!   └─► write ─► guard (on condition that nobody else owns it) ───────► members
//!                  ▲ owners are asked to give up; departures tells when they have
//! session (the lease) ─► follow (what others ask for) ─► holdings
//! ```
//!
//! The protocol is that of etcd's client library, so that proxies of either program do it together, and clients that use
//! the library by themselves. A key is owned by whoever has made its leasing key (`--experimental-leasing-prefix` and
//! the key) with the lease of his session. While that is there, nobody else who keeps to the protocol writes the key: he
//! puts `REVOKE` into the leasing key, and waits until its owner has deleted it, or until its lease has ended.
//!
//! # Guarantees
//!
//! * Among all who write by the protocol an answer from here is as good as one of a member: see `holdings` and `session`.
//! * Only who says nothing of who he is, which members ask for when authentication is on, is told what is owned here.
//!   While it is on nothing is owned; that it was turned on by another way than this proxy, `authority` finds out.
//! * A client is not told of an earlier revision than it was told of before by this proxy: see `latest`.
//!
//! # Not here
//!
//! What is written by other ways (by clients that ask members; by members, for locks, but see `make_way`): as with etcd's, who owns
//! a key does not learn of it. Keys that have a lease, and the leasing keys themselves, are not owned.

mod answer;
mod clock;
mod departures;
mod follow;
mod guard;
mod holdings;
mod latest;
mod members;
mod names;
mod reads;
mod session;
mod writes;

use std::sync::Arc;

use quorate_telemetry::metrics::ProxyMetrics;
use tokio::sync::Notify;

pub(crate) use self::latest::Latest;

use self::departures::Departures;
use self::holdings::Holdings;
use self::members::{Members, Store};
use self::names::Names;
use crate::namespace::Namespace;
use crate::upstream::Upstream;

/// See the module.
#[derive(Debug)]
pub(crate) struct Leasing<S = Members> {
    members: S,
    names: Names,
    holdings: Holdings,
    departures: Departures,
    latest: Arc<Latest>,
    metrics: Arc<ProxyMetrics>,
    /// The session is to end.
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
            holdings: Holdings::new(names.clone()),
            names,
            departures: Departures::default(),
            latest: Arc::default(),
            metrics,
            is_over: Notify::new(),
        }
    }

    /// What all answers are shown to that have a revision.
    pub(crate) const fn latest(&self) -> &Arc<Latest> {
        &self.latest
    }

    /// Says how much is owned.
    fn tell_load(&self) {
        let (count, bytes) = self.holdings.load();
        self.metrics.owned_keys.set_unsigned(count as u64);
        self.metrics.owned_bytes.set_unsigned(bytes as u64);
    }
}

#[cfg(test)]
mod tests;
