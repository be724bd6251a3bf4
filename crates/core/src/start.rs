//! Starts a member from its disk: recovers the backend file, the state and the log, and prepares the data with which
//! consensus starts.
//!
//! # Invariants
//!
//! * If the backend file is older than the newest valid snapshot, the received image of that snapshot is installed
//!   first.
//! * An image is installed only after the mark of its snapshot is durable. Otherwise, the log could end before the backend
//!   file's applied index after a power cut.
//! * Nothing is written to the backend file before the names in its directory are durable. Otherwise, a power cut could
//!   undo the installation of an image that already contains later entries.
//! * A member whose log ends before the applied index of its backend file does not start, because durable entries have
//!   been lost.
//! * Consensus starts with the members in the backend file, at its applied index. In a directory that etcd has written,
//!   the member list is first corrected to the members that consensus counts ([`Start::correct_members`]).
//!
//! # Not here
//!
//! Founding and joining a cluster ([`bootstrap`](crate::bootstrap)), the repair of member attributes that an older
//! version did not store ([`old_members`](crate::old_members)), and the flags (the server).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use quorate_node::Persist;
use quorate_raft::{Entry, EntryKind, HardState, LogIndex, NONE, Term};
use quorate_state::apply::{RecoverError, State, StateOptions};
use quorate_state::backend::{Backend, Fault};
use quorate_state::schema::{Bucket, meta};
use quorate_state::versions::{Version, detect_storage_version};
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::snap::{self, SnapError};
use quorate_storage::wal::{self, SnapshotMark, Wal, WalError};

use crate::image::{self, InstallError};
use crate::log::{Log, LogError};
use crate::snapshot::SnapshotOrder;

/// Why a member cannot start from its disk.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The backend file is missing.
    #[error("database file ({}) of the backend is missing", path.display())]
    BackendMissing {
        /// The path of the file.
        path: PathBuf,
    },
    /// The backend file must not be opened.
    #[error(
        "database file ({}) of the backend is {problem}; put the file back as it was, or remove this member from the \
         cluster, delete its data directory, and add it again",
        path.display()
    )]
    BackendUnusable {
        /// The path of the file.
        path: PathBuf,
        /// The problem, as an adjective or a noun phrase.
        problem: &'static str,
    },
    /// The metadata of the backend file cannot be read.
    #[error("database file ({}) of the backend cannot be checked: {source}", path.display())]
    BackendUnreadable {
        /// The path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A received image cannot replace the backend file.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// The backend file cannot be opened.
    #[error("failed to open the backend: {0}")]
    Backend(#[from] Fault),
    /// The state cannot be recovered from the backend file.
    #[error("failed to recover the state from the backend: {0}")]
    State(#[from] RecoverError),
    /// The log cannot be opened.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The snapshot directory cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
    /// The log ends before the applied index of the backend file.
    #[error(
        "{}: the write-ahead log ends at index {last_index}, but entry {applied} has already been \
         applied; the log has lost entries",
        path.display()
    )]
    LogLost {
        /// The segment in which the log ends.
        path: PathBuf,
        /// The path of the backend file.
        backend: PathBuf,
        /// The last index of the log.
        last_index: LogIndex,
        /// The applied index of the backend file.
        applied: LogIndex,
    },
    /// An entry has an unknown type.
    #[error(
        "unknown entry type {kind} at index {index}; must be either EntryNormal or EntryConfChange"
    )]
    EntryKind {
        /// The index of the entry.
        index: LogIndex,
        /// The entry type in the log.
        kind: u8,
    },
}

/// Why a requested state was not installed.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The log cannot be written.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The image cannot replace the backend file.
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// The backend file and the state recovered from it.
#[derive(Debug)]
pub struct Recovered {
    /// The valid snapshot marks in the log, oldest first.
    pub marks: Vec<SnapshotMark>,
    /// The backend file.
    pub backend: Backend,
    /// The recovered state.
    pub state: State,
    /// The applied index of the backend file that the received image of the newest snapshot has replaced, if the image
    /// had not been installed before the member stopped.
    pub replaced: Option<u64>,
}

