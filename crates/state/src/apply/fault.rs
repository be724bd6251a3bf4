//! What stops a member while it applies the log.

use super::request::RequestFault;
use crate::members::MembershipFault;
use crate::mvcc;
use crate::versions::Version;

/// This member cannot go on. Never the outcome of an entry.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] mvcc::Fault),
    /// A committed entry cannot be understood.
    #[error(transparent)]
    Request(#[from] RequestFault),
    /// A committed conf change makes no sense.
    #[error(transparent)]
    Membership(#[from] MembershipFault),
    /// The cluster has moved on without this server.
    #[error(
        "invalid downgrade; server version is lower than determined cluster version: {own} < {cluster}"
    )]
    ServerTooOld {
        /// This server's.
        own: Version,
        /// The cluster's.
        cluster: Version,
    },
    /// A password that the log holds as it is. Hashing it here would draw another salt on every member.
    #[error(
        "entry {index} sets a password that is not hashed, which members before 3.5 leave to each other"
    )]
    PlainPassword {
        /// The entry.
        index: u64,
    },
    /// A cluster version that is none.
    #[error("cluster version {0:?} in the log is no version")]
    ClusterVersion(String),
}
