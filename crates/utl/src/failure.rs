//! Errors of commands: a message for standard error and an exit code.

mod migrate;
mod recover;
mod restore;
mod status;

use std::io;
use std::path::{Path, PathBuf};

use quorate_cli::completion::SHELLS;
use quorate_cli::start::BROKEN_PIPE;
use quorate_engine::EngineError;
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

/// Exit codes that scripts rely on.
pub(crate) mod exit {
    pub(crate) const ERROR: u8 = 1;
    pub(crate) const BAD_FEATURE: u8 = 4;
    pub(crate) const BAD_ARGS: u8 = 128;
}

/// Reason for the failure of a command.
#[derive(Debug, Error)]
pub(crate) enum Failure {
    /// The arguments are invalid or contradict each other.
    #[error("{0}")]
    Arguments(String),
    /// `completion` was requested for an unsupported shell.
    #[error("no completion script for shell {0:?}: choose one of {names}", names = SHELLS.join(", "))]
    Shell(String),
    /// Required flags are missing.
    #[error("required flag(s) \"{}\" not set", .0.join("\", \""))]
    Required(Vec<&'static str>),
    /// The number of arguments is wrong.
    #[error("accepts {expected} arg(s), received {given}")]
    ArgumentCount {
        /// Number of arguments that the command accepts.
        expected: usize,
        /// Number of given arguments.
        given: usize,
    },
    /// `--write-out` names an unknown format.
    #[error("unsupported output format")]
    Format,
    /// `--write-out` names a format that this command does not support.
    #[error("{0} not supported as output format")]
    FormatOfThis(&'static str),
    /// The file does not exist. The message uses Go's wording.
    #[error("{action} {}: {reason}", path.display())]
    Absent {
        /// Failed operation, as Go names it.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Reason given by the operating system.
        reason: &'static str,
    },
    /// A running member or another tool has locked the file.
    #[error(
        "{} is in use by a running member or another tool: stop it first, or work on a snapshot (`snapshot save`)",
        path.display()
    )]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// Failed operation, as a verb phrase.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The directory or the snapshots are damaged and must not be used.
    #[error(
        "{} {} damaged ({count} findings): {advice}",
        joined(paths),
        if paths.len() == 1 { "is" } else { "are" }
    )]
    Damaged {
        /// Path of the directory, or paths of the damaged snapshots.
        paths: Vec<PathBuf>,
        /// Number of findings that report damage.
        count: usize,
        /// Advice for the operator.
        advice: String,
    },
    /// The directory is sound, but a member refuses to start on it.
    #[error("a member does not start on {}: {reason}", path.display())]
    Refused {
        /// Path of the directory.
        path: PathBuf,
        /// Reason of the refusal, with the remedy.
        reason: String,
    },
    /// The file does not contain the bucket.
    #[error("{}: there is no bucket {bucket}", path.display())]
    NoBucket {
        /// Path of the file.
        path: PathBuf,
        /// Name of the bucket.
        bucket: String,
    },
    /// The bucket does not contain the key.
    #[error("{}: there is no key {key} in bucket {bucket}", path.display())]
    NoKey {
        /// Path of the file.
        path: PathBuf,
        /// Name of the bucket.
        bucket: String,
        /// Key, as given on the command line.
        key: String,
    },
    /// The file contains a bucket inside a bucket, which etcd's files never do.
    #[error("{}: not an etcd backend file: a bucket contains another bucket", path.display())]
    Nested {
        /// Path of the file.
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
    /// The snapshot was not imported into the database.
    #[error("failed to import the snapshot: {0}")]
    Import(#[from] EngineError),
    /// The reader of the output has closed the pipe.
    #[error("broken pipe")]
    BrokenPipe,
}

fn joined(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

impl Failure {
    pub(crate) fn arguments(text: impl Into<String>) -> Self {
        Self::Arguments(text.into())
    }

    /// Converts the error of a system call, adding the failed operation and the file.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// Returns the exit code.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Arguments(_) => exit::BAD_ARGS,
            Self::Format | Self::FormatOfThis(_) => exit::BAD_FEATURE,
            Self::BrokenPipe => BROKEN_PIPE,
            Self::Shell(_)
            | Self::Required(_)
            | Self::ArgumentCount { .. }
            | Self::Absent { .. }
            | Self::InUse { .. }
            | Self::Io { .. }
            | Self::Damaged { .. }
            | Self::Refused { .. }
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
            | Self::Snap(_)
            | Self::Import(_) => exit::ERROR,
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
