//! The operator: it adds, promotes, removes and replaces members, maintains the store, and makes mistakes.
//!
//! The next action follows from the current state: members, hosts, processes. So a failed action is retried in another
//! form, and the same actions restore a broken cluster at the end of a run.
//!
//! # Mistakes
//!
//! They are in `mistakes` and `exchange`. A start that the real program refuses must be refused here too
//! ([`World::judge_refusal`]).

mod accounts;
mod exchange;
mod mistakes;

use quorate_api::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, InternalRaftRequest, alarm_request,
};
use quorate_api::membershippb::{ClusterVersionSetRequest, DowngradeInfoSetRequest};
use quorate_core::bootstrap::Refusal;
use quorate_node::LogFault;
use quorate_raft::{ConfChange, ConfChangeKind, Role};
use quorate_state::members::{ChangeContext, Member as Row, member_id};
use quorate_state::units::MemberId;
use quorate_storage::disk::Disk as _;

use super::client::Asker;
use super::hosts::{Down, host_at, url_of};
use super::{Event, World};
use crate::clock::{MILLI, SECOND};
use crate::member::{Ask, OpId, Refused, Reply};
use crate::plan::{Kind, Theme};

/// Between two acts while a cluster is brought back.
const MEND_EVERY: u64 = 200 * MILLI;

/// How long a moment to cut links is looked for.
const LOOKS: u32 = 400;

/// The state of the operator.
#[derive(Debug, Default)]
pub(super) struct Operator {
    /// What it waits for, and what is noted when that is done.
    waiting: Option<(OpId, &'static str)>,
    /// Seconds of the wall clock that ids were made of.
    last_id_second: u64,
}

impl World {
    /// The operator does the next thing.
    pub(super) fn operate(&mut self) {
        let next = match self.is_calm() {
            true => self.now + MEND_EVERY,
            false => self.about(self.plan.operate_every),
        };
        self.queue.put(next, Event::Operate);
        if self.operator.waiting.is_some() || self.ending.is_settling {
            return;
        }
        if self.bring_back() || self.promote() {
            return;
        }
        if self.is_calm() {
            self.make_room();
        } else {
            self.act_at_will();
        }
    }

    /// An answer has come.
    pub(super) fn note_operated(&mut self, id: OpId, reply: &Reply) {
        if let Some((_, what)) = self.operator.waiting.take_if(|(op, _)| *op == id)
            && matches!(reply, Reply::Changed | Reply::Done(_))
            && !what.is_empty()
        {
            self.seen.note(what);
        }
    }

    /// The row of the member that is, or is to be, on a host.
    pub(super) fn row_of(&self, host: usize) -> Option<Row> {
        let url = url_of(host);
        self.judge.members().iter().find(|row| row.peer_urls.contains(&url)).cloned()
    }

    /// Voters with a process that is at work, and all voters.
    fn voters_at_work(&self) -> (Vec<usize>, usize) {
        let voters = self.judge.members().iter().filter(|row| !row.is_learner);
        let all: Vec<usize> = voters.filter_map(|row| host_at(row.peer_urls.first()?)).collect();
        let count = all.len();
        let at_work = |at: &usize| {
            let row = self.row_of(*at).map(|row| row.id.0);
            let process = self.hosts[*at].process.as_ref();
            process.is_some_and(|process| Some(process.id) == row)
        };
        (all.into_iter().filter(at_work).collect(), count)
    }

    /// Whether what is left of the voters could go on for ever, if those that can run do.
    pub(super) fn has_quorum_for_good(&self) -> bool {
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
        is_quorum && self.somebody_has_quorum()
    }

