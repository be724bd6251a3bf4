//! Downgrades. An operator starts a downgrade, and the leader lowers the cluster version. The operator then replaces
//! the members with older ones, one at a time. The leader ends the downgrade when all members run the older version.

use std::sync::Arc;

use quorate_api::etcdserverpb::InternalRaftRequest;
use quorate_api::membershippb::DowngradeInfoSetRequest;
use quorate_state::versions::Version;
use tokio::time::{MissedTickBehavior, interval};

use super::rules::{downgrade_of, is_downgraded, parse_target};
use super::survey::Survey;
use crate::{Handles, MemberInfo, Proposer, Reader};
use quorate_peer::pool::ConnectionPool;
use quorate_requests::RequestError;
use quorate_requests::access::{AccessControl, Credentials};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

/// Starts and ends downgrades.
#[derive(Debug)]
pub struct Downgrades {
    info: Arc<MemberInfo>,
    access_control: Arc<AccessControl>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
}

impl Downgrades {
    /// Creates an instance that uses these handles.
    pub fn new(handles: &Handles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            reader: Arc::clone(&handles.reader),
            proposer: Arc::clone(&handles.proposer),
        }
    }

    /// Checks whether a downgrade to `target` can start. Returns the cluster version.
    pub async fn validate(&self, target: &str) -> Result<Version, RequestError> {
        let target = parse_target(target).ok_or(RequestError::WrongDowngradeVersionFormat)?;
        let cluster = self.cluster_version();
        let cluster = cluster.ok_or(RequestError::ClusterVersionUnavailable)?;
        self.check(target).await?;
        Ok(cluster)
    }

    /// Starts a downgrade. The client must be an administrator. Returns the cluster version, which has not been lowered
    /// yet.
    pub async fn enable(
        &self,
        client: &Credentials,
        target: &str,
    ) -> Result<Version, RequestError> {
        let enabled = async {
            let target = parse_target(target).ok_or(RequestError::WrongDowngradeVersionFormat)?;
            self.check(target).await?;
            self.access_control.check_admin(client)?;
            let set = DowngradeInfoSetRequest { enabled: true, ver: target.to_string() };
            self.set(set).await?;
            self.cluster_version().ok_or(RequestError::ClusterVersionUnavailable)
        };
        let outcome = enabled.await;
        if let Err(error) = &outcome {
            log::warn!("reject downgrade request", "error" = error.to_string());
        }
        outcome
    }

    /// Ends a downgrade in progress. The client must be an administrator. A failure is only logged, as in etcd. Returns
    /// the cluster version.
    pub async fn cancel(&self, client: &Credentials) -> Option<Version> {
        let canceled = async {
            self.reader.read_barrier().await?;
            self.access_control.check_admin(client)?;
            if !self.info.facts().versions.downgrade().enabled {
                return Err(RequestError::NoDowngradeInProgress);
            }
            self.end().await
        };
        if let Err(error) = canceled.await {
            log::warn!("failed to cancel downgrade", "error" = error.to_string());
        }
        self.cluster_version()
    }

    fn cluster_version(&self) -> Option<Version> {
        self.info.facts().versions.cluster()
    }

    async fn check(&self, target: Version) -> Result<(), RequestError> {
        self.reader.read_barrier().await?;
        let facts = self.info.facts();
        let cluster = facts.versions.cluster().ok_or(RequestError::ClusterVersionUnavailable)?;
        if downgrade_of(cluster) != Some(target) {
            return Err(RequestError::InvalidDowngradeTargetVersion);
        }
        if facts.versions.downgrade().enabled {
            return Err(RequestError::DowngradeInProgress);
        }
        Ok(())
    }

    async fn end(&self) -> Result<(), RequestError> {
        self.set(DowngradeInfoSetRequest { enabled: false, ver: String::new() }).await
    }

    async fn set(&self, set: DowngradeInfoSetRequest) -> Result<(), RequestError> {
        let request = InternalRaftRequest {
            downgrade_info_set: Some(Box::new(set)),
            ..InternalRaftRequest::default()
        };
        self.proposer.propose_as_member(request, RequestKind::DowngradeInfoSet).await.map(drop)
    }
}

/// If this member leads, ends a downgrade once every member runs the downgrade's target version.
pub async fn end_downgrade(handles: Arc<Handles>) {
    let Some(period) = handles.info.limits().downgrade_check_interval else { return };
    let downgrades = Downgrades::new(&handles);
    let pool = Arc::<ConnectionPool>::default();
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes immediately, so it is skipped.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if !handles.info.member_status().leads() {
            continue;
        }
        let downgrade = handles.info.facts().versions.downgrade().clone();
        let target = Version::parse(&downgrade.target_version).filter(|_| downgrade.enabled);
        let Some(target) = target else { continue };
        if is_downgraded(target, &Survey::take(&handles.info, &pool).await.versions) {
            log::info!(
                "the cluster has been downgraded",
                "cluster-version" = downgrade.target_version
            );
            if let Err(error) = downgrades.end().await {
                log::warn!("failed to cancel downgrade", "error" = error.to_string());
            }
        }
    }
}