impl Recovered {
    /// Returns the mark of the newest snapshot. The log is read from there.
    #[must_use]
    pub fn mark(&self) -> SnapshotMark {
        self.marks.last().cloned().unwrap_or_default()
    }
}

/// Recovers the state at the newest snapshot or later. The newest snapshot may have been received from a leader but not
/// installed yet. `open` opens the backend file. The caller passes the state's applied index to [`check_log`].
pub fn recover(
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    options: StateOptions,
    open: impl Fn() -> Result<Backend, Fault>,
) -> Result<Recovered, StartError> {
    let marks = wal::snapshot_marks(&**disk, dirs.wal())?;
    let mark = marks.last().cloned().unwrap_or_default();
    check_backend_file(&mark, disk, dirs)?;
    // A process that ended between the installation of an image and its sync may have left a name that is not on the
    // medium.
    let dir = dirs.snap();
    disk.sync_dir(&dir).map_err(|source| SnapError::Io {
        action: "sync",
        path: dir.clone(),
        source,
    })?;
    let mut backend = open()?;
    let consistent_index = backend.read().consistent_index()?.0;
    let replaced = (consistent_index < mark.index).then_some(consistent_index);
    if replaced.is_some() {
        // The mark may be in the system's memory only. After a power cut, the log would end before the image.
        wal::sync_records(&**disk, dirs.wal())?;
        drop(backend);
        image::install_at_start(disk, &dir, LogIndex(mark.index))?;
        backend = open()?;
    }
    let state = State::recover(&backend, options)?;
    Ok(Recovered { marks, backend, state, replaced })
}

/// Opens the log after the snapshot with this mark. The caller reports any repair of the log before it continues.
pub fn open_log(
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    mark: &SnapshotMark,
    options: wal::Options,
) -> Result<(Wal, wal::Contents), StartError> {
    Ok(Wal::open(Arc::clone(disk), dirs.wal(), mark, options)?)
}

/// Checks that the log reaches the applied index.
pub fn check_log(
    disk: &dyn Disk,
    dirs: &DataDir,
    contents: &wal::Contents,
    applied: LogIndex,
) -> Result<(), StartError> {
    let last_index = LogIndex(contents.last_index);
    if last_index < applied {
        let segments = wal::list(disk, dirs.wal())?.segments;
        let name = segments.last().map_or_else(String::new, |name| name.file_name());
        return Err(StartError::LogLost {
            path: dirs.wal().join(name),
            backend: dirs.backend(),
            last_index,
            applied,
        });
    }
    Ok(())
}

/// Removes received images that are no longer needed because the backend file has reached their index. Returns their
/// paths.
pub fn release_passed(
    disk: &dyn Disk,
    dirs: &DataDir,
    applied: LogIndex,
) -> Result<Vec<PathBuf>, StartError> {
    Ok(snap::release_databases(disk, &dirs.snap(), applied.saturating_add(1).get())?)
}

