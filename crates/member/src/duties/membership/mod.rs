//! Membership changes: checks a change before it is proposed, and promotes learners. Only the leader can check a
//! promotion, so other members forward promotions to the leader.
//!
//! With `--strict-reconfig-check`, a member first checks, from its own view, how a change affects the quorum. The
//! change then goes through the log, and every member checks its validity when applying it.
//!
//! # Not here
//!
//! The rules of the first check, and its repetition for changes that had to wait for another change
//! (`node::reconfiguration`), whether a learner has caught up (`core::promotion`), the checks when a change is applied
//! (`state::members`), consensus (`raft`), and the services (`edge::services::cluster`, `peer_port`).

mod forwarding;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quorate_core::promotion::{PromotionRefusal, check_has_caught_up};
use quorate_node::reconfiguration::{self, Danger, Link, Voter};
use quorate_raft::{ConfChange, ConfChangeKind};
use quorate_state::members::{ChangeContext, Member, MembershipRefusal, member_id};
use quorate_state::units::MemberId;

pub use self::forwarding::PROMOTE_PATH;
use crate::duties::leadership::LeaderWatch;
use crate::requests::proposer::danger_error;
use crate::{Administrator, Handles, MemberInfo, Proposer, Reader};
use quorate_config::Url;
use quorate_peer::Peers;
use quorate_requests::RequestError;
use quorate_requests::access::{AccessControl, Credentials};
use quorate_telemetry::log;

/// Time after which a newly connected peer counts as connected.
const STEADY_AFTER: Duration = Duration::from_secs(5);

/// Checks and proposes membership changes.
#[derive(Debug)]
pub struct Membership {
    info: Arc<MemberInfo>,
    access_control: Arc<AccessControl>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
    administrator: Arc<Administrator>,
    leader: LeaderWatch,
    peers: Arc<Peers>,
}

impl Membership {
    /// Creates an instance that uses these handles.
    pub fn new(handles: &Handles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            reader: Arc::clone(&handles.reader),
            proposer: Arc::clone(&handles.proposer),
            administrator: Arc::clone(&handles.administrator),
            leader: LeaderWatch::new(handles),
            peers: Arc::clone(&handles.peers),
        }
    }

    /// Adds a member with these peer URLs. The client must be an administrator, but invalid URLs are refused before its
    /// role is checked. Returns the new member and the list of all members.
    pub async fn add(
        &self,
        client: &Credentials,
        peer_urls: &[String],
        is_learner: bool,
    ) -> Result<(Member, Vec<Member>), RequestError> {
        let mut peer_urls = parse_urls(peer_urls)?;
        self.access_control.check_admin(client)?;
        peer_urls.sort();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let id = member_id(&peer_urls, "", Some(since_epoch.as_secs()));
        let row = Member { is_learner, ..Member::new(id, peer_urls) };
        if self.info.limits().checks_reconfigurations {
            reconfiguration::check_addition(&self.voters(), is_learner)
                .map_err(|danger| self.reject("add", id.0, danger))?;
        }
        let kind =
            if is_learner { ConfChangeKind::AddLearnerNode } else { ConfChangeKind::AddNode };
        let rows = self.change_members(client, kind, id.0, row.to_json()).await?;
        Ok((row, rows))
    }

    /// Removes a member. The client must be an administrator.
    pub async fn remove(&self, client: &Credentials, id: u64) -> Result<Vec<Member>, RequestError> {
        let is_learner =
            self.info.facts().members.get(MemberId(id)).is_some_and(|member| member.is_learner);
        if self.info.limits().checks_reconfigurations && !is_learner {
            reconfiguration::check_removal(&self.voters(), id)
                .map_err(|danger| self.reject("remove", id, danger))?;
        }
        self.change_members(client, ConfChangeKind::RemoveNode, id, String::new()).await
    }

    /// Replaces the peer URLs of a member. The client must be an administrator.
    pub async fn update(
        &self,
        client: &Credentials,
        id: u64,
        peer_urls: &[String],
    ) -> Result<Vec<Member>, RequestError> {
        // URLs are checked before the change is proposed, because an invalid URL would stay in the member list.
        let peer_urls = parse_urls(peer_urls)?;
        self.reader.read_barrier().await?;
        let row = updated(MemberId(id), peer_urls, self.info.facts().members.get(MemberId(id)));
        self.change_members(client, ConfChangeKind::UpdateNode, id, row.to_json()).await
    }

    /// Makes a learner a voter. The client must be an administrator. If this member does not lead, it forwards the
    /// promotion to the leader, with the client's token.
    pub async fn promote(
        &self,
        client: &Credentials,
        id: u64,
        token: Option<&str>,
    ) -> Result<Vec<Member>, RequestError> {
        let failure = match self.promote_as_leader(client, id).await {
            Ok(rows) => {
                self.info.metrics().server.learner_promote_successes.inc();
                return Ok(rows);
            }
            Err(RequestError::NotLeader) => return self.forward_promotion(client, id, token).await,
            Err(failure) => failure,
        };
        let reason = peer_text(&failure);
        self.info.metrics().server.learner_promote_failures.with(&[&reason]).inc();
        Err(failure)
    }

    async fn promote_as_leader(
        &self,
        client: &Credentials,
        id: u64,
    ) -> Result<Vec<Member>, RequestError> {
        self.reader.wait_applied().await?;
        let status = self.administrator.raft_status().await?;
        match check_has_caught_up(&status, id) {
            Ok(()) => {}
            Err(PromotionRefusal::NotLeader) => return Err(RequestError::NotLeader),
            Err(PromotionRefusal::UnknownMember) => {
                return Err(RequestError::Membership(MembershipRefusal::NotFound));
            }
            Err(PromotionRefusal::NotReady { learner, leader }) => {
                log::error!(
                    "rejecting promote learner: learner is not ready",
                    "learner-match-index" = learner.get(),
                    "leader-match-index" = leader.get()
                );
                return Err(RequestError::LearnerNotReady);
            }
        }
        if self.info.limits().checks_reconfigurations {
            reconfiguration::check_promotion(&self.voters())
                .map_err(|danger| self.reject("promote", id, danger))?;
        }
        let context = ChangeContext::promotion_json(MemberId(id));
        self.change_members(client, ConfChangeKind::AddNode, id, context).await
    }

    /// Proposes a change. The client is authorised here, after everything that the request waits for, because the
    /// authorisation of a membership change is not checked again when the entry is applied.
    async fn change_members(
        &self,
        client: &Credentials,
        kind: ConfChangeKind,
        node_id: u64,
        context: String,
    ) -> Result<Vec<Member>, RequestError> {
        self.access_control.check_admin(client)?;
        let change = ConfChange { id: 0, kind, node_id, context: context.into() };
        let outcome = self.proposer.propose_conf_change(change).await;
        if matches!(outcome, Ok(()) | Err(RequestError::Membership(_))) {
            log::info!(
                "applied a configuration change through raft",
                "local-member-id" = format!("{:x}", self.info.id()),
                "raft-conf-change" = format!("ConfChange{kind:?}"),
                "raft-conf-change-node-id" = format!("{node_id:x}")
            );
        }
        outcome.map(|()| self.info.rows())
    }

    /// Returns the voters with their links to this member.
    fn voters(&self) -> Vec<Voter> {
        let now = Instant::now();
        let link = |id: u64| match self.peers.active_since(id) {
            _ if id == self.info.id() => Link::Steady,
            None => Link::Down,
            Some(since) if now.saturating_duration_since(since) >= STEADY_AFTER => Link::Steady,
            Some(_) => Link::Fresh,
        };
        let facts = self.info.facts();
        let voters = facts.members.iter().filter(|member| !member.is_learner);
        voters
            .map(|member| Voter {
                id: member.id.0,
                is_started: member.is_started(),
                link: link(member.id.0),
            })
            .collect()
    }

    /// Logs why a change is not proposed, and returns the error for the client.
    fn reject(&self, change: &str, id: u64, danger: Danger) -> RequestError {
        let error = danger_error(danger);
        log::warn!(
            &format!("rejecting member {change} request; {danger}"),
            "local-member-id" = format!("{:x}", self.info.id()),
            "requested-member-id" = format!("{id:x}"),
            "error" = error.to_string()
        );
        error
    }
}

