//! Sends a snapshot in one request, whose body is the message followed by the backend file at a point in time.
//!
//! The snapshot's pages stay allocated until the transfer ends. They are read on threads outside the runtime, one piece
//! at a time, each after the connection has accepted the previous piece. The result is always reported, because the
//! consensus core sends the recipient no appends until it receives the result.
//!
//! # Bound
//!
//! The transfer fails if the peer accepts nothing for [`STALL_MAX`], or if it does not answer within
//! [`ANSWER_WAIT_MAX`] after the end of the body.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use quorate_raft::{LogIndex, Message, SnapshotOutcome};
use quorate_storage::bolt::{BoltError, ReadTx};

use crate::body::BoxError;
use crate::contact::Contact;
use crate::dial::{self, Channel, PostError};
use crate::frame::put_framed;
use crate::local::Local;
use crate::status::Attempt;
use quorate_net::runtime::blocking;
use quorate_telemetry::log;

/// Number of bytes in one read.
const PIECE_BYTES: usize = 1 << 20;

const STALL_MAX: Duration = Duration::from_secs(60);

/// Maximum time from the end of the body to the response. The peer may need this long to sync a large file.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(600);

const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// A snapshot for one member.
#[derive(Debug)]
pub struct OutgoingSnapshot {
    /// The message with its recipient, its metadata and the membership as JSON. The membership in the consensus core's
    /// own message may be older.
    pub message: Message,
    /// The state at the index of the message.
    pub image: ReadTx,
}

impl OutgoingSnapshot {
    fn index(&self) -> LogIndex {
        self.message.snapshot.as_ref().map_or(LogIndex::ZERO, |snapshot| snapshot.metadata.index)
    }
}

/// Sends the snapshot and reports the result.
pub(crate) async fn send(local: &Local, contact: &Contact, snapshot: OutgoingSnapshot) {
    let (index, started) = (snapshot.index(), Instant::now());
    let network = &local.metrics.network;
    let inflights = network.snapshot_send_inflights.with(&[&contact.name]);
    let (bytes, url) = (snapshot.image.image_len(), contact.urls.pick());
    log::info!(
        "sending database snapshot",
        "snapshot-index" = index.get(),
        "remote-peer-id" = contact.name,
        "bytes" = bytes
    );
    inflights.inc();
    let posted = post(local, contact, &url, snapshot).await;
    inflights.dec();
    let outcome = match posted {
        Ok(()) => {
            contact.status.activate();
            network.peer_sent_bytes.with(&[&contact.name]).add(bytes);
            network.snapshot_send_success.with(&[&contact.name]).inc();
            network.snapshot_send_duration.with(&[&contact.name]).observe(started.elapsed());
            log::info!(
                "sent database snapshot",
                "snapshot-index" = index.get(),
                "remote-peer-id" = contact.name,
                "bytes" = bytes
            );
            SnapshotOutcome::Finished
        }
        Err(error) => {
            log::warn!(
                "failed to send database snapshot",
                "snapshot-index" = index.get(),
                "remote-peer-id" = contact.name,
                "bytes" = bytes,
                "error" = error.to_string()
            );
            contact.urls.failed(&url);
            let attempt = Attempt { source: "sendMsgSnap", action: "post" };
            contact.status.deactivate(attempt, &error);
            network.peer_sent_failures.with(&[&contact.name]).inc();
            network.snapshot_send_failures.with(&[&contact.name]).inc();
            local.consensus.report_unreachable(contact.id);
            SnapshotOutcome::Failed
        }
    };
    local.consensus.report_snapshot(contact.id, outcome);
}

