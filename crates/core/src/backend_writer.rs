//! The writer of the backend file: it commits batches and carries out the actions that follow each commit.
//!
//! Orders are split into steps, and a call carries out one step. The driver may check the clock between two steps, or
//! simulate a power failure.
//!
//! # Invariants
//!
//! * Batches are committed atomically, in the order in which they were handed over.
//! * Actions that depend on a durable batch (a snapshot, an image for a peer, a response) follow its commit, in order.
//!   A snapshot's file is durable before its mark is requested. Older images are released only when the backend file
//!   contains the snapshot.
//! * Free space is reclaimed in steps of bounded length. A batch never waits for more than one of them.
//! * A full disk loses no step: the step and all steps behind it are kept until there is room. Acknowledged changes
//!   are in the log meanwhile.
//! * Batches that wait for room are dropped when a leader's snapshot that contains them is in the log
//!   ([`BackendWriter::supersede`]). From then until the snapshot's image is installed no batch is written: a file that
//!   lacks a batch must not receive the next one.
//!
//! # Bound
//!
//! The steps of the accepted orders. The driver accepts no order while steps are left, so the bound of its queue bounds
//! the pending work.

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

/// An order to the writer. `T` identifies a caller that waits for its completion, `R` one that waits for a
/// defragmentation.
#[derive(Debug)]
pub enum Order<T, R> {
    /// Write this batch, then carry out the actions that follow it.
    Commit {
        /// The batch, which may be empty.
        batch: Batch,
        /// The actions that follow the commit.
        then: Vec<Then<T>>,
    },
    /// Replace the backend file with the received image of a snapshot.
    Install {
        /// The snapshot's last entry.
        index: LogIndex,
        /// The caller that waits for the installation.
        completion: T,
    },
    /// Return free space to the file system.
    Defragment(R),
    /// Stop, after all earlier orders.
    Stop,
}

/// An action that follows a durable batch.
#[derive(Debug)]
pub enum Then<T> {
    /// Write a snapshot at the batch's index.
    Snapshot(SnapshotOrder),
    /// Send a peer the current file with this message.
    Send(Message),
    /// Report that a compaction is durable.
    Compacted(CompactionEnd),
    /// Notify a caller.
    Complete(T),
}

/// A finished compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionEnd {
    /// The revision of the compaction.
    pub revision: i64,
    /// Its duration.
    pub took: Duration,
    /// The number of removed records.
    pub removed_count: u64,
}

/// The result of a defragmentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defragmented {
    /// The size of the file before it.
    pub bytes_before: u64,
    /// The size of the file after it.
    pub bytes_after: u64,
}

/// The result of a step, for the other state machines and the callers.
#[derive(Debug)]
pub enum Report<T, R> {
    /// A batch is committed. For the state machine.
    Committed {
        /// The new content of the file.
        committed: Committed,
        /// The number of times that the file was replaced.
        generation: u64,
    },
    /// Pages were moved, and readers should take the new view, which has the same content. For the state machine.
    Moved {
        /// The content of the file.
        committed: Committed,
        /// The number of times that the file was replaced.
        generation: u64,
    },
    /// A snapshot's file is on disk: write its mark to the log.
    SnapshotSaved(SnapshotMark),
    /// Send this image with the message.
    Send {
        /// The message, with its receiver and the snapshot.
        message: Message,
        /// The file at the message's index.
        image: ReadTx,
    },
    /// A compaction is durable.
    Compacted(CompactionEnd),
    /// A batch was dropped: the image of a leader's snapshot is about to replace the file.
    Superseded,
    /// The image of the snapshot at `index` is the backend file now.
    Installed {
        /// The snapshot's last entry.
        index: LogIndex,
        /// The caller that waits for the installation.
        completion: T,
    },
    /// Notify this caller.
    Complete(T),
    /// A defragmentation has ended.
    Defragmented {
        /// The callers that requested it.
        completions: Vec<R>,
        /// The result.
        outcome: Defragmented,
    },
    /// The disk has no room for the next step. The step is kept and blocks all others until there is room.
    NoRoom(BackendError),
    /// The disk has room again.
    RoomAgain,
    /// All orders before [`Order::Stop`] are carried out or dropped.
    Ended,
}

/// Why the backend file cannot be written.
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
    /// Whether the cause is a full disk, and no file was changed.
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
    /// Only report this.
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
    /// The number of times that the file was replaced.
    generation: u64,
    /// Whether the next step has found no room on the disk.
    lacks_space: bool,
    superseded: Option<Superseded<T>>,
    has_given_up: bool,
}

/// A leader's snapshot that supersedes batches. They are dropped until its image is installed.
#[derive(Debug)]
struct Superseded<T> {
    /// The snapshot's last entry.
    index: LogIndex,
    /// The callers that wait until the file contains their changes. They are notified when the image is installed.
    completions: Vec<T>,
}

impl<T, R> BackendWriter<T, R> {
    /// A writer of this backend file, which is in the snapshot directory.
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

    /// The backend file.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Accepts an order. [`BackendWriter::step`] carries it out.
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
                // The new file is defragmented only on a new request.
                self.end_reclaiming();
                self.steps.push_back(Step::Install { index, completion });
                let ended = self.superseded.take_if(|superseded| superseded.index <= index);
                if let Some(superseded) = ended {
                    // No step waits for room any more. If there is still none, the next batch reports it.
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

    /// A leader's snapshot at `index` is in the log, and its image will be installed after the batches that are ordered
    /// before it. If the disk has no room for them, they are dropped: the image contains them. Returns whether batches
    /// were dropped.
    ///
    /// After a crash the start finds the snapshot's mark in the log, and replaces the file with the image.
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

    /// While batches are superseded, drops the unnecessary steps from this position on.
    ///
    /// A snapshot that this member takes itself would be older than the leader's. An image for a peer is not missed:
    /// only a leader sends images, and a leader installs none.
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

    /// Carries out the next step. Returns `None` if there is no step, or no room for it.
    pub fn step(&mut self) -> Result<Option<Report<T, R>>, BackendError> {
        let Some(step) = self.steps.pop_front() else { return Ok(None) };
        assert!(
            self.superseded.is_none() || !matches!(step, Step::Commit(_)),
            "no batch is written while a snapshot supersedes batches: the file would lack the entries in between"
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

    /// Commits a batch. The file's index never falls.
    fn commit(&self, batch: &Batch) -> Result<Committed, Fault> {
        if let Some((index, _)) = batch.consistent_index() {
            let (before, _) = self.backend.read().consistent_index()?;
            assert!(
                index >= before,
                "the backend file is a prefix of the log and grows: a lower index would apply entries again at a start"
            );
        }
        self.backend.commit(batch)
    }

    /// Keeps a step that failed because the disk is full. Reports the full disk once, until there is room again.
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
            "a batch that a snapshot supersedes waits for no room: the snapshot behind it would wait for ever"
        );
        let was_reported = std::mem::replace(&mut self.lacks_space, true);
        Ok((!was_reported).then_some(Report::NoRoom(error)))
    }

    /// Whether the next step waits for room on the disk.
    #[must_use]
    pub const fn lacks_space(&self) -> bool {
        self.lacks_space
    }

    /// Drops all steps and all later orders, for a stop that cannot wait for room. The file remains a prefix of the
    /// log.
    pub fn give_up(&mut self) {
        self.has_given_up = true;
        self.lacks_space = false;
        self.steps.clear();
        self.reclaiming = None;
    }
}
