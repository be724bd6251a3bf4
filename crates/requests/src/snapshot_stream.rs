//! Streams a snapshot: a file as of one point in time, while writes continue.
//!
//! The pages of the snapshot stay unchanged while the stream exists. They are read outside the connection threads, in
//! large pieces. A piece is read only after the client has accepted the previous piece. A slow client therefore
//! occupies the memory of at most two pieces ([`STREAM_BYTES`]) and delays the reuse of pages that writes have freed in
//! the meantime.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use quorate_api::etcdserverpb::SnapshotResponse;
use quorate_storage::bolt::{BoltError, ReadTx};
use sha2::{Digest, Sha256};
use tokio_stream::Stream;

use crate::admission::OwnedPermit;
use crate::data_store::Image;
use crate::error::RequestError;
use quorate_net::runtime::blocking;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

/// Maximum size of the blob in one message.
const BLOB_BYTES: usize = 32 * 1024;

/// Number of bytes read from the file at a time.
const PIECE_BYTES: usize = 1024 * 1024;

/// Maximum memory of a stream in bytes: the piece being sent, and the previous piece while the transport still holds
/// parts of it.
pub const STREAM_BYTES: u64 = 2 * PIECE_BYTES as u64;

type Reading = Pin<Box<dyn Future<Output = (Result<Bytes, BoltError>, Sha256)> + Send>>;

/// A snapshot as a stream of responses.
pub struct SnapshotStream {
    metrics: Arc<Metrics>,
    image: ReadTx,
    version: String,
    total_bytes: u64,
    /// Number of bytes of the file that have been sent.
    sent_bytes: u64,
    /// Number of bytes that have been read from the file.
    read_bytes: u64,
    piece: Bytes,
    reading: Option<Reading>,
    /// Digest of the bytes read so far. `None` while a piece is being read, and once the digest has been sent.
    digest: Option<Sha256>,
    started: Instant,
    _permit: OwnedPermit,
}

impl fmt::Debug for SnapshotStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total_bytes, sent_bytes, .. } = self;
        f.debug_struct("SnapshotStream")
            .field("total_bytes", total_bytes)
            .field("sent_bytes", sent_bytes)
            .finish_non_exhaustive()
    }
}

impl SnapshotStream {
    /// Creates a stream that holds a permit for [`STREAM_BYTES`].
    pub fn new(image: Image, metrics: Arc<Metrics>, permit: OwnedPermit) -> Self {
        let Image { file: image, version } = image;
        let version = version.map_or_else(String::new, |version| version.to_string());
        let total_bytes = image.image_len();
        log::info!(
            "sending database snapshot to client",
            "total-bytes" = total_bytes,
            "storage-version" = version
        );
        Self {
            metrics,
            image,
            version,
            total_bytes,
            sent_bytes: 0,
            read_bytes: 0,
            piece: Bytes::new(),
            reading: None,
            digest: Some(Sha256::new()),
            started: Instant::now(),
            _permit: permit,
        }
    }

    fn start_reading(&self, mut digest: Sha256) -> Reading {
        let (image, offset) = (self.image.clone(), self.read_bytes);
        let len = (self.total_bytes - offset).min(PIECE_BYTES as u64);
        let len = usize::try_from(len).unwrap_or(PIECE_BYTES);
        Box::pin(blocking(move || {
            let mut piece = vec![0; len];
            let mut filled = 0;
            while filled < len {
                match image.read_image_at(offset + filled as u64, &mut piece[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) => return (Err(error), digest),
                }
            }
            piece.truncate(filled);
            digest.update(&piece);
            (Ok(piece.into()), digest)
        }))
    }

    fn next_blob(&mut self) -> SnapshotResponse {
        let blob = self.piece.split_to(self.piece.len().min(BLOB_BYTES));
        self.sent_bytes += blob.len() as u64;
        SnapshotResponse {
            header: None,
            remaining_bytes: self.total_bytes - self.sent_bytes,
            blob,
            version: self.version.clone(),
        }
    }

    fn finish(&self, digest: Sha256) -> SnapshotResponse {
        self.metrics.disk.backend_snapshot.observe(self.started.elapsed());
        log::info!(
            "sent database snapshot to client",
            "total-bytes" = self.total_bytes,
            "took" = self.started.elapsed()
        );
        log::info!("sent database snapshot", "total-bytes" = self.total_bytes);
        SnapshotResponse {
            header: None,
            remaining_bytes: 0,
            blob: Bytes::copy_from_slice(&digest.finalize()),
            version: self.version.clone(),
        }
    }
}

impl Stream for SnapshotStream {
    type Item = Result<SnapshotResponse, RequestError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        loop {
            if !this.piece.is_empty() {
                return Poll::Ready(Some(Ok(this.next_blob())));
            }
            if let Some(reading) = &mut this.reading {
                let (piece, digest) = ready!(reading.as_mut().poll(cx));
                this.reading = None;
                match piece {
                    Ok(piece) if !piece.is_empty() => {
                        this.read_bytes += piece.len() as u64;
                        this.piece = piece;
                        this.digest = Some(digest);
                    }
                    Ok(_) => {
                        let text = "the backend file is shorter than its snapshot";
                        return Poll::Ready(Some(Err(RequestError::Fault(text.into()))));
                    }
                    Err(error) => {
                        let text = error.to_string();
                        return Poll::Ready(Some(Err(RequestError::Fault(text.into()))));
                    }
                }
                continue;
            }
            let Some(digest) = this.digest.take() else { return Poll::Ready(None) };
            if this.read_bytes < this.total_bytes {
                this.reading = Some(this.start_reading(digest));
            } else {
                return Poll::Ready(Some(Ok(this.finish(digest))));
            }
        }
    }
}
