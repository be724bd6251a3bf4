//! Receiving a snapshot: the message, then the backend file, which is made durable under its index before the
//! consensus core hears of it.
//!
//! The message is judged before a byte of the file is stored: a stranger's, or one that cannot be a snapshot for this
//! member, costs no space. A file on its way in has a temporary name and is removed if anything fails.
//!
//! The file is written off the runtime, a piece at a time; the sender is held up meanwhile through its
//! connection.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use quorate_raft::{ConfState, LogIndex, MemberId, Message, MessageKind, SnapshotMetadata, Term};
use quorate_state::apply::{ReceivedFault, newer_position};
use quorate_state::backend::open_image;
use quorate_storage::disk::Disk;
use quorate_storage::snap::{IncomingDatabase, SnapError};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::frame::FrameError;
use crate::local::{Local, NotForUs};
use crate::wire;
use quorate_net::runtime::blocking;
use quorate_telemetry::log;

/// The longest message before a file. It holds the members and nothing else.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

/// Written at once, at least.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Files that may arrive at the same time.
const INCOMING_MAX: usize = 4;

const LENGTH_BYTES: usize = 8;

pub(crate) const UNKNOWN_SENDER: &str = "UNKNOWN_SNAPSHOT_SENDER";

/// Why a snapshot was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error("failed to decode raft message ({0})")]
    Message(BrokenOff),
    #[error("wrong raft message type")]
    Kind,
    /// It comes from nobody who is known to be a member, or from somebody in another's name.
    #[error("error sender not found")]
    Stranger,
    #[error("not a snapshot that this member can take: {0}")]
    Unfit(&'static str),
    #[error("failed to save KV snapshot ({0})")]
    Save(SaveError),
    #[error("failed to process raft message ({0})")]
    NotForUs(NotForUs),
}

impl From<NotForUs> for ReceiveError {
    fn from(error: NotForUs) -> Self {
        match error {
            NotForUs::Stranger => Self::Stranger,
            NotForUs::Removed | NotForUs::OtherMember | NotForUs::OtherSender => {
                Self::NotForUs(error)
            }
        }
    }
}

/// Why the beginning of the body is no message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BrokenOff {
    #[error("{0}")]
    Body(#[from] BodyError),
    #[error("unexpected EOF")]
    Ended,
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// Why the body ends before its time.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("{}", log::error_chain(.0))]
    Http(#[from] hyper::Error),
    #[error("read tcp: i/o timeout")]
    Silent,
}

/// Why the file is not on disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Snap(#[from] SnapError),
    #[error("the image is of no use: {0}")]
    Image(#[from] ReceivedFault),
    #[error("too many snapshots are being received")]
    TooMany,
}

/// Where received files go.
#[derive(Debug)]
pub(crate) struct Depot {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// Names files that arrive; begins where no earlier process has been.
    next_number: AtomicU64,
    places: Semaphore,
}

impl Depot {
    pub(crate) fn new(disk: Arc<dyn Disk>, dir: PathBuf) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next_number = AtomicU64::new(u64::try_from(now.as_nanos()).unwrap_or(0));
        Self { disk, dir, next_number, places: Semaphore::new(INCOMING_MAX) }
    }

    /// A place for one more file, as long as it arrives.
    fn place(&self) -> Result<SemaphorePermit<'_>, SaveError> {
        self.places.try_acquire().map_err(|_| SaveError::TooMany)
    }

    async fn create(&self) -> Result<IncomingDatabase, SnapError> {
        let (disk, dir) = (Arc::clone(&self.disk), self.dir.clone());
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        blocking(move || IncomingDatabase::create(disk, &dir, number)).await
    }
}

/// Whether a snapshot can be one for the member `local`.
fn check(local: MemberId, message: &Message) -> Result<(), ReceiveError> {
    let snapshot = message.snapshot.as_ref().ok_or(ReceiveError::Unfit("it is missing"))?;
    let metadata = &snapshot.metadata;
    let state = &metadata.conf_state;
    if metadata.index == LogIndex::ZERO
        || metadata.term == Term::ZERO
        || metadata.term > message.term
    {
        return Err(ReceiveError::Unfit("its index or term is none"));
    }
    let mut members = state.voters.iter().chain(&state.learners).chain(&state.voters_outgoing);
    if !members.any(|id| *id == local) {
        return Err(ReceiveError::Unfit("its configuration does not name this member"));
    }
    Ok(())
}

