//! The order in which a member stops cleanly.
//!
//! Each machine ends after the machine that gives it work. The log is closed last, because it receives the marks of the
//! snapshots that the backend writer saves. A snapshot without a mark is ignored when the member starts again. After a
//! downgrade, an older release would then start from an earlier snapshot and replay entries that it does not
//! understand.
//!
//! The exchange with other members ends before the first step.

/// A step of a clean stop. Each step completes before the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopStep {
    /// Consensus executes a last turn with all queued inputs.
    EndConsensus,
    /// The state machine carries out its queued jobs and then [`Job::Stop`](crate::Job::Stop).
    EndStateMachine,
    /// The backend writer carries out its queued orders. If there is no disk space for them, it gives up
    /// ([`BackendWriter::give_up`](crate::BackendWriter::give_up)).
    EndBackend,
    /// The log carries out its queued orders and the queued marks of snapshots, and is closed with
    /// [`Consensus::unwritten_hard_state`](crate::Consensus::unwritten_hard_state).
    CloseLog,
}

impl StopStep {
    /// All steps in their order.
    pub const ORDER: [Self; 4] =
        [Self::EndConsensus, Self::EndStateMachine, Self::EndBackend, Self::CloseLog];
}
