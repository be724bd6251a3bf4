//! The writer of the backend file: it commits batches and carries out the actions that follow each commit.
//!
//! Orders are split into steps, and each call carries out one step. Between two steps the driver can check the clock or
//! simulate a power failure.
//!
//! # Invariants
//!
//! * Batches are committed atomically, in the order in which they were accepted.
//! * Actions that depend on a durable batch (a snapshot, an image for a peer, a response) follow the batch's commit, in
//!   order. A snapshot's file is durable before its mark is requested. Images of older snapshots are removed only when
//!   the backend file contains the snapshot.
//! * Free space is reclaimed in steps of bounded length. A batch waits for at most one such step.
//! * No step is lost when the disk is full: the failed step and all later steps are kept until there is room. Until
//!   then, the acknowledged changes in the kept steps exist only in the log.
//! * Batches that wait for room are dropped once the log contains a leader's snapshot that includes them
//!   ([`BackendWriter::supersede`]). No batch is written from then until the snapshot's image is installed, because a
//!   batch must not be written to a file that lacks the previous batch.
//!
//! # Bound
//!
//! The writer holds only the steps of accepted orders. The driver passes it no order while steps are pending, so the
//! driver's queue of at most [`ORDERS_QUEUED_MAX`] orders also bounds the pending work.

mod reclaim;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_raft::{LogIndex, Message};
use quorate_state::backend::{Backend, Batch, Committed, Fault};
use quorate_storage::bolt::{BoltError, ReadTx};
use quorate_storage::disk::Disk;
use quorate_storage::snap::{self, SnapError};
use quorate_storage::wal::SnapshotMark;

use self::reclaim::Reclaiming;
use crate::image::{self, InstallError};
use crate::snapshot::{self, SnapshotOrder};

/// Maximum number of batches that wait for the writer.
pub const ORDERS_QUEUED_MAX: usize = 2;

/// The interval between attempts to write a batch while the disk has no space.
pub const ROOM_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// An order to the writer. `T` identifies a caller that waits for a completion, and `R` a caller that waits for a
/// defragmentation.
#[derive(Debug)]
pub enum Order<T, R> {
    /// Write this batch, then carry out the follow-up actions.
    Commit {
        /// The batch, which may be empty.
        batch: Batch,
        /// The actions that follow the commit, in order.
        then: Vec<Then<T>>,
    },
    /// Replace the backend file with a snapshot's received image.
    Install {
        /// The index of the snapshot's last entry.
        index: LogIndex,
        /// The caller that waits for the installation.
        completion: T,
    },
    /// Return free space to the file system.
    Defragment(R),
    /// Stop after all earlier orders.
    Stop,
}

/// An action that follows the commit of a batch.
#[derive(Debug)]
pub enum Then<T> {
    /// Write a snapshot at the batch's index.
    Snapshot(SnapshotOrder),
    /// Send this message to a peer, with the current file as the image.
    Send(Message),
    /// Report that a compaction is durable.
    Compacted(CompactionEnd),
    /// Notify the caller.
    Complete(T),
}

/// A finished compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionEnd {
    /// The revision of the compaction.
    pub revision: i64,
    /// The duration of the compaction.
    pub took: Duration,
    /// The number of records that the compaction removed.
    pub removed_count: u64,
}

/// The result of a defragmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defragmented {
    /// The size of the file before the defragmentation, in bytes.
    pub bytes_before: u64,
    /// The size of the file after the defragmentation, in bytes.
    pub bytes_after: u64,
}

/// The result of a step, addressed to the other state machines or to callers.
#[derive(Debug)]
pub enum Report<T, R> {
    /// A batch was committed. Addressed to the state machine.
    Committed {
        /// The new content of the file.
        committed: Committed,
        /// The number of times that the file has been replaced.
        generation: u64,
    },
    /// Pages were moved. Readers should take the new view, which has the same content. Addressed to the state machine.
    Moved {
        /// The content of the file.
        committed: Committed,
        /// The number of times that the file has been replaced.
        generation: u64,
    },
    /// A snapshot's file is on disk, so the snapshot's mark may now be written to the log.
    SnapshotSaved(SnapshotMark),
    /// Send this message together with the image.
    Send {
        /// The message, with its receiver and the snapshot's metadata.
        message: Message,
        /// A view of the file at the message's index.
        image: ReadTx,
    },
    /// A compaction is durable.
    Compacted(CompactionEnd),
    /// A batch was dropped because the image of a leader's snapshot is about to replace the file.
    Superseded,
    /// The image of the snapshot at `index` has replaced the backend file.
    Installed {
        /// The index of the snapshot's last entry.
        index: LogIndex,
        /// The caller that waits for the installation.
        completion: T,
    },
    /// Notify this caller.
    Complete(T),
    /// A defragmentation has ended.
    Defragmented {
        /// The callers that requested the defragmentation.
        completions: Vec<R>,
        /// The file sizes before and after the defragmentation.
        outcome: Defragmented,
    },
    /// The disk has no room for the next step. The step is kept and blocks all later steps until there is room.
    NoRoom(BackendError),
    /// The disk has room again.
    RoomAgain,
    /// All orders before [`Order::Stop`] have been carried out or dropped.
    Ended,
}

