//! Outcomes of waiting requests.

use std::time::Instant;

use quorate_node::{BarrierFailure, ProposalFailure};
use quorate_raft::LogIndex;
use quorate_state::apply::{Refusal, Response};
use quorate_state::members::MembershipRefusal;

use crate::threads::completion::{self, AwaitingCell};

/// The outcome of any kind of wait.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The request went through the log, and was applied or refused.
    Applied(Box<Answer>),
    /// The awaited index is applied. For a linearizable read, this is the index of a read barrier that has passed.
    Ready,
    /// The membership change went through the log, and was applied or refused.
    ConfChange(Result<(), MembershipRefusal>),
    /// The read barrier failed.
    BarrierFailed(BarrierFailure),
    /// The proposal was not appended to the log.
    ProposalFailed(ProposalFailure),
}

/// The result of a request that went through the log.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) outcome: Result<Response, Refusal>,
    /// The index of the request's log entry.
    pub(crate) index: LogIndex,
    /// The time at which the request was applied.
    pub(crate) applied: Instant,
}

thread_local! {
    /// The waiting requests of this runtime. [`deliver_outcomes`] delivers their outcomes.
    pub(crate) static AWAITING: AwaitingCell<Outcome> = const { AwaitingCell::new() };
}

/// Delivers outcomes to the waiting requests of this thread's runtime while the future is polled. Without this task,
/// the runtime's requests cannot wait for a core thread.
pub async fn deliver_outcomes() {
    completion::deliver(&AWAITING).await;
}
