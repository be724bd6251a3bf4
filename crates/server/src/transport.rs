//! Starts the peer transport on a runtime of its own, with the settings from the flags.
//!
//! # Not here
//!
//! The transport itself (`peer`), its listener (`listeners`, `serving`), and the other services of the peer port
//! (`peer_port`).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::deep_txn;
use quorate_storage::disk::Disk;

use quorate_config::Config;
use quorate_member::{Identity, Reports};
use quorate_peer::{Dialer, Parts, Peers};
use quorate_telemetry::metrics::Metrics;

use quorate_net::runtime::{Runtimes, Threads};

/// Maximum duration of a read from or a write to a peer, unless a flag sets it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The directory in which the transport stores received snapshots.
pub(crate) struct SnapshotDir {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
}

/// Starts the transport and its runtime, which also serves the peer listener.
pub(crate) fn start(
    config: &Config,
    identity: &Identity,
    reports: Reports,
    snapshots: SnapshotDir,
    (metrics, dialer): (&Arc<Metrics>, Dialer),
) -> io::Result<(Arc<Runtimes>, Arc<Peers>)> {
    let threads = Threads { name: "peers", count: 1, stack_bytes: deep_txn::STACK_BYTES };
    let runtimes = Runtimes::start(threads, |_| {
        // Requests on the peer port wait for the core threads just as clients' requests do.
        quorate_member::deliver_outcomes()
    })?;
    let peers = Peers::new(Parts {
        member_id: identity.member_id,
        cluster_id: identity.cluster_id,
        peer_urls: config.initial_advertise_peer_urls.iter().map(ToString::to_string).collect(),
        server_version: quorate_version::reported_version(config.hold_cluster_version),
        shared_settings: config.shared_settings(),
        announced_settings: config.announced_settings(),
        dialer,
        election_timeout: Duration::from_millis(config.election_timeout_ms),
        read_timeout: read_timeout(config),
        write_timeout: write_timeout(config),
        consensus: Arc::new(reports),
        disk: snapshots.disk,
        snap_dir: snapshots.path,
        metrics: Arc::clone(metrics),
        runtime: runtimes.first().clone(),
    });
    Ok((Arc::new(runtimes), peers))
}

/// Returns the maximum time that a read waits for data from a peer.
pub(crate) fn read_timeout(config: &Config) -> Duration {
    config.raft_read_timeout.positive().unwrap_or(TIMEOUT)
}

/// Returns the maximum time that a write waits for a peer to accept data.
pub(crate) fn write_timeout(config: &Config) -> Duration {
    config.raft_write_timeout.positive().unwrap_or(TIMEOUT)
}
