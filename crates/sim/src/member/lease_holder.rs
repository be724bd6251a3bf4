//! Questions about leases, and the leader's look after them: here it is only waited for what `core::LeaseTask` and
//! `core::LeaseCare` name. A member that does not lead says so, and the client's side takes the question to the leader.

use std::task::{Context, Poll, Waker};

use quorate_core::{
    LeadershipState, LeaseAnswer, LeaseCare, LeaseProposals, LeaseStep, LeaseTask, LeaseView,
};
use quorate_state::lease::Leases;
use quorate_state::units::Millis;

use super::question::{OpId, Reply};
use super::{Out, Process, Reader, Waiter};
use crate::clock::Micros;

/// A question under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    task: LeaseTask,
    /// Whether it waits for an expired lease to be gone.
    awaits_end: bool,
}

impl LeaseView for Process {
    fn leases(&self) -> &Leases {
        &self.readers.leases
    }

    fn now(&self) -> Millis {
        self.clock_now().millis
    }

    fn leadership(&self) -> LeadershipState {
        self.said.state
    }
}

impl Process {
    pub(super) fn begin_task(&mut self, op: OpId, task: LeaseTask) {
        self.tasks.insert(op, Asked { task, awaits_end: false });
        self.resume_task(op, true);
    }

    /// What a question has waited for is there, or will not be.
    pub(super) fn resume_task(&mut self, op: OpId, mut is_there: bool) {
        let Some(Asked { mut task, .. }) = self.tasks.remove(&op) else { return };
        let wait = |process: &mut Self, task, awaits_end| {
            process.tasks.insert(op, Asked { task, awaits_end });
        };
        loop {
            let step = task.step(is_there, self);
            is_there = true;
            match step {
                LeaseStep::AwaitApplied if self.said.published >= self.committed => {}
                LeaseStep::AwaitApplied => {
                    wait(self, task, false);
                    return self.when_applied(self.committed, Reader::Task(op));
                }
                // Whoever asks may.
                LeaseStep::CheckClient => {}
                LeaseStep::AskQuorum => {
                    self.out.push(Out::Seen("a leader doubts that it leads"));
                    wait(self, task, false);
                    return self.begin_barrier(Reader::Task(op));
                }
                LeaseStep::AwaitGone => return wait(self, task, true),
                LeaseStep::Propose(term, request) => {
                    wait(self, task, false);
                    return self.propose_as_leader(term, *request, Waiter::Task(op));
                }
                LeaseStep::AskLeader => return self.out.push(Out::Reply(op, Reply::NotLeader)),
                LeaseStep::Answer(answer) => {
                    return self.out.push(Out::Reply(op, reply_of(answer)));
                }
            }
        }
    }

    /// Looks after leases, as the leader does every so often.
    pub fn look_after_leases(&mut self, now: Micros) {
        self.now = now;
        self.look_after_renewals();
        if let Some(care) = LeaseCare::look(self) {
            if care.needs_quorum() {
                self.begin_barrier(Reader::Care(care));
            } else {
                self.care_for_leases(care);
            }
        }
        self.gather();
    }

    /// Renewals of leases that have expired go on when these are gone.
    fn look_after_renewals(&mut self) {
        let context = Context::from_waker(Waker::noop());
        let ending = self.tasks.iter().filter(|(_, asked)| asked.awaits_end);
        let gone: Vec<OpId> = ending
            .filter(|(_, asked)| {
                matches!(self.readers.leases.poll_gone(asked.task.id(), &context), Poll::Ready(()))
            })
            .map(|(op, _)| *op)
            .collect();
        gone.into_iter().for_each(|op| self.resume_task(op, true));
    }

    /// A quorum has answered, where that was asked for.
    pub(super) fn care_for_leases(&mut self, care: LeaseCare) {
        let Some(proposals) = care.proposals(self) else { return };
        let LeaseProposals { term, ends, checkpoints } = proposals;
        for (_, request) in ends {
            self.propose_as_leader(term, request, Waiter::Nobody);
            self.out.push(Out::Seen("a lease expires"));
        }
        if let Some(request) = checkpoints {
            self.propose_as_leader(term, request, Waiter::Nobody);
            self.out.push(Out::Seen("a lease is checkpointed"));
        }
    }
}

fn reply_of(answer: LeaseAnswer) -> Reply {
    match answer {
        LeaseAnswer::Renewed { ttl_secs } => Reply::Renewed(ttl_secs),
        LeaseAnswer::TimeToLive { ttl_secs: ttl, granted_secs: granted_ttl, keys } => {
            let keys = keys.iter().map(|key| key.to_vec()).collect();
            Reply::TimeToLive { ttl, granted_ttl, keys }
        }
        LeaseAnswer::Gone => Reply::NoLease,
    }
}
