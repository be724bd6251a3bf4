//! The identity, limits and status of this member, which every request reads.
//!
//! No method blocks, and none changes the state of the member.

use std::sync::Arc;

use quorate_api::etcdserverpb::ResponseHeader;
use quorate_core::bootstrap::Identity;
use quorate_raft::Term;
use quorate_state::apply::{Facts, PublishedState};
use quorate_state::members::Member;
use quorate_state::units::{MemberId, Millis};
use quorate_state::versions::Version;

use crate::requests::limits::Limits;
use crate::threads::clock::Clock;
use crate::threads::member_status::MemberStatus;
use quorate_peer::Dialer;
use quorate_telemetry::metrics::Metrics;
use quorate_version::reported_version;

/// The identity, limits and status of this member.
#[derive(Debug)]
pub struct MemberInfo {
    pub(crate) identity: Identity,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) member_status: Arc<MemberStatus>,
    pub(crate) published: PublishedState,
    pub(crate) metrics: Arc<Metrics>,
    /// Connects to other members.
    pub(crate) dialer: Dialer,
}

impl MemberInfo {
    /// Returns the identity of this member.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the cluster's id.
    pub const fn cluster_id(&self) -> u64 {
        self.identity.cluster_id
    }

    /// Returns the dialer for connections to other members.
    pub(crate) const fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// Returns this member's id.
    pub const fn id(&self) -> u64 {
        self.identity.member_id
    }

    /// Returns the limits set by flags.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the metrics.
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns this member's position in the log and its leadership status.
    pub const fn member_status(&self) -> &Arc<MemberStatus> {
        &self.member_status
    }

    /// Returns the current time on the clock of the state machine.
    pub fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Returns the applied members, alarms and versions.
    pub fn facts(&self) -> Arc<Facts> {
        self.published.facts()
    }

    /// Returns the applied members in ascending order of id.
    pub fn rows(&self) -> Vec<Member> {
        self.facts().members.iter().cloned().collect()
    }

    /// Returns whether this member is a learner.
    pub fn is_learner(&self) -> bool {
        let own = MemberId(self.id());
        self.published.look(|facts| facts.members.get(own).is_some_and(|member| member.is_learner))
    }

    /// Returns the version that this member has in its cluster.
    pub fn version(&self) -> Version {
        self.limits.held_version.unwrap_or(Version::OWN)
    }

    /// Returns the version as this member reports it to clients and peers.
    pub fn version_text(&self) -> String {
        reported_version(self.limits.held_version)
    }

    /// Returns whether a leader is known.
    pub fn has_leader(&self) -> bool {
        self.member_status.state().has_leader()
    }

    /// Returns the term of the last applied entry.
    pub fn applied_term(&self) -> Term {
        self.member_status.applied_term()
    }

    /// Returns the header of a response at a store revision.
    pub fn header(&self, revision: i64) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.identity.cluster_id,
            member_id: self.identity.member_id,
            revision,
            raft_term: self.member_status.applied_term().get(),
        }
    }

    /// Fills in the header fields that the state machine leaves empty.
    pub fn complete(&self, header: Option<ResponseHeader>) -> Option<ResponseHeader> {
        Some(self.header(header.map_or(0, |header| header.revision)))
    }
}
