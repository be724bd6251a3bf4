//! Failures that stop a member while it applies the log.

use super::request::RequestFault;
use crate::members::MembershipFault;
use crate::mvcc;
use crate::versions::Version;

/// A failure that stops this member. It is never the outcome of an entry.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] mvcc::Fault),
    /// A committed entry cannot be decoded.
    #[error(transparent)]
    Request(#[from] RequestFault),
    /// A committed conf change is invalid.
    #[error(transparent)]
    Membership(#[from] MembershipFault),
    /// The cluster version is above the version of this server.
    #[error(
        "invalid downgrade; server version is lower than determined cluster version: {own} < {cluster}"
    )]
    ServerTooOld {
        /// The version of this server.
        own: Version,
        /// The cluster version.
        cluster: Version,
    },
    /// The log contains a password in plain text. Hashing it during apply would use a different
    /// salt on every member.
    #[error(
        "entry {index} sets a password in plain text; only etcd before 3.5 writes such entries"
    )]
    PlainPassword {
        /// The log index of the entry.
        index: u64,
    },
    /// The cluster version in the log is not a valid version.
    #[error("cluster version {0:?} in the log is not a valid version")]
    ClusterVersion(String),
}
