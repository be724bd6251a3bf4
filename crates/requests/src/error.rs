//! Errors returned for clients' requests, with etcd's error texts.

use std::sync::Arc;

use quorate_state::apply::{Refusal, RequestRefusal};
use quorate_state::members::MembershipRefusal;

use crate::bound::Full;

/// The reason why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are etcd's texts")]
pub enum RequestError {
    /// The state machine refused the request. Every member returns the same error.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The membership change was refused. Every member returns the same error.
    #[error(transparent)]
    Membership(MembershipRefusal),
    #[error("etcdserver: request is too large")]
    TooLarge,
    #[error("etcdserver: invalid client api version")]
    InvalidClientApiVersion,
    #[error("etcdserver: too many requests")]
    TooManyRequests,
    #[error("etcdserver: no leader")]
    NoLeader,
    #[error("etcdserver: not leader")]
    NotLeader,
    #[error("etcdserver: invalid auth token")]
    InvalidAuthToken,
    #[error("bcrypt: password length exceeds 72 bytes")]
    PasswordTooLong,
    #[error("auth: token signing attempted with verify-only key")]
    VerifyOnlyKey,
    /// Passwords cannot be checked at the moment. A later request may succeed.
    #[error("failed to start a password thread: {0}")]
    NoPasswordThread(Arc<str>),
    #[error("etcdserver: leader changed")]
    LeaderChanged,
    #[error("etcdserver: server stopped")]
    Stopped,
    #[error("etcdserver: request timed out")]
    Timeout,
    #[error("etcdserver: request timed out, possibly due to previous leader failure")]
    TimeoutDueToLeaderFailure,
    #[error("etcdserver: request timed out, possibly due to connection lost")]
    TimeoutDueToConnectionLost,
    #[error("etcdserver: request timed out, waiting for the applied index took too long")]
    TimeoutWaitingForApply,
    #[error("etcdserver: request timed out, leader transfer took too long")]
    TimeoutMovingLeader,
    #[error("etcdserver: bad leader transferee")]
    BadLeaderTransferee,
    #[error("etcdserver: rpc not supported for learner")]
    NotSupportedForLearner,
    #[error("etcdserver: given member URLs are invalid")]
    BadMemberUrls,
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughStartedMembers,
    #[error("etcdserver: unhealthy cluster")]
    Unhealthy,
    #[error("etcdserver: can only promote a learner member which is in sync with leader")]
    LearnerNotReady,
    #[error("etcdserver: wrong downgrade target version format")]
    WrongDowngradeVersionFormat,
    #[error("etcdserver: invalid downgrade target version")]
    InvalidDowngradeTargetVersion,
    #[error("etcdserver: cluster version not found during downgrade")]
    ClusterVersionUnavailable,
    #[error("etcdserver: cluster has a downgrade job in progress")]
    DowngradeInProgress,
    #[error("etcdserver: no inflight downgrade job")]
    NoDowngradeInProgress,
    #[error("etcdserver: unknown method")]
    UnknownMethod,
    #[error("etcdserver: watch canceled")]
    WatchCanceled,
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    #[error("raft proposal dropped")]
    ProposalDropped,
    #[error("not a primary lessor")]
    NotPrimaryLessor,
    /// The engine's database is not responding.
    #[error("the database is not responding: {0}")]
    Database(Arc<str>),
    /// The request exceeds a limit of the engine. The text names the limit.
    #[error("{0}")]
    EngineLimit(Arc<str>),
    /// The operation does not apply to a server whose data is in a database.
    #[error("{0} is not possible with --engine")]
    NotWithEngine(&'static str),
    /// A fault of this machine, such as a failed read of the backend file.
    #[error("{0}")]
    Fault(Arc<str>),
}

impl From<Full> for RequestError {
    fn from(_: Full) -> Self {
        Self::TooManyRequests
    }
}

impl From<RequestRefusal> for RequestError {
    fn from(refusal: RequestRefusal) -> Self {
        Self::Refused(refusal.into())
    }
}
