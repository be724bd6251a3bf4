//! The error table: maps every failure to its gRPC code. The text is the failure's own (`RequestError` and the types of
//! refusals).
//!
//! Texts and codes are etcd's, because clients compare them. This is the only place where a [`RequestError`] is
//! converted to a gRPC status.

use quorate_state::apply::{AuthRefusal, Refusal, RequestRefusal};
use quorate_state::lease::LeaseRefusal;
use quorate_state::members::MembershipRefusal;
use tonic::{Code, Status};

use quorate_requests::RequestError;

/// Returns the status for a failure.
pub(crate) fn status(error: impl Into<RequestError>) -> Status {
    let error = error.into();
    Status::new(code(&error), error.to_string())
}

/// Returns the code of a failure. Several failures have the code Unknown although a better code exists, because etcd
/// sends Unknown and clients rely on that.
const fn code(error: &RequestError) -> Code {
    match error {
        RequestError::Refused(refusal) => refusal_code(refusal),
        RequestError::Membership(refusal) => membership_code(*refusal),
        RequestError::TooLarge
        | RequestError::EngineLimit(_)
        | RequestError::InvalidClientApiVersion
        | RequestError::BadMemberUrls
        | RequestError::WrongDowngradeVersionFormat
        | RequestError::InvalidDowngradeTargetVersion => Code::InvalidArgument,
        RequestError::NoLeader
        | RequestError::LeaderChanged
        | RequestError::Stopped
        | RequestError::Timeout
        | RequestError::TimeoutDueToLeaderFailure
        | RequestError::TimeoutDueToConnectionLost
        | RequestError::TimeoutWaitingForApply
        | RequestError::NoPasswordThread(_)
        | RequestError::Database(_)
        | RequestError::Unhealthy => Code::Unavailable,
        RequestError::NotWithEngine(_) => Code::Unimplemented,
        RequestError::NotLeader
        | RequestError::BadLeaderTransferee
        | RequestError::NotSupportedForLearner
        | RequestError::LearnerNotReady
        | RequestError::ClusterVersionUnavailable
        | RequestError::DowngradeInProgress
        | RequestError::NoDowngradeInProgress => Code::FailedPrecondition,
        RequestError::InvalidAuthToken => Code::Unauthenticated,
        RequestError::WatchCanceled => Code::Cancelled,
        RequestError::DeadlineExceeded => Code::DeadlineExceeded,
        RequestError::TooManyRequests
        | RequestError::NotEnoughStartedMembers
        | RequestError::TimeoutMovingLeader
        | RequestError::UnknownMethod
        | RequestError::ProposalDropped
        | RequestError::NotPrimaryLessor
        | RequestError::PasswordTooLong
        | RequestError::VerifyOnlyKey
        | RequestError::Fault(_) => Code::Unknown,
    }
}

const fn membership_code(refusal: MembershipRefusal) -> Code {
    match refusal {
        MembershipRefusal::Removed | MembershipRefusal::NotFound => Code::NotFound,
        MembershipRefusal::Exists
        | MembershipRefusal::PeerUrlExists
        | MembershipRefusal::NotLearner
        | MembershipRefusal::TooManyLearners => Code::FailedPrecondition,
        // etcd defines this text without a code, so the code is Unknown.
        MembershipRefusal::LastVoter => Code::Unknown,
    }
}

const fn refusal_code(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::Request(request) => match request {
            RequestRefusal::EmptyKey
            | RequestRefusal::EmptyOperation
            | RequestRefusal::ValueProvided
            | RequestRefusal::LeaseProvided
            | RequestRefusal::InvalidSortOption
            | RequestRefusal::TooManyOperations
            | RequestRefusal::DuplicateKey => Code::InvalidArgument,
        },
        Refusal::Compacted | Refusal::FutureRevision => Code::OutOfRange,
        Refusal::KeyNotFound => Code::InvalidArgument,
        Refusal::NoSpace => Code::ResourceExhausted,
        Refusal::Corrupt => Code::DataLoss,
        Refusal::Lease(lease) => match lease {
            LeaseRefusal::NotFound => Code::NotFound,
            LeaseRefusal::Exists => Code::FailedPrecondition,
            LeaseRefusal::TtlTooLarge => Code::OutOfRange,
        },
        Refusal::Auth(auth) => auth_code(*auth),
    }
}

