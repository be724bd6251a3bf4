//! Where a member goes on: what its disk holds, made into a backend file, a state, a log and a consensus.
//!
//! # Invariants
//!
//! * The newest snapshot that counts decides: if the backend file does not reach it, the image that waits for it is
//!   installed first.
//! * A member whose log ends before what its backend file has applied does not start: something that had
//!   been durable is lost.
//! * The members that consensus starts with are those of the backend file, at the index it has applied.
//!
//! # Not here
//!
//! Founding and joining, what flags say, members that an older version did not store (the server).

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use quorate_node::Persist;
use quorate_raft::{ConfState, Entry, EntryKind, HardState, LogIndex, NONE, Term};
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

/// Why what the disk holds is nothing to go on from.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The backend file is gone.
    #[error("database file ({}) of the backend is missing", path.display())]
    BackendMissing {
        /// Where it should be.
        path: PathBuf,
    },
    /// It is nothing that may be opened.
    #[error(
        "database file ({}) of the backend is {problem}; put the file back as it was, or remove this member \
         from the cluster, then its data directory, and add it again",
        path.display()
    )]
    BackendUnusable {
        /// Where it is.
        path: PathBuf,
        /// What it is instead.
        problem: &'static str,
    },
    /// It cannot be looked at.
    #[error("database file ({}) of the backend cannot be looked at: {source}", path.display())]
    BackendUnreadable {
        /// Where it is.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A received image cannot take its place.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// It cannot be opened.
    #[error("failed to open the backend: {0}")]
    Backend(#[from] Fault),
    /// The state cannot be made from it.
    #[error("failed to recover the state from the backend: {0}")]
    State(#[from] RecoverError),
    /// The log cannot be opened.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// The snapshot directory cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
    /// The log ends before what the backend file has applied.
    #[error(
        "{}: the write-ahead log ends at index {last_index}, but entry {applied} has already been \
         applied; the log has lost entries",
        path.display()
    )]
    LogLost {
        /// The segment in which the log ends.
        path: PathBuf,
        /// The backend file.
        backend: PathBuf,
        /// Where the log ends.
        last_index: LogIndex,
        /// What has been applied.
        applied: LogIndex,
    },
    /// An entry of a kind that no log of a member has.
    #[error(
        "unknown entry type {kind} at index {index}; must be either EntryNormal or EntryConfChange"
    )]
    EntryKind {
        /// The entry.
        index: LogIndex,
        /// As stored.
        kind: u8,
    },
}

/// Why a state that was asked for is not in place.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// The log does not take it.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The image cannot take the file's place.
    #[error(transparent)]
    Install(#[from] InstallError),
}

/// The backend file and the state that it holds.
#[derive(Debug)]
pub struct Recovered {
    /// The snapshots that the log knows and that count, oldest first.
    pub marks: Vec<SnapshotMark>,
    /// The file.
    pub backend: Backend,
    /// What it holds.
    pub state: State,
}

impl Recovered {
    /// The newest snapshot, from which the log is read.
    #[must_use]
    pub fn mark(&self) -> SnapshotMark {
        self.marks.last().cloned().unwrap_or_default()
    }
}

/// Recovers the state as of the newest snapshot or later. That snapshot may be one from a leader that was accepted
/// and not yet put in place. `open` opens the backend file.
pub fn recover(
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    options: StateOptions,
    open: impl Fn() -> Result<Backend, Fault>,
) -> Result<Recovered, StartError> {
    let marks = wal::snapshot_marks(&**disk, dirs.wal())?;
    let mark = marks.last().cloned().unwrap_or_default();
    check_backend_file(&mark, disk, dirs)?;
    let mut backend = open()?;
    if backend.read().consistent_index()?.0 < mark.index {
        drop(backend);
        image::install(disk, &dirs.snap(), LogIndex(mark.index))?;
        backend = open()?;
    }
    let state = State::recover(&backend, options)?;
    Ok(Recovered { marks, backend, state })
}

