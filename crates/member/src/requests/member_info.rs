//! Who this member is, what it allows, and where it stands: what every request looks at.
//!
//! Nothing here waits, and nothing is changed.

use std::sync::Arc;

use quorate_api::etcdserverpb::ResponseHeader;
use quorate_core::bootstrap::Identity;
use quorate_raft::Term;
use quorate_state::apply::{Facts, Readers};
use quorate_state::members::Member;
use quorate_state::units::{MemberId, Millis};
use quorate_state::versions::Version;

use crate::requests::limits::Limits;
use crate::threads::clock::Clock;
use crate::threads::member_status::MemberStatus;
use quorate_peer::Dialer;
use quorate_telemetry::metrics::Metrics;
use quorate_version::reported_version;

/// See the module.
#[derive(Debug)]
pub struct MemberInfo {
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) member_status: Arc<MemberStatus>,
    pub(crate) readers: Readers,
    pub(crate) metrics: Arc<Metrics>,
    /// How other members are asked.
    pub(crate) dialer: Dialer,
}

impl MemberInfo {
    /// Who this member is.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The cluster's id.
    pub const fn cluster_id(&self) -> u64 {
        self.identity.cluster_id
    }

    /// How other members are asked.
    pub(crate) const fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// This member's id.
    pub const fn id(&self) -> u64 {
        self.identity.member_id
    }

    /// What the flags allow.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What is counted.
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Where it stands in the log and in the cluster.
    pub const fn member_status(&self) -> &Arc<MemberStatus> {
        &self.member_status
    }

    /// Now, as the state machine is told it.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// What is known of members, alarms and versions.
    pub fn facts(&self) -> Arc<Facts> {
        self.readers.facts()
    }

    /// The members as applied, ascending.
    pub fn rows(&self) -> Vec<Member> {
        self.facts().members.iter().cloned().collect()
    }

    /// Whether it has no vote yet.
    pub fn is_learner(&self) -> bool {
        let own = MemberId(self.id());
        self.readers.look(|facts| facts.members.get(own).is_some_and(|member| member.is_learner))
    }

    /// The version that this member counts as in its cluster.
    pub fn version(&self) -> Version {
        self.limits.held_version.unwrap_or(Version::OWN)
    }

    /// That version as clients and peers are told it.
    pub fn version_text(&self) -> String {
        reported_version(self.limits.held_version)
    }

    /// Whether a leader is known.
    pub fn has_leader(&self) -> bool {
        self.member_status.state().has_leader()
    }

    /// Term of the last applied entry.
    pub fn applied_term(&self) -> Term {
        self.member_status.applied_term()
    }

    /// The header of a response at a store revision.
    pub fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: self.member_status.applied_term().get(),
        }
    }

    /// Fills in what the state machine leaves to the member.
    pub fn complete(&self, header: Option<ResponseHeader>) -> Option<ResponseHeader> {
        Some(self.header(header.map_or(0, |header| header.revision)))
    }
}
