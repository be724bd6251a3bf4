//! What a waiting request is told.

use std::time::Instant;

use quorate_node::{BarrierFailure, ProposalFailure};
use quorate_raft::LogIndex;
use quorate_state::apply::{Refusal, Response};
use quorate_state::members::MembershipRefusal;

use crate::threads::completion::{self, AwaitingCell, CompletionQueue};

/// The one type that completes a wait.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// The request went through the log, and was carried out or refused.
    Applied(Box<Answer>),
    /// What was waited for has happened: a barrier has passed and is applied.
    Ready,
    /// The membership change went through the log, and is in force or was refused.
    ConfChange(Result<(), MembershipRefusal>),
    /// The read barrier was not given.
    BarrierFailed(BarrierFailure),
    /// The proposal did not get into the log.
    ProposalFailed(ProposalFailure),
}

/// What a request that went through the log came to.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) outcome: Result<Response, Refusal>,
    /// Where it stands in the log.
    pub(crate) index: LogIndex,
    /// When it had been carried out.
    pub(crate) applied: Instant,
}

thread_local! {
    /// The requests of this runtime that wait; [`deliver_outcomes`] brings them their answers.
    pub(crate) static AWAITING: AwaitingCell<Outcome> = const { AwaitingCell::new() };
}

/// Brings the requests of this thread's runtime their answers, for as long as it is polled. Without it nothing
/// that waits for a core thread can be asked there.
pub async fn deliver_outcomes() {
    completion::deliver(&AWAITING, CompletionQueue::new()).await;
}