/// Opens the log behind the snapshot with this mark. What was repaired is to be told before anything else comes of it.
pub fn open_log(
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
    mark: &SnapshotMark,
    options: wal::Options,
) -> Result<(Wal, wal::Contents), StartError> {
    Ok(Wal::open(Arc::clone(disk), dirs.wal(), mark, options)?)
}

/// Makes sure that the log reaches as far as what is applied.
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

/// Removes received images that the member's own file has passed: nothing asks for them any more. Returns their
/// paths.
pub fn release_passed(
    disk: &dyn Disk,
    dirs: &DataDir,
    applied: LogIndex,
) -> Result<Vec<PathBuf>, StartError> {
    Ok(snap::release_databases(disk, &dirs.snap(), applied.saturating_add(1).get())?)
}

/// Puts a state that a member has asked for in place of its own: the image that waits for `order`, of what others have
/// applied. With
/// it the member's log as it was opened at its newest mark, and what it holds from there on.
///
/// Where the log has the image's last entry, it goes on from there. Where it ends before, or holds another entry there,
/// which then was never committed, it begins anew behind the image, as when a leader sends one. After a crash on the way
/// the image still waits; the log then says so, or the same can be asked for again.
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
            // Nobody has this member's vote in a term that it hears of only now.
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

/// What the log and the backend file have to say to consensus. The default is a member that knows of nobody,
/// and waits for a leader.
#[derive(Debug, Default)]
pub struct Start {
    /// As the log has it last.
    pub hard_state: HardState,
    /// The members at `applied`.
    pub conf_state: ConfState,
    /// What the log has behind the mark.
    pub entries: Vec<Entry>,
    /// The newest snapshot.
    pub mark: SnapshotMark,
    /// What the state has applied.
    pub applied: LogIndex,
}

impl Start {
    /// Where this state and this log, which was read from `mark`, go on.
    pub fn new(
        state: &State,
        contents: wal::Contents,
        mark: SnapshotMark,
    ) -> Result<Self, StartError> {
        let wal::HardState { term, vote, commit } = contents.hard_state;
        let conf_state = state.members().conf_state();
        Ok(Self {
            hard_state: HardState { term: Term(term), vote, commit: LogIndex(commit) },
            conf_state: ConfState {
                voters: conf_state.voters,
                learners: conf_state.learners,
                ..ConfState::default()
            },
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

/// The version of the backend file's content, if it can be told.
#[must_use]
pub fn storage_version(backend: &Backend) -> Option<Version> {
    let file = backend.read();
    let named = file.get(Bucket::Meta, meta::STORAGE_VERSION).ok()?;
    let term = file.consistent_index().ok()?.1;
    detect_storage_version(named.as_deref(), term).ok()?
}

/// Makes sure that the backend file is one that may be opened. Opening creates a file that is missing or
/// empty, and so would hide that the state is gone.
fn check_backend_file(
    mark: &SnapshotMark,
    disk: &Arc<dyn Disk>,
    dirs: &DataDir,
) -> Result<(), StartError> {
    let path = dirs.backend();
    let unreadable = |source| StartError::BackendUnreadable { path: path.clone(), source };
    let facts = disk.metadata(&path).map_err(unreadable)?;
    let problem = match &facts {
        Some(facts) if !facts.is_file => "no regular file",
        // A name that leads nowhere is a link.
        None if disk.read_dir(&dirs.snap()).map_err(unreadable)?.contains(&"db".into()) => {
            "a link to a file that is not there"
        }
        None if mark.index > 0 => return Err(StartError::BackendMissing { path }),
        Some(facts) if mark.index > 0 && facts.len == 0 => {
            match snap::find_database(&**disk, &dirs.snap(), mark.index) {
                Ok(_) => return Ok(()),
                Err(_) => "empty",
            }
        }
        Some(_) | None => return Ok(()),
    };
    Err(StartError::BackendUnusable { path, problem })
}
