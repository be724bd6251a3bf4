//! The reachability of a peer according to the last attempt to reach it.
//!
//! All connections to the peer report here. Only changes are logged and counted; a repeated failure is not a change.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

/// The operation of a failed attempt, for the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// The part of the transport that made the attempt.
    pub(crate) source: &'static str,
    /// The operation that failed, as a verb.
    pub(crate) action: &'static str,
}

/// The reachability of a peer.
#[derive(Debug)]
pub(crate) struct Status {
    local: String,
    peer: String,
    metrics: Arc<Metrics>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Inactive,
    Active {
        since: Instant,
    },
    /// The peer was removed. Later reports from the peer's tasks are ignored.
    Ended,
}

impl Status {
    pub(crate) fn new(local: &str, peer: &str, metrics: &Arc<Metrics>) -> Self {
        Self {
            local: local.to_owned(),
            peer: peer.to_owned(),
            metrics: Arc::clone(metrics),
            state: Mutex::new(State::Inactive),
        }
    }

    pub(crate) fn active_since(&self) -> Option<Instant> {
        match *self.state.lock() {
            State::Active { since } => Some(since),
            State::Inactive | State::Ended => None,
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active_since().is_some()
    }

    /// Records a successful attempt.
    pub(crate) fn activate(&self) {
        let mut state = self.state.lock();
        if let State::Inactive = *state {
            *state = State::Active { since: Instant::now() };
            self.metrics.network.active_peers.with(&[&self.local, &self.peer]).inc();
            drop(state);
            log::info!("peer became active", "peer-id" = self.peer);
        }
    }

    /// Records a failed attempt.
    pub(crate) fn deactivate(&self, attempt: Attempt, reason: &dyn fmt::Display) {
        let error = || {
            let Attempt { source, action } = attempt;
            format!("failed to {action} {} on {source} ({reason})", self.peer)
        };
        let mut state = self.state.lock();
        match *state {
            State::Active { .. } => {
                *state = State::Inactive;
                let labels: [&str; 2] = [&self.local, &self.peer];
                self.metrics.network.active_peers.with(&labels).dec();
                self.metrics.network.disconnected_peers.with(&labels).inc();
                drop(state);
                log::warn!(
                    "peer became inactive (message send to peer failed)",
                    "peer-id" = self.peer,
                    "error" = error()
                );
            }
            State::Inactive => {
                drop(state);
                log::debug!("peer deactivated again", "peer-id" = self.peer, "error" = error());
            }
            State::Ended => {}
        }
    }

    /// Records that the peer was removed.
    pub(crate) fn end(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Ended);
        if let State::Active { .. } = before {
            self.metrics.network.active_peers.with(&[&self.local, &self.peer]).dec();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quorate_telemetry::metrics::MetricsLevel;

    #[test]
    fn repeated_activations_and_failures_of_a_peer_are_counted_once() {
        let metrics = Metrics::new(&[], MetricsLevel::default());
        let status = Status::new("1", "2", &Arc::new(metrics));
        let attempt = Attempt { source: "pipeline", action: "write" };
        let counts = || {
            let network = &status.metrics.network;
            let active = network.active_peers.with(&["1", "2"]).value();
            (active, network.disconnected_peers.with(&["1", "2"]).value())
        };
        status.deactivate(attempt, &"refused");
        assert_eq!((counts(), status.is_active()), ((0, 0), false));
        status.activate();
        let since = status.active_since();
        status.activate();
        assert_eq!((counts(), status.active_since()), ((1, 0), since));
        status.deactivate(attempt, &"refused");
        status.deactivate(attempt, &"refused");
        assert_eq!((counts(), status.active_since()), ((0, 1), None));
        status.activate();
        status.end();
        status.activate();
        assert_eq!((counts(), status.is_active()), ((0, 1), false));
    }
}
