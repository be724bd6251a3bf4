//! Why an entry, or a request before it becomes one, is turned down: the same answer on every member.

use crate::auth::AuthRefusal;
use crate::lease::LeaseRefusal;
use crate::mvcc::MvccRefusal;

/// A deterministic answer other than success, in etcd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request itself is not valid.
    #[error(transparent)]
    Request(#[from] RequestRefusal),
    /// The revision's history is gone.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision has not happened yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// A put that keeps value or lease needs a key that is there.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// A member is out of space, or the entry made it so.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// Members disagree about the data.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// About a lease.
    #[error(transparent)]
    Lease(#[from] LeaseRefusal),
    /// About authentication.
    #[error(transparent)]
    Auth(#[from] AuthRefusal),
}

impl From<MvccRefusal> for Refusal {
    fn from(refusal: MvccRefusal) -> Self {
        match refusal {
            MvccRefusal::Compacted => Self::Compacted,
            MvccRefusal::FutureRevision => Self::FutureRevision,
        }
    }
}

/// A request that asks for something impossible, whatever the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    /// No key.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// An operation of a transaction that is none.
    #[error("etcdserver: key not found")]
    EmptyOperation,
    /// A value with `ignore_value`.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// A lease with `ignore_lease`.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// A sort that does not exist.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// A transaction that is too large.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOperations,
    /// A transaction that writes a key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
}
