//! Questions about leases that only the leader can answer, and the end of those whose time is up.
//!
//! The course of a question is decided by `core::lease_rules`, as in production's `LeaseHolder`: here it is only
//! waited for what that names. A member that does not lead says so,
//! and the client's side takes the question to the leader.

use std::task::{Context, Poll, Waker};

use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest,
};
use quorate_core::lease_rules::{RenewalCourse, RenewalStep, Renewed, may_tell_time_to_live};
use quorate_raft::Term;
use quorate_state::units::LeaseId;

use super::input::Input;
use super::question::{Failure, OpId, Reply};
use super::standing::{Doubt, Standing};
use super::{Out, Process, Reader, Waiter};
use crate::clock::Micros;

/// How many leases are ended, and checkpointed, at a time, as in production.
const EXPIRED_PER_SCAN: usize = 500;
const CHECKPOINTS_PER_ENTRY: usize = 1000;

/// What is asked about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Renew,
    Look { keys: bool },
}

/// What a question waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Everything committed to be applied.
    Applied,
    /// The word of a quorum, before a renewal goes on.
    Confirming { doubt: Doubt },
    /// An expired lease to be gone.
    Ending,
    /// A checkpoint to be in the log.
    Checkpoint,
    /// The word of a quorum, before a lease is looked at.
    Looking { doubt: Doubt },
}

/// A question under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTask {
    id: LeaseId,
    question: Question,
    course: RenewalCourse,
    stage: Stage,
}

impl LeaseTask {
    pub(super) const fn renew(id: i64) -> Self {
        Self::new(LeaseId(id), Question::Renew)
    }

    pub(super) const fn look(id: i64, keys: bool) -> Self {
        Self::new(LeaseId(id), Question::Look { keys })
    }

    const fn new(id: LeaseId, question: Question) -> Self {
        Self { id, question, course: RenewalCourse::new(id), stage: Stage::Applied }
    }
}

/// What becomes of a question after a step.
enum Step {
    Wait(Stage),
    /// The same, with the word of a quorum asked for.
    Ask(Stage),
    Answer(Reply),
}

const NOT_SURE: Reply = Reply::Failed(Failure::Unknown("this member may not lead any more"));

impl Process {
    pub(super) fn begin_task(&mut self, op: OpId, task: LeaseTask) {
        if !self.said.leads() {
            return self.out.push(Out::Reply(op, Reply::NotLeader));
        }
        self.tasks.insert(op, task);
        if self.said.published >= self.standing.committed {
            self.resume_task(op, true);
        } else {
            self.when_applied(self.standing.committed, Reader::Task(op));
        }
    }

    /// What a question has waited for is there, or will not be.
    pub(super) fn resume_task(&mut self, op: OpId, is_there: bool) {
        let Some(mut task) = self.tasks.remove(&op) else { return };
        let step = if is_there { self.step_of(&mut task) } else { Step::Answer(NOT_SURE) };
        match step {
            Step::Answer(reply) => self.out.push(Out::Reply(op, reply)),
            Step::Wait(stage) => {
                task.stage = stage;
                self.tasks.insert(op, task);
                if stage == Stage::Checkpoint {
                    self.propose(checkpoint_first(task.id), Waiter::Task(op), None);
                }
            }
            Step::Ask(stage) => {
                if matches!(stage, Stage::Confirming { .. }) {
                    self.out.push(Out::Seen("a leader doubts that it leads"));
                }
                task.stage = stage;
                self.tasks.insert(op, task);
                self.inputs.push_back(Input::Barrier(Reader::Task(op)));
            }
        }
    }

    fn step_of(&mut self, task: &mut LeaseTask) -> Step {
        match task.stage {
            Stage::Applied => match task.question {
                Question::Renew => self.renew(task),
                Question::Look { .. } => self.look(task),
            },
            Stage::Confirming { doubt } => match self.standing.confirm(doubt, &self.said) {
                true => self.renew(task),
                false => Step::Answer(NOT_SURE),
            },
            Stage::Ending | Stage::Checkpoint => self.renew(task),
            Stage::Looking { doubt } => match self.standing.confirm(doubt, &self.said) {
                true => self.tell_time_to_live(task),
                false => Step::Answer(NOT_SURE),
            },
        }
    }

