//! The identity of a term of the sequencer.
//!
//! The epoch alone does not identify a term. A database that loses committed rows, for example in a
//! failover to an asynchronous standby, may also lose the row with the newest epoch, and then assign the
//! same epoch to another server. Therefore each term has a random number as well. A batch names the term
//! that appended it, so two batches at the same position of the log belong to the same history if and
//! only if they belong to the same term.

use crate::error::EngineError;

/// The identity of a term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TermId {
    /// The number of the term. It increases, unless the database loses rows.
    pub(crate) epoch: u64,
    /// The random number of the term. It is 0 in batches from Quorate versions that did not use this
    /// number.
    pub(crate) nonce: i64,
}

impl TermId {
    /// Returns a random number for a new term.
    pub(crate) fn random_nonce() -> Result<i64, EngineError> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| EngineError::Random(error.to_string()))?;
        Ok(i64::from_le_bytes(bytes))
    }

    /// Reads the identity from two adjacent columns of a row, beginning at column `first`.
    pub(crate) fn of_columns(row: &tokio_postgres::Row, first: usize) -> Self {
        let epoch = row.get::<_, i64>(first).cast_unsigned();
        Self { epoch, nonce: row.get(first + 1) }
    }
}