    /// Whether anybody may be elected by those who can run, as far as it knows the members. A change may have reached
    /// only those whom it has removed, or only a learner, who may not ask for votes.
    fn somebody_has_quorum(&self) -> bool {
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

    /// Somebody to ask: a voter's host.
    fn somebody(&mut self) -> Option<usize> {
        let (at_work, _) = self.voters_at_work();
        let followers = self.followers_of(&at_work);
        if let Some(leader) = at_work.iter().find(|at| !followers.contains(at))
            && !self.one_in(3)
        {
            return Some(*leader);
        }
        (!at_work.is_empty()).then(|| at_work[self.draw.position(at_work.len())])
    }

    fn order(&mut self, ask: Ask, what: &'static str) {
        let Some(host) = self.somebody() else { return };
        self.tell(|| format!("the operator asks h{host} for {ask:?}"));
        let op = self.question(Asker::Operator, host, ask, None);
        self.operator.waiting = Some((op, what));
    }

    fn change(&mut self, kind: ConfChangeKind, id: u64, context: String, what: &'static str) {
        let change = ConfChange { id: 0, kind, node_id: id, context: context.into() };
        self.order(Ask::Change(change), what);
        let falls_apart = self.plan.theme == Theme::Membership && self.plan.has(Kind::Cut);
        if falls_apart && self.one_in(2) {
            // Somebody hears of it, and somebody else does not.
            let round = self.plan.delay.1 + self.plan.sync_max + self.plan.step_max;
            let at = self.now + self.draw.below(6 * round);
            self.queue.put(at, Event::FallApart);
        }
    }

    /// Asks for two changes before the first has an answer.
    fn change_twice(&mut self) {
        let bare: Vec<usize> = (0..self.hosts.len())
            .filter(|at| self.hosts[*at].process.is_none() && self.row_of(*at).is_none())
            .filter(|at| !self.is_initialised(*at))
            .collect();
        let (at_work, count) = self.voters_at_work();
        if let [first, second, ..] = bare[..]
            && at_work.len() > (count + 2) / 2
            && self.one_in(2)
        {
            self.seen.note("two changes are asked for at once");
            self.add(first);
            self.add(second);
        } else if let [.., first, second] = self.followers_of(&at_work)[..]
            && count > 2
            && at_work.len() - 2 > (count - 2) / 2
        {
            self.seen.note("two changes are asked for at once");
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
            self.queue.put(self.now, Event::FallApartAhead(LOOKS));
        }
    }

    /// Those who do not lead.
    fn followers_of(&self, hosts: &[usize]) -> Vec<usize> {
        let leads = |at: usize| {
            let process = self.hosts[at].process.as_ref();
            process.is_some_and(|process| process.leadership().role == Role::Leader)
        };
        hosts.iter().copied().filter(|at| !leads(*at)).collect()
    }

    /// Does the next thing for a host that has no member at work; says whether there was any.
    fn bring_back(&mut self) -> bool {
        for at in 0..self.hosts.len() {
            if self.is_calm() && self.is_out_of_place(at) {
                self.stop_process(at);
            }
            let host = &self.hosts[at];
            let is_cared_for = host.down == Down::Ended || host.exchanged_with.is_some();
            if host.process.is_some() || is_cared_for {
                continue;
            }
            let (down, id) = (self.hosts[at].down, self.hosts[at].id);
            match self.row_of(at) {
                Some(row) if row.id.0 != id && !self.is_initialised(at) && self.is_new(&row) => {
                    self.start_joining(at);
                    return true;
                }
                // Of another life of this host: the member that is to come has a bare directory.
                Some(row) if row.id.0 != id && self.is_initialised(at) => self.wipe(at),
                Some(row) if down == Down::Off && (row.id.0 == id || id == 0) => {
                    if id != 0 || self.now > SECOND {
                        self.queue.put(self.now + MILLI, Event::Start(at));
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
                    if self.wants_more() {
                        self.add(at);
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Whether a process serves under an id that is not the member's there. Nobody may be left whom it knows, and who
    /// could tell it that it was removed; or a member that was behind has told it of an older life of its place.
    fn is_out_of_place(&self, at: usize) -> bool {
        let row = self.row_of(at);
        let process = self.hosts[at].process.as_ref();
        process.is_some_and(|process| row.is_none_or(|row| row.id.0 != process.id))
    }

    /// Whether a member has had no directory yet. One that has told its name had one, and so had one that has run.
    fn is_new(&self, row: &Row) -> bool {
        row.client_urls.is_empty() && !self.places.contains_key(&row.id.0)
    }

    /// Whether there are files of a member. Of one whose log is lost there are.
    fn is_initialised(&self, at: usize) -> bool {
        let host = &self.hosts[at];
        let has_backend =
            || host.disk.metadata(&Self::dirs().backend()).is_ok_and(|it| it.is_some());
        Self::dirs().is_initialised(&host.disk) || host.is_tampered && has_backend()
    }

    /// Whether the voters that are left can decide without this one.
    fn may_remove(&self, at: usize) -> bool {
        let (mut at_work, count) = self.voters_at_work();
        let is_learner = self.row_of(at).is_some_and(|row| row.is_learner);
        at_work.retain(|host| *host != at);
        let rest = if is_learner { count } else { count - 1 };
        rest > 0 && at_work.len() > rest / 2
    }

    fn wants_more(&mut self) -> bool {
        let (at_work, count) = self.voters_at_work();
        let all = self.judge.members().iter().len();
        // One that is not there yet counts as one that is down.
        let may_grow = count > 0 && at_work.len() > count.div_ceil(2);
        let wanted = self.plan.founders;
        let is_short = all < wanted || !self.is_calm() && self.one_in(4);
        may_grow && is_short && (self.plan.has(Kind::Membership) || all < wanted)
    }

    fn add(&mut self, at: usize) {
        // A request of another second makes another id.
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
        host.awaits_place = false;
        host.down = Down::Off;
        self.queue.put(self.now + MILLI, Event::Start(at));
    }

    /// Has a learner promoted that has caught up; says whether there is one.
    fn promote(&mut self) -> bool {
        let learner = self.judge.members().iter().find(|row| row.is_learner).map(|row| row.id);
        let Some(MemberId(id)) = learner else { return false };
        if !self.is_calm() && self.one_in(2) {
            return false;
        }
        let leader = self.hosts.iter().filter_map(|host| host.process.as_ref());
        let mut leader = leader.filter(|process| process.leadership().role == Role::Leader);
        let is_ready = leader.any(|process| {
            let status = process.status();
            let index_of = |id| status.progress.get(&id).map_or(0, |one| one.match_index.get());
            index_of(id) * 10 >= index_of(process.id) * 9 && index_of(id) > 0
        });
        if is_ready {
            let context = ChangeContext::promotion_json(MemberId(id));
            self.change(ConfChangeKind::AddNode, id, context, "a member is promoted");
        }
        is_ready
    }

    /// Gives room back to a store that has run out of it.
    fn make_room(&mut self) {
        if self.judge.out_of_space().is_some() {
            match self.draw.below(3) {
                0 => self.compact_everything(),
                1 => self.defragment(),
                _ => self.disarm(),
            }
        }
    }

    fn compact_everything(&mut self) {
        let revision = self.judge.revision();
        // Clients may be told of it.
        self.judge.history.operations.push(quorate_history_checker::Operation {
            client: u64::MAX,
            member: 0,
            called: self.moment(),
            request: quorate_history_checker::Request::Compact { revision },
            outcome: quorate_history_checker::Outcome::Unknown,
        });
        self.order(Ask::Compact(CompactionRequest { revision, physical: true }), "");
    }

    fn defragment(&mut self) {
        let at = self.draw.position(self.hosts.len());
        if self.hosts[at].process.is_some() {
            let op = self.question(Asker::Operator, at, Ask::Defragment, None);
            self.operator.waiting = Some((op, "space is given back"));
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
        self.order(Ask::Internal(Box::new(request)), "an alarm is disarmed");
    }

    fn act_at_will(&mut self) {
        if self.plan.has(Kind::Accounts) && self.one_in(2) {
            return self.change_accounts();
        }
        match self.draw.below(6) {
            0 if self.plan.has(Kind::Membership) => {
                if self.plan.changes_at_once && self.one_in(2) {
                    self.change_twice();
                } else {
                    self.remove_somebody();
                }
            }
            1 if self.plan.has(Kind::Defragmentation) => self.defragment(),
            2 if self.plan.has(Kind::Versions) => self.change_version(),
            3 if self.judge.out_of_space().is_some() => self.disarm(),
            4..6 if self.plan.has(Kind::Mistakes) => self.make_mistake(),
            _ => {}
        }
    }

    fn remove_somebody(&mut self) {
        let at = self.draw.position(self.hosts.len());
        if let Some(row) = self.row_of(at).filter(|_| self.may_remove(at)) {
            let kind = ConfChangeKind::RemoveNode;
            self.change(kind, row.id.0, String::new(), "a member is removed");
        }
    }

    fn change_version(&mut self) {
        let mut request = InternalRaftRequest::default();
        let set = |ver: &str| Some(ClusterVersionSetRequest { ver: ver.to_owned() });
        match self.draw.below(4) {
            0 => request.cluster_version_set = set("3.6.0"),
            1 => request.cluster_version_set = set("3.7.0"),
            enabled => {
                let set =
                    DowngradeInfoSetRequest { enabled: enabled == 2, ver: "3.6.0".to_owned() };
                request.downgrade_info_set = Some(set);
            }
        }
        self.order(Ask::Internal(Box::new(request)), "");
    }

    /// Whether a refusal to start is right: only what somebody has done to a member's files may keep it from starting.
    pub(super) fn judge_refusal(&mut self, at: usize, refused: &Refused) {
        let host = &mut self.hosts[at];
        let Refused::Verdict(verdict) = refused else {
            return self.expect_tampering(at, refused);
        };
        match verdict {
            Refusal::PeerUrls { .. } | Refusal::NotInitial(_) | Refusal::NoCluster(_) => {
                // The cluster is another one by now: it is asked again. A wiped one has flags of another day for ever.
                if !host.is_tampered {
                    host.down = Down::Off;
                }
            }
            Refusal::TooManyLearners => host.down = Down::Off,
            // Somebody who is behind knows a removed member in its place still: it is asked again.
            Refusal::Published { id, .. } | Refusal::Bootstrapped(id)
                if self.judge.members().is_removed(*id) =>
            {
                host.down = Down::Off;
            }
            Refusal::Removed => {
                let id = MemberId(host.id);
                if !self.judge.members().is_removed(id) {
                    self.judge.object(|| format!("h{at} believes that it was removed"));
                }
            }
            Refusal::LogMarkedLost(_)
            | Refusal::LogMissing(_)
            | Refusal::NoMetadata
            | Refusal::Metadata(_)
            | Refusal::HeldBack { .. }
            | Refusal::OtherFounding { .. }
            | Refusal::Published { .. }
            | Refusal::Bootstrapped(_)
            | Refusal::Incompatible => self.expect_tampering(at, refused),
        }
    }

    fn expect_tampering(&mut self, at: usize, refused: &Refused) {
        if !self.hosts[at].is_tampered {
            self.judge.object(|| format!("h{at} does not start: {refused}"));
        }
    }

    /// Whether a member that stops because its log lacks something is right.
    pub(super) fn judge_log_fault(&mut self, at: usize, fault: &LogFault) {
        let is_excused = match fault {
            LogFault::LogLost(_) => self.hosts[at].is_tampered,
            LogFault::GroupLost(_) => self.hosts.iter().any(|host| host.is_tampered),
        };
        if !is_excused {
            self.judge.object(|| format!("h{at} stops without a cause: {fault}"));
        }
    }
}

#[cfg(test)]
mod tests;
