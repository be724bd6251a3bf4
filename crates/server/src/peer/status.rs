//! Whether a peer can be talked to, as the last attempt said.
//!
//! Whatever talks to the peer reports here. Changes are logged and counted; a failure that follows another
//! changes nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use crate::log;
use crate::metrics::Metrics;

/// What was tried and failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// The part of the transport.
    pub(super) source: &'static str,
    /// A verb.
    pub(super) action: &'static str,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Status {
    local: String,
    peer: String,
    metrics: Arc<Metrics>,
    active_since: Mutex<Option<Instant>>,
}

impl Status {
    pub(super) fn new(local: &str, peer: &str, metrics: &Arc<Metrics>) -> Self {
        Self {
            local: local.to_owned(),
            peer: peer.to_owned(),
            metrics: Arc::clone(metrics),
            active_since: Mutex::new(None),
        }
    }

    pub(super) fn active_since(&self) -> Option<Instant> {
        *self.active_since.lock()
    }

    pub(super) fn is_active(&self) -> bool {
        self.active_since().is_some()
    }

    /// An attempt succeeded.
    pub(super) fn activate(&self) {
        let mut active_since = self.active_since.lock();
        if active_since.is_none() {
            *active_since = Some(Instant::now());
            self.metrics.network.active_peers.with(&[&self.local, &self.peer]).inc();
            drop(active_since);
            log::info!("peer became active", "peer-id" = self.peer);
        }
    }

    /// An attempt failed.
    pub(super) fn deactivate(&self, attempt: Attempt, reason: &dyn fmt::Display) {
        let was_active = self.active_since.lock().take().is_some();
        let error = || {
            let Attempt { source, action } = attempt;
            format!("failed to {action} {} on {source} ({reason})", self.peer)
        };
        if was_active {
            let labels: [&str; 2] = [&self.local, &self.peer];
            self.metrics.network.active_peers.with(&labels).dec();
            self.metrics.network.disconnected_peers.with(&labels).inc();
            log::warn!(
                "peer became inactive (message send to peer failed)",
                "peer-id" = self.peer,
                "error" = error()
            );
        } else {
            log::debug!("peer deactivated again", "peer-id" = self.peer, "error" = error());
        }
    }

    /// Nobody talks to the peer any more.
    pub(super) fn end(&self) {
        if self.active_since.lock().take().is_some() {
            self.metrics.network.active_peers.with(&[&self.local, &self.peer]).dec();
        }
    }
}
