//! Receives a snapshot over a connection: the message, then the image. [`quorate_core::incoming`] decides which
//! snapshots are accepted and when consensus receives the message.
//!
//! The message is buffered within the bounds of [`crate::body_reader`]. A request whose headers name an unknown sender is
//! refused before its body is read.
//!
//! The image is written to disk in pieces, on threads outside the runtime. During a write, flow control slows down the
//! sender.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Buf;
use parking_lot::Mutex;
use quorate_core::incoming::{Depot, NotForUs, Refused, Sender, Snapshot};
use quorate_net::listen::IncomingBody;
use quorate_raft::{MemberId, Message};
use quorate_storage::disk::Disk;
use tokio::sync::Semaphore;

use crate::body_reader::{BodyError, BodyReader};
use crate::local::Local;
use crate::wire::{self, WireError};
use quorate_net::runtime::blocking;
use quorate_telemetry::log;

/// Maximum length of the message that precedes the image. The message contains only the membership.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// Minimum number of bytes in a piece that is written to disk.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

const LENGTH_BYTES: usize = 8;

pub(crate) const UNKNOWN_SENDER: &str = "UNKNOWN_SNAPSHOT_SENDER";

/// Why a snapshot was not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("failed to decode raft message ({0})")]
    Message(BrokenOff),
    #[error("wrong raft message type")]
    Kind,
    /// The sender is not known to be a member, or uses another member's id.
    #[error("error sender not found")]
    Stranger,
    #[error("this member cannot install the snapshot: {0}")]
    Unfit(&'static str),
    #[error("failed to save KV snapshot ({0})")]
    Save(SaveError),
    #[error("failed to process raft message ({0})")]
    NotForUs(NotForUs),
}

impl From<Refused> for ReceiveError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Kind => Self::Kind,
            Refused::Unfit(reason) => Self::Unfit(reason),
            Refused::NotForUs(NotForUs::UnknownSender | NotForUs::OtherSender) => Self::Stranger,
            Refused::NotForUs(error @ (NotForUs::Removed | NotForUs::OtherMember)) => {
                Self::NotForUs(error)
            }
            Refused::TooMany
            | Refused::Replaced
            | Refused::TooLong { .. }
            | Refused::Storage(_)
            | Refused::Image(_)
            | Refused::Members { .. } => Self::Save(SaveError::Refused(refused)),
        }
    }
}

/// Why the message at the start of the body is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokenOff {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Why the file could not be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Refused(Refused),
}

/// Creates the store for received images. The images are numbered from the current time, so that no earlier process has
/// used the same numbers.
pub(crate) fn depot(disk: Arc<dyn Disk>, dir: &Path) -> Depot {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Depot::new(disk, dir, u64::try_from(now.as_nanos()).unwrap_or(0))
}

/// Receives the body of a snapshot request. `sender` is the member named in the request's headers. If it is not a
/// member, the body is not read.
pub(crate) async fn receive(
    local: &Local,
    depot: &Mutex<Depot>,
    large_bodies: &Semaphore,
    sender: Option<MemberId>,
    body: IncomingBody,
) -> Result<(), ReceiveError> {
    let started = Instant::now();
    let network = &local.metrics.network;
    let known = sender.map_or(Sender::Unknown, |sender| local.known_members.of(sender));
    let mut body = BodyReader::new(body, local.read_timeout);
    let message = async {
        Snapshot::admit_sender(local.id, sender, known).map_err(Refused::from)?;
        read_message(&mut body, large_bodies).await
    };
    let message = match message.await {
        Ok(message) => message,
        Err(error) => {
            network.snapshot_receive_failures.with(&[UNKNOWN_SENDER]).inc();
            return Err(error);
        }
    };
    let from = local.label(message.from, UNKNOWN_SENDER);
    let snapshot = match Snapshot::admit(local.id, sender, known, message) {
        Ok(snapshot) => snapshot,
        Err(refused) => {
            let error = ReceiveError::from(refused);
            // The failure is not counted for the member whose id the message contains, because the message may come
            // from a different sender.
            let name = if matches!(error, ReceiveError::Stranger) { UNKNOWN_SENDER } else { &from };
            network.snapshot_receive_failures.with(&[name]).inc();
            return Err(error);
        }
    };
    let inflights = network.snapshot_receive_inflights.with(&[&from]);
    inflights.inc();
    let received = take_in(local, depot, body, snapshot, &from).await;
    inflights.dec();
    match &received {
        Ok(()) => {
            network.snapshot_receive_success.with(&[&from]).inc();
            network.snapshot_receive_duration.with(&[&from]).observe(started.elapsed());
        }
        Err(_) => network.snapshot_receive_failures.with(&[&from]).inc(),
    }
    received
}

