//! What a waiting request is told.

use quorate_node::{BarrierFailure, ProposalFailure};
use quorate_state::apply::{Refusal, Response};

/// The one message type of the mailboxes.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The request went through the log, and was carried out or refused.
    Applied(Box<Result<Response, Refusal>>),
    /// What was waited for has happened: a barrier has passed and is applied, a conf change is in force.
    Ready,
    /// The read barrier was not given.
    BarrierFailed(BarrierFailure),
    /// The proposal did not get into the log.
    ProposalFailed(ProposalFailure),
}
