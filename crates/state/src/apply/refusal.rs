//! Reasons for refusing an entry, or a request before it is proposed.

use crate::auth::AuthRefusal;
use crate::lease::LeaseRefusal;
use crate::mvcc::MvccRefusal;

/// Why a request is refused, with etcd's text. Every member refuses the same requests, except that each member compares
/// the size of its own file with the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] RequestRefusal),
    /// The revision has been compacted.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// The revision is above the current one.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// A put keeps the value or lease of a key that does not exist.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// A member is out of space, or this entry would exceed the quota.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// A corruption alarm is raised.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// A lease request is refused.
    #[error(transparent)]
    Lease(#[from] LeaseRefusal),
    /// An auth request is refused, or a permission is missing.
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

/// A request that is invalid in every state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestRefusal {
    /// The key is missing.
    #[error("etcdserver: key is not provided")]
    EmptyKey,
    /// A transaction has an empty operation.
    #[error("etcdserver: key not found")]
    EmptyOperation,
    /// A put has both a value and `ignore_value`.
    #[error("etcdserver: value is provided")]
    ValueProvided,
    /// A put has both a lease and `ignore_lease`.
    #[error("etcdserver: lease is provided")]
    LeaseProvided,
    /// The sort order or target is unknown.
    #[error("etcdserver: invalid sort option")]
    InvalidSortOption,
    /// The transaction has too many operations.
    #[error("etcdserver: too many operations in txn request")]
    TooManyOperations,
    /// The transaction writes a key twice.
    #[error("etcdserver: duplicate key given in txn request")]
    DuplicateKey,
}
