//! Reasons for refusing an auth request, or a request without permission. Every member makes the
//! same decision.

/// The refusals, with etcd's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are etcd's texts")]
pub enum AuthRefusal {
    #[error("etcdserver: authentication is not enabled")]
    NotEnabled,
    #[error("etcdserver: root user does not exist")]
    RootUserNotExist,
    #[error("etcdserver: root user does not have root role")]
    RootRoleNotExist,
    #[error("etcdserver: user name already exists")]
    UserAlreadyExists,
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    /// The name of the new user or role is longer than [`NAME_BYTES_MAX`](super::NAME_BYTES_MAX). An etcd member that
    /// applies such a request exits, so there is no text of etcd's.
    #[error("etcdserver: name is too long")]
    NameTooLong,
    #[error("etcdserver: user name not found")]
    UserNotFound,
    #[error("etcdserver: role name already exists")]
    RoleAlreadyExists,
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthenticationFailed,
    /// The user has no password, or a password hash that cannot be decoded.
    #[error("auth: authentication failed, password was given for no password user")]
    NoPasswordUser,
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    #[error("etcdserver: invalid auth management")]
    InvalidManagement,
    /// Users or roles have changed since the client authenticated, or while the request ran.
    #[error("etcdserver: revision of auth store is old")]
    OldRevision,
}
