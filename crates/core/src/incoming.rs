//! Checks for messages and snapshots from other members.
//!
//! A snapshot arrives as a message, followed by its image, which is the backend file. The message is checked before the
//! image is stored, so a message from an unknown sender or with an invalid snapshot uses no disk space. The image is
//! received into a file with a temporary name. Once the image is complete, the file is renamed to `<index>.snap.db`.
//! These are the steps:
//!
//! ```text
//! message -> Snapshot::admit -> Depot::begin -> Arriving::write ... -> Arriving::finish -> message for consensus
//! ```
//!
//! # Invariants
//!
//! * Consensus receives a snapshot's message only after the image is durable in a file named after the index in the
//!   message, because only [`Arriving::finish`] returns the message.
//! * The snapshot and its image have the same index. If the image is newer, the message takes the image's index, term
//!   and members. Otherwise, the image must list all members that the message counts, and the installation corrects the
//!   rest of the list.
//! * At most [`INCOMING_MAX`] images are received concurrently.
//! * A refused snapshot leaves no file behind. If the file cannot be removed immediately, it is removed when the member
//!   restarts.
//!
//! # Not here
//!
//! Connections and time limits (`peer`). The list of members, because the caller classifies the sender.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use quorate_raft::{ConfState, LogIndex, MemberId, Message, MessageKind, SnapshotMetadata, Term};
use quorate_state::apply::{ReceivedFault, SnapshotPosition, snapshot_position};
use quorate_state::backend::open_image;
use quorate_storage::disk::Disk;
use quorate_storage::snap::{IncomingDatabase, SnapError};

use crate::snapshot::{as_counted, configuration_of};

/// The maximum number of images that are received concurrently.
pub const INCOMING_MAX: usize = 4;

/// The relation of a message's sender to the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A member, according to this member's applied state, or according to other members that were asked about the
    /// sender.
    Member,
    /// A removed member.
    Removed,
    /// Neither a current nor a removed member.
    Unknown,
}

/// Why consensus must not receive a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the error text describes each variant")]
pub enum NotForUs {
    #[error("cannot process message from removed member")]
    Removed,
    #[error("cannot process message to mismatch member")]
    OtherMember,
    #[error("cannot process message: its sender id differs from the id of the sending member")]
    OtherSender,
    #[error("cannot process message from unknown member")]
    UnknownSender,
}

/// Checks that the consensus of the member `own` may receive a message from this sender.
pub fn admit(own: MemberId, message: &Message, sender: Sender) -> Result<(), NotForUs> {
    match sender {
        Sender::Removed => Err(NotForUs::Removed),
        Sender::Member | Sender::Unknown if message.to != own => Err(NotForUs::OtherMember),
        Sender::Unknown => Err(NotForUs::UnknownSender),
        Sender::Member => Ok(()),
    }
}

