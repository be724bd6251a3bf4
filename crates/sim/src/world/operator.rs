//! Simulates the operator, who adds, promotes, removes and replaces members, maintains the store, and makes mistakes.
//!
//! The operator derives the next action from the current state of the members, hosts and processes. A failed action is
//! therefore retried in another form, and the same actions restore a broken cluster at the end of a run.
//!
//! # Mistakes
//!
//! The modules `mistakes` and `exchange` contain the operator's mistakes. The check of refusals to start
//! ([`World::check_refusal`]) takes them into account.

mod accounts;
mod exchange;
mod mistakes;

use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, InternalRaftRequest, alarm_request,
};
use quorate_api::membershippb::{ClusterVersionSetRequest, DowngradeInfoSetRequest};
use quorate_core::bootstrap::Refusal;
use quorate_core::promotion::check_has_caught_up;
use quorate_node::LogFault;
use quorate_raft::{ConfChange, ConfChangeKind, Role};
use quorate_state::members::{ChangeContext, Member as Row, member_id};
use quorate_state::units::MemberId;
use quorate_storage::disk::Disk as _;

use super::client::Requester;
use super::hosts::{Down, host_at, url_of};
use super::{Event, World};
use crate::clock::{MILLI, SECOND};
use crate::member::{ClientRequest, OpId, Refused, Reply};
use crate::plan::{Kind, Theme};

/// The interval between the operator's actions during the restoration of the cluster.
const RESTORE_EVERY: u64 = 200 * MILLI;

/// The maximum number of checks for the right moment for a partition.
const CHECKS_MAX: u32 = 400;

/// The state of the operator.
#[derive(Debug, Default)]
pub(super) struct Operator {
    /// The request in progress, and the rare state that the run reaches if the request succeeds.
    pending: Option<(OpId, &'static str)>,
    /// The time, in whole seconds, from which the last member id was derived.
    last_id_second: u64,
}

impl World {
    /// Takes the next action.
    pub(super) fn operate(&mut self) {
        let next = match self.faults_ended() {
            true => self.now + RESTORE_EVERY,
            false => self.random_time(self.plan.operate_every),
        };
        self.queue.push(next, Event::Operate);
        if self.operator.pending.is_some() || self.ending.clients_stopped {
            return;
        }
        if self.restore_host() || self.promote() {
            return;
        }
        if self.faults_ended() {
            self.free_space();
        } else {
            self.act_randomly();
        }
    }

    /// Processes the reply to an operator request.
    pub(super) fn note_operator_reply(&mut self, id: OpId, reply: &Reply) {
        if let Some((_, rare_state)) = self.operator.pending.take_if(|(op, _)| *op == id)
            && matches!(reply, Reply::Changed | Reply::Done(_))
            && !rare_state.is_empty()
        {
            self.rare_states.note(rare_state);
        }
    }

    /// Returns the membership row of the member that runs, or will run, on a host.
    pub(super) fn row_of(&self, host: usize) -> Option<Row> {
        let url = url_of(host);
        self.judge.members().iter().find(|row| row.peer_urls.contains(&url)).cloned()
    }

    /// Returns the hosts of the running voters, and the total number of voters.
    fn running_voters(&self) -> (Vec<usize>, usize) {
        let voters = self.judge.members().iter().filter(|row| !row.is_learner);
        let all: Vec<usize> = voters.filter_map(|row| host_at(row.peer_urls.first()?)).collect();
        let count = all.len();
        let running = |at: &usize| {
            let row = self.row_of(*at).map(|row| row.id.0);
            let process = self.hosts[*at].process.as_ref();
            process.is_some_and(|process| Some(process.id) == row)
        };
        (all.into_iter().filter(running).collect(), count)
    }

