//! How a command fails: a message on standard error and an exit code.

mod migrate;
mod recover;
mod restore;
mod status;

use std::io;
use std::path::{Path, PathBuf};

use quorate_cli::completion::SHELLS;
use quorate_cli::start::BROKEN_PIPE;
use quorate_state::apply::RecoverError;
use quorate_state::backend::{Fault, ImageFault};
use quorate_state::mvcc::MvccError;
use quorate_storage::bolt::BoltError;
use quorate_storage::snap::SnapError;
use quorate_storage::wal::WalError;
use thiserror::Error;

pub(crate) use self::migrate::MigrateError;
pub(crate) use self::recover::{RecoveryError, ReplayError};
pub(crate) use self::restore::RestoreError;
pub(crate) use self::status::StatusError;

/// Exit codes, as scripts know them.
pub(crate) mod exit {
    pub(crate) const ERROR: u8 = 1;
    pub(crate) const BAD_FEATURE: u8 = 4;
    pub(crate) const BAD_ARGS: u8 = 128;
}

/// The end of a command that did not succeed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The arguments make no sense together.
    #[error("{0}")]
    Arguments(String),
    /// `completion` of a shell that has no script.
    #[error("invalid argument {0:?}: there are scripts for {names}", names = SHELLS.join(", "))]
    Shell(String),
    /// A flag that has to be given is not.
    #[error("required flag(s) \"{0}\" not set")]
    Required(&'static str),
    /// `--write-out` names no format.
    #[error("unsupported output format")]
    Format,
    /// `--write-out` names a format that the command's answer has not.
    #[error("{0} not supported as output format")]
    FormatOfThis(&'static str),
    /// There is no such file, in Go's words.
    #[error("{action} {}: {reason}", path.display())]
    Absent {
        /// What was tried, as Go calls it.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        reason: &'static str,
    },
    /// A running member, or another tool, holds the file.
    #[error(
        "{} is in use by a running member: stop it first, or work on a snapshot of it (`snapshot save`)",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// What was tried, as a verb phrase.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A member should not be started on a directory.
    #[error("{} is damaged ({count} findings): {advice}", path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// How many findings say so.
        count: usize,
        /// What to do.
        advice: String,
    },
    /// The file has no such bucket.
    #[error("{}: there is no bucket {bucket}", path.display())]
    NoBucket {
        /// The file.
        path: PathBuf,
        /// Its name.
        bucket: String,
    },
    /// The bucket has no such key.
    #[error("{}: there is no key {key} in bucket {bucket}", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The bucket.
        bucket: String,
        /// The key, as it was asked for.
        key: String,
    },
    /// A bucket inside a bucket, which no file of etcd has.
    #[error("{}: no file of etcd: a bucket holds another one", path.display())]
    Nested {
        /// The file.
        path: PathBuf,
    },
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    #[error(transparent)]
    Status(#[from] StatusError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error(transparent)]
    Backend(Fault),
    #[error(transparent)]
    Image(#[from] ImageFault),
    #[error(transparent)]
    Read(#[from] MvccError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error(transparent)]
    Log(#[from] WalError),
    #[error(transparent)]
    Snap(#[from] SnapError),
    /// Whoever read the output has seen enough.
    #[error("broken pipe")]
    BrokenPipe,
}

impl Failure {
    pub(crate) fn arguments(text: impl Into<String>) -> Self {
        Self::Arguments(text.into())
    }

    /// Names the file and what was tried of a failed system call.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// The exit code.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Arguments(_) => exit::BAD_ARGS,
            Self::Format | Self::FormatOfThis(_) => exit::BAD_FEATURE,
            Self::BrokenPipe => BROKEN_PIPE,
            Self::Shell(_)
            | Self::Required(_)
            | Self::Absent { .. }
            | Self::InUse { .. }
            | Self::Io { .. }
            | Self::Damaged { .. }
            | Self::NoBucket { .. }
            | Self::NoKey { .. }
            | Self::Nested { .. }
            | Self::Migrate(_)
            | Self::Status(_)
            | Self::Restore(_)
            | Self::Recovery(_)
            | Self::Replay(_)
            | Self::Backend(_)
            | Self::Image(_)
            | Self::Read(_)
            | Self::Recover(_)
            | Self::Log(_)
            | Self::Snap(_) => exit::ERROR,
        }
    }
}

impl From<BoltError> for Failure {
    fn from(error: BoltError) -> Self {
        Fault::from(error).into()
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Engine(BoltError::Locked { path }) => Self::InUse { path: path.to_path_buf() },
            fault => Self::Backend(fault),
        }
    }
}