/// Takes in the body of a snapshot request, of the member that the request's head names.
pub(crate) async fn receive(
    local: &Local,
    depot: &Depot,
    sender: Option<MemberId>,
    body: Incoming,
) -> Result<(), ReceiveError> {
    let started = Instant::now();
    let network = &local.metrics.network;
    let mut body = Pieces::new(body, local.read_timeout);
    let message = match read_message(&mut body).await {
        Ok(message) => message,
        Err(error) => {
            network.snapshot_receive_failures.with(&[UNKNOWN_SENDER]).inc();
            return Err(error);
        }
    };
    let from = local.label(message.from, UNKNOWN_SENDER);
    if message.kind != MessageKind::Snapshot {
        network.snapshot_receive_failures.with(&[&from]).inc();
        return Err(ReceiveError::Kind);
    }
    let admitted = if sender == Some(message.from) {
        local.admit(&message).map_err(ReceiveError::from)
    } else {
        Err(ReceiveError::Stranger)
    };
    if let Err(error) = admitted.and_then(|()| check(local.id, &message)) {
        // It may be in a member's name and of somebody else.
        let name = if matches!(error, ReceiveError::Stranger) { UNKNOWN_SENDER } else { &from };
        network.snapshot_receive_failures.with(&[name]).inc();
        return Err(error);
    }
    let inflights = network.snapshot_receive_inflights.with(&[&from]);
    inflights.inc();
    let received = take_in(local, depot, body, message, &from).await;
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
    depot: &Depot,
    body: Pieces,
    mut message: Message,
    from: &str,
) -> Result<(), ReceiveError> {
    let started = Instant::now();
    let snapshot = message.snapshot.as_mut().ok_or(ReceiveError::Unfit("it is missing"))?;
    let index = snapshot.metadata.index;
    log::info!(
        "receiving database snapshot",
        "local-member-id" = local.introduction.member,
        "remote-snapshot-sender-id" = from,
        "incoming-snapshot-index" = index.get()
    );
    let named = snapshot.metadata.clone();
    let saved = save(local, depot, body, named).await.map_err(ReceiveError::Save)?;
    let (bytes, metadata) = saved;
    if metadata.index != index {
        log::info!(
            "the received database is newer than its snapshot; taking its own index and members",
            "incoming-snapshot-index" = index.get(),
            "database-index" = metadata.index.get()
        );
    }
    snapshot.metadata = metadata;
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

/// Longest pause between two pieces.
const REST_MAX: Duration = Duration::from_millis(50);

async fn save(
    local: &Local,
    depot: &Depot,
    mut body: Pieces,
    named: SnapshotMetadata,
) -> Result<(u64, SnapshotMetadata), SaveError> {
    let _place = depot.place()?;
    let started = Instant::now();
    let mut file = depot.create().await?;
    loop {
        let piece = match body.gather(PIECE_BYTES).await {
            Ok(piece) => piece,
            Err(error) => {
                blocking(move || file.discard()).await?;
                return Err(error.into());
            }
        };
        if piece.is_empty() {
            break;
        }
        let writing = Instant::now();
        file = blocking(move || match piece.iter().try_for_each(|piece| file.write(piece)) {
            Ok(()) => Ok(file),
            Err(error) => {
                // If that fails too, the next start removes it.
                drop(file.discard());
                Err(error)
            }
        })
        .await?;
        // The disk and the processors belong to others for as long as they belonged to this: catching up must
        // not be felt by clients.
        tokio::time::sleep(writing.elapsed().min(REST_MAX)).await;
    }
    let bytes = file.bytes();
    let syncing = Instant::now();
    let disk = Arc::clone(&depot.disk);
    let metadata = blocking(move || keep(&disk, file, named)).await?;
    local.metrics.snapshot.db_fsync.observe(syncing.elapsed());
    local.metrics.snapshot.db_save.observe(started.elapsed());
    Ok((bytes, metadata))
}

/// Makes the file durable under its index, or removes it if it cannot be used: the sender gets an error, and may send it
/// again. Returns the snapshot's metadata as the file has them.
fn keep(
    disk: &Arc<dyn Disk>,
    file: IncomingDatabase,
    named: SnapshotMetadata,
) -> Result<SnapshotMetadata, SaveError> {
    match check_image(disk, &file, named) {
        Ok(metadata) => {
            file.finish(metadata.index.get())?;
            Ok(metadata)
        }
        Err(fault) => {
            file.discard()?;
            Err(fault.into())
        }
    }
}

fn check_image(
    disk: &Arc<dyn Disk>,
    file: &IncomingDatabase,
    named: SnapshotMetadata,
) -> Result<SnapshotMetadata, ReceivedFault> {
    let image = open_image(disk, file.path())?;
    let newer = newer_position(&image, (named.index.get(), named.term.get()))?;
    Ok(newer.map_or(named, |position| SnapshotMetadata {
        conf_state: ConfState {
            voters: position.voters,
            learners: position.learners,
            ..ConfState::default()
        },
        index: LogIndex(position.index),
        term: Term(position.term),
    }))
}

async fn read_message(body: &mut Pieces) -> Result<Message, ReceiveError> {
    let read = async {
        let mut length = body.exactly(LENGTH_BYTES).await?;
        let length = length.get_u64();
        if length > MESSAGE_BYTES_MAX {
            return Err(FrameError::TooLong.into());
        }
        let length = usize::try_from(length).map_err(|_| FrameError::TooLong)?;
        let message = body.exactly(length).await?;
        Ok(wire::decode_message(&message).map_err(FrameError::from)?)
    };
    read.await.map_err(ReceiveError::Message)
}

/// A body as it comes in.
pub(crate) struct Pieces {
    body: Incoming,
    /// What has come and was not asked for yet.
    rest: Bytes,
    patience: Duration,
}

impl Pieces {
    /// A body that may pause for so long.
    pub(crate) const fn new(body: Incoming, patience: Duration) -> Self {
        Self { body, rest: Bytes::new(), patience }
    }

    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        loop {
            let frame = tokio::time::timeout(self.patience, self.body.frame()).await;
            match frame.map_err(|_| BodyError::Silent)?.transpose()? {
                None => return Ok(None),
                Some(frame) => match frame.into_data() {
                    Ok(piece) if !piece.is_empty() => return Ok(Some(piece)),
                    _ => {}
                },
            }
        }
    }

    /// So many bytes in one.
    async fn exactly(&mut self, count: usize) -> Result<Bytes, BrokenOff> {
        let mut gathered = BytesMut::new();
        while gathered.len() < count {
            let mut piece = self.next().await?.ok_or(BrokenOff::Ended)?;
            let taken = piece.split_to(piece.len().min(count - gathered.len()));
            self.rest = piece;
            if taken.len() == count {
                return Ok(taken);
            }
            gathered.extend_from_slice(&taken);
        }
        Ok(gathered.freeze())
    }

    /// At least so many bytes, in pieces; fewer at the end, and none behind it.
    pub(crate) async fn gather(&mut self, bytes_min: usize) -> Result<Vec<Bytes>, BodyError> {
        let (mut pieces, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_min
            && let Some(piece) = self.next().await?
        {
            bytes += piece.len();
            pieces.push(piece);
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use quorate_storage::disk::RealDisk;

    use super::*;

    #[test]
    fn files_beyond_the_bound_are_refused_until_one_has_arrived() {
        let depot = Depot::new(Arc::new(RealDisk), PathBuf::new());
        let mut places: Vec<_> = (0..INCOMING_MAX).map(|_| depot.place().unwrap()).collect();
        assert!(matches!(depot.place(), Err(SaveError::TooMany)));
        places.pop();
        assert!(depot.place().is_ok());
    }
}