async fn post(
    local: &Local,
    contact: &Contact,
    url: &str,
    snapshot: OutgoingSnapshot,
) -> Result<(), PostError> {
    let mut channel = Channel::open(local, url, STALL_MAX).await?;
    let (body, progress) = SnapshotBody::new(&snapshot.message, snapshot.image);
    let request =
        Request::post("/raft/snapshot").header(header::CONTENT_TYPE, "application/octet-stream");
    let request = local.introduce(request).body(body);
    let request = request.expect("our own headers are valid");
    let answered = async {
        let (head, body) = channel.send(request).await?.into_parts();
        let text = tokio::time::timeout(local.read_timeout, dial::read_answer(body)).await;
        match (head.status, text) {
            (StatusCode::NO_CONTENT, _) => Ok(()),
            (status, Ok(text)) => Err(dial::refusal(local, contact, status, &head.headers, &text?)),
            (_, Err(_)) => Err(PostError::Timeout),
        }
    };
    tokio::select! {
        done = answered => done,
        () = progress.stalled() => Err(PostError::Timeout),
    }
}

/// The progress of a body, which the stall check observes.
#[derive(Debug, Default)]
struct Progress {
    /// 0 at first, then one more than the number of bytes of the file handed over so far, or [`u64::MAX`] after
    /// everything is handed over.
    handed_bytes: AtomicU64,
}

impl Progress {
    /// Returns when the body has made no progress for too long.
    async fn stalled(&self) {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            tokio::time::sleep(WATCH_INTERVAL).await;
            let handed = self.handed_bytes.load(Ordering::Relaxed);
            if handed != seen {
                (seen, since) = (handed, Instant::now());
            }
            let timeout = if handed == u64::MAX { ANSWER_WAIT_MAX } else { STALL_MAX };
            if since.elapsed() > timeout {
                return;
            }
        }
    }
}

type Reading = Pin<Box<dyn Future<Output = Result<Bytes, BoltError>> + Send>>;

/// The body of a snapshot request: the length of the message, the message, and the file.
struct SnapshotBody {
    head: Option<Bytes>,
    image: ReadTx,
    image_bytes: u64,
    /// Number of bytes of the file handed over so far.
    offset: u64,
    reading: Option<Reading>,
    progress: Arc<Progress>,
}

impl SnapshotBody {
    fn new(message: &Message, image: ReadTx) -> (Self, Arc<Progress>) {
        let mut head = BytesMut::new();
        put_framed(message, &mut head);
        let progress = Arc::new(Progress::default());
        let image_bytes = image.image_len();
        let body = Self {
            head: Some(head.freeze()),
            image,
            image_bytes,
            offset: 0,
            reading: None,
            progress: Arc::clone(&progress),
        };
        (body, progress)
    }

    fn read_next(&self) -> Reading {
        let (image, offset) = (self.image.clone(), self.offset);
        let len = (self.image_bytes - offset).min(PIECE_BYTES as u64);
        let len = usize::try_from(len).unwrap_or(PIECE_BYTES);
        Box::pin(blocking(move || {
            let mut piece = vec![0; len];
            let count = image.read_image_at(offset, &mut piece)?;
            piece.truncate(count);
            Ok(piece.into())
        }))
    }
}

impl Body for SnapshotBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if let Some(head) = this.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head))));
        }
        this.progress.handed_bytes.store(this.offset + 1, Ordering::Relaxed);
        if this.offset >= this.image_bytes {
            this.progress.handed_bytes.store(u64::MAX, Ordering::Relaxed);
            return Poll::Ready(None);
        }
        if this.reading.is_none() {
            this.reading = Some(this.read_next());
        }
        let reading = this.reading.as_mut().expect("the read was started above");
        let piece = ready!(reading.as_mut().poll(cx));
        this.reading = None;
        Poll::Ready(Some(match piece {
            Ok(piece) if piece.is_empty() => {
                Err("the backend file is shorter than its snapshot".into())
            }
            Ok(piece) => {
                this.offset += piece.len() as u64;
                Ok(Frame::data(piece))
            }
            Err(error) => Err(error.into()),
        }))
    }

    /// Returns an unknown size, so that the body is sent in chunks, as in etcd.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
