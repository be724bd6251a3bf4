//! The reading end of a stream: connects to the peer, requests its messages and passes them to the consensus core.
//!
//! A member opens both streams of every peer and reopens them after failures. It makes at most one attempt per
//! [`REDIAL_INTERVAL`], plus a few faster attempts just after a stream has broken, and switches to the next URL after
//! each failed attempt. All complete messages that are received in one read form a batch. A peer sends data at least
//! three times per read timeout. If it is silent for a whole timeout, the stream is reopened. If a stream has broken
//! and every URL refuses connections, the peer is reported to the consensus core as gone.
//!
//! # Not here
//!
//! The parsing of the response that carries the stream (`response`) and of the stream (`frame`). Sending messages,
//! which uses the streams that the peer has opened (`outgoing`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, StatusCode, header};
use quorate_raft::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::contact::Contact;
use crate::dial::{self, DialError, PostError};
use crate::dialer::PeerStream;
use crate::frame::{Decoder, FrameError, StreamKind};
use crate::handshake::Introduction;
use crate::local::Local;
use crate::response::{self, Body, Head, ResponseError};
use crate::status::Attempt;
use quorate_telemetry::log;

/// Minimum time between two connection attempts.
const REDIAL_INTERVAL: Duration = Duration::from_millis(100);

/// Minimum time between two attempts after a stream with invalid bytes. It is longer because the next stream is likely
/// to be invalid too.
const REDIAL_INTERVAL_NONSENSE: Duration = Duration::from_secs(1);

/// Minimum time between two attempts while the peer's process may be exiting. The host of an exiting process still
/// accepts connections for a moment. The interval is short, so that this member soon notices when the host refuses
/// connections.
const REDIAL_INTERVAL_SUSPECTED: Duration = Duration::from_millis(10);

/// Approximate maximum size of a batch. Further messages go into the next batch.
const BATCH_BYTES: usize = 1 << 20;

/// Initial size of the read buffer. The buffer is larger if more bytes arrived together with the head.
const READ_BYTES: usize = 32 << 10;

/// Maximum number of informational responses before the response to a request.
const INFORMATIONAL_MAX: u32 = 5;

/// Size of a link heartbeat message.
const LINK_HEARTBEAT_BYTES: u64 = 2;

/// Why reading a stream ended.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("EOF")]
    Ended,
    #[error(transparent)]
    Response(#[from] ResponseError),
    #[error("read tcp: i/o timeout")]
    Silent,
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// All streams must be reopened.
    #[error("reconnecting")]
    Reconnect,
}

/// Why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Response(#[from] ResponseError),
    #[error("unsupported stream type")]
    Unsupported,
    #[error(transparent)]
    Refused(#[from] PostError),
}

/// Tracks the connection attempts to a peer whose stream has broken, until the peer counts as gone.
#[derive(Debug)]
struct Suspicion {
    /// Number of URLs that have not refused a connection yet.
    refusals_left: usize,
    /// Number of further attempts that may use the short interval.
    dials_at_once_left: usize,
}

impl Suspicion {
    fn new(urls: usize) -> Self {
        Self { refusals_left: urls.max(1), dials_at_once_left: 10 }
    }
}

impl StreamError {
    fn is_refused(&self) -> bool {
        matches!(self, Self::Dial(error) if error.is_refused())
    }
}

/// Reads the stream of this kind while the peer is known.
pub(crate) async fn read_stream(local: Arc<Local>, contact: Arc<Contact>, kind: StreamKind) {
    log::info!(
        "started stream reader with remote peer",
        "stream-reader-type" = kind.name(),
        "local-member-id" = local.introduction.member,
        "remote-peer-id" = contact.name
    );
    let mut suspicion: Option<Suspicion> = None;
    loop {
        let mut next_dial = Instant::now() + REDIAL_INTERVAL;
        let url = contact.urls.pick();
        match Stream::open(&local, &contact, kind, &url).await {
            Ok(mut stream) => {
                contact.status.activate();
                log::info!(
                    "established TCP streaming connection with remote peer",
                    "stream-reader-type" = kind.name(),
                    "local-member-id" = local.introduction.member,
                    "remote-peer-id" = contact.name
                );
                let error = stream.read_all(&local, &contact).await;
                drop(stream);
                suspicion = Some(Suspicion::new(contact.urls.count()));
                log::warn!(
                    "lost TCP streaming connection with remote peer",
                    "stream-reader-type" = kind.name(),
                    "local-member-id" = local.introduction.member,
                    "remote-peer-id" = contact.name,
                    "error" = error.to_string()
                );
                if !matches!(error, ReadError::Ended | ReadError::Reconnect) {
                    let attempt = Attempt { source: kind.name(), action: "read" };
                    contact.status.deactivate(attempt, &error);
                }
                if let ReadError::Frame(_) = error {
                    next_dial = Instant::now() + REDIAL_INTERVAL_NONSENSE;
                    local.metrics.network.peer_received_failures.with(&[&contact.name]).inc();
                }
            }
            Err(error) => {
                contact.urls.failed(&url);
                if let Some(suspected) = &mut suspicion {
                    if error.is_refused() {
                        suspected.refusals_left -= 1;
                    } else if suspected.dials_at_once_left > 0 {
                        suspected.dials_at_once_left -= 1;
                        next_dial = Instant::now() + REDIAL_INTERVAL_SUSPECTED;
                    }
                    if suspected.refusals_left == 0 {
                        suspicion = None;
                        local.consensus.report_gone(contact.id);
                    }
                }
                if !matches!(error, StreamError::Unsupported) {
                    let attempt = Attempt { source: kind.name(), action: "dial" };
                    contact.status.deactivate(attempt, &error);
                }
            }
        }
        tokio::time::sleep_until(next_dial).await;
    }
}

