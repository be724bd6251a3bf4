//! The receiving side of the connection between servers: the service of the peer port.
//!
//! A sender upgrades its connection and proves that it knows this server's secret (`frames`). Without this proof, no
//! sender can send a frame, whether or not the connection uses TLS. The engine then executes the frame like any other
//! request: it checks the user and the user's permissions when it applies the request, not when the frame arrives.
//!
//! # Bounds
//!
//! A sender must prove the secret within [`PROOF_TIME_MAX`]. Over all connections, at most [`FRAMES_MAX`] frames and
//! [`RECEIVED_BYTES_MAX`] bytes are received but not answered yet. Above these limits, reading pauses. Once the head of
//! a frame has been read, the payload must arrive within [`FRAME_TIME_MAX`].

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use quorate_engine::{Engine, Secret};
use quorate_net::listen::{Duplex, Http1Service, IncomingBody, TakenOver, Takeover};
use quorate_telemetry::log;
use quorate_telemetry::throttle::LogThrottle;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::forward::{GOODBYE, PATH, PROTOCOL};
use super::frames::{FRAME_BYTES_MAX, Head, Opener, Sealer, admit};

/// Maximum time for a sender to prove that it knows the secret.
const PROOF_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum time for the payload of a frame to arrive.
const FRAME_TIME_MAX: Duration = Duration::from_secs(30);

/// Maximum number of received frames that are not answered yet, over all connections.
const FRAMES_MAX: usize = 16_384;

/// Maximum number of bytes of received frames that are not answered yet, over all connections.
const RECEIVED_BYTES_MAX: u32 = 256 << 20;

/// The service of the peer listeners.
#[derive(Clone, Debug)]
pub(super) struct ForwardService {
    engine: Engine,
    secret: Secret,
    bounds: Bounds,
    refusals: Arc<LogThrottle>,
}

/// The bounds on received frames.
#[derive(Clone, Debug)]
struct Bounds {
    frames: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// The permits that a received frame holds until it is answered.
#[derive(Debug)]
struct Permit {
    _frame: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

/// A response that is queued for the sender.
#[derive(Debug)]
struct Answer {
    number: u64,
    payload: Bytes,
    _permit: Option<Permit>,
}

impl Bounds {
    fn new() -> Self {
        Self {
            frames: Arc::new(Semaphore::new(FRAMES_MAX)),
            bytes: Arc::new(Semaphore::new(RECEIVED_BYTES_MAX as usize)),
        }
    }

    async fn wait(&self, head: Head) -> io::Result<Permit> {
        let bytes = u32::try_from(head.length).unwrap_or(u32::MAX).min(RECEIVED_BYTES_MAX);
        let closed = |_| io::Error::other("a semaphore for received frames was closed");
        Ok(Permit {
            _frame: Arc::clone(&self.frames).acquire_owned().await.map_err(closed)?,
            _bytes: Arc::clone(&self.bytes).acquire_many_owned(bytes).await.map_err(closed)?,
        })
    }
}

impl ForwardService {
    pub(super) fn new(engine: Engine, secret: Secret) -> Self {
        Self { engine, secret, bounds: Bounds::new(), refusals: Arc::default() }
    }

    fn answer(&self, request: &Request<IncomingBody>) -> Response<Full<Bytes>> {
        let (status, text) = match self.accept(request) {
            Ok(()) => (StatusCode::SWITCHING_PROTOCOLS, ""),
            Err(refused) => refused,
        };
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, HeaderValue::from_static(PROTOCOL));
        }
        response
    }

    fn accept(&self, request: &Request<IncomingBody>) -> Result<(), (StatusCode, &'static str)> {
        if request.uri().path() != PATH {
            return Err((StatusCode::NOT_FOUND, "404 page not found\n"));
        }
        if request.method() != Method::GET {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n"));
        }
        let protocol = request.headers().get(header::UPGRADE);
        let takeover = request.extensions().get::<Takeover>();
        let (Some(takeover), true) = (takeover, protocol.is_some_and(|name| name == PROTOCOL))
        else {
            return Err((StatusCode::UPGRADE_REQUIRED, "Upgrade Required\n"));
        };
        let service = self.clone();
        takeover.begin(move |connection| service.serve(connection));
        Ok(())
    }

