//! Determines the initial cluster from the flags.

use quorate_core::bootstrap::InitialCluster;

use super::error::BootError;
use super::names::Names;
use super::srv;
use quorate_config::{Config, InitialClusterError, InitialMembers, Url};

/// The members named by the flags, and the token from which their ids are derived.
#[derive(Clone, Debug)]
pub(super) struct Initial {
    pub(super) members: InitialMembers,
    pub(super) token: String,
}

impl Initial {
    pub(super) fn to_cluster(&self) -> InitialCluster {
        to_cluster(&self.members, &self.token)
    }

    /// Finds the initial members, by parsing the flags or through DNS.
    pub(super) async fn find(config: &Config, names: &dyn Names) -> Result<Self, BootError> {
        if config.discovery.is_asked_for() {
            // Until discovery has finished, the list contains only this member.
            let own = config.initial_cluster_from_name(&config.name);
            let members = InitialMembers::parse(&own).map_err(InitialClusterError::from)?;
            return Ok(Self { members, token: config.discovery.token.clone() });
        }
        if !config.discovery_srv.is_empty() {
            let members = srv::initial_members(config, names).await?;
            return Ok(Self { members, token: config.initial_cluster_token.clone() });
        }
        let members =
            InitialMembers::parse(&config.initial_cluster).map_err(InitialClusterError::from)?;
        Ok(Self { members, token: config.initial_cluster_token.clone() })
    }
}

/// Converts the members to the type used by the start decision.
pub(super) fn to_cluster(members: &InitialMembers, token: &str) -> InitialCluster {
    let members = members.iter().map(|(name, urls)| (name.to_owned(), url_texts(urls)));
    InitialCluster { members: members.collect(), token: token.to_owned() }
}

pub(super) fn url_texts(urls: &[Url]) -> Vec<String> {
    let mut texts: Vec<String> = urls.iter().map(|url| url.as_str().to_owned()).collect();
    texts.sort();
    texts
}
