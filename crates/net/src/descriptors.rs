//! File descriptors: the process's limit, and its division among files and connections.
//!
//! ```text
//! limit = reserved (log, snapshots, backend, runtimes, outgoing connections)
//!       + peer connections + metrics connections + client connections
//! ```
//!
//! All client listeners share one budget. The peer listeners and the metrics listeners have their own budgets, which
//! get no descriptors if the process has no such listeners. Therefore, neither clients nor unknown hosts that connect
//! to the peer port can use up the descriptors that the cluster or the files need, and a member with many clients still
//! answers probes and scrapers. A connection that exceeds its budget waits until another connection closes. Each
//! listener accepts one such connection, which occupies a reserved descriptor while it waits. The other connections
//! wait in the kernel's queue.
//!
//! # Not here
//!
//! Accepting connections (`listen`).

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::{MissedTickBehavior, interval};

use crate::listen::{ConnectionKind, ConnectionPermits};
use crate::runtime::blocking;
use quorate_telemetry::log;

/// Minimum number of reserved descriptors, as in etcd. A member does not start with a lower limit.
const KEPT_BACK_MIN: u64 = 150;

/// Number of descriptors for log, backend and snapshot files, the standard streams, listeners with one waiting
/// connection each, and outgoing connections.
const FILES_AND_DIALED: u64 = 64;

/// Number of additional reserved descriptors, if the limit permits. They are for the connections that a member of a
/// seven-member cluster opens in the worst case: for each other member two streams, four pipeline workers, a probe for
/// each stream, and one request; and in total sixteen snapshots, thirty-two pooled connections, and name lookups.
const DIALED_MORE: u64 = 128;

/// Number of descriptors per runtime, including the descriptor that wakes its thread.
const PER_RUNTIME: u64 = 3;

/// Minimum number of peer connections. A descriptor limit that leaves room for fewer is refused. Each other member uses
/// about ten connections.
const PEER_CONNECTIONS_MIN: u64 = 64;

/// Minimum number of connections on the metrics listeners. A scraper and the probes of an orchestrator use one or two
/// connections each.
const METRICS_CONNECTIONS_MIN: u64 = 8;

/// Maximum number of connections on the metrics listeners, even if the descriptor limit permits more. It is small because
/// few programs connect, and they close their connections or can be asked to close them.
const METRICS_CONNECTIONS_MAX: u64 = 64;

/// Maximum number of client connections, even if the descriptor limit permits more. Each may use about 100 KiB,
/// including data in transit.
const CLIENT_CONNECTIONS_MAX: u64 = 1 << 16;

/// Maximum number of peer connections, even if the descriptor limit permits more.
const PEER_CONNECTIONS_MAX: u64 = 4096;

/// The fraction (1/N) of the unreserved descriptors that is set aside for peer connections.
const PEER_SHARE: u64 = 8;

/// The usual descriptor limit in a shell. If the process has a lower limit, the division of the descriptors is logged.
const COMFORTABLE: u64 = 1024;

/// Interval at which the number of open descriptors is compared with the limit.
const USAGE_LOOK: Duration = Duration::from_secs(600);

/// The listeners of a process for which connections are set aside.
#[derive(Clone, Copy, Debug)]
pub struct ReservedListeners {
    /// Whether the process has peer listeners.
    pub peers: bool,
    /// Whether the process has metrics listeners.
    pub metrics: bool,
}

/// Permits for the connections of clients, peers and scrapers. A budget without listeners has no permits.
#[derive(Clone, Debug)]
pub struct Budget {
    /// A permit for each client connection.
    pub clients: Arc<ConnectionPermits>,
    /// A permit for each connection on the peer port.
    pub peers: Arc<ConnectionPermits>,
    /// A permit for each connection on the metrics listeners.
    pub metrics: Arc<ConnectionPermits>,
}

/// The descriptor limit is too low for the reserved descriptors, the minimum numbers of peer and metrics connections,
/// and one client connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit of {limit} open file descriptors is too low: this process needs at least {needed}; raise the limit with \
     ulimit -n, or with LimitNOFILE in the systemd unit"
)]
pub struct TooFew {
    /// The descriptor limit of the process.
    pub limit: u64,
    /// The minimum limit that the process needs.
    pub needed: u64,
}

/// The maximum numbers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    clients: u64,
    peers: u64,
    metrics: u64,
}

impl Plan {
    fn of(limit: u64, runtimes: u64, reserved: ReservedListeners) -> Result<Self, TooFew> {
        let if_peers = |count| if reserved.peers { count } else { 0 };
        let if_metrics = |count| if reserved.metrics { count } else { 0 };
        let (peers_min, metrics_min) =
            (if_peers(PEER_CONNECTIONS_MIN), if_metrics(METRICS_CONNECTIONS_MIN));
        let kept_back =
            KEPT_BACK_MIN.max(FILES_AND_DIALED + peers_min + metrics_min + runtimes * PER_RUNTIME);
        let needed = kept_back + 1;
        if limit < needed {
            return Err(TooFew { limit, needed });
        }
        let free = limit - kept_back;
        let free = free - DIALED_MORE.min(free / PEER_SHARE);
        let more_metrics =
            if_metrics(METRICS_CONNECTIONS_MAX - METRICS_CONNECTIONS_MIN).min(free / PEER_SHARE);
        let free = free - more_metrics;
        let more_peers = if_peers(free / PEER_SHARE);
        Ok(Self {
            clients: (free - more_peers).min(CLIENT_CONNECTIONS_MAX),
            peers: (peers_min + more_peers).min(PEER_CONNECTIONS_MAX),
            metrics: metrics_min + more_metrics,
        })
    }
}

