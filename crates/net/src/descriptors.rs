//! File descriptors: how many the process may open, and who gets how many.
//!
//! ```text
//! limit = kept back (log, snapshots, backend, runtimes, what is dialed) + peers' connections + clients' connections
//! ```
//!
//! All client listeners share one budget, and the peer listener has its own, so that neither clients nor strangers
//! on the peer port can take what the cluster or the files need. Whoever comes beyond a budget waits until somebody
//! leaves: one connection at each listener, which is of what is kept back, the others in the kernel's queue.
//!
//! # Not here
//!
//! Accepting connections (`listen`).

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::listen::Places;
use quorate_telemetry::log;

/// What is kept back at least, as etcd does: with no more than this it does not start.
const KEPT_BACK_MIN: u64 = 150;

/// Files of the log, the backend and snapshots, the standard streams, listeners with a connection that waits for
/// its place at each, and connections that are dialed.
const FILES_AND_DIALED: u64 = 64;

/// Kept back besides, where there are more: what a member of seven dials when all goes wrong at once. To each other
/// member two streams, four posts, a probe for each stream and a question of its own; sixteen snapshots, thirty-two
/// connections that are kept for the next question, look-ups of names.
const DIALED_MORE: u64 = 128;

/// What a runtime holds, its thread's wake-ups included.
const PER_RUNTIME: u64 = 3;

/// Connections of peers that there is room for however low the limit. Some ten of each other member.
const PEER_CONNECTIONS_MIN: u64 = 64;

/// Connections of clients however high the limit: some 100 KiB each, with what they may have on its way.
const CLIENT_CONNECTIONS_MAX: u64 = 1 << 16;

/// Connections of peers however high the limit.
const PEER_CONNECTIONS_MAX: u64 = 4096;

/// Of what is not kept back, so much may be connections of peers as well.
const PEER_SHARE: u64 = 8;

/// The usual limit of a shell. Below it the log says what it comes to.
const COMFORTABLE: u64 = 1024;

/// Who may hold how many connections.
#[derive(Clone, Debug)]
pub struct Budget {
    /// A place for each connection of a client.
    pub clients: Arc<Places>,
    /// A place for each connection on the peer port.
    pub peers: Arc<Places>,
}

/// There are too few descriptors for the files and one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit is {limit}, and the files and one connection need {needed}: see ulimit -n, or LimitNOFILE of systemd"
)]
pub struct TooFew {
    /// What the process may have.
    pub limit: u64,
    /// What it needs at least.
    pub needed: u64,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    clients: u64,
    peers: u64,
}

impl Plan {
    fn of(limit: u64, runtimes: u64) -> Result<Self, TooFew> {
        let kept_back =
            KEPT_BACK_MIN.max(FILES_AND_DIALED + PEER_CONNECTIONS_MIN + runtimes * PER_RUNTIME);
        let needed = kept_back + 1;
        if limit < needed {
            return Err(TooFew { limit, needed });
        }
        let free = limit - kept_back;
        let free = free - DIALED_MORE.min(free / PEER_SHARE);
        let peers = free / PEER_SHARE;
        Ok(Self {
            clients: (free - peers).min(CLIENT_CONNECTIONS_MAX),
            peers: (PEER_CONNECTIONS_MIN + peers).min(PEER_CONNECTIONS_MAX),
        })
    }
}

/// Takes all descriptors that the process may have, as a Go program does: the soft limit is for programs that
/// could not live with more.
pub fn raise_limit() {
    let limits = getrlimit(Resource::Nofile);
    // None is no limit at all.
    if limits.current.is_none_or(|soft| limits.maximum.is_some_and(|hard| soft >= hard)) {
        return;
    }
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        log::warn!("failed to raise the file descriptor limit", "error" = error.to_string());
    }
}

/// Divides the process's descriptors among a member with so many runtimes and its connections.
pub fn divide(runtimes: usize) -> Result<Budget, TooFew> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let plan = Plan::of(limit, runtimes as u64)?;
    if limit < COMFORTABLE {
        log::warn!(
            "the file descriptor limit is low; clients beyond their share of connections wait: set it higher \
             (ulimit -n, LimitNOFILE of systemd)",
            "limit" = limit,
            "client-connections-max" = plan.clients,
            "peer-connections-max" = plan.peers
        );
    }
    let places = |count| Arc::new(Places::new(count));
    Ok(Budget { clients: places(plan.clients), peers: places(plan.peers) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_divided_without_a_rest() {
        for (limit, runtimes, clients, peers) in
            [(151, 4, 1, 64), (1024, 4, 670, 159), (20_000, 4, 17_257, 2_529)]
        {
            assert_eq!(Plan::of(limit, runtimes), Ok(Plan { clients, peers }), "{limit}");
            let spare = DIALED_MORE.min((limit - KEPT_BACK_MIN) / PEER_SHARE);
            assert_eq!(clients + peers + spare, limit - KEPT_BACK_MIN + PEER_CONNECTIONS_MIN);
        }
    }

    #[test]
    fn too_few_for_one_connection_is_a_refusal() {
        assert_eq!(Plan::of(150, 4), Err(TooFew { limit: 150, needed: 151 }));
        // Each processor has a runtime, which has descriptors of its own.
        let needed = FILES_AND_DIALED + PEER_CONNECTIONS_MIN + 66 * PER_RUNTIME + 1;
        assert_eq!(Plan::of(300, 66), Err(TooFew { limit: 300, needed }));
    }

    #[test]
    fn memory_is_a_limit_too() {
        let most = Plan { clients: CLIENT_CONNECTIONS_MAX, peers: PEER_CONNECTIONS_MAX };
        assert_eq!(Plan::of(u64::MAX, 4), Ok(most));
    }
}