/// An open stream.
struct Stream {
    kind: StreamKind,
    connection: PeerStream,
    /// The buffer for reads.
    input: Box<[u8]>,
    /// The number of bytes at the beginning of `input` that arrived together with the head of the response and have not
    /// been processed yet.
    unprocessed: usize,
    body: Body,
    decoder: Decoder,
    /// The error that ends the stream once the messages before it are delivered.
    error: Option<ReadError>,
    deadline: Pin<Box<Sleep>>,
}

impl Stream {
    async fn open(
        local: &Local,
        contact: &Contact,
        kind: StreamKind,
        url: &str,
    ) -> Result<Self, StreamError> {
        let (mut connection, authority) = dial::connect(local, url, None).await?;
        let request = Request::get(format!("{}{}", kind.path(), local.introduction.member))
            .header(header::HOST, authority.as_str());
        let request = Introduction::address(local.introduce(request), &contact.name);
        let (settings, values) = local.settings.header();
        let request = request.header(settings, values);
        let request = request.body(()).map_err(|_| {
            // The host cannot be encoded in a header.
            DialError::Url { url: url.to_owned() }
        })?;
        let opening = async {
            let request = response::encode_request(&request);
            connection.write_all(&request).await.map_err(ResponseError::from)?;
            connection.flush().await.map_err(ResponseError::from)?;
            let (head, mut rest) = read_head(&mut connection).await?;
            if let Err(mismatch) = local.check_origin(contact.id, &head.headers) {
                return Err(dial::other_origin(local, contact, mismatch).into());
            }
            if !local.introduction.streams_with(&head.headers) {
                return Err(StreamError::Unsupported);
            }
            let body = Body::of(&head)?;
            if head.status == StatusCode::OK {
                return Ok((connection, body, rest));
            }
            let text = read_text(&mut connection, body, &mut rest).await?;
            Err(if head.status == StatusCode::NOT_FOUND {
                let (peer, local) = (contact.name.clone(), local.introduction.member.clone());
                PostError::NotFound { peer, local }.into()
            } else {
                dial::refusal(local, contact, head.status, &head.headers, &text).into()
            })
        };
        let opened = tokio::time::timeout(local.read_timeout, opening).await;
        let (connection, body, mut input) = opened.map_err(|_| PostError::Timeout)??;
        let unprocessed = input.len();
        input.resize(READ_BYTES.max(unprocessed), 0);
        Ok(Self {
            kind,
            connection,
            input: input.into_boxed_slice(),
            unprocessed,
            body,
            decoder: Decoder::new(kind, contact.id, local.id),
            error: None,
            deadline: Box::pin(tokio::time::sleep(local.read_timeout)),
        })
    }

    /// Reads until the stream ends.
    async fn read_all(&mut self, local: &Local, contact: &Contact) -> ReadError {
        let mut reconnects = local.reconnects.subscribe();
        // A message may arrive in several batches, so the bytes of these batches are added up.
        let mut bytes_before = 0;
        loop {
            let mut messages = Vec::new();
            let deadline = Instant::now() + local.read_timeout;
            let bytes = tokio::select! {
                biased;
                _ = reconnects.changed() => return ReadError::Reconnect,
                bytes = std::future::poll_fn(|cx| self.poll_batch(cx, deadline, &mut messages)) => bytes,
            };
            self.count(local, contact, bytes);
            bytes_before += bytes;
            if !messages.is_empty() {
                local.deliver(messages, std::mem::take(&mut bytes_before)).await;
            }
            if let Some(error) = self.error.take() {
                return error;
            }
        }
    }

