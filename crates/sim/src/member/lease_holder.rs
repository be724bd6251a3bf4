//! Questions about leases that only the leader can answer, and the end of those whose time is up.
//!
//! A question goes through the stages that production's `LeaseHolder` goes through: what is known, what the leases
//! say, and where a leader may have been deposed meanwhile, the word of a quorum. A member that does not lead says so,
//! and the client's side takes the question to the leader.

use std::task::{Context, Poll, Waker};

use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseRevokeRequest,
};
use quorate_raft::Term;
use quorate_state::lease::Renewal;
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
    /// The word of a quorum, after the renewal: then its answer is given.
    Renewed { ttl: i64, doubt: Doubt },
    /// The word of a quorum that there is no such lease.
    Gone { doubt: Doubt },
    /// The word of a quorum before waiting for an expired lease to be gone.
    Expired { doubt: Doubt },
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
    stage: Stage,
}

impl LeaseTask {
    pub(super) const fn renew(id: i64) -> Self {
        Self { id: LeaseId(id), question: Question::Renew, stage: Stage::Applied }
    }

    pub(super) const fn look(id: i64, keys: bool) -> Self {
        Self { id: LeaseId(id), question: Question::Look { keys }, stage: Stage::Applied }
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
        let step = if is_there { self.step_of(&task) } else { Step::Answer(NOT_SURE) };
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
                if matches!(stage, Stage::Renewed { .. }) {
                    self.out.push(Out::Seen("a leader doubts that it leads"));
                }
                task.stage = stage;
                self.tasks.insert(op, task);
                self.inputs.push_back(Input::Barrier(Reader::Task(op)));
            }
        }
    }

    fn step_of(&mut self, task: &LeaseTask) -> Step {
        match task.stage {
            Stage::Applied => match task.question {
                Question::Renew => self.renew(task, false),
                Question::Look { .. } => self.look(task),
            },
            Stage::Renewed { ttl, doubt } => match self.standing.confirm(doubt, &self.said) {
                true => Step::Answer(Reply::Renewed(ttl)),
                false => Step::Answer(NOT_SURE),
            },
            Stage::Gone { doubt } => match self.standing.confirm(doubt, &self.said) {
                true => self.renew(task, true),
                false => Step::Answer(NOT_SURE),
            },
            Stage::Expired { doubt } => match self.standing.confirm(doubt, &self.said) {
                true => Step::Wait(Stage::Ending),
                false => Step::Answer(NOT_SURE),
            },
            Stage::Ending | Stage::Checkpoint => self.renew(task, false),
            Stage::Looking { doubt } => match self.standing.confirm(doubt, &self.said) {
                true => self.tell_time_to_live(task),
                false => Step::Answer(NOT_SURE),
            },
        }
    }

    fn renew(&self, task: &LeaseTask, is_confirmed: bool) -> Step {
        let local = self.clock.local(self.now);
        let may_be_deposed = self.standing.may_be_deposed(local);
        let Some(doubt) = Standing::doubt(local, &self.said) else {
            return Step::Answer(NOT_SURE);
        };
        match self.readers.leases.renew(task.id, self.clock_now().millis) {
            Renewal::Renewed { ttl_secs } if may_be_deposed => {
                Step::Ask(Stage::Renewed { ttl: ttl_secs, doubt })
            }
            Renewal::Renewed { ttl_secs } => Step::Answer(Reply::Renewed(ttl_secs)),
            Renewal::NotFound if is_confirmed => Step::Answer(Reply::NoLease),
            Renewal::NotFound => Step::Ask(Stage::Gone { doubt }),
            Renewal::NotPrimary => Step::Answer(NOT_SURE),
            Renewal::Expired if may_be_deposed => Step::Ask(Stage::Expired { doubt }),
            Renewal::Expired => Step::Wait(Stage::Ending),
            Renewal::CheckpointFirst => Step::Wait(Stage::Checkpoint),
        }
    }

    fn look(&self, task: &LeaseTask) -> Step {
        let local = self.clock.local(self.now);
        let Some(doubt) = Standing::doubt(local, &self.said) else {
            return Step::Answer(NOT_SURE);
        };
        let is_known = self.readers.leases.contains(task.id);
        if is_known && !self.standing.may_be_deposed(local) {
            return self.tell_time_to_live(task);
        }
        Step::Ask(Stage::Looking { doubt })
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
        let local = self.clock.local(now);
        if let Some(doubt) = Standing::doubt(local, &self.said) {
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
