//! The backend file at work: batches committed, and what follows each of them.
//!
//! Orders become steps, and one step is done at a time: whoever drives this may look at the clock in between, or
//! cut the power.
//!
//! # Invariants
//!
//! * Batches are committed in the order in which they were handed over, each whole.
//! * What has to wait for a batch to be durable (a snapshot, an image for a peer, an answer) happens after its
//!   commit, in order. A snapshot's file is durable before its mark is asked for, and images that it passes are
//!   released only when the backend file contains it.
//! * Giving space back proceeds in steps of bounded length; a batch never waits for more than one.
//! * A disk without room changes nothing: the step is kept, and with it everything behind, until there is room. What
//!   was acknowledged is in the log meanwhile.
//! * What waits for room is dropped when a leader's snapshot is in the log that contains it
//!   ([`BackendWriter::supersede`]). From then until the snapshot's image is in place no batch is written: a file that
//!   misses one must not get the next.
//!
//! # Bound
//!
//! The steps of the orders taken. Whoever drives this takes no order while there are steps left, so that the bound of
//! its queue is the bound of what is held back.

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

/// What the writer is told. `T` is what a caller is told by that something is done, `R` what space was given back.
#[derive(Debug)]
pub enum Order<T, R> {
    /// Write this batch, then do what follows it.
    Commit {
        /// The batch, which may be empty.
        batch: Batch,
        /// What follows.
        then: Vec<Then<T>>,
    },
    /// Put the received image of a snapshot in place of the backend file.
    Install {
        /// The snapshot's last entry.
        index: LogIndex,
        /// Who waits for that.
        told: T,
    },
    /// Give free space back to the file system.
    Defragment(R),
    /// End, after everything before.
    Stop,
}

/// What happens once a batch is durable.
#[derive(Debug)]
pub enum Then<T> {
    /// Write a snapshot that stands at the batch's index.
    Snapshot(SnapshotOrder),
    /// Send a peer the file as it is then, by this message.
    Send(Message),
    /// Tell that a compaction is durable.
    Compacted(CompactionEnd),
    /// Tell somebody.
    Tell(T),
}

/// A compaction that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionEnd {
    /// Up to where.
    pub revision: i64,
    /// How long it took.
    pub took: Duration,
    /// Records that are gone.
    pub removed_count: u64,
}

/// What giving space back has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defragmented {
    /// Size of the file before.
    pub bytes_before: u64,
    /// Size of the file after.
    pub bytes_after: u64,
}

/// What a step has done, for others to hear.
#[derive(Debug)]
pub enum Report<T, R> {
    /// The file has a new state. For the state machine.
    Committed {
        /// What it holds now.
        committed: Committed,
        /// How often the file was replaced.
        generation: u64,
    },
    /// Pages were moved, and readers are to take the new view, which holds the same. For the state machine.
    Moved {
        /// What it holds now.
        committed: Committed,
        /// How often the file was replaced.
        generation: u64,
    },
    /// A snapshot's file is on disk: mark the log with it.
    SnapshotSaved(SnapshotMark),
    /// Send this image by that message.
    Send {
        /// To whom, and what the snapshot says.
        message: Message,
        /// The file as of the message's index.
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
        /// Who waits for that.
        told: T,
    },
    /// Tell this caller.
    Tell(T),
    /// Space was given back, as far as there was any.
    Defragmented {
        /// Those who asked.
        told: Vec<R>,
        /// What they are told.
        outcome: Defragmented,
    },
    /// There is no room for the next step, which is kept: nothing happens before there is.
    NoRoom(BackendError),
    /// There was room again.
    RoomAgain,
    /// Everything before the order to end is done, or was given up.
    Ended,
}