    /// Returns whether the voters that can still run form a quorum and can elect a leader.
    pub(super) fn can_keep_quorum(&self) -> bool {
        let voters = self.judge.members().iter().filter(|row| !row.is_learner);
        let hosts: Vec<Option<usize>> =
            voters.map(|row| row.peer_urls.first().and_then(|url| host_at(url))).collect();
        let can_run = |host: &Option<usize>| {
            host.is_some_and(|at| {
                let host = &self.hosts[at];
                let runs = self.row_of(at).is_some_and(|row| row.id.0 == host.id);
                host.process.is_some() && runs || host.down == Down::Ended
            })
        };
        let is_quorum = hosts.iter().filter(|host| can_run(host)).count() > hosts.len() / 2;
        is_quorum && self.can_elect_leader()
    }

    /// Returns whether any of the members that can run would win an election, according to the configuration that it
    /// knows. Possibly none of them would, because a change may have reached only members that it removed, or only a
    /// learner, which cannot campaign.
    fn can_elect_leader(&self) -> bool {
        let can_run = |id: &u64| {
            self.hosts
                .iter()
                .any(|host| host.id == *id && (host.process.is_some() || host.down == Down::Ended))
        };
        self.hosts.iter().any(|host| match &host.process {
            Some(process) => {
                let voters = process.status().config.conf_state().voters;
                voters.contains(&process.id)
                    && voters.iter().filter(|id| can_run(id)).count() > voters.len() / 2
            }
            None => host.down == Down::Ended,
        })
    }

    /// Chooses the host of a running voter, usually the leader's host.
    fn choose_host(&mut self) -> Option<usize> {
        let (running, _) = self.running_voters();
        let followers = self.followers_of(&running);
        if let Some(leader) = running.iter().find(|at| !followers.contains(at))
            && !self.one_in(3)
        {
            return Some(*leader);
        }
        (!running.is_empty()).then(|| running[self.rng.position(running.len())])
    }

    fn send_operator_request(&mut self, request: ClientRequest, rare_state: &'static str) {
        let Some(host) = self.choose_host() else { return };
        self.log(|| format!("the operator sends h{host} {request:?}"));
        let op = self.send_request(Requester::Operator, host, request, None);
        self.operator.pending = Some((op, rare_state));
    }

    fn change(&mut self, kind: ConfChangeKind, id: u64, context: String, rare_state: &'static str) {
        let change = ConfChange { id: 0, kind, node_id: id, context: context.into() };
        self.send_operator_request(ClientRequest::Change(change), rare_state);
        let may_partition = self.plan.theme == Theme::Membership && self.plan.has(Kind::Cut);
        if may_partition && self.one_in(2) {
            // The partition starts while the change has reached only some of the members.
            let round = self.plan.delay.1 + self.plan.sync_max + self.plan.step_max;
            let at = self.now + self.rng.below(6 * round);
            self.queue.push(at, Event::Partition);
        }
    }

    /// Requests two membership changes before the first is answered.
    fn request_two_changes(&mut self) {
        let empty: Vec<usize> = (0..self.hosts.len())
            .filter(|at| self.hosts[*at].process.is_none() && self.row_of(*at).is_none())
            .filter(|at| !self.is_initialised(*at))
            .collect();
        let (running, count) = self.running_voters();
        if let [first, second, ..] = empty[..]
            && running.len() > (count + 2) / 2
            && self.one_in(2)
        {
            self.rare_states.note("two membership changes are requested at once");
            self.add(first);
            self.add(second);
        } else if let [.., first, second] = self.followers_of(&running)[..]
            && count > 2
            && running.len() - 2 > (count - 2) / 2
        {
            self.rare_states.note("two membership changes are requested at once");
            for at in [first, second] {
                if let Some(row) = self.row_of(at) {
                    let kind = ConfChangeKind::RemoveNode;
                    self.change(kind, row.id.0, String::new(), "a member is removed");
                }
            }
        } else {
            return;
        }
        if self.plan.has(Kind::Cut) && self.one_in(2) {
            self.queue.push(self.now, Event::PartitionAhead(CHECKS_MAX));
        }
    }

