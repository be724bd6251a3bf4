//! Who this member is, what it allows, and where it stands: what every request looks at.
//!
//! Nothing here waits, and nothing is changed.

use std::sync::Arc;

use quorate_api::etcdserverpb::ResponseHeader;
use quorate_state::apply::{Facts, Readers};
use quorate_state::members::Member as Row;
use quorate_state::units::{MemberId, Millis};
use quorate_state::versions::Version;

use super::Limits;
use crate::clock::Clock;
use crate::identity::Identity;
use crate::metrics::Metrics;
use crate::release::reported_version;
use crate::standing::Standing;

/// See the module.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(super) identity: Identity,
    pub(super) limits: Limits,
    pub(super) clock: Clock,
    pub(super) standing: Arc<Standing>,
    pub(super) readers: Readers,
    pub(super) metrics: Arc<Metrics>,
}

impl Profile {
    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) const fn cluster_id(&self) -> u64 {
        self.identity.cluster_id
    }

    pub(crate) const fn id(&self) -> u64 {
        self.identity.member_id
    }

    pub(crate) const fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(crate) const fn standing(&self) -> &Arc<Standing> {
        &self.standing
    }

    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// What is known of members, alarms and versions.
    pub(crate) fn facts(&self) -> Arc<Facts> {
        self.readers.facts()
    }

    /// The members as applied, ascending.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.facts().members.iter().cloned().collect()
    }

    pub(crate) fn is_learner(&self) -> bool {
        let own = MemberId(self.id());
        self.readers.look(|facts| facts.members.get(own).is_some_and(|member| member.is_learner))
    }

    /// The version that this member counts as in its cluster.
    pub(crate) fn version(&self) -> Version {
        self.limits.held_version.unwrap_or(Version::OWN)
    }

    /// That version as clients and peers are told it.
    pub(crate) fn version_text(&self) -> String {
        reported_version(self.limits.held_version)
    }

    pub(crate) fn has_leader(&self) -> bool {
        self.standing.leader() != quorate_raft::NONE
    }

    pub(crate) fn applied_term(&self) -> u64 {
        self.standing.applied_term()
    }

    /// The header of a response at a store revision.
    pub(crate) fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: self.standing.applied_term(),
        }
    }

    /// Fills in what the state machine leaves to the member.
    pub(crate) fn complete(&self, header: Option<ResponseHeader>) -> Option<ResponseHeader> {
        Some(self.header(header.map_or(0, |header| header.revision)))
    }
}
