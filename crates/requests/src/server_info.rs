//! The identity, limits and status of this server, which every request reads.
//!
//! No method except [`ServerInfo::require_leader`] waits, and none changes the state of the server.

use std::sync::Arc;

use quorate_api::etcdserverpb::ResponseHeader;
use quorate_state::apply::{Facts, PublishedFacts};
use quorate_state::members::Member;
use quorate_state::units::{MemberId, Millis};
use quorate_state::versions::Version;
use quorate_telemetry::metrics::Metrics;
use quorate_version::reported_version;

use crate::admission::Admission;
use crate::error::RequestError;
use crate::limits::Limits;
use crate::status::Status;

/// The identity, limits and status of this server.
#[derive(Debug)]
pub struct ServerInfo {
    cluster_id: u64,
    id: u64,
    limits: Limits,
    admission: Arc<Admission>,
    facts: PublishedFacts,
    status: Arc<dyn Status>,
    metrics: Arc<Metrics>,
}

impl ServerInfo {
    /// Creates the information about a server from the id of its cluster and its own id.
    pub fn new(
        (cluster_id, id): (u64, u64),
        limits: Limits,
        facts: PublishedFacts,
        status: Arc<dyn Status>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let admission = Arc::default();
        Self { cluster_id, id, limits, admission, facts, status, metrics }
    }

    /// Returns the cluster's id.
    pub const fn cluster_id(&self) -> u64 {
        self.cluster_id
    }

    /// Returns this server's id, which is its member id in the cluster.
    pub const fn id(&self) -> u64 {
        self.id
    }

    /// Returns the limits set by flags.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the bounds on the work that clients may request at one time.
    pub const fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    /// Returns the metrics.
    pub const fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns the status of the data store.
    pub fn status(&self) -> &dyn Status {
        &*self.status
    }

    /// Returns the current time on the clock by which tokens and leases expire.
    pub fn now(&self) -> Millis {
        self.status.now()
    }

    /// Returns the applied members, alarms and versions.
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.get()
    }

    /// Returns the applied members in ascending order of id.
    pub fn rows(&self) -> Vec<Member> {
        self.facts().members.iter().cloned().collect()
    }

    /// Returns whether this member is a learner.
    pub fn is_learner(&self) -> bool {
        let own = MemberId(self.id);
        self.facts.look(|facts| facts.members.get(own).is_some_and(|member| member.is_learner))
    }

    /// Returns the version that this server contributes to the cluster version: the held version if there is one,
    /// otherwise its own version.
    pub fn version(&self) -> Version {
        self.limits.held_version.unwrap_or(Version::OWN)
    }

    /// Returns the version as this server reports it to clients and other servers.
    pub fn version_text(&self) -> String {
        reported_version(self.limits.held_version)
    }

    /// Returns whether a leader is known.
    pub fn has_leader(&self) -> bool {
        self.status.has_leader()
    }

    /// Waits until there is a leader. Fails if there has been no leader for two election timeouts.
    ///
    /// When the leader's process ends, its followers notice immediately, and a successor is elected within a few ticks
    /// (decision record 0009). etcd's followers still accept requests during that time, because they have not noticed
    /// the loss. Here, such requests wait for the successor. If another voter runs etcd, it ignores the election until it
    /// has missed the leader for an election timeout.
    pub async fn require_leader(&self) -> Result<(), RequestError> {
        let is_led = self.status.wait_for_leader(2 * self.limits.election_timeout).await;
        if is_led { Ok(()) } else { Err(RequestError::NoLeader) }
    }

    /// Returns the header of a response at a revision.
    pub fn header(&self, revision: i64) -> ResponseHeader {
        let raft_term = self.status.term();
        ResponseHeader { cluster_id: self.cluster_id, member_id: self.id, revision, raft_term }
    }

    /// Fills in the header fields that the state machine leaves empty.
    pub fn complete(&self, header: Option<ResponseHeader>) -> Option<ResponseHeader> {
        Some(self.header(header.map_or(0, |header| header.revision)))
    }
}
