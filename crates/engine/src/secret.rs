//! The secret by which a server recognises the other servers of its keyspace.
//!
//! A server creates its secret when it starts. When it becomes the sequencer, it writes the secret into the database,
//! where the other servers read it. A sender that knows the secret therefore has access to the database.
//!
//! # Invariants
//!
//! * The secret is never printed.
//!
//! # Not here
//!
//! The proof that a sender knows the secret, which the transport requires (`engine::Forward`).

use std::fmt;

use bytes::Bytes;

use crate::error::EngineError;

/// The length of a secret in bytes.
const SECRET_BYTES: usize = 32;

/// The secret of a server. Its `Debug` output does not contain the secret bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Bytes);

impl Secret {
    /// Creates a random secret.
    ///
    /// # Errors
    ///
    /// If the operating system does not provide random bytes.
    pub fn generate() -> Result<Self, EngineError> {
        let mut bytes = [0; SECRET_BYTES];
        getrandom::fill(&mut bytes).map_err(|error| EngineError::Random(error.to_string()))?;
        Ok(Self(Bytes::copy_from_slice(&bytes)))
    }

    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    /// Returns the bytes of the secret. In the database, the secret is empty until a server has been
    /// the sequencer.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_not_printed() {
        let (one, other) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.bytes().len(), SECRET_BYTES);
        assert_eq!(format!("{one:?}"), "***");
    }
}