/// An error while writing the backend file.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A batch cannot be written, or the file cannot be read.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// The file cannot be defragmented.
    #[error(transparent)]
    Bolt(#[from] BoltError),
    /// A snapshot's file cannot be written.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
    /// An image cannot be installed.
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl BackendError {
    /// Returns whether the error was caused by a full disk and no file was changed.
    fn is_no_room(&self) -> bool {
        match self {
            Self::Backend(Fault::Engine(error)) | Self::Bolt(error) => error.is_no_room(),
            Self::Snapshot(error) => error.is_no_room(),
            Self::Backend(Fault::MissingRecord { .. } | Fault::Corrupt { .. })
            | Self::Install(_) => false,
        }
    }
}

/// A step of an order.
#[derive(Debug)]
enum Step<T, R> {
    Commit(Batch),
    SaveSnapshot(snap::Snapshot),
    Send(Message),
    Install {
        index: LogIndex,
        completion: T,
    },
    /// Return this report, and do nothing else.
    Report(Report<T, R>),
}

/// The only writer of a member's backend file.
#[derive(Debug)]
pub struct BackendWriter<T, R> {
    backend: Backend,
    disk: Arc<dyn Disk>,
    snap_dir: PathBuf,
    steps: VecDeque<Step<T, R>>,
    reclaiming: Option<Reclaiming<R>>,
    /// The number of times that the file has been replaced.
    generation: u64,
    /// Whether the last attempt at the next step failed because the disk is full.
    lacks_space: bool,
    superseded: Option<Superseded<T>>,
    has_given_up: bool,
}

/// A leader's snapshot that supersedes batches. Batches are dropped until the snapshot's image is installed.
#[derive(Debug)]
struct Superseded<T> {
    /// The index of the snapshot's last entry.
    index: LogIndex,
    /// The callers that wait for their changes to reach the file. They are notified once the image is installed.
    completions: Vec<T>,
}

impl<T, R> BackendWriter<T, R> {
    /// Creates a writer for this backend file, which is in the snapshot directory.
    #[must_use]
    pub const fn new(backend: Backend, disk: Arc<dyn Disk>, snap_dir: PathBuf) -> Self {
        Self {
            backend,
            disk,
            snap_dir,
            steps: VecDeque::new(),
            reclaiming: None,
            generation: 0,
            lacks_space: false,
            superseded: None,
            has_given_up: false,
        }
    }

    /// Returns the backend file.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Splits an order into steps. [`BackendWriter::step`] carries them out.
    pub fn take(&mut self, order: Order<T, R>, now: Instant) {
        match order {
            Order::Stop => self.steps.push_back(Step::Report(Report::Ended)),
            _ if self.has_given_up => {}
            Order::Commit { batch, then } => {
                let from = self.steps.len();
                if !batch.is_empty() {
                    self.steps.push_back(Step::Commit(batch));
                }
                self.steps.extend(then.into_iter().map(|then| match then {
                    Then::Snapshot(order) => Step::SaveSnapshot(order.to_file()),
                    Then::Send(message) => Step::Send(message),
                    Then::Compacted(end) => Step::Report(Report::Compacted(end)),
                    Then::Complete(completion) => Step::Report(Report::Complete(completion)),
                }));
                self.drop_superseded(from);
            }
            Order::Install { index, completion } => {
                // End the current defragmentation. The new file is defragmented only if a caller requests it again.
                self.end_reclaiming();
                self.steps.push_back(Step::Install { index, completion });
                let ended = self.superseded.take_if(|superseded| superseded.index <= index);
                if let Some(superseded) = ended {
                    // No step is waiting for room any longer. If the disk is still full, the next batch reports the
                    // full disk again.
                    self.steps.push_back(Step::Report(Report::RoomAgain));
                    let completions = superseded.completions.into_iter();
                    self.steps.extend(
                        completions.map(|completion| Step::Report(Report::Complete(completion))),
                    );
                }
            }
            Order::Defragment(completion) => self.begin_reclaiming(completion, now),
        }
    }

    /// Drops the pending batches if the disk has no room for them and the leader's snapshot at `index` is newer than
    /// the file. No change is lost, because the snapshot contains the changes in the batches. The snapshot's mark is
    /// already in the log, and its image will be installed after all earlier orders. Returns whether batches were
    /// dropped.
    ///
    /// If the member crashes before the installation, it finds the snapshot's mark in the log when it restarts, and
    /// then installs the image.
    pub fn supersede(&mut self, index: LogIndex) -> Result<bool, BackendError> {
        let (reached, _) = self.backend.read().consistent_index()?;
        if !self.lacks_space || index.get() <= reached {
            return Ok(false);
        }
        self.lacks_space = false;
        let completions = self.superseded.take().map_or_else(Vec::new, |before| before.completions);
        self.superseded = Some(Superseded { index, completions });
        self.drop_superseded(0);
        Ok(true)
    }

    /// Drops superseded steps from this position on. Does nothing unless a snapshot supersedes batches.
    ///
    /// Snapshots are dropped as well, because a snapshot of this member's own state would be older than the leader's.
    /// Images for peers are dropped too: only a leader sends images, and a member that installs a leader's snapshot is
    /// not the leader.
    fn drop_superseded(&mut self, from: usize) {
        let Some(superseded) = &mut self.superseded else { return };
        for step in self.steps.split_off(from) {
            match step {
                Step::Commit(_) => self.steps.push_back(Step::Report(Report::Superseded)),
                Step::SaveSnapshot(_) | Step::Send(_) | Step::Report(Report::Compacted(_)) => {}
                Step::Report(Report::Complete(completion)) => {
                    superseded.completions.push(completion);
                }
                Step::Install { .. } | Step::Report(_) => self.steps.push_back(step),
            }
        }
    }

    /// Carries out the next step. Returns `None` if there is no step, or if the disk still has no room for it after
    /// [`Report::NoRoom`].
    pub fn step(&mut self) -> Result<Option<Report<T, R>>, BackendError> {
        let Some(step) = self.steps.pop_front() else { return Ok(None) };
        assert!(
            self.superseded.is_none() || !matches!(step, Step::Commit(_)),
            "no batch is written while a snapshot supersedes batches: otherwise the file would lack the dropped entries"
        );
        let report = match step {
            Step::Commit(batch) => match self.commit(&batch) {
                Ok(committed) => Report::Committed { committed, generation: self.generation },
                Err(error) => return self.keep(Step::Commit(batch), error.into()),
            },
            Step::SaveSnapshot(file) => match snapshot::save(&*self.disk, &self.snap_dir, &file) {
                Ok(mark) => {
                    snap::release_databases(&*self.disk, &self.snap_dir, mark.index)?;
                    Report::SnapshotSaved(mark)
                }
                Err(error) => return self.keep(Step::SaveSnapshot(file), error.into()),
            },
            Step::Send(message) => Report::Send { message, image: self.backend.db().read() },
            Step::Install { index, completion } => {
                image::replace(&self.backend, &self.disk, &self.snap_dir, index)?;
                self.generation += 1;
                Report::Installed { index, completion }
            }
            Step::Report(report) => report,
        };
        if std::mem::take(&mut self.lacks_space) {
            self.steps.push_front(Step::Report(Report::RoomAgain));
        }
        Ok(Some(report))
    }

    /// Commits a batch. The file's index never decreases.
    fn commit(&self, batch: &Batch) -> Result<Committed, Fault> {
        if let Some((index, _)) = batch.consistent_index() {
            let (before, _) = self.backend.read().consistent_index()?;
            assert!(
                index >= before,
                "the index of the backend file never decreases: otherwise a restarted member would apply entries twice"
            );
        }
        self.backend.commit(batch)
    }

    /// Keeps a step that failed because the disk is full. The full disk is reported only once until there is room
    /// again.
    fn keep(
        &mut self,
        step: Step<T, R>,
        error: BackendError,
    ) -> Result<Option<Report<T, R>>, BackendError> {
        if !error.is_no_room() {
            return Err(error);
        }
        self.steps.push_front(step);
        assert!(
            self.superseded.is_none(),
            "a superseded batch never waits for room: otherwise the snapshot behind it would wait forever"
        );
        let was_reported = std::mem::replace(&mut self.lacks_space, true);
        Ok((!was_reported).then_some(Report::NoRoom(error)))
    }

    /// Returns whether the next step waits for room on the disk.
    #[must_use]
    pub const fn lacks_space(&self) -> bool {
        self.lacks_space
    }

    /// Drops all steps and all later orders, so that the member can stop without waiting for room. The file still
    /// contains the changes of a prefix of the log.
    pub fn give_up(&mut self) {
        self.has_given_up = true;
        self.lacks_space = false;
        self.steps.clear();
        self.reclaiming = None;
    }

    /// Returns whether [`BackendWriter::give_up`] was called.
    #[must_use]
    pub const fn has_given_up(&self) -> bool {
        self.has_given_up
    }
}
