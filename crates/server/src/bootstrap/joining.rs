//! A member that somebody has added to a running cluster: it learns its id and its cluster from the others.
//!
//! The flags must name exactly the members that the cluster has, by peer URLs; names do not matter. Nothing is
//! written but the identity: everything else comes from the leader's log.
//!
//! A member of whom the cluster knows the client URLs has been at work before. It has voted and acknowledged
//! entries, and with an empty directory it would do both once more, to the loss of others: it is refused. Its
//! name says less: founders are known by name before they have ever run.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_state::members::Member;
use quorate_state::units::MemberId;
use quorate_state::versions::Version;

use super::error::{BootError, PeerUrlsMismatch};
use super::founding::RESOLVE_TIMEOUT;
use super::initial::{Initial, peer_urls_of_others, url_texts};
use super::names::Outside;
use super::remote::{self, Addresses, RemoteCluster, has_published};
use super::same_urls::{Comparison, Difference, is_literally_same};
use quorate_config::{Config, InitialMembers};
use quorate_member::Identity;
use quorate_telemetry::log;

/// How long each URL may take to say who is in the cluster.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the others may take to say whether they know where clients reach this member.
const PUBLISHED_TIMEOUT: Duration = Duration::from_secs(1);

/// A member that is to join.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) identity: Identity,
    /// The other members, as the cluster describes them.
    pub(super) others: Vec<Member>,
}

impl Joining {
    /// Asks the cluster for this member's place in it.
    pub(super) async fn prepare(config: &Config, outside: Outside<'_>) -> Result<Self, BootError> {
        let Outside { names, dialer } = outside;
        let Initial { members: initial, .. } = Initial::find(config, names).await?;
        initial.check_holds(&config.name)?;
        initial.check_urls()?;
        if config.discovery.is_asked_for() {
            return Err(BootError::DiscoveryWhileJoining);
        }
        let urls = peer_urls_of_others(&initial, &config.name);
        let cluster = remote::cluster_of(&urls, (dialer, MEMBERS_TIMEOUT)).await?;
        let mut comparison = Comparison::new(names, RESOLVE_TIMEOUT);
        let ids = match_members(&initial, &cluster, &mut comparison)
            .await
            .map_err(|mismatch| BootError::PeerUrls { cluster: cluster.to_string(), mismatch })?;
        let own = ids[config.name.as_str()];
        let known = match cluster.members.get(&own).filter(|own| has_published(own)) {
            Some(known) => Some(known.clone()),
            // Whoever has answered may not have heard of it yet.
            None => remote::row_of(urls, own, has_published, (dialer, PUBLISHED_TIMEOUT)).await,
        };
        if let Some(Member { id, name, .. }) = known {
            return Err(BootError::Published { id, name });
        }
        let others: Addresses = initial
            .iter()
            .filter(|(name, _)| *name != config.name)
            .map(|(name, urls)| (ids[name], url_texts(urls)))
            .collect();
        let version = config.hold_cluster_version.unwrap_or(Version::OWN);
        let way = (dialer, config.request_timeout());
        if !remote::is_compatible(&others, version, way).await {
            return Err(BootError::Incompatible);
        }
        super::check_learners(config, cluster.members.values())?;
        let identity =
            Identity { cluster_id: cluster.id, member_id: own.0, name: config.name.clone() };
        Ok(Self { identity, others: others_of(cluster, own) })
    }
}

/// Learns the other members again, for a member whose log does not tell them yet: one that stopped before
/// the leader reached it. The flags are hints here and nothing more, and it is no mistake if nobody
/// answers: the leader finds this member, too.
///
/// A member whose client URLs are known had a log or a file that told of the others, for it does not tell them
/// sooner (`housekeeping::publish`): it has lost it.
pub(super) async fn learn_others(
    config: &Config,
    identity: &Identity,
    Outside { names, dialer }: Outside<'_>,
) -> Result<Vec<Member>, BootError> {
    let Ok(initial) = Initial::find(config, names).await else { return Ok(Vec::new()) };
    let urls = peer_urls_of_others(&initial.members, &config.name);
    let id = MemberId(identity.member_id);
    let others = match remote::cluster_of(&urls, (dialer, MEMBERS_TIMEOUT)).await {
        Ok(cluster) if cluster.id == identity.cluster_id => {
            if let Some(own) = cluster.members.get(&id)
                && has_published(own)
            {
                return Err(BootError::Published { id, name: own.name.clone() });
            }
            others_of(cluster, id)
        }
        Ok(cluster) => {
            log::warn!(
                "the peers of --initial-cluster belong to another cluster",
                "local-member-cluster-id" = format!("{:x}", identity.cluster_id),
                "remote-cluster-id" = format!("{:x}", cluster.id)
            );
            Vec::new()
        }
        Err(error) => {
            log::warn!(
                "no other member is known yet; waiting for the leader to call",
                "error" = error.to_string()
            );
            Vec::new()
        }
    };
    Ok(others)
}

fn others_of(cluster: RemoteCluster, own: MemberId) -> Vec<Member> {
    cluster.members.into_values().filter(|member| member.id != own).collect()
}

/// Finds for each member of the cluster the one that the flags name by the same peer URLs; the ids by the
/// names in the flags.
async fn match_members<'a>(
    initial: &'a InitialMembers,
    cluster: &RemoteCluster,
    comparison: &mut Comparison<'_>,
) -> Result<BTreeMap<&'a str, MemberId>, PeerUrlsMismatch> {
    if cluster.members.len() != initial.count() {
        return Err(PeerUrlsMismatch::Count);
    }
    let mut named: Vec<(&str, Vec<String>)> =
        initial.iter().map(|(name, urls)| (name, url_texts(urls))).collect();
    let mut ids = BTreeMap::new();
    let mut unmatched = Vec::new();
    for member in cluster.members.values() {
        let same = |(_, urls): &(_, Vec<String>)| {
            is_literally_same(&member.peer_urls, urls).unwrap_or(false)
        };
        match named.iter().position(same) {
            Some(position) => _ = ids.insert(named.swap_remove(position).0, member.id),
            None => unmatched.push(member),
        }
    }
    for member in unmatched {
        let mut last = None::<Difference>;
        let mut found = None;
        for (position, (_, urls)) in named.iter().enumerate() {
            match comparison.check_same(&member.peer_urls, urls).await {
                Ok(()) => {
                    found = Some(position);
                    break;
                }
                Err(difference) => last = Some(difference),
            }
        }
        let Some(position) = found else {
            let id = member.id;
            let urls = member.peer_urls.join(" ");
            let last = last.map_or_else(|| "<nil>".to_owned(), |last| last.to_string());
            return Err(PeerUrlsMismatch::NoMatch { id, urls, last });
        };
        ids.insert(named.swap_remove(position).0, member.id);
    }
    Ok(ids)
}