/// Why the backend file cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// A batch, or the file itself.
    #[error(transparent)]
    Backend(#[from] Fault),
    /// The file, while space was given back.
    #[error(transparent)]
    Bolt(#[from] BoltError),
    /// A snapshot's file.
    #[error(transparent)]
    Snapshot(#[from] SnapError),
    /// An image.
    #[error(transparent)]
    Install(#[from] InstallError),
}

impl BackendError {
    /// Whether only room was missing, and everything is as it was before.
    fn is_no_room(&self) -> bool {
        match self {
            Self::Backend(Fault::Engine(error)) | Self::Bolt(error) => error.is_no_room(),
            Self::Snapshot(error) => error.is_no_room(),
            Self::Backend(Fault::MissingRecord { .. } | Fault::Corrupt { .. })
            | Self::Install(_) => false,
        }
    }
}

/// One thing to do.
#[derive(Debug)]
enum Step<T, R> {
    Commit(Batch),
    SaveSnapshot(snap::Snapshot),
    Send(Message),
    Install {
        index: LogIndex,
        told: T,
    },
    /// Nothing but this to report.
    Report(Report<T, R>),
}

/// A member's backend file at work; see the module.
#[derive(Debug)]
pub struct BackendWriter<T, R> {
    backend: Backend,
    disk: Arc<dyn Disk>,
    snap_dir: PathBuf,
    steps: VecDeque<Step<T, R>>,
    reclaiming: Option<Reclaiming<R>>,
    /// How often the file was replaced.
    generation: u64,
    /// The next step has found no room.
    lacks_room: bool,
    superseded: Option<Superseded<T>>,
    has_given_up: bool,
}

/// Batches are dropped until the image of a leader's snapshot is in place.
#[derive(Debug)]
struct Superseded<T> {
    /// The snapshot's last entry.
    index: LogIndex,
    /// To be told when the file contains what is applied: then.
    told: Vec<T>,
}

impl<T, R> BackendWriter<T, R> {
    /// Writes to this backend file, in the folder of snapshots.
    #[must_use]
    pub const fn new(backend: Backend, disk: Arc<dyn Disk>, snap_dir: PathBuf) -> Self {
        Self {
            backend,
            disk,
            snap_dir,
            steps: VecDeque::new(),
            reclaiming: None,
            generation: 0,
            lacks_room: false,
            superseded: None,
            has_given_up: false,
        }
    }

    /// The file.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Takes an order in. It is carried out by [`BackendWriter::step`].
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
                    Then::Tell(told) => Step::Report(Report::Tell(told)),
                }));
                self.drop_superseded(from);
            }
            Order::Install { index, told } => {
                // Space is reclaimed in the other file when somebody asks for it again.
                self.end_reclaiming();
                self.steps.push_back(Step::Install { index, told });
                let ended = self.superseded.take_if(|superseded| superseded.index <= index);
                if let Some(superseded) = ended {
                    // Nothing waits for room any more. The next batch says if there is none.
                    self.steps.push_back(Step::Report(Report::RoomAgain));
                    let told = superseded.told.into_iter();
                    self.steps.extend(told.map(|told| Step::Report(Report::Tell(told))));
                }
            }
            Order::Defragment(told) => self.begin_reclaiming(told, now),
        }
    }

    /// A leader's snapshot at `index` is in the log, and its image will be installed after the batches that are ordered
    /// before it. Where these find no room they are dropped: the image contains them. Says whether there was anything
    /// to drop.
    ///
    /// After a crash the start finds the snapshot's mark in the log, and installs the image over whatever the file has.
    pub fn supersede(&mut self, index: LogIndex) -> Result<bool, BackendError> {
        let (reached, _) = self.backend.read().consistent_index()?;
        if !self.lacks_room || index.get() <= reached {
            return Ok(false);
        }
        self.lacks_room = false;
        let told = self.superseded.take().map_or_else(Vec::new, |before| before.told);
        self.superseded = Some(Superseded { index, told });
        self.drop_superseded(0);
        Ok(true)
    }

    /// Drops the steps from this position on that have lost their purpose, while batches are superseded.
    ///
    /// A snapshot of this member's own would be older than the leader's. A peer is sent no image whose batch is
    /// missing: only a leader sends any, and it installs none.
    fn drop_superseded(&mut self, from: usize) {
        let Some(superseded) = &mut self.superseded else { return };
        for step in self.steps.split_off(from) {
            match step {
                Step::Commit(_) => self.steps.push_back(Step::Report(Report::Superseded)),
                Step::SaveSnapshot(_) | Step::Send(_) | Step::Report(Report::Compacted(_)) => {}
                Step::Report(Report::Tell(told)) => superseded.told.push(told),
                Step::Install { .. } | Step::Report(_) => self.steps.push_back(step),
            }
        }
    }

    /// Does the next step; `None` when there is none, or no room for it.
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
            Step::Install { index, told } => {
                image::replace(&self.backend, &self.disk, &self.snap_dir, index)?;
                self.generation += 1;
                Report::Installed { index, told }
            }
            Step::Report(report) => report,
        };
        if std::mem::take(&mut self.lacks_room) {
            self.steps.push_front(Step::Report(Report::RoomAgain));
        }
        Ok(Some(report))
    }

    /// Commits a batch, which never takes the file back.
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

    /// Keeps a step that has only found no room. Told once, until there is room again.
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
        let is_told = std::mem::replace(&mut self.lacks_room, true);
        Ok((!is_told).then_some(Report::NoRoom(error)))
    }

    /// Whether the next step waits for room on the disk.
    #[must_use]
    pub const fn lacks_room(&self) -> bool {
        self.lacks_room
    }

    /// Drops what is left to do and all that comes, for the sake of an end that cannot wait for room. The file is
    /// a prefix of the log as it is.
    pub fn give_up(&mut self) {
        self.has_given_up = true;
        self.lacks_room = false;
        self.steps.clear();
        self.reclaiming = None;
    }
}
