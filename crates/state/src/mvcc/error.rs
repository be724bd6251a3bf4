//! Why the keyspace cannot answer: a refusal is the same on every member, a fault is this machine's.

use crate::backend::Fault;

/// A deterministic answer: the revision cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MvccRefusal {
    /// The revision's history is gone.
    #[error("mvcc: required revision has been compacted")]
    Compacted,
    /// The revision has not happened yet.
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum MvccError {
    /// The same answer on every member.
    #[error(transparent)]
    Refusal(#[from] MvccRefusal),
    /// This member's failure.
    #[error(transparent)]
    Fault(#[from] Fault),
}