async fn take_in(
    local: &Local,
    depot: &Mutex<Depot>,
    body: BodyReader,
    snapshot: Snapshot,
    from: &str,
) -> Result<(), ReceiveError> {
    let started = Instant::now();
    let index = snapshot.index();
    log::info!(
        "receiving database snapshot",
        "local-member-id" = local.introduction.member,
        "remote-snapshot-sender-id" = from,
        "incoming-snapshot-index" = index.get()
    );
    let (bytes, message) = save(local, depot, body, snapshot).await?;
    let own_index = message.snapshot.as_ref().map_or(index, |one| one.metadata.index);
    if own_index != index {
        log::info!(
            "the received database is newer than its snapshot; using the database's index and members",
            "incoming-snapshot-index" = index.get(),
            "database-index" = own_index.get()
        );
    }
    local.metrics.network.peer_received_bytes.with(&[from]).add(bytes);
    log::info!(
        "received and saved database snapshot",
        "local-member-id" = local.introduction.member,
        "remote-snapshot-sender-id" = from,
        "incoming-snapshot-index" = index.get(),
        "incoming-snapshot-size-bytes" = bytes,
        "download-took" = started.elapsed()
    );
    local.deliver_snapshot(message).await;
    Ok(())
}

/// Maximum pause between two pieces.
const REST_MAX: Duration = Duration::from_millis(50);

/// Stores an image. Returns the length of the image and the message for consensus.
async fn save(
    local: &Local,
    depot: &Mutex<Depot>,
    mut body: BodyReader,
    snapshot: Snapshot,
) -> Result<(u64, Message), ReceiveError> {
    let started = Instant::now();
    let reserved = depot.lock().begin(snapshot)?;
    let mut arriving = blocking(move || reserved.create()).await?;
    loop {
        let piece = match body.gather(PIECE_BYTES).await {
            Ok(piece) => piece,
            Err(error) => {
                blocking(move || arriving.discard()).await?;
                return Err(ReceiveError::Save(error.into()));
            }
        };
        if piece.is_empty() {
            break;
        }
        let writing = Instant::now();
        arriving =
            blocking(move || match piece.iter().try_for_each(|piece| arriving.write(piece)) {
                Ok(()) => Ok(arriving),
                Err(error) => {
                    // If discarding fails as well, the file is removed when the member restarts.
                    drop(arriving.discard());
                    Err(error)
                }
            })
            .await?;
        // After each piece, this task pauses for as long as the write took, so that the disk and the CPU can serve
        // clients while a snapshot is received.
        tokio::time::sleep(writing.elapsed().min(REST_MAX)).await;
    }
    let bytes = arriving.bytes();
    let syncing = Instant::now();
    let message = blocking(move || arriving.finish()).await?;
    local.metrics.snapshot.db_fsync.observe(syncing.elapsed());
    local.metrics.snapshot.db_save.observe(started.elapsed());
    Ok((bytes, message))
}

async fn read_message(
    body: &mut BodyReader,
    large_bodies: &Semaphore,
) -> Result<Message, ReceiveError> {
    let read = async {
        let length = body.buffer_exactly(LENGTH_BYTES, large_bodies).await?.get_u64();
        let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
        let length = length.ok_or(BodyError::TooLong)?;
        let message = body.buffer_exactly(length, large_bodies).await?;
        Ok(blocking(move || wire::decode_message(&message)).await?)
    };
    read.await.map_err(ReceiveError::Message)
}