/// Parses peer URLs. The URLs are kept as given, except that leading and trailing whitespace is removed.
fn parse_urls(texts: &[String]) -> Result<Vec<String>, RequestError> {
    if texts.is_empty() {
        return Err(RequestError::BadMemberUrls);
    }
    let url = |text: &String| Url::parse(text).map(|url| url.as_str().to_owned());
    texts.iter().map(url).collect::<Result<_, _>>().map_err(|_| RequestError::BadMemberUrls)
}

/// Returns the row that replaces the peer URLs of a member. etcd up to 3.5.30 and 3.6.11 also takes from this row
/// whether the member is a learner. Other versions and Quorate ignore everything except the URLs.
fn updated(id: MemberId, peer_urls: Vec<String>, current: Option<&Member>) -> Member {
    let is_learner = current.is_some_and(|member| member.is_learner);
    Member { is_learner, ..Member::new(id, peer_urls) }
}

/// Returns the text of an error as it is sent to other members.
pub fn peer_text(failure: &RequestError) -> String {
    match failure {
        RequestError::Membership(refusal) => refusal.peer_text().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_urls_are_validated_before_they_are_proposed() {
        let parse = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            parse_urls(&texts).ok()
        };
        assert_eq!(
            parse(&[" http://b:1 ", "HTTP://a:2", "http://:1", "unix:///x"]).unwrap(),
            ["http://b:1", "http://a:2", "http://:1", "unix:///x"]
        );
        for bad in [&[][..], &[""], &["http://a:1", "a:1"], &["http://a"], &["http://a:1/p"]] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn an_update_of_a_learner_states_that_the_member_is_a_learner() {
        let voter = Member::new(MemberId(7), Vec::new());
        let learner = Member { is_learner: true, ..voter.clone() };
        let context = |current: Option<&Member>| {
            updated(MemberId(7), vec!["http://a:1".to_owned()], current).to_json()
        };
        assert!(
            context(Some(&learner)).contains(r#""isLearner":true"#),
            "{}",
            context(Some(&learner))
        );
        for current in [Some(&voter), None] {
            assert!(!context(current).contains("isLearner"), "{}", context(current));
        }
    }
}