    fn renew(&self, task: &mut LeaseTask) -> Step {
        let now = self.clock_now().millis;
        let Some(doubt) = Standing::doubt(now, &self.said) else {
            return Step::Answer(NOT_SURE);
        };
        let is_confirmed = || self.standing.is_leadership_confirmed(now, &self.said);
        match task.course.step(&self.readers.leases, now, is_confirmed) {
            RenewalStep::Answer(Renewed::For(ttl_secs)) => Step::Answer(Reply::Renewed(ttl_secs)),
            RenewalStep::Answer(Renewed::Gone) => Step::Answer(Reply::NoLease),
            RenewalStep::Answer(Renewed::NotPrimary) => Step::Answer(NOT_SURE),
            RenewalStep::Confirm => Step::Ask(Stage::Confirming { doubt }),
            RenewalStep::AwaitEnd => Step::Wait(Stage::Ending),
            RenewalStep::Checkpoint => Step::Wait(Stage::Checkpoint),
        }
    }

    fn look(&self, task: &LeaseTask) -> Step {
        let now = self.clock_now().millis;
        let Some(doubt) = Standing::doubt(now, &self.said) else {
            return Step::Answer(NOT_SURE);
        };
        let is_confirmed = || self.standing.is_leadership_confirmed(now, &self.said);
        match may_tell_time_to_live(&self.readers.leases, task.id, is_confirmed) {
            true => self.tell_time_to_live(task),
            false => Step::Ask(Stage::Looking { doubt }),
        }
    }

    fn tell_time_to_live(&self, task: &LeaseTask) -> Step {
        let leases = &self.readers.leases;
        let Some(found) = leases.time_to_live(task.id, self.clock_now().millis) else {
            return Step::Answer(Reply::NoLease);
        };
        let Some(ttl) = found.remaining_secs else { return Step::Answer(NOT_SURE) };
        let keys = match task.question {
            Question::Look { keys: true } => leases.keys(task.id).unwrap_or_default(),
            Question::Look { keys: false } | Question::Renew => Vec::new(),
        };
        let keys = keys.iter().map(|key| key.to_vec()).collect();
        Step::Answer(Reply::TimeToLive { ttl, granted_ttl: found.granted_secs, keys })
    }

    /// Looks after leases, as the leader does every so often.
    pub fn look_after_leases(&mut self, now: Micros) {
        self.now = now;
        self.look_after_renewals();
        if let Some(doubt) = Standing::doubt(self.clock_now().millis, &self.said) {
            let ids = self.readers.leases.expired(self.clock_now().millis, EXPIRED_PER_SCAN);
            if !ids.is_empty() {
                self.inputs.push_back(Input::Barrier(Reader::Ends { doubt, ids }));
            }
            self.propose_checkpoints(doubt.term);
        }
        self.gather();
    }

    /// Renewals of leases that have expired go on when these are gone.
    fn look_after_renewals(&mut self) {
        let context = Context::from_waker(Waker::noop());
        let ending = self.tasks.iter().filter(|(_, task)| task.stage == Stage::Ending);
        let gone: Vec<OpId> = ending
            .filter(|(_, task)| {
                matches!(self.readers.leases.poll_gone(task.id, &context), Poll::Ready(()))
            })
            .map(|(op, _)| *op)
            .collect();
        gone.into_iter().for_each(|op| self.resume_task(op, true));
    }

    /// A quorum has said whether this member leads: if so, leases whose time is up come to their end.
    pub(super) fn end_leases(&mut self, doubt: Doubt, expired: &[LeaseId]) {
        if !self.standing.confirm(doubt, &self.said) {
            return;
        }
        for id in expired {
            let request = InternalRaftRequest {
                lease_revoke: Some(LeaseRevokeRequest { id: id.0 }),
                ..InternalRaftRequest::default()
            };
            self.propose_as_leader(doubt.term, request);
            self.out.push(Out::Seen("a lease expires"));
        }
    }

    fn propose_checkpoints(&mut self, term: Term) {
        let now = self.clock_now().millis;
        let due = self.readers.leases.due_checkpoints(now, CHECKPOINTS_PER_ENTRY);
        if due.is_empty() {
            return;
        }
        let checkpoints = due
            .into_iter()
            .map(|due| LeaseCheckpoint { id: due.id.0, remaining_ttl: due.remaining_secs })
            .collect();
        let request = InternalRaftRequest {
            lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
            ..InternalRaftRequest::default()
        };
        self.propose_as_leader(term, request);
        self.out.push(Out::Seen("a lease is checkpointed"));
    }
}

fn checkpoint_first(id: LeaseId) -> InternalRaftRequest {
    let checkpoints = vec![LeaseCheckpoint { id: id.0, remaining_ttl: 0 }];
    InternalRaftRequest {
        lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
        ..InternalRaftRequest::default()
    }
}