    fn count(&mut self, local: &Local, contact: &Contact, bytes: usize) {
        let received = &local.metrics.network.peer_received_bytes;
        let links = self.decoder.take_link_heartbeats() * LINK_HEARTBEAT_BYTES;
        if links > 0 {
            received.with(&["0"]).add(links);
        }
        received.with(&[&contact.name]).add((bytes as u64).saturating_sub(links));
    }

    /// Waits for data, and then takes everything that has arrived. Returns the number of bytes. If the stream has
    /// ended, the reason is stored in `error`.
    fn poll_batch(
        &mut self,
        cx: &mut Context<'_>,
        deadline: Instant,
        messages: &mut Vec<Message>,
    ) -> Poll<usize> {
        let mut bytes = 0;
        while bytes < BATCH_BYTES {
            if self.body.is_over() {
                self.error = Some(ReadError::Ended);
                return Poll::Ready(bytes);
            }
            match self.poll_input(cx) {
                Poll::Ready(Ok(received)) => {
                    let (decoded, processed) = self.process(received, messages);
                    bytes += decoded;
                    if let Err(error) = processed {
                        self.error = Some(error);
                        return Poll::Ready(bytes);
                    }
                }
                Poll::Ready(Err(error)) => {
                    self.error = Some(error.into());
                    return Poll::Ready(bytes);
                }
                Poll::Pending if bytes > 0 => break,
                Poll::Pending => {
                    // The timer is reset only after it has expired, so at most once per timeout instead of once per
                    // batch.
                    while self.deadline.as_mut().poll(cx).is_ready() {
                        if Instant::now() >= deadline {
                            self.error = Some(ReadError::Silent);
                            return Poll::Ready(0);
                        }
                        self.deadline.as_mut().reset(deadline);
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(bytes)
    }

    /// Returns the number of bytes in the input buffer: the unprocessed bytes, or else the bytes of one read. Zero means
    /// that the connection has ended.
    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, ResponseError>> {
        if self.unprocessed > 0 {
            return Poll::Ready(Ok(std::mem::take(&mut self.unprocessed)));
        }
        let mut input = ReadBuf::new(&mut self.input);
        ready!(Pin::new(&mut self.connection).poll_read(cx, &mut input))?;
        Poll::Ready(Ok(input.filled().len()))
    }

    /// Decodes the messages in the first `received` bytes of the input buffer. Returns the number of decoded body bytes,
    /// even after an error.
    fn process(
        &mut self,
        received: usize,
        messages: &mut Vec<Message>,
    ) -> (usize, Result<(), ReadError>) {
        let mut bytes = 0;
        let mut decode = || {
            if received == 0 {
                self.body.end()?;
                return Err(ReadError::Ended);
            }
            let mut input = &self.input[..received];
            while let Some(part) = self.body.decode(&mut input)? {
                bytes += part.len();
                self.decoder.feed(part, messages)?;
            }
            Ok(())
        };
        let processed = decode();
        (bytes, processed)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Reads the head of a response. Also returns the bytes after it that have already been read.
async fn read_head(connection: &mut PeerStream) -> Result<(Head, Vec<u8>), ResponseError> {
    let mut bytes = Vec::with_capacity(READ_BYTES);
    let (mut searched, mut informational) = (0, 0);
    loop {
        if let Some((head, len)) = Head::parse(&bytes, searched)? {
            bytes.drain(..len);
            searched = 0;
            // Another head follows an informational response.
            informational += u32::from(head.status.is_informational());
            if !head.status.is_informational() || informational > INFORMATIONAL_MAX {
                return Ok((head, bytes));
            }
            continue;
        }
        searched = bytes.len();
        if connection.read_buf(&mut bytes).await? == 0 {
            return Err(ResponseError::UnexpectedEnd);
        }
    }
}

/// Reads the body of an error response as text. `rest` contains the bytes that have already been read.
async fn read_text(
    connection: &mut PeerStream,
    mut body: Body,
    rest: &mut Vec<u8>,
) -> Result<String, ResponseError> {
    let mut text = Vec::new();
    while !body.is_over() {
        let mut input = &rest[..];
        while let Some(part) = body.decode(&mut input)? {
            text.extend_from_slice(part);
        }
        if text.len() > dial::ANSWER_BYTES_MAX {
            return Err(ResponseError::TooLong);
        }
        rest.clear();
        if !body.is_over() && connection.read_buf(rest).await? == 0 {
            body.end()?;
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).trim_end_matches('\n').to_owned())
}
