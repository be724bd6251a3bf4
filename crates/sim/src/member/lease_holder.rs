//! Lease requests, and the leader's periodic lease checks. `core::LeaseTask` and `core::LeaseCare` decide which steps
//! are necessary. This module executes the steps and waits for their results. A member that does not lead replies that
//! it is not the leader, and the simulated client forwards the request to the leader.

use std::task::{Context, Poll, Waker};

use quorate_core::{
    LeadershipState, LeaseAnswer, LeaseCare, LeaseProposals, LeaseStep, LeaseTask, LeaseView,
};
use quorate_state::lease::Leases;
use quorate_state::units::{LeaseId, Millis};

use super::client_request::{OpId, Reply};
use super::{Out, Process, Reader, Waiter};
use crate::clock::Micros;

/// A lease request in progress.
#[derive(Clone, Debug)]
pub(super) struct PendingTask {
    task: LeaseTask,
    /// Whether the request waits until an expired lease is removed.
    awaits_removal: bool,
}

impl LeaseView for Process {
    fn leases(&self) -> &Leases {
        &self.published_state.leases
    }

    fn now(&self) -> Millis {
        self.clock_now().millis
    }

    fn leadership(&self) -> LeadershipState {
        self.outputs.state
    }
}

impl Process {
    pub(super) fn begin_renewal(&mut self, op: OpId, id: LeaseId) {
        let task = LeaseTask::renew(id, self.settings.renews_at_once);
        match task.clone().renew_at_once(self) {
            Some(ttl_secs) => {
                self.out.push(Out::RareState("a lease is renewed at once"));
                self.out.push(Out::Reply(op, Reply::Renewed(ttl_secs)));
            }
            None => self.begin_task(op, task),
        }
    }

    pub(super) fn begin_task(&mut self, op: OpId, task: LeaseTask) {
        self.tasks.insert(op, PendingTask { task, awaits_removal: false });
        self.resume_task(op, true);
    }

    /// Resumes a lease request. `succeeded` is the outcome of the step for which the request waited.
    pub(super) fn resume_task(&mut self, op: OpId, mut succeeded: bool) {
        let Some(PendingTask { mut task, .. }) = self.tasks.remove(&op) else { return };
        let wait = |process: &mut Self, task, awaits_removal| {
            process.tasks.insert(op, PendingTask { task, awaits_removal });
        };
        loop {
            let step = task.step(succeeded, self);
            succeeded = true;
            match step {
                LeaseStep::AwaitApplied if self.outputs.published >= self.committed => {}
                LeaseStep::AwaitApplied => {
                    wait(self, task, false);
                    return self.await_applied(self.committed, Reader::Task(op));
                }
                // The permission check always succeeds, because simulated clients have access to all leases.
                LeaseStep::CheckClient => {}
                LeaseStep::AskQuorum => {
                    self.out.push(Out::RareState("a leader confirms its leadership for a lease"));
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

    /// Runs the leader's periodic lease check.
    pub fn check_leases(&mut self, now: Micros) {
        self.now = now;
        self.resume_renewals();
        if let Some(care) = LeaseCare::look(self) {
            if care.needs_quorum() {
                self.begin_barrier(Reader::Care(care));
            } else {
                self.propose_lease_changes(care);
            }
        }
        self.route_outputs();
    }

    /// Resumes the renewals that wait for an expired lease, once that lease is removed.
    fn resume_renewals(&mut self) {
        let context = Context::from_waker(Waker::noop());
        let ending = self.tasks.iter().filter(|(_, pending)| pending.awaits_removal);
        let gone: Vec<OpId> = ending
            .filter(|(_, pending)| {
                matches!(
                    self.published_state.leases.poll_gone(pending.task.id(), &context),
                    Poll::Ready(())
                )
            })
            .map(|(op, _)| *op)
            .collect();
        gone.into_iter().for_each(|op| self.resume_task(op, true));
    }

    /// Proposes the revocations and checkpoints that result from a lease check. If the check needs a quorum's
    /// confirmation of the leadership, the caller has obtained it.
    pub(super) fn propose_lease_changes(&mut self, care: LeaseCare) {
        let Some(proposals) = care.proposals(self) else { return };
        let LeaseProposals { term, ends, checkpoints } = proposals;
        for revocation in ends {
            let Some(request) = revocation.request(&self.published_state.leases) else { continue };
            self.propose_as_leader(term, request, Waiter::Internal);
            self.out.push(Out::RareState("a lease expires"));
        }
        if let Some(request) = checkpoints {
            self.propose_as_leader(term, request, Waiter::Internal);
            self.out.push(Out::RareState("a lease is checkpointed"));
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
