//! What a waiting request is told.

use quorate_node::{BarrierFailure, ProposalFailure};
use quorate_state::apply::{Refusal, Response};
use quorate_state::members::MembershipRefusal;

/// The one message type of the mailboxes.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The request went through the log, and was carried out or refused.
    Applied(Box<Result<Response, Refusal>>),
    /// What was waited for has happened: a barrier has passed and is applied.
    Ready,
    /// The membership change went through the log, and is in force or was refused.
    ConfChange(Result<(), MembershipRefusal>),
    /// The read barrier was not given.
    BarrierFailed(BarrierFailure),
    /// The proposal did not get into the log.
    ProposalFailed(ProposalFailure),
}