/// Why a snapshot is refused.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the error text describes each variant")]
pub enum Refused {
    #[error("wrong raft message type")]
    Kind,
    #[error(transparent)]
    NotForUs(#[from] NotForUs),
    #[error("this member cannot install the snapshot: {0}")]
    Unfit(&'static str),
    #[error("too many snapshots are being received")]
    TooMany,
    #[error(transparent)]
    Storage(#[from] SnapError),
    #[error("the image is invalid: {0}")]
    Image(#[from] ReceivedFault),
    #[error(
        "the members in the snapshot ({counted:?}) differ from the members in its image ({listed:?})"
    )]
    Members { counted: Box<ConfState>, listed: Box<ConfState> },
}

/// A snapshot whose image may be stored.
#[derive(Debug)]
pub struct Snapshot {
    message: Message,
    named: SnapshotMetadata,
}

impl Snapshot {
    /// Checks a snapshot for the member `own`. `claimed` is the sender that the request names.
    pub fn admit(
        own: MemberId,
        claimed: Option<MemberId>,
        sender: Sender,
        message: Message,
    ) -> Result<Self, Refused> {
        if message.kind != MessageKind::Snapshot {
            return Err(Refused::Kind);
        }
        if claimed != Some(message.from) {
            return Err(NotForUs::OtherSender.into());
        }
        admit(own, &message, sender)?;
        let snapshot = message.snapshot.as_ref().ok_or(Refused::Unfit("it is missing"))?;
        let named = snapshot.metadata.clone();
        if named.index == LogIndex::ZERO || named.term == Term::ZERO || named.term > message.term {
            return Err(Refused::Unfit("its index or term is missing"));
        }
        let ConfState { voters, learners, voters_outgoing, .. } = &named.conf_state;
        let mut members = voters.iter().chain(learners).chain(voters_outgoing);
        if !members.any(|id| *id == own) {
            return Err(Refused::Unfit("its configuration does not contain this member"));
        }
        Ok(Self { message, named })
    }

    /// Returns the index in the snapshot's message.
    #[must_use]
    pub const fn index(&self) -> LogIndex {
        self.named.index
    }
}

/// The directory in which received images are stored.
#[derive(Debug)]
pub struct Depot {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    next_number: AtomicU64,
    arriving: Arc<AtomicUsize>,
}

impl Depot {
    /// Creates a depot in this directory. Temporary names are numbered from `first_number` on, which must be higher
    /// than every number that an earlier process has used.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: &Path, first_number: u64) -> Self {
        let (next_number, arriving) = (AtomicU64::new(first_number), Arc::default());
        Self { disk, dir: dir.to_path_buf(), next_number, arriving }
    }

    /// Creates a file for a snapshot's image, unless too many images are being received.
    pub fn begin(&self, snapshot: Snapshot) -> Result<Arriving, Refused> {
        let permit = self.permit()?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let file = IncomingDatabase::create(Arc::clone(&self.disk), &self.dir, number)?;
        Ok(Arriving { snapshot, disk: Arc::clone(&self.disk), file, _permit: permit })
    }

    fn permit(&self) -> Result<Permit, Refused> {
        let taken = self.arriving.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
            (count < INCOMING_MAX).then_some(count + 1)
        });
        taken.map_err(|_| Refused::TooMany)?;
        Ok(Permit(Arc::clone(&self.arriving)))
    }
}

/// A permit to receive an image, returned on drop.
#[derive(Debug)]
struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel);
        assert!(
            before > 0,
            "each permit is returned once: otherwise the bound on images would be lost"
        );
    }
}

/// A snapshot whose image is being received.
#[derive(Debug)]
pub struct Arriving {
    snapshot: Snapshot,
    disk: Arc<dyn Disk>,
    file: IncomingDatabase,
    _permit: Permit,
}

impl Arriving {
    /// Appends a chunk of the image.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), Refused> {
        Ok(self.file.write(piece)?)
    }

    /// Returns the number of bytes received so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Checks the complete image, syncs its file, renames the file to `<index>.snap.db`, and returns the message for
    /// consensus.
    pub fn finish(self) -> Result<Message, Refused> {
        let Self { snapshot: Snapshot { mut message, named }, disk, file, .. } = self;
        let sent = message.snapshot.as_mut().ok_or(Refused::Unfit("it is missing"))?;
        match position_of(&disk, &file, named, &sent.data) {
            Ok(position) => {
                file.finish(position.index.get())?;
                sent.metadata = position;
                Ok(message)
            }
            Err(refused) => {
                file.discard()?;
                Err(refused)
            }
        }
    }

    /// Removes the file of an incomplete image.
    pub fn discard(self) -> Result<(), Refused> {
        Ok(self.file.discard()?)
    }
}

/// Opens an image and returns the log position and the members that it contains.
fn position_of(
    disk: &Arc<dyn Disk>,
    file: &IncomingDatabase,
    named: SnapshotMetadata,
    tree: &[u8],
) -> Result<SnapshotMetadata, Refused> {
    let image = open_image(disk, file.path()).map_err(ReceivedFault::from)?;
    let position = snapshot_position(&image, (named.index.get(), named.term.get()), tree)?;
    let SnapshotPosition { index, term, members } = position;
    let (index, term) = (LogIndex(index), Term(term));
    let members = match index == named.index {
        true => as_counted(members, &named.conf_state),
        false => members,
    };
    let listed = configuration_of(&members);
    if index == named.index && !listed.is_equivalent(&named.conf_state) {
        let (counted, listed) = (Box::new(named.conf_state), Box::new(listed));
        return Err(Refused::Members { counted, listed });
    }
    Ok(SnapshotMetadata { conf_state: listed, index, term })
}

#[cfg(test)]
mod tests;
