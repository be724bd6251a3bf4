//! Checks for messages and snapshots from other members.
//!
//! A snapshot arrives as a message, followed by its image, which is the backend file. The message is checked before the
//! image is stored, so a message from an unknown sender or with an invalid snapshot uses no disk space. The image is
//! received into a file with a temporary name. Once the image is complete, the file is renamed to `<index>.snap.db`.
//! These are the steps:
//!
//! ```text
//! message -> Snapshot::admit -> Depot::begin -> Reserved::create -> Arriving::write ... -> Arriving::finish
//!         -> message for consensus
//! ```
//!
//! # Invariants
//!
//! * Consensus receives a snapshot's message only after the image is durable in a file named after the index in the
//!   message, because only [`Arriving::finish`] returns the message.
//! * The snapshot and its image have the same index. If the image is newer, the message takes the image's index, term
//!   and members. Otherwise, the image must list all members that the message counts, and the installation corrects the
//!   rest of the list.
//! * At most [`INCOMING_MAX`] images are received concurrently, and at most one from each sender. A newer image of a
//!   sender replaces the earlier image, so an abandoned transfer does not delay the next attempt.
//! * An image is at most as long as its first page states, so a stream of other bytes does not fill the disk.
//! * A refused snapshot leaves no file behind. If the file cannot be removed immediately, it is removed when the member
//!   restarts.
//!
//! # Not here
//!
//! Connections and time limits (`peer`). The list of members, because the caller classifies the sender.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use quorate_raft::{ConfState, LogIndex, MemberId, Message, MessageKind, SnapshotMetadata, Term};
use quorate_state::apply::{ReceivedFault, SnapshotPosition, snapshot_position};
use quorate_state::backend::{Fault, open_image};
use quorate_storage::bolt::{IMAGE_HEAD_BYTES, image_bytes};
use quorate_storage::disk::Disk;
use quorate_storage::snap::{IncomingDatabase, SnapError};

use crate::snapshot::{as_counted, configuration_of};

/// The maximum number of images that are received concurrently. Each comes from a different sender.
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
    #[error("the sender has started to send a newer snapshot")]
    Replaced,
    #[error(transparent)]
    Storage(#[from] SnapError),
    #[error("the image is longer than the {bytes_max} bytes that its first page states")]
    TooLong { bytes_max: u64 },
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
    /// Checks the sender that a request for the member `own` names, before the message is read. `sender` is the relation
    /// of the member `claimed` to the cluster.
    pub fn admit_sender(
        own: MemberId,
        claimed: Option<MemberId>,
        sender: Sender,
    ) -> Result<(), NotForUs> {
        match sender {
            Sender::Removed => Err(NotForUs::Removed),
            // A member sends no snapshot to itself.
            Sender::Member | Sender::Unknown if claimed.is_none_or(|id| id == own) => {
                Err(NotForUs::OtherSender)
            }
            Sender::Unknown => Err(NotForUs::UnknownSender),
            Sender::Member => Ok(()),
        }
    }

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
        Self::admit_sender(own, claimed, sender)?;
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
    next_number: u64,
    /// The newest image of each sender.
    newest: BTreeMap<MemberId, WeakPermit>,
}

impl Depot {
    /// Creates a depot in this directory. Temporary names are numbered from `first_number` on, which must be higher
    /// than every number that an earlier process has used.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: &Path, first_number: u64) -> Self {
        Self { disk, dir: dir.to_path_buf(), next_number: first_number, newest: BTreeMap::new() }
    }

    /// Reserves a permit for a snapshot's image, unless images of too many other senders are being received. An earlier
    /// image of the same sender is refused from then on.
    pub fn begin(&mut self, snapshot: Snapshot) -> Result<Reserved, Refused> {
        let from = snapshot.message.from;
        self.newest.retain(|_, permit| permit.0.strong_count() > 0);
        if self.newest.len() >= INCOMING_MAX && !self.newest.contains_key(&from) {
            return Err(Refused::TooMany);
        }
        let permit = Permit::default();
        if let Some(earlier) = self.newest.insert(from, permit.downgrade()) {
            earlier.replace();
        }
        let number = self.next_number;
        self.next_number += 1;
        let (disk, dir) = (Arc::clone(&self.disk), self.dir.clone());
        Ok(Reserved { snapshot, disk, dir, number, permit })
    }
}

/// A permit to receive an image, which is released when it is dropped. Its flag is set when the image is replaced.
#[derive(Debug, Default)]
struct Permit(Arc<AtomicBool>);

#[derive(Debug)]
struct WeakPermit(Weak<AtomicBool>);

impl Permit {
    fn downgrade(&self) -> WeakPermit {
        WeakPermit(Arc::downgrade(&self.0))
    }

    /// Fails if a newer image has replaced this image.
    fn check(&self) -> Result<(), Refused> {
        let is_replaced = self.0.load(Ordering::Acquire);
        if is_replaced { Err(Refused::Replaced) } else { Ok(()) }
    }
}

impl WeakPermit {
    fn replace(&self) {
        if let Some(is_replaced) = self.0.upgrade() {
            is_replaced.store(true, Ordering::Release);
        }
    }
}

/// A snapshot with a permit to receive its image.
#[derive(Debug)]
pub struct Reserved {
    snapshot: Snapshot,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    number: u64,
    permit: Permit,
}

impl Reserved {
    /// Creates the file for the image.
    pub fn create(self) -> Result<Arriving, Refused> {
        let Self { snapshot, disk, dir, number, permit } = self;
        let file = IncomingDatabase::create(Arc::clone(&disk), &dir, number)?;
        Ok(Arriving { snapshot, disk, file, permit, head: Vec::new(), bytes_max: None })
    }
}

/// A snapshot whose image is being received.
#[derive(Debug)]
pub struct Arriving {
    snapshot: Snapshot,
    disk: Arc<dyn Disk>,
    file: IncomingDatabase,
    permit: Permit,
    /// The first bytes of the image, until they are complete.
    head: Vec<u8>,
    /// The length of the image according to its first bytes.
    bytes_max: Option<u64>,
}

impl Arriving {
    /// Appends a chunk of the image, unless the image was replaced, is not a backend file, or is longer than it states.
    pub fn write(&mut self, piece: &[u8]) -> Result<(), Refused> {
        self.permit.check()?;
        self.check_length(piece)?;
        Ok(self.file.write(piece)?)
    }

    fn check_length(&mut self, piece: &[u8]) -> Result<(), Refused> {
        if self.bytes_max.is_none() {
            let missing = IMAGE_HEAD_BYTES - self.head.len();
            self.head.extend_from_slice(&piece[..missing.min(piece.len())]);
            if self.head.len() < IMAGE_HEAD_BYTES {
                return Ok(());
            }
            let stated = image_bytes(self.file.path(), &self.head).map_err(Fault::from);
            self.bytes_max = Some(stated.map_err(ReceivedFault::from)?);
        }
        match self.bytes_max {
            Some(bytes_max) if self.bytes() + piece.len() as u64 > bytes_max => {
                Err(Refused::TooLong { bytes_max })
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns the number of bytes received so far.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Checks the complete image, syncs its file, renames the file to `<index>.snap.db`, and returns the message for
    /// consensus.
    pub fn finish(self) -> Result<Message, Refused> {
        let Self { snapshot: Snapshot { mut message, named }, disk, file, permit, .. } = self;
        let sent = message.snapshot.as_mut().ok_or(Refused::Unfit("it is missing"))?;
        let checked = permit.check().and_then(|()| position_of(&disk, &file, named, &sent.data));
        match checked {
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
