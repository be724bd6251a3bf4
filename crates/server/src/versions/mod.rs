//! Versions at run time: the leader agrees with its members on the cluster's, each member has its file follow,
//! and a downgrade is begun by an operator and ended by the leader.
//!
//! A member that is held back (`--hold-cluster-version`) counts as the older version everywhere here: the
//! cluster then never rises above it, and its directory stays one that the older release can take over.
//!
//! # Not here
//!
//! What is stored (`state::versions`), following the cluster version in the file (`applier`).

mod downgrade;
mod rules;
mod survey;

use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb::InternalRaftRequest;
use quorate_api::membershippb::ClusterVersionSetRequest;
use quorate_state::versions::Version;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use self::downgrade::end_downgrade;
use self::rules::Step;
use self::survey::Survey;
pub(crate) use self::survey::VERSION_PATH;
use crate::applier::Job;
use crate::log;
use crate::member::{Member, RequestError};
use crate::metrics::RequestKind;
use crate::release::QUORATE_VERSION;

/// How often versions are looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(4);

/// How long a start waits for versions.
const SETTLING_PATIENCE: Duration = Duration::from_secs(1);

/// Has the leader agree with its members on the cluster's version: when it takes the lead, and every so
/// often.
pub(crate) async fn keep_cluster_version(member: Arc<Member>) {
    if let Some(held) = member.limits().held_version {
        log::info!(
            "holding the cluster version",
            "server-version" = member.version_text(),
            "cluster-version-max" = format!("{}.{}", held.major, held.minor),
            "quorate-version" = QUORATE_VERSION
        );
    }
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leadership = member.standing().leadership();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            changed = leadership.changed() => if changed.is_err() { return },
        }
        if member.standing().leads() {
            check_cluster_version(&member).await;
        }
    }
}

async fn check_cluster_version(member: &Member) {
    let lowest = Survey::take(member).await.lowest();
    let (cluster, step) = {
        let facts = member.facts();
        let cluster = facts.versions.cluster();
        (cluster, rules::next_step(cluster, lowest, facts.versions.downgrade()))
    };
    match step {
        Step::Keep => {}
        Step::Propose(version) => propose(member, cluster, version).await,
        Step::BadTarget { target, from } => log::error!(
            "Cannot downgrade from this version to downgrade-target",
            "downgrade-target" = target.to_string(),
            "version" = from.to_string()
        ),
    }
}

async fn propose(member: &Member, from: Option<Version>, to: Version) {
    let short = |version: Version| format!("{}.{}", version.major, version.minor);
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
    let request =
        InternalRaftRequest { cluster_version_set: Some(set), ..InternalRaftRequest::default() };
    match member.propose(request, RequestKind::ClusterVersionSet).await {
        Ok(_) | Err(RequestError::Stopped) => {}
        Err(error) => {
            log::warn!("failed to update cluster version", "error" = error.to_string());
        }
    }
}

/// Has the storage version follow the cluster's, should it not have when that changed.
pub(crate) async fn keep_storage_version(member: Arc<Member>) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        member.tell_applier(Job::FollowClusterVersion);
    }
}

/// Waits for a moment until versions are agreed on, so that the first client of a new cluster sees them. In
/// a cluster that cannot agree clients are served all the same.
pub(crate) async fn settle_versions(member: &Member) {
    let settled = async {
        let mut looks = interval(Duration::from_millis(1));
        while member.facts().versions.cluster().is_none()
            || member.standing().storage_version() != member.facts().versions.cluster()
        {
            looks.tick().await;
        }
    };
    drop(tokio::time::timeout(SETTLING_PATIENCE, settled).await);
}