const fn auth_code(refusal: AuthRefusal) -> Code {
    match refusal {
        AuthRefusal::NotEnabled
        | AuthRefusal::RootUserNotExist
        | AuthRefusal::RootRoleNotExist
        | AuthRefusal::UserAlreadyExists
        | AuthRefusal::UserNotFound
        | AuthRefusal::RoleAlreadyExists
        | AuthRefusal::RoleNotFound
        | AuthRefusal::RoleNotGranted
        | AuthRefusal::PermissionNotGranted => Code::FailedPrecondition,
        AuthRefusal::UserEmpty
        | AuthRefusal::RoleEmpty
        | AuthRefusal::NameTooLong
        | AuthRefusal::AuthenticationFailed
        | AuthRefusal::PermissionNotGiven
        | AuthRefusal::InvalidManagement
        | AuthRefusal::OldRevision => Code::InvalidArgument,
        AuthRefusal::PermissionDenied => Code::PermissionDenied,
        AuthRefusal::NoPasswordUser => Code::Unknown,
    }
}

/// Returns the status for a proposal whose outcome belongs to another kind of request. Such an outcome is a bug in
/// Quorate.
pub(crate) fn unexpected(response: &quorate_state::apply::Response) -> Status {
    Status::internal(format!("the log entry had an unexpected result: {response:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::too_many_lines, reason = "the test has one row for each error")]
    fn error_messages_and_codes_are_the_same_as_in_etcd() {
        let refused = |refusal: Refusal| RequestError::Refused(refusal);
        let request = |refusal: RequestRefusal| refused(Refusal::Request(refusal));
        let lease = |refusal: LeaseRefusal| refused(Refusal::Lease(refusal));
        let auth = |refusal: AuthRefusal| refused(Refusal::Auth(refusal));
        let member = |refusal: MembershipRefusal| RequestError::Membership(refusal);
        for (error, code, text) in [
            (request(RequestRefusal::EmptyKey), 3, "etcdserver: key is not provided"),
            (refused(Refusal::KeyNotFound), 3, "etcdserver: key not found"),
            (request(RequestRefusal::EmptyOperation), 3, "etcdserver: key not found"),
            (request(RequestRefusal::ValueProvided), 3, "etcdserver: value is provided"),
            (request(RequestRefusal::LeaseProvided), 3, "etcdserver: lease is provided"),
            (
                request(RequestRefusal::TooManyOperations),
                3,
                "etcdserver: too many operations in txn request",
            ),
            (
                request(RequestRefusal::DuplicateKey),
                3,
                "etcdserver: duplicate key given in txn request",
            ),
            (request(RequestRefusal::InvalidSortOption), 3, "etcdserver: invalid sort option"),
            (RequestError::InvalidClientApiVersion, 3, "etcdserver: invalid client api version"),
            (
                refused(Refusal::Compacted),
                11,
                "etcdserver: mvcc: required revision has been compacted",
            ),
            (
                refused(Refusal::FutureRevision),
                11,
                "etcdserver: mvcc: required revision is a future revision",
            ),
            (refused(Refusal::NoSpace), 8, "etcdserver: mvcc: database space exceeded"),
            (refused(Refusal::Corrupt), 15, "etcdserver: corrupt cluster"),
            (lease(LeaseRefusal::NotFound), 5, "etcdserver: requested lease not found"),
            (lease(LeaseRefusal::Exists), 9, "etcdserver: lease already exists"),
            (lease(LeaseRefusal::TtlTooLarge), 11, "etcdserver: too large lease TTL"),
            (auth(AuthRefusal::NotEnabled), 9, "etcdserver: authentication is not enabled"),
            (auth(AuthRefusal::RootUserNotExist), 9, "etcdserver: root user does not exist"),
            (
                auth(AuthRefusal::RootRoleNotExist),
                9,
                "etcdserver: root user does not have root role",
            ),
            (auth(AuthRefusal::UserAlreadyExists), 9, "etcdserver: user name already exists"),
            (auth(AuthRefusal::UserEmpty), 3, "etcdserver: user name is empty"),
            (auth(AuthRefusal::UserNotFound), 9, "etcdserver: user name not found"),
            (auth(AuthRefusal::RoleAlreadyExists), 9, "etcdserver: role name already exists"),
            (auth(AuthRefusal::RoleNotFound), 9, "etcdserver: role name not found"),
            (auth(AuthRefusal::RoleEmpty), 3, "etcdserver: role name is empty"),
            (
                auth(AuthRefusal::AuthenticationFailed),
                3,
                "etcdserver: authentication failed, invalid user ID or password",
            ),
            (
                auth(AuthRefusal::NoPasswordUser),
                2,
                "auth: authentication failed, password was given for no password user",
            ),
            (auth(AuthRefusal::PermissionNotGiven), 3, "etcdserver: permission not given"),
            (auth(AuthRefusal::PermissionDenied), 7, "etcdserver: permission denied"),
            (auth(AuthRefusal::RoleNotGranted), 9, "etcdserver: role is not granted to the user"),
            (
                auth(AuthRefusal::PermissionNotGranted),
                9,
                "etcdserver: permission is not granted to the role",
            ),
            (auth(AuthRefusal::InvalidManagement), 3, "etcdserver: invalid auth management"),
            (auth(AuthRefusal::OldRevision), 3, "etcdserver: revision of auth store is old"),
            (RequestError::InvalidAuthToken, 16, "etcdserver: invalid auth token"),
            (RequestError::PasswordTooLong, 2, "bcrypt: password length exceeds 72 bytes"),
            (RequestError::VerifyOnlyKey, 2, "auth: token signing attempted with verify-only key"),
            (
                RequestError::NoPasswordThread("no memory".into()),
                14,
                "failed to start a password thread: no memory",
            ),
            (
                RequestError::Database("connection refused".into()),
                14,
                "the database is not responding: connection refused",
            ),
            (
                RequestError::NotWithEngine("moving the leader"),
                12,
                "moving the leader is not possible with --engine",
            ),
            (RequestError::TooLarge, 3, "etcdserver: request is too large"),
            (RequestError::EngineLimit("a key has 3000 bytes".into()), 3, "a key has 3000 bytes"),
            (RequestError::TooManyRequests, 2, "etcdserver: too many requests"),
            (RequestError::NoLeader, 14, "etcdserver: no leader"),
            (RequestError::NotLeader, 9, "etcdserver: not leader"),
            (RequestError::LeaderChanged, 14, "etcdserver: leader changed"),
            (RequestError::Stopped, 14, "etcdserver: server stopped"),
            (RequestError::Timeout, 14, "etcdserver: request timed out"),
            (
                RequestError::TimeoutDueToConnectionLost,
                14,
                "etcdserver: request timed out, possibly due to connection lost",
            ),
            (
                RequestError::TimeoutWaitingForApply,
                14,
                "etcdserver: request timed out, waiting for the applied index took too long",
            ),
            (
                RequestError::TimeoutMovingLeader,
                2,
                "etcdserver: request timed out, leader transfer took too long",
            ),
            (RequestError::BadLeaderTransferee, 9, "etcdserver: bad leader transferee"),
            (RequestError::NotSupportedForLearner, 9, "etcdserver: rpc not supported for learner"),
            (member(MembershipRefusal::Removed), 5, "etcdserver: member not found"),
            (member(MembershipRefusal::NotFound), 5, "etcdserver: member not found"),
            (member(MembershipRefusal::Exists), 9, "etcdserver: member ID already exist"),
            (member(MembershipRefusal::PeerUrlExists), 9, "etcdserver: Peer URLs already exists"),
            (
                member(MembershipRefusal::NotLearner),
                9,
                "etcdserver: can only promote a learner member",
            ),
            (
                member(MembershipRefusal::TooManyLearners),
                9,
                "etcdserver: too many learner members in cluster",
            ),
            (
                member(MembershipRefusal::LastVoter),
                2,
                "etcdserver: re-configuration failed due to not enough started members",
            ),
            (RequestError::BadMemberUrls, 3, "etcdserver: given member URLs are invalid"),
            (
                RequestError::NotEnoughStartedMembers,
                2,
                "etcdserver: re-configuration failed due to not enough started members",
            ),
            (RequestError::Unhealthy, 14, "etcdserver: unhealthy cluster"),
            (
                RequestError::LearnerNotReady,
                9,
                "etcdserver: can only promote a learner member which is in sync with leader",
            ),
            (
                RequestError::WrongDowngradeVersionFormat,
                3,
                "etcdserver: wrong downgrade target version format",
            ),
            (
                RequestError::InvalidDowngradeTargetVersion,
                3,
                "etcdserver: invalid downgrade target version",
            ),
            (
                RequestError::ClusterVersionUnavailable,
                9,
                "etcdserver: cluster version not found during downgrade",
            ),
            (
                RequestError::DowngradeInProgress,
                9,
                "etcdserver: cluster has a downgrade job in progress",
            ),
            (RequestError::NoDowngradeInProgress, 9, "etcdserver: no inflight downgrade job"),
            (RequestError::UnknownMethod, 2, "etcdserver: unknown method"),
            (RequestError::WatchCanceled, 1, "etcdserver: watch canceled"),
            (RequestError::DeadlineExceeded, 4, "context deadline exceeded"),
            (RequestError::ProposalDropped, 2, "raft proposal dropped"),
            (RequestError::NotPrimaryLessor, 2, "not a primary lessor"),
        ] {
            let status = status(error);
            assert_eq!((status.code() as i32, status.message()), (code, text));
        }
    }
}
