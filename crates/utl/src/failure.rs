//! Errors of commands: a message on standard error and an exit code.

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

/// The exit codes that scripts rely on.
pub(crate) mod exit {
    pub(crate) const ERROR: u8 = 1;
    pub(crate) const BAD_FEATURE: u8 = 4;
    pub(crate) const BAD_ARGS: u8 = 128;
}

/// Why a command failed.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The arguments do not fit together.
    #[error("{0}")]
    Arguments(String),
    /// `completion` for a shell without a script.
    #[error("no completion script for shell {0:?}: choose one of {names}", names = SHELLS.join(", "))]
    Shell(String),
    /// A required flag is missing.
    #[error("required flag(s) \"{0}\" not set")]
    Required(&'static str),
    /// `--write-out` names an unknown format.
    #[error("unsupported output format")]
    Format,
    /// `--write-out` names a format that this command does not have.
    #[error("{0} not supported as output format")]
    FormatOfThis(&'static str),
    /// The file does not exist, in Go's wording.
    #[error("{action} {}: {reason}", path.display())]
    Absent {
        /// The failed operation, as Go names it.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        reason: &'static str,
    },
    /// A running member, or another tool, has locked the file.
    #[error(
        "{} is in use by a running member: stop it first, or work on a snapshot of it (`snapshot save`)",
        path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The failed operation, as a verb phrase.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// No member must be started on the directory.
    #[error("{} is damaged ({count} findings): {advice}", path.display())]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// The number of findings that are damage.
        count: usize,
        /// The advice for the operator.
        advice: String,
    },
    /// The file has no such bucket.
    #[error("{}: there is no bucket {bucket}", path.display())]
    NoBucket {
        /// The file.
        path: PathBuf,
        /// The name of the bucket.
        bucket: String,
    },
    /// The bucket has no such key.
    #[error("{}: there is no key {key} in bucket {bucket}", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// The bucket.
        bucket: String,
        /// The key, as given on the command line.
        key: String,
    },
    /// A bucket inside a bucket, which no file of etcd contains.
    #[error("{}: not an etcd backend file: a bucket contains another bucket", path.display())]
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
    /// The reader of the output has closed it.
    #[error("broken pipe")]
    BrokenPipe,
}

impl Failure {
    pub(crate) fn arguments(text: impl Into<String>) -> Self {
        Self::Arguments(text.into())
    }

    /// Adds the failed operation and the file to a failed system call.
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
