//! Discovery: the founders of a cluster find each other through another running cluster (`--discovery-*`).
//!
//! An operator writes the number of founders to that cluster. Each founder registers itself there and waits until the
//! required number of founders has registered. The first founders to register found the new cluster. The keys are:
//!
//! ```text
//! /_etcd/registry/TOKEN/_config/size        3
//! /_etcd/registry/TOKEN/members/ID          NAME=URL,NAME=URL
//! ```
//!
//! # Invariants
//!
//! * All founders compute the same list. It is ordered by first registration, as recorded by the discovery cluster, and
//!   is truncated to the number of founders.
//! * Registering again after a crash changes neither the order nor the list.
//!
//! # Not here
//!
//! The connection to the discovery cluster (`registry`).

mod registry;

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use quorate_state::units::MemberId;
use tokio::time::sleep;

use self::registry::{EtcdRegistry, Registry, RegistryError};
use quorate_config::{Discovery, InitialMembers};
use quorate_telemetry::log;

const PREFIX: &str = "/_etcd/registry";
/// Number of consecutive failures after which a founder gives up.
const RETRIES_MAX: u32 = u32::MAX;
/// Number of consecutive failures after which the pauses stop growing.
const GROWING_PAUSES_MAX: u32 = 8;

/// Why discovery failed. The error messages are etcd's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DiscoveryError {
    #[error("discovery: invalid peer URL")]
    InvalidUrl,
    #[error("discovery: size key is bad")]
    BadSize,
    #[error("discovery: size key not found")]
    NoSize,
    #[error("discovery: cluster is full")]
    Full,
    #[error("discovery: too many retries")]
    TooManyRetries,
}

/// Registers this member and waits for the other founders. Returns all founders in registration order.
///
/// `own` is this member's registration: its name and peer URLs.
pub(super) async fn join(
    config: &Discovery,
    id: MemberId,
    own: &InitialMembers,
) -> Result<InitialMembers, DiscoveryError> {
    let registry = EtcdRegistry::new(config);
    let mut meeting = Meeting::new(registry, &config.token, id, Duration::from_secs(1));
    meeting.join(&own.to_string()).await
}

/// One founder's view of the discovery.
struct Meeting<R> {
    registry: R,
    size_key: String,
    members_prefix: String,
    own_key: String,
    /// Half of the pause after the first failure. Each further failure doubles the pause, up to a limit.
    pause: Duration,
    failures: u32,
}

/// A registered founder.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registered {
    create_revision: i64,
    key: Bytes,
    /// The registration, `NAME=URL,NAME=URL`.
    urls: String,
}

impl<R: Registry> Meeting<R> {
    fn new(registry: R, token: &str, id: MemberId, pause: Duration) -> Self {
        let members_prefix = format!("{PREFIX}/{token}/members");
        Self {
            registry,
            size_key: format!("{PREFIX}/{token}/_config/size"),
            own_key: format!("{members_prefix}/{id}"),
            members_prefix,
            pause,
            failures: 0,
        }
    }

    async fn join(&mut self, own: &str) -> Result<InitialMembers, DiscoveryError> {
        self.look().await?;
        self.register(own).await?;
        loop {
            let (size, mut members, revision) = self.look().await?;
            if members.len() >= size {
                members.truncate(size);
                let urls: Vec<String> = members.into_iter().map(|member| member.urls).collect();
                log::info!("found all needed peers from discovery service", "clusterSize" = size);
                return InitialMembers::parse(&urls.join(","))
                    .map_err(|_| DiscoveryError::InvalidUrl);
            }
            log::info!(
                "waiting for peers from discovery service",
                "clusterSize" = size,
                "found-peers" = members.len()
            );
            // After a change or an error, the founder looks up the registrations again.
            match self.registry.wait_for_change(&self.members_prefix, revision + 1).await {
                Ok(()) => {}
                Err(error) => self.pause_after("waiting for peers", &error).await?,
            }
        }
    }

    /// Returns the number of founders, the registered founders in registration order, and the revision of this list.
    /// Fails if this member is not among the first `size` founders, or would not be among them if it registered now.
    async fn look(&mut self) -> Result<(usize, Vec<Registered>, i64), DiscoveryError> {
        loop {
            let looked = async {
                let size = self.registry.get(&self.size_key).await?;
                let listed = self.registry.list(&self.members_prefix).await?;
                Ok::<_, RegistryError>((size, listed))
            };
            let (size, (mut members, revision)) = match looked.await {
                Ok(looked) => looked,
                Err(error) => {
                    self.pause_after("cluster status check", &error).await?;
                    continue;
                }
            };
            self.failures = 0;
            let size = size.ok_or(DiscoveryError::NoSize)?;
            let size = std::str::from_utf8(&size).ok().and_then(|text| text.parse::<usize>().ok());
            let size = size.filter(|size| *size > 0).ok_or(DiscoveryError::BadSize)?;
            members.retain(|member| member.urls.contains('='));
            members.sort_by_key(|member| member.create_revision);
            let own = members.iter().position(|member| member.key == self.own_key.as_bytes());
            if own.unwrap_or(members.len()) >= size {
                return Err(DiscoveryError::Full);
            }
            return Ok((size, members, revision));
        }
    }

    async fn register(&mut self, own: &str) -> Result<(), DiscoveryError> {
        while let Err(error) = self.registry.put(&self.own_key, own).await {
            self.pause_after("register member itself", &error).await?;
        }
        self.failures = 0;
        log::info!(
            "register member itself successfully",
            "memberKey" = self.own_key,
            "memberInfo" = own
        );
        Ok(())
    }

    async fn pause_after(
        &mut self,
        step: &'static str,
        error: &RegistryError,
    ) -> Result<(), DiscoveryError> {
        if self.failures == RETRIES_MAX {
            return Err(DiscoveryError::TooManyRetries);
        }
        self.failures += 1;
        let pause = self.pause * (1 << self.failures.min(GROWING_PAUSES_MAX));
        log::warn!(
            "retry connecting to discovery service",
            "reason" = step,
            "error" = error.to_string(),
            "backoff" = pause
        );
        sleep(pause).await;
        Ok(())
    }
}
