//! Errors of reads. A refusal is the same on every member, and a fault is a failure of this
//! machine.

use crate::backend::Fault;

/// A deterministic refusal: the revision cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MvccRefusal {
    /// The revision has been compacted.
    #[error("mvcc: required revision has been compacted")]
    Compacted,
    /// The revision is above the current one.
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum MvccError {
    /// A refusal, the same on every member.
    #[error(transparent)]
    Refusal(#[from] MvccRefusal),
    /// A failure of this machine.
    #[error(transparent)]
    Fault(#[from] Fault),
}
