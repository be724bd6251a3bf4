//! Versions at run time. The leader and the other members agree on the cluster version, and the storage version of each
//! member's backend file follows it. An operator starts a downgrade, and the leader ends it.
//!
//! This module treats a member with `--hold-cluster-version` as a member of the older version. The cluster version then
//! never rises above the older version, and the older release can still open the member's directory.
//!
//! # Not here
//!
//! The stored versions (`state::versions`), and the storage version of the file (`applier`).

mod downgrade;
mod rules;
mod survey;

use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb::InternalRaftRequest;
use quorate_api::membershippb::ClusterVersionSetRequest;
use quorate_net::ticks::shared_ticks;
use quorate_state::versions::Version;
use tokio::time::interval;

pub use self::downgrade::{Downgrades, end_downgrade};
use self::rules::Step;
use self::survey::Survey;
pub use self::survey::VERSION_PATH;
use crate::Handles;
use quorate_peer::pool::ConnectionPool;
use quorate_requests::RequestError;
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;
use quorate_version::QUORATE_VERSION;

/// Interval at which versions are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(4);

/// Maximum time that a starting member waits for the cluster version.
const SETTLING_TIMEOUT: Duration = Duration::from_secs(1);

/// If this member leads, sets the cluster version to the newest version that all members support, after its election
/// and then periodically.
pub async fn keep_cluster_version(handles: Arc<Handles>) {
    if let Some(held) = handles.info.limits().held_version {
        log::info!(
            "holding the cluster version",
            "server-version" = handles.info.version_text(),
            "cluster-version-max" = short(held),
            "quorate-version" = QUORATE_VERSION
        );
    }
    let coming = {
        let facts = handles.info.facts();
        rules::expected_rise(
            facts.versions.cluster(),
            handles.info.version(),
            facts.versions.downgrade(),
        )
    };
    if let Some((from, to)) = coming {
        warn_of_rise(from, to);
    }
    let is_warned = coming.is_some();
    let mut ticks = shared_ticks(CHECK_INTERVAL);
    let mut leadership = handles.info.member_status().leadership();
    let pool = Arc::<ConnectionPool>::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = leadership.changed() => if changed.is_err() { return },
        }
        if handles.info.member_status().leads() {
            check_cluster_version(&handles, &pool, is_warned).await;
        }
    }
}

/// Warns that the cluster version is about to rise, after which older releases refuse the data directory. The log line
/// names the flag that prevents the rise, and says how to return to the older version after the rise.
fn warn_of_rise(from: Version, to: Version) {
    let (from, to) = (short(from), short(to));
    log::warn!(
        "the cluster version will rise once no member holds it; older releases then refuse the data \
         directories",
        "from" = from,
        "to" = to,
        "prevention" = format!(
            "before the version rises, stop this member and start it with --hold-cluster-version={from}"
        ),
        "rollback" = "lower the version one minor release at a time: run `ctl downgrade enable MINOR`, restart \
                      every member with --hold-cluster-version=MINOR or as etcd MINOR, and wait until the \
                      downgrade has ended"
    );
}

fn short(version: Version) -> String {
    format!("{}.{}", version.major, version.minor)
}

/// Proposes a new cluster version if one is due. `is_warned` is true if this member logged the
/// coming rise at startup.
async fn check_cluster_version(handles: &Handles, pool: &Arc<ConnectionPool>, is_warned: bool) {
    let lowest = Survey::take(&handles.info, pool).await.lowest();
    let (cluster, step, rise) = {
        let facts = handles.info.facts();
        let (cluster, downgrade) = (facts.versions.cluster(), facts.versions.downgrade());
        let step = rules::next_step(cluster, lowest, downgrade);
        let rise = match step {
            Step::Propose(version) if !is_warned => {
                rules::expected_rise(cluster, version, downgrade)
            }
            Step::Propose(_) | Step::Keep | Step::BadTarget { .. } => None,
        };
        (cluster, step, rise)
    };
    if let Some((from, to)) = rise {
        warn_of_rise(from, to);
    }
    match step {
        Step::Keep => {}
        Step::Propose(version) => propose(handles, cluster, version).await,
        Step::BadTarget { target, from } => log::error!(
            "Cannot downgrade from this version to downgrade-target",
            "downgrade-target" = target.to_string(),
            "version" = from.to_string()
        ),
    }
}

async fn propose(handles: &Handles, from: Option<Version>, to: Version) {
    match from {
        None => log::info!(
            "setting up initial cluster version using v3 API",
            "cluster-version" = short(to)
        ),
        Some(from) => log::info!(
            "updating cluster version using v3 API",
            "from" = short(from),
            "to" = short(to)
        ),
    }
    let set = ClusterVersionSetRequest { ver: to.to_string() };
    let request = InternalRaftRequest {
        cluster_version_set: Some(Box::new(set)),
        ..InternalRaftRequest::default()
    };
    match handles.proposer.propose_as_member(request, RequestKind::ClusterVersionSet).await {
        Ok(_) | Err(RequestError::Stopped) => {}
        Err(error) => {
            log::warn!("failed to update cluster version", "error" = error.to_string());
        }
    }
}

/// Periodically sets the storage version to the cluster version, in case the update failed when the cluster version
/// changed.
pub async fn keep_storage_version(handles: Arc<Handles>) {
    let mut ticks = shared_ticks(CHECK_INTERVAL);
    loop {
        ticks.tick().await;
        handles.administrator.follow_cluster_version();
    }
}

/// Waits a short time until the cluster version is set and this member's storage version has followed it, so that the
/// first client of a new cluster sees both. If the members cannot agree in that time, clients are served anyway.
pub async fn settle_versions(handles: &Handles) {
    let settled = async {
        let mut looks = interval(Duration::from_millis(1));
        while handles.info.facts().versions.cluster().is_none()
            || handles.info.member_status().storage_version()
                != handles.info.facts().versions.cluster()
        {
            looks.tick().await;
        }
    };
    drop(tokio::time::timeout(SETTLING_TIMEOUT, settled).await);
}