    /// Serves a connection until it ends.
    async fn serve(self, connection: TakenOver) -> io::Result<()> {
        let TakenOver { io, read_ahead, stop } = connection;
        let mut stream = Stream { io, read_ahead };
        let admitted = tokio::time::timeout(PROOF_TIME_MAX, admit(&mut stream, &self.secret));
        let keys = match admitted.await {
            Ok(Ok(keys)) => keys,
            Ok(Err(error)) => {
                if let Some(left_out) = self.refusals.admits() {
                    log::warn!(
                        "refused a connection to the peer port",
                        "error" = error.to_string(),
                        "left-out" = left_out
                    );
                }
                return Err(error);
            }
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        };
        let (reading, writing) = tokio::io::split(stream);
        let frames = Opener::new(BufReader::new(reading), keys.to_receiver);
        let (answers, queue) = mpsc::channel(FRAMES_MAX);
        tokio::try_join!(
            self.read_frames(frames, answers, stop),
            write_answers(writing, Sealer::new(keys.to_sender), queue),
        )?;
        Ok(())
    }

    /// Reads frames until the sender or this server ends the connection.
    async fn read_frames<R: AsyncRead + Unpin>(
        &self,
        mut frames: Opener<R>,
        answers: mpsc::Sender<Answer>,
        mut stop: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let mut accepted: u64 = 0;
        loop {
            let next = tokio::select! {
                biased;
                () = stopped(&mut stop) => None,
                head = frames.head() => Some(head?),
            };
            let Some(head) = next else {
                let payload = Bytes::copy_from_slice(&accepted.to_be_bytes());
                let goodbye = Answer { number: GOODBYE, payload, _permit: None };
                // The send fails only if the connection has ended.
                let (Ok(()) | Err(_)) = answers.send(goodbye).await;
                return Ok(());
            };
            let Some(head) = head else { return Ok(()) };
            let permit = self.bounds.wait(head).await?;
            let arrival = tokio::time::timeout(FRAME_TIME_MAX, frames.payload(head));
            let frame = arrival.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            accepted += 1;
            let (engine, answers) = (self.engine.clone(), answers.clone());
            tokio::spawn(async move {
                let mut payload = engine.serve(frame).await;
                if payload.len() > FRAME_BYTES_MAX {
                    payload = Engine::answer_is_too_long();
                }
                let answer = Answer { number: head.number, payload, _permit: Some(permit) };
                // The connection may have ended, in which case the response is dropped.
                let (Ok(()) | Err(_)) = answers.send(answer).await;
            });
        }
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the listener was dropped.
    let (Ok(_) | Err(_)) = stop.wait_for(|stop| *stop).await;
}

/// Writes responses until the queue is closed.
async fn write_answers<W: AsyncWrite + Unpin>(
    mut writing: W,
    mut sealer: Sealer,
    mut queue: mpsc::Receiver<Answer>,
) -> io::Result<()> {
    let (mut answers, mut sealed) = (Vec::new(), BytesMut::new());
    while queue.recv_many(&mut answers, FRAMES_MAX).await > 0 {
        for answer in &answers {
            sealer.seal(answer.number, &answer.payload, &mut sealed);
        }
        writing.write_all_buf(&mut sealed).await?;
        writing.flush().await?;
        answers.clear();
    }
    writing.shutdown().await
}

/// A connection, including the bytes that were read before the connection was upgraded from HTTP.
struct Stream {
    io: Box<dyn Duplex>,
    read_ahead: Bytes,
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read_ahead.is_empty() {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let count = self.read_ahead.len().min(buffer.remaining());
        buffer.put_slice(&self.read_ahead[..count]);
        self.read_ahead.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl Http1Service for ForwardService {
    const ANSWERS_HALF_CLOSED: bool = false;
}

impl hyper::service::Service<Request<IncomingBody>> for ForwardService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn call(&self, request: Request<IncomingBody>) -> Self::Future {
        std::future::ready(Ok(self.answer(&request)))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    #[test]
    fn frames_wait_while_the_limit_on_frames_or_bytes_is_reached() {
        let bounds =
            Bounds { frames: Arc::new(Semaphore::new(2)), bytes: Arc::new(Semaphore::new(10)) };
        let mut cx = Context::from_waker(Waker::noop());
        let mut take = |length| {
            let head = Head::of_length(length);
            match pin!(bounds.wait(head)).poll(&mut cx) {
                Poll::Ready(permit) => Some(permit.unwrap()),
                Poll::Pending => None,
            }
        };
        let large = take(10).unwrap();
        assert!(take(1).is_none(), "a frame was admitted beyond the bound on bytes");
        drop(large);
        let both = [take(1).unwrap(), take(1).unwrap()];
        assert!(take(1).is_none(), "a frame was admitted beyond the bound on frames");
        drop(both);
        assert!(take(10).is_some());
    }
}