/// Replaces a member's state with a state that it requested from another member: the received image of the snapshot in
/// `order`. The caller passes the log, opened at its newest mark, and its contents from that mark on.
///
/// If the log contains the image's last entry, the log is kept as it is. If the log ends earlier, or has a different,
/// never committed entry at that index, the log is reset to begin after the image, as with a snapshot from a leader. If
/// the member crashes before the image is installed, the image still exists. If the log already contains the image's
/// mark, the restarted member can install the image. Otherwise, it can request the state again.
pub fn take_over(
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    (wal, contents, mark): (Wal, &wal::Contents, &SnapshotMark),
    order: SnapshotOrder,
) -> Result<(), TakeOverError> {
    let snapshot = order.into_raft();
    let (index, term) = (snapshot.metadata.index, snapshot.metadata.term);
    let is_last_entry = |entry: &wal::Entry| entry.index == index.get() && entry.term == term.get();
    let mut log = Log::new(wal, Arc::clone(disk), dirs.snap());
    let is_mark = (mark.index, mark.term) == (index.get(), term.get());
    if !is_mark && !contents.entries.iter().any(is_last_entry) {
        let wal::HardState { term: own_term, vote, commit } = contents.hard_state;
        let hard_state = HardState {
            term: Term(own_term).max(term),
            // If the term is new, the member has not voted in it yet.
            vote: if Term(own_term) < term { NONE } else { vote },
            commit: LogIndex(commit).max(index),
        };
        log.append(&Persist {
            token: 1,
            snapshot: Some(snapshot),
            entries: Vec::new(),
            hard_state: Some(hard_state),
        })?;
        log.sync()?;
    }
    log.close(None)?;
    Ok(image::install(disk, &dirs.snap(), index)?)
}

/// The data that consensus takes from the log when it starts. The default is for a member without entries, which waits
/// for a leader. The members are taken from the recovered state at `applied`
/// ([`configuration_of`](crate::configuration_of)).
#[derive(Debug, Default)]
pub struct Start {
    /// The last hard state in the log.
    pub hard_state: HardState,
    /// The log entries after the mark.
    pub entries: Vec<Entry>,
    /// The mark of the newest snapshot.
    pub mark: SnapshotMark,
    /// The applied index of the state.
    pub applied: LogIndex,
}

impl Start {
    /// Combines a recovered state with the contents of its log, which was read from `mark` on.
    pub fn new(
        state: &State,
        contents: wal::Contents,
        mark: SnapshotMark,
    ) -> Result<Self, StartError> {
        let wal::HardState { term, vote, commit } = contents.hard_state;
        Ok(Self {
            hard_state: HardState { term: Term(term), vote, commit: LogIndex(commit) },
            entries: contents.entries.into_iter().map(to_raft).collect::<Result<_, _>>()?,
            mark,
            applied: LogIndex(state.applied().0),
        })
    }
}

fn to_raft(entry: wal::Entry) -> Result<Entry, StartError> {
    let index = LogIndex(entry.index);
    let kind = EntryKind::from_wire(i32::from(entry.kind))
        .filter(|kind| *kind != EntryKind::ConfChangeV2)
        .ok_or(StartError::EntryKind { index, kind: entry.kind })?;
    Ok(Entry { term: Term(entry.term), index, kind, data: entry.data })
}

/// Returns the version of the backend file's content, if it is known.
#[must_use]
pub fn storage_version(backend: &Backend) -> Option<Version> {
    let file = backend.read();
    let named = file.get(Bucket::Meta, meta::STORAGE_VERSION).ok()?;
    let term = file.consistent_index().ok()?.1;
    detect_storage_version(named.as_deref(), term).ok()?
}

/// Checks that the backend file may be opened. Opening a missing or empty file would create a new one and hide the loss
/// of the state.
fn check_backend_file(
    mark: &SnapshotMark,
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
) -> Result<(), StartError> {
    let path = dirs.backend();
    let unreadable = |source| StartError::BackendUnreadable { path: path.clone(), source };
    let facts = disk.metadata(&path).map_err(unreadable)?;
    let problem = match &facts {
        Some(facts) if !facts.is_file => "not a regular file",
        // The directory lists the name, but the target is missing, so the file is a symbolic link.
        None if disk.read_dir(&dirs.snap()).map_err(unreadable)?.contains(&"db".into()) => {
            "a link to a missing file"
        }
        None if mark.index > 0 => return Err(StartError::BackendMissing { path }),
        Some(facts) if mark.index > 0 && facts.len == 0 => {
            if snap::has_database(&**disk, &dirs.snap(), mark.index)? {
                return Ok(());
            }
            "empty"
        }
        Some(_) | None => return Ok(()),
    };
    Err(StartError::BackendUnusable { path, problem })
}