/// Raises the soft limit to the hard limit, as Go programs do. The soft limit exists only for programs that cannot
/// handle large descriptor numbers.
pub fn raise_limit() {
    let limits = getrlimit(Resource::Nofile);
    // `None` means unlimited.
    if limits.current.is_none_or(|soft| limits.maximum.is_some_and(|hard| soft >= hard)) {
        return;
    }
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::warn!("failed to raise the file descriptor limit", "error" = error.to_string());
    }
}

/// Logs a warning every ten minutes while four fifths of the descriptors are in use.
pub async fn watch_usage() {
    let mut ticks = interval(USAGE_LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // Listing the directory itself opens a descriptor, which must not be counted.
        let Ok(open) = blocking(|| fs::read_dir("/proc/self/fd").map(Iterator::count)).await else {
            return;
        };
        let used = (open as u64).saturating_sub(1);
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if is_scarce(used, limit) {
            log::warn!("80% of file descriptors are used", "used" = used, "limit" = limit);
        }
    }
}

const fn is_scarce(used: u64, limit: u64) -> bool {
    used >= limit / 5 * 4
}

/// Divides the process's descriptors between its files, this many runtimes, and its connections.
pub fn divide(runtimes: usize, reserved: ReservedListeners) -> Result<Budget, TooFew> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let plan = Plan::of(limit, runtimes as u64, reserved)?;
    if limit < COMFORTABLE {
        log::warn!(
            "the file descriptor limit is low, so client connections may have to wait; raise the limit (ulimit -n, or \
             LimitNOFILE in the systemd unit)",
            "limit" = limit,
            "client-connections-max" = plan.clients,
            "peer-connections-max" = plan.peers
        );
    }
    let permits = |kind, count| Arc::new(ConnectionPermits::new(kind, count));
    Ok(Budget {
        clients: permits(ConnectionKind::Client, plan.clients),
        peers: permits(ConnectionKind::Peer, plan.peers),
        metrics: permits(ConnectionKind::Metrics, plan.metrics),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_scarce_from_four_fifths_of_the_limit_on() {
        assert!(!is_scarce(79, 100) && is_scarce(80, 100));
        assert!(!is_scarce(1_000_000, u64::MAX));
    }

    const BOTH: ReservedListeners = ReservedListeners { peers: true, metrics: true };

    #[test]
    fn no_connections_are_set_aside_for_listeners_that_do_not_exist() {
        for (peers, metrics, expected) in [
            (true, false, Plan { clients: 670, peers: 159, metrics: 0 }),
            (false, true, Plan { clients: 709, peers: 0, metrics: 64 }),
            (false, false, Plan { clients: 765, peers: 0, metrics: 0 }),
        ] {
            assert_eq!(Plan::of(1024, 4, ReservedListeners { peers, metrics }), Ok(expected));
        }
    }

    #[test]
    fn all_unreserved_descriptors_are_divided_among_the_listeners() {
        for (limit, runtimes, clients, peers, metrics) in [
            (151, 1, 1, 64, 8),
            (200, 4, 35, 68, 13),
            (1024, 4, 621, 152, 64),
            (20_000, 4, 17_208, 2_522, 64),
        ] {
            assert_eq!(
                Plan::of(limit, runtimes, BOTH),
                Ok(Plan { clients, peers, metrics }),
                "{limit}"
            );
            let spare = DIALED_MORE.min((limit - KEPT_BACK_MIN) / PEER_SHARE);
            let minimum = PEER_CONNECTIONS_MIN + METRICS_CONNECTIONS_MIN;
            let divided = clients + peers + metrics + spare;
            assert_eq!(divided, limit - KEPT_BACK_MIN + minimum);
        }
    }

    #[test]
    fn a_limit_too_low_for_one_connection_is_refused() {
        assert_eq!(Plan::of(150, 4, BOTH), Err(TooFew { limit: 150, needed: 151 }));
        // There is a runtime for each processor, and each runtime needs descriptors.
        let minimum = PEER_CONNECTIONS_MIN + METRICS_CONNECTIONS_MIN;
        let needed = FILES_AND_DIALED + minimum + 66 * PER_RUNTIME + 1;
        assert_eq!(Plan::of(300, 66, BOTH), Err(TooFew { limit: 300, needed }));
    }

    #[test]
    fn connections_are_limited_even_with_unlimited_descriptors() {
        let (clients, peers) = (CLIENT_CONNECTIONS_MAX, PEER_CONNECTIONS_MAX);
        let most = Plan { clients, peers, metrics: METRICS_CONNECTIONS_MAX };
        assert_eq!(Plan::of(u64::MAX, 4, BOTH), Ok(most));
    }
}
