//! The errors of the engine. They do not include the refusal of a request by the state.

use quorate_state::apply::{Fault as ApplyFault, RecoverError};
use quorate_state::mvcc::Fault as StoreFault;

use crate::database::{DatabaseFault, StreamFault};
use crate::read_memory::MemoryShortage;

/// The kinds of byte strings that the database indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Indexed {
    /// A key.
    #[error("a key")]
    Key,
    /// The name of a user.
    #[error("a user name")]
    UserName,
    /// The name of a role.
    #[error("a role name")]
    RoleName,
}

/// The reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No server holds the sequencer role. The request was not applied.
    #[error("no server is the sequencer at the moment")]
    NoSequencer,
    /// Another server has become the sequencer. The request was not applied.
    #[error("another server has become the sequencer")]
    SequencerChanged,
    /// The connection to the sequencer was lost, so the request may have been applied.
    #[error("the sequencer did not respond, and the request may have been applied")]
    OutcomeUnknown,
    /// Too many requests are waiting for the sequencer.
    #[error("too many requests are waiting for the sequencer")]
    TooManyRequests,
    /// There is no room for the rows of a read. The read can be repeated once there is room.
    #[error("there is not enough memory for the rows of the read")]
    NoRoom,
    /// The request needs more keys and values in memory than the engine permits.
    #[error(
        "the request reads or deletes {bytes} bytes of keys and values, but the limit is {bytes_max}"
    )]
    TooLarge {
        /// Number of bytes of the keys and values that the request reads or deletes.
        bytes: usize,
        /// Maximum number of bytes of these keys and values.
        bytes_max: usize,
    },
    /// A key, or the name of a user or role, is longer than the database can index.
    #[error("{what} is {bytes} bytes long, but the database can index at most {bytes_max}")]
    KeyTooLong {
        /// The kind of the byte string.
        what: Indexed,
        /// Length of the key or name in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        bytes_max: usize,
    },
    /// The request is malformed.
    #[error("the request is malformed: {0}")]
    Malformed(String),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DatabaseFault),
    /// The database failed while the sequencer on another server used it.
    #[error("{0}")]
    DatabaseOfSequencer(String),
    /// The content of the database is invalid.
    #[error("the content of the database is invalid: {0}")]
    Content(String),
    /// The engine has failed for another reason, which the text names. Also the reason why the
    /// sequencer on another server has failed.
    #[error("{0}")]
    Failed(String),
    /// The caller is no longer interested in the result.
    #[error("the caller has cancelled the operation")]
    Cancelled,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopped,
    /// The thread that reads the history could not be started.
    #[error("failed to start a thread: {0}")]
    Thread(std::io::Error),
    /// The operating system did not provide random bytes.
    #[error("failed to get random bytes: {0}")]
    Random(String),
}

impl From<StoreFault> for EngineError {
    fn from(fault: StoreFault) -> Self {
        Self::Content(fault.to_string())
    }
}

impl From<ApplyFault> for EngineError {
    fn from(fault: ApplyFault) -> Self {
        Self::Content(fault.to_string())
    }
}

impl From<RecoverError> for EngineError {
    fn from(fault: RecoverError) -> Self {
        Self::Content(fault.to_string())
    }
}

impl From<MemoryShortage> for EngineError {
    fn from(shortage: MemoryShortage) -> Self {
        match shortage {
            MemoryShortage::NoRoom => Self::NoRoom,
            MemoryShortage::TooLarge { bytes, bytes_max } => Self::TooLarge { bytes, bytes_max },
        }
    }
}

impl From<StreamFault> for EngineError {
    fn from(fault: StreamFault) -> Self {
        match fault {
            StreamFault::Database(fault) => Self::Database(fault),
            StreamFault::Memory(shortage) => shortage.into(),
        }
    }
}
