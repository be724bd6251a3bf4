//! Downgrades: an operator begins one, the leader lowers the cluster version, members are replaced by older
//! ones one after the other, and the leader ends it when all are.

use std::sync::Arc;

use quorate_api::etcdserverpb::InternalRaftRequest;
use quorate_api::membershippb::DowngradeInfoSetRequest;
use quorate_state::versions::Version;
use tokio::time::{MissedTickBehavior, interval};

use super::rules::{downgrade_of, is_downgraded, parse_target};
use super::survey::Survey;
use crate::log;
use crate::member::{Member, RequestError};
use crate::metrics::RequestKind;

impl Member {
    /// Says whether a downgrade to `target` could begin. Returns the cluster version.
    pub(crate) async fn validate_downgrade(&self, target: &str) -> Result<Version, RequestError> {
        let target = parse_target(target).ok_or(RequestError::WrongDowngradeVersionFormat)?;
        let cluster = self.cluster_version();
        let cluster = cluster.ok_or(RequestError::ClusterVersionUnavailable)?;
        self.check_downgrade(target).await?;
        Ok(cluster)
    }

    /// Begins a downgrade. Returns the cluster version, which is not lowered yet.
    pub(crate) async fn enable_downgrade(&self, target: &str) -> Result<Version, RequestError> {
        let enabled = async {
            let target = parse_target(target).ok_or(RequestError::WrongDowngradeVersionFormat)?;
            self.check_downgrade(target).await?;
            let set = DowngradeInfoSetRequest { enabled: true, ver: target.to_string() };
            self.set_downgrade(set).await?;
            self.cluster_version().ok_or(RequestError::ClusterVersionUnavailable)
        };
        let outcome = enabled.await;
        if let Err(error) = &outcome {
            log::warn!("reject downgrade request", "error" = error.to_string());
        }
        outcome
    }

    /// Ends a downgrade, if there is one; what fails is only logged, as in etcd. Returns the cluster
    /// version.
    pub(crate) async fn cancel_downgrade(&self) -> Option<Version> {
        let canceled = async {
            self.read_barrier().await?;
            if !self.facts().versions.downgrade().enabled {
                return Err(RequestError::NoDowngradeInProgress);
            }
            self.end_downgrade().await
        };
        if let Err(error) = canceled.await {
            log::warn!("failed to cancel downgrade", "error" = error.to_string());
        }
        self.cluster_version()
    }

    fn cluster_version(&self) -> Option<Version> {
        self.facts().versions.cluster()
    }

    async fn check_downgrade(&self, target: Version) -> Result<(), RequestError> {
        self.read_barrier().await?;
        let facts = self.facts();
        let cluster = facts.versions.cluster().ok_or(RequestError::ClusterVersionUnavailable)?;
        if downgrade_of(cluster) != Some(target) {
            return Err(RequestError::InvalidDowngradeTargetVersion);
        }
        if facts.versions.downgrade().enabled {
            return Err(RequestError::DowngradeInProgress);
        }
        Ok(())
    }

    async fn end_downgrade(&self) -> Result<(), RequestError> {
        self.set_downgrade(DowngradeInfoSetRequest { enabled: false, ver: String::new() }).await
    }

    async fn set_downgrade(&self, set: DowngradeInfoSetRequest) -> Result<(), RequestError> {
        let request =
            InternalRaftRequest { downgrade_info_set: Some(set), ..InternalRaftRequest::default() };
        self.propose(request, RequestKind::DowngradeInfoSet).await.map(drop)
    }
}

/// Has the leader end a downgrade when every member runs its target.
pub(crate) async fn end_downgrade(member: Arc<Member>) {
    let Some(period) = member.limits().downgrade_check_interval else { return };
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if !member.standing().leads() {
            continue;
        }
        let downgrade = member.facts().versions.downgrade().clone();
        let target = Version::parse(&downgrade.target_version).filter(|_| downgrade.enabled);
        let Some(target) = target else { continue };
        if is_downgraded(target, &Survey::take(&member).await.versions) {
            log::info!(
                "the cluster has been downgraded",
                "cluster-version" = downgrade.target_version
            );
            if let Err(error) = member.end_downgrade().await {
                log::warn!("failed to cancel downgrade", "error" = error.to_string());
            }
        }
    }
}