    /// Returns the given hosts whose members do not lead.
    fn followers_of(&self, hosts: &[usize]) -> Vec<usize> {
        let leads = |at: usize| {
            let process = self.hosts[at].process.as_ref();
            process.is_some_and(|process| process.leadership().role == Role::Leader)
        };
        hosts.iter().copied().filter(|at| !leads(*at)).collect()
    }

    /// Takes the next step for a host whose member is not running. Returns whether it has sent a request or started a
    /// new member.
    fn restore_host(&mut self) -> bool {
        for at in 0..self.hosts.len() {
            if self.faults_ended() && self.has_wrong_member(at) {
                self.stop_process(at);
            }
            let host = &self.hosts[at];
            let restarts_or_returns = host.down == Down::Ended || host.exchanged_with.is_some();
            if host.process.is_some() || restarts_or_returns {
                continue;
            }
            let (down, id) = (self.hosts[at].down, self.hosts[at].id);
            match self.row_of(at) {
                Some(row) if row.id.0 != id && !self.is_initialised(at) && self.is_new(&row) => {
                    self.start_joining(at);
                    return true;
                }
                // The files belong to an earlier member on this host. The new member needs an empty directory.
                Some(row) if row.id.0 != id && self.is_initialised(at) => self.wipe(at),
                Some(row) if down == Down::Stopped && (row.id.0 == id || id == 0) => {
                    if id != 0 || self.now > SECOND {
                        self.queue.push(self.now + MILLI, Event::Start(at));
                    }
                }
                Some(row) => {
                    if self.may_remove(at) {
                        let id = row.id.0;
                        let kind = ConfChangeKind::RemoveNode;
                        self.change(kind, id, String::new(), "a member is removed");
                        return true;
                    }
                }
                None if self.is_initialised(at) => self.wipe(at),
                None => {
                    if self.wants_member() {
                        self.add(at);
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Returns whether the process on a host has a different id than the host's current member. A removed member may
    /// not have been informed of its removal because it has no peers left, or a member that is behind may have given a
    /// new process the id of an earlier member.
    fn has_wrong_member(&self, at: usize) -> bool {
        let row = self.row_of(at);
        let process = self.hosts[at].process.as_ref();
        process.is_some_and(|process| row.is_none_or(|row| row.id.0 != process.id))
    }

    /// Returns whether a member has never had a directory. A member that has published its name, or has run, must
    /// have had a directory.
    fn is_new(&self, row: &Row) -> bool {
        row.client_urls.is_empty() && !self.member_hosts.contains_key(&row.id.0)
    }

    /// Returns whether the host has a member's files. A member whose log is lost still has its backend file.
    fn is_initialised(&self, at: usize) -> bool {
        let host = &self.hosts[at];
        let has_backend =
            || host.disk.metadata(&Self::dirs().backend()).is_ok_and(|it| it.is_some());
        let has_log = Self::dirs().is_initialised(&host.disk).is_ok_and(|has_log| has_log);
        has_log || host.is_tampered && has_backend()
    }

    /// Returns whether the other running voters would form a quorum if this member were removed.
    fn may_remove(&self, at: usize) -> bool {
        let (mut running, count) = self.running_voters();
        let is_learner = self.row_of(at).is_some_and(|row| row.is_learner);
        running.retain(|host| *host != at);
        let rest = if is_learner { count } else { count - 1 };
        rest > 0 && running.len() > rest / 2
    }

    fn wants_member(&mut self) -> bool {
        let (running, count) = self.running_voters();
        let all = self.judge.members().iter().len();
        // A new member counts as down until it has started.
        let may_grow = count > 0 && running.len() > count.div_ceil(2);
        let wanted = self.plan.founders;
        let is_short = all < wanted || !self.faults_ended() && self.one_in(4);
        may_grow && is_short && (self.plan.has(Kind::Membership) || all < wanted)
    }

    fn add(&mut self, at: usize) {
        // The member id is derived from the current second, so each request must use another second.
        let second = (self.now / SECOND).max(self.operator.last_id_second + 1);
        self.operator.last_id_second = second;
        let urls = vec![url_of(at)];
        let id = member_id(&urls, "", Some(second));
        let learners = self.judge.members().iter().filter(|row| row.is_learner).count();
        let is_learner = learners < self.plan.settings.learner_max && self.one_in(2);
        let row = Row { is_learner, ..Row::new(id, urls) };
        let kind = match is_learner {
            true => ConfChangeKind::AddLearnerNode,
            false => ConfChangeKind::AddNode,
        };
        self.change(kind, id.0, row.to_json(), "a member is added");
    }

    fn start_joining(&mut self, at: usize) {
        let rows = self.judge.members().iter();
        let initial = rows
            .filter_map(|row| {
                let url = row.peer_urls.first()?;
                Some((format!("h{}", host_at(url)?), url.clone()))
            })
            .collect();
        let host = &mut self.hosts[at];
        host.flags.joins = true;
        host.flags.initial = initial;
        host.is_tampered = false;
        host.is_damaged = false;
        host.awaits_member = false;
        host.down = Down::Stopped;
        self.queue.push(self.now + MILLI, Event::Start(at));
    }

    /// Promotes a learner that has caught up. Returns whether there is such a learner.
    fn promote(&mut self) -> bool {
        let learner = self.judge.members().iter().find(|row| row.is_learner).map(|row| row.id);
        let Some(MemberId(id)) = learner else { return false };
        if !self.faults_ended() && self.one_in(2) {
            return false;
        }
        let mut processes = self.hosts.iter().filter_map(|host| host.process.as_ref());
        let is_ready = processes.any(|process| check_has_caught_up(&process.status(), id).is_ok());
        if is_ready {
            let context = ChangeContext::promotion_json(MemberId(id));
            self.change(ConfChangeKind::AddNode, id, context, "a member is promoted");
        }
        is_ready
    }

    /// Frees space in a store that has exceeded its quota.
    fn free_space(&mut self) {
        if self.judge.out_of_space().is_some() {
            match self.rng.below(3) {
                0 => self.compact_everything(),
                1 => self.defragment(),
                _ => self.disarm(),
            }
        }
    }

    fn compact_everything(&mut self) {
        let revision = self.judge.revision();
        // The history must contain this compaction, because clients may observe it.
        self.judge.history.operations.push(quorate_history_checker::Operation {
            client: u64::MAX,
            member: 0,
            called: self.moment(),
            request: quorate_history_checker::Request::Compact { revision },
            outcome: quorate_history_checker::Outcome::Unknown,
        });
        self.send_operator_request(
            ClientRequest::Compact(CompactionRequest { revision, physical: true }),
            "",
        );
    }

    fn defragment(&mut self) {
        let at = self.rng.position(self.hosts.len());
        if self.hosts[at].process.is_some() {
            let op = self.send_request(Requester::Operator, at, ClientRequest::Defragment, None);
            self.operator.pending = Some((op, "a member is defragmented"));
        }
    }

    fn disarm(&mut self) {
        let Some(member_id) = self.judge.out_of_space() else { return };
        let alarm = AlarmRequest {
            action: alarm_request::AlarmAction::Deactivate.into(),
            member_id,
            alarm: AlarmType::Nospace.into(),
        };
        let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
        self.send_operator_request(
            ClientRequest::Internal(Box::new(request)),
            "an alarm is disarmed",
        );
    }

    fn act_randomly(&mut self) {
        if self.plan.has(Kind::Accounts) && self.one_in(2) {
            return self.change_accounts();
        }
        match self.rng.below(6) {
            0 if self.plan.has(Kind::Membership) => {
                if self.plan.changes_at_once && self.one_in(2) {
                    self.request_two_changes();
                } else {
                    self.remove_random_member();
                }
            }
            1 if self.plan.has(Kind::Defragmentation) => self.defragment(),
            2 if self.plan.has(Kind::Versions) => self.change_version(),
            3 if self.judge.out_of_space().is_some() => self.disarm(),
            4..6 if self.plan.has(Kind::Mistakes) => self.make_mistake(),
            _ => {}
        }
    }

    fn remove_random_member(&mut self) {
        let at = self.rng.position(self.hosts.len());
        if let Some(row) = self.row_of(at).filter(|_| self.may_remove(at)) {
            let kind = ConfChangeKind::RemoveNode;
            self.change(kind, row.id.0, String::new(), "a member is removed");
        }
    }

    fn change_version(&mut self) {
        let mut request = InternalRaftRequest::default();
        let set = |ver: &str| Some(Box::new(ClusterVersionSetRequest { ver: ver.to_owned() }));
        match self.rng.below(4) {
            0 => request.cluster_version_set = set("3.6.0"),
            1 => request.cluster_version_set = set("3.7.0"),
            enabled => {
                let set =
                    DowngradeInfoSetRequest { enabled: enabled == 2, ver: "3.6.0".to_owned() };
                request.downgrade_info_set = Some(Box::new(set));
            }
        }
        self.send_operator_request(ClientRequest::Internal(Box::new(request)), "");
    }

    /// Checks that a refusal to start is justified. Only tampering may prevent a member from starting.
    pub(super) fn check_refusal(&mut self, at: usize, refused: &Refused) {
        let host = &mut self.hosts[at];
        let Refused::Bootstrap(failure) = refused else {
            return self.expect_tampering(at, refused);
        };
        match failure {
            Refusal::PeerUrls { .. } | Refusal::NotInitial(_) | Refusal::NoCluster(_) => {
                // The membership may have changed since the flags were set, so the operator starts the member again. A
                // wiped member would start with the same outdated flags again, so it stays down.
                if !host.is_tampered {
                    host.down = Down::Stopped;
                }
            }
            Refusal::TooManyLearners => host.down = Down::Stopped,
            // A member that is behind may still list this host's removed member, so the operator starts the new member
            // again.
            Refusal::Published { id, .. } | Refusal::Bootstrapped(id)
                if self.judge.members().is_removed(*id) =>
            {
                host.down = Down::Stopped;
            }
            Refusal::Removed => {
                let id = MemberId(host.id);
                if !self.judge.members().is_removed(id) {
                    self.judge.fail(|| {
                        format!(
                            "h{at} refuses to start as a removed member, but it was not removed"
                        )
                    });
                }
            }
            Refusal::LogMarkedLost(_)
            | Refusal::LogMissing(_)
            | Refusal::NoMetadata
            | Refusal::Metadata(_)
            | Refusal::HeldBack { .. }
            | Refusal::TooOld { .. }
            | Refusal::OtherFounding { .. }
            | Refusal::Published { .. }
            | Refusal::Bootstrapped(_)
            | Refusal::Incompatible => self.expect_tampering(at, refused),
        }
    }

    fn expect_tampering(&mut self, at: usize, refused: &Refused) {
        if !self.hosts[at].is_tampered {
            self.judge.fail(|| format!("h{at} failed to start: {refused}"));
        }
    }

    /// Checks that files were tampered with if a member stops because of a contradiction in its log.
    pub(super) fn check_log_fault(&mut self, at: usize, fault: &LogFault) {
        let is_excused = match fault {
            LogFault::LogLost(_) => self.hosts[at].is_tampered,
            LogFault::GroupLost(_) => self.hosts.iter().any(|host| host.is_tampered),
        };
        if !is_excused {
            self.judge.fail(|| format!("h{at} stopped without a reason: {fault}"));
        }
    }
}

#[cfg(test)]
mod tests;
