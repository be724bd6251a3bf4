//! Responses of one member that their clients have not read completely.
//!
//! All calls share one connection to the member. The member may send a limited number of bytes that the proxy has not
//! taken from the connection, so responses that no client reads could stop all other responses. The proxy therefore
//! takes the first [`BUFFERED_MAX`] bytes of a response to a unary call from the connection without waiting for the
//! client. Most responses are shorter, and occupy nothing of the connection's window afterwards. A task forwards the
//! rest of a longer response, or a stream, through a queue of [`QUEUED_MAX`] frames. The task takes each frame from the
//! connection as soon as it arrives, so a response occupies the window only while its task waits for the client.
//!
//! # Bound
//!
//! Buffered and queued bytes are limited to [`BUFFERED_TOTAL_MAX`]. Beyond this, nothing is buffered, and a task waits
//! until the client has taken each frame. At most [`UNREAD_MAX`] responses wait for their clients. If there are more,
//! the response that has waited longest is ended, so that the window always has room for other responses.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::mpsc::error::SendError;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tonic::Status;

use crate::byte_limit::{ByteLimit, Share};
use crate::framing::transport_error;

/// The flow-control window of a call, in bytes.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// The flow-control window of a connection, in bytes. It has space for many calls whose clients do not read.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 256 << 20;

/// Number of bytes of a response that are buffered.
const BUFFERED_MAX: usize = 64 << 10;

/// Maximum number of buffered and queued bytes of all responses of a member.
const BUFFERED_TOTAL_MAX: usize = 64 << 20;

/// Maximum number of queued frames of a response. A client that is about to read several frames is not waited for.
const QUEUED_MAX: usize = 8;

/// Maximum number of responses that wait for their clients. They can use three quarters of the connection's window.
const UNREAD_MAX: usize = (CONNECTION_WINDOW_BYTES / 4 * 3 / STREAM_WINDOW_BYTES) as usize;

/// The unread responses of one member.
#[derive(Debug)]
pub(crate) struct UnreadResponses {
    waiting: Mutex<Waiting>,
    buffered: Arc<ByteLimit>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    /// From the response that has waited longest to the one that has begun to wait most recently. Dropping the sender
    /// ends the response.
    responses: BTreeMap<u64, oneshot::Sender<()>>,
}

type Received = Result<Frame<Bytes>, Status>;

/// A frame, and the frame's share of the limit on buffered bytes.
type Queued = (Received, Option<Share>);

impl UnreadResponses {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), buffered: ByteLimit::new(BUFFERED_TOTAL_MAX) })
    }

    /// Returns the response with a body that its client can read at any pace. With `is_unary`, first waits for the
    /// bytes that are buffered.
    pub(crate) async fn receive(
        self: Arc<Self>,
        answer: Response<Incoming>,
        is_unary: bool,
    ) -> Response<MemberBody> {
        let (head, mut body) = answer.into_parts();
        let bytes = self.buffered.take_regardless(0);
        let mut buffered = VecDeque::new();
        let mut has_ended = body.is_end_stream();
        while is_unary
            && !has_ended
            && bytes.bytes() < BUFFERED_MAX
            && self.buffered.used() < self.buffered.max()
        {
            let read = body.frame().await;
            has_ended = has_ended_after(read.as_ref(), &body);
            let Some(read) = read else { break };
            bytes.grow_regardless(data_bytes(&read));
            buffered.push_back(read.map_err(|error| transport_error(&error)));
        }
        let rest = (!has_ended).then(|| {
            let (queue, frames) = mpsc::channel(QUEUED_MAX);
            let task = tokio::spawn(self.forward(body, queue)).abort_handle();
            Rest { frames, task }
        });
        Response::from_parts(head, MemberBody { buffered, bytes, rest })
    }

    /// Forwards the frames of a body to the queue until the body ends, the queue is closed, or the response is ended
    /// because it was not read.
    async fn forward(self: Arc<Self>, mut body: Incoming, queue: mpsc::Sender<Queued>) {
        loop {
            let read = body.frame().await;
            let has_ended = has_ended_after(read.as_ref(), &body);
            let Some(read) = read else { return };
            let share = self.buffered.take(data_bytes(&read));
            let read = read.map_err(|error| transport_error(&error));
            if has_ended {
                // The response occupies nothing of the window any more.
                _ = queue.send((read, share)).await;
                return;
            }
            if share.is_some()
                && let Ok(place) = queue.try_reserve()
            {
                place.send((read, share));
                continue;
            }
            let mut wait = self.wait();
            tokio::select! {
                is_open = hand_over(&queue, read, share) => {
                    if is_open.is_err() {
                        return;
                    }
                }
                _ = &mut wait.ended => {
                    // Dropping the body resets the stream, and returns its bytes to the connection's window.
                    drop(body);
                    // For a client that receives this status, the outcome of a write is unknown.
                    let status = Status::unavailable("etcdserver: request timed out");
                    _ = queue.send((Err(status), None)).await;
                    return;
                }
            }
        }
    }

    /// Records that a response waits for its client until the returned value is dropped.
    fn wait(self: &Arc<Self>) -> Wait {
        let (sender, ended) = oneshot::channel();
        let mut waiting = self.waiting.lock();
        waiting.next += 1;
        let number = waiting.next;
        waiting.responses.insert(number, sender);
        if waiting.responses.len() > UNREAD_MAX {
            waiting.responses.pop_first();
        }
        drop(waiting);
        Wait { unread: Arc::clone(self), number, ended }
    }
}

/// Waits until the queue has room for a frame. If the frame has no share of the limit on buffered bytes, also waits
/// until the client has taken the frame.
async fn hand_over(
    queue: &mpsc::Sender<Queued>,
    read: Received,
    share: Option<Share>,
) -> Result<(), SendError<()>> {
    let is_limited = share.is_some();
    queue.reserve().await?.send((read, share));
    if !is_limited {
        drop(queue.reserve_many(QUEUED_MAX).await?);
    }
    Ok(())
}

/// Returns whether a body has no more frames after this one.
fn has_ended_after(read: Option<&Result<Frame<Bytes>, hyper::Error>>, body: &Incoming) -> bool {
    !matches!(read, Some(Ok(_))) || body.is_end_stream()
}

fn data_bytes(read: &Result<Frame<Bytes>, hyper::Error>) -> usize {
    read.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len)
}

/// A response that waits for its client.
struct Wait {
    unread: Arc<UnreadResponses>,
    number: u64,
    /// Completes if the response is ended because other responses have begun to wait.
    ended: oneshot::Receiver<()>,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.unread.waiting.lock().responses.remove(&self.number);
    }
}

/// The body of a member's response.
#[derive(Debug)]
pub(crate) struct MemberBody {
    buffered: VecDeque<Received>,
    bytes: Share,
    /// The part that is not buffered.
    rest: Option<Rest>,
}

/// The part of a response that a task forwards.
#[derive(Debug)]
struct Rest {
    frames: mpsc::Receiver<Queued>,
    task: AbortHandle,
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl HttpBody for MemberBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(frame) = self.buffered.pop_front() {
            if self.buffered.is_empty() {
                self.bytes.release();
            }
            return Poll::Ready(Some(frame));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let received = ready!(rest.frames.poll_recv(cx));
        if received.is_none() {
            self.rest = None;
        }
        Poll::Ready(received.map(|(frame, _)| frame))
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.rest.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::Waker;
    use std::time::Duration;

    use http::Request;
    use http_body_util::{Empty, StreamBody};
    use hyper::client::conn::http2::{Builder, SendRequest};
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::sync::{mpsc, watch};
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    const RESPONSE_BYTES: usize = 1 << 20;

    /// Connects to a member that answers each request with as many bytes as its path names. The member sends the heads
    /// of the responses immediately, and the bodies while the gate is open.
    async fn member(gate: &watch::Sender<bool>) -> SendRequest<Empty<Bytes>> {
        let (client, server) = tokio::io::duplex(1 << 20);
        let gate = gate.subscribe();
        let service = service_fn(move |request: Request<Incoming>| {
            let bytes: usize = request.uri().path()[1..].parse().unwrap();
            let (parts, body) = mpsc::channel(1);
            let mut gate = gate.clone();
            tokio::spawn(async move {
                gate.wait_for(|is_open| *is_open).await.unwrap();
                let part = Ok::<_, Infallible>(Frame::data(Bytes::from(vec![7; bytes])));
                _ = parts.send(part).await;
            });
            let body = StreamBody::new(ReceiverStream::new(body));
            std::future::ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let mut server_settings = http2::Builder::new(TokioExecutor::new());
        server_settings.max_concurrent_streams(None);
        tokio::spawn(server_settings.serve_connection(TokioIo::new(server), service));
        let mut settings = Builder::new(TokioExecutor::new());
        settings
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (sender, connection) = settings.handshake(TokioIo::new(client)).await.unwrap();
        tokio::spawn(connection);
        sender
    }

    async fn ask(
        member: &mut SendRequest<Empty<Bytes>>,
        unread: &Arc<UnreadResponses>,
        bytes: usize,
        is_unary: bool,
    ) -> MemberBody {
        let request = Request::get(format!("http://member/{bytes}")).body(Empty::new()).unwrap();
        let answer = member.send_request(request).await.unwrap();
        Arc::clone(unread).receive(answer, is_unary).await.into_body()
    }

    async fn read(body: MemberBody) -> Result<usize, Status> {
        Ok(body.collect().await?.to_bytes().len())
    }

    /// Waits until this number of responses have begun to wait for their clients.
    async fn have_waited(unread: &UnreadResponses, count: u64) {
        while unread.waiting.lock().next < count {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn unread_responses_do_not_stop_other_responses() {
        const MORE: usize = 300;
        let gate = watch::Sender::new(true);
        let (mut member, unread) = (member(&gate).await, UnreadResponses::new());
        let mut bodies = VecDeque::new();
        for _ in 0..UNREAD_MAX + MORE {
            bodies.push_back(ask(&mut member, &unread, RESPONSE_BYTES, true).await);
        }
        have_waited(&unread, (UNREAD_MAX + MORE) as u64).await;
        assert_eq!(unread.waiting.lock().responses.len(), UNREAD_MAX);
        let buffered = unread.buffered.used();
        assert!((BUFFERED_TOTAL_MAX / 2..=BUFFERED_TOTAL_MAX + BUFFERED_MAX).contains(&buffered));
        let other = ask(&mut member, &unread, RESPONSE_BYTES, true).await;
        let other = tokio::time::timeout(Duration::from_secs(60), read(other)).await;
        assert_eq!(other.expect("the response is not stopped").unwrap(), RESPONSE_BYTES);
        let ended = read(bodies.pop_front().unwrap()).await.unwrap_err();
        assert_eq!(ended.message(), "etcdserver: request timed out");
        assert_eq!(read(bodies.pop_back().unwrap()).await.unwrap(), RESPONSE_BYTES);
        drop(bodies);
        while !unread.waiting.lock().responses.is_empty() || unread.buffered.used() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn responses_that_arrive_after_their_clients_have_stopped_reading_are_bounded() {
        const MORE: usize = 300;
        let gate = watch::Sender::new(false);
        let (mut member, unread) = (member(&gate).await, UnreadResponses::new());
        let mut bodies = Vec::new();
        for _ in 0..UNREAD_MAX + MORE {
            let mut body = ask(&mut member, &unread, RESPONSE_BYTES, false).await;
            let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            bodies.push(body);
        }
        assert!(unread.waiting.lock().responses.is_empty());
        gate.send_replace(true);
        let other = ask(&mut member, &unread, RESPONSE_BYTES, true);
        let other = async { read(other.await).await };
        let other = tokio::time::timeout(Duration::from_secs(60), other).await;
        assert_eq!(other.expect("the response is not stopped").unwrap(), RESPONSE_BYTES);
        have_waited(&unread, (UNREAD_MAX + MORE) as u64).await;
        // The responses arrive in any order, and those that arrive first are ended.
        let mut read_count = 0;
        for body in bodies {
            read_count += usize::from(read(body).await.is_ok_and(|bytes| bytes == RESPONSE_BYTES));
        }
        // One response more may have been ended while the other response waited.
        assert!((UNREAD_MAX - 1..=UNREAD_MAX).contains(&read_count), "{read_count}");
    }

    #[tokio::test]
    async fn any_number_of_streams_may_wait_for_their_members() {
        let gate = watch::Sender::new(false);
        let (mut member, unread) = (member(&gate).await, UnreadResponses::new());
        let mut bodies = Vec::new();
        for _ in 0..2 * UNREAD_MAX {
            let mut body = ask(&mut member, &unread, 100, false).await;
            let polled = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
            bodies.push(body);
        }
        assert!(unread.waiting.lock().responses.is_empty());
        gate.send_replace(true);
        for body in bodies {
            assert_eq!(read(body).await.unwrap(), 100);
        }
    }

    #[tokio::test]
    async fn short_responses_do_not_count_as_unread() {
        let gate = watch::Sender::new(true);
        let (mut member, unread) = (member(&gate).await, UnreadResponses::new());
        let mut bodies = Vec::new();
        for _ in 0..2 * UNREAD_MAX {
            bodies.push(ask(&mut member, &unread, 100, true).await);
        }
        assert!(unread.waiting.lock().responses.is_empty());
        for body in bodies {
            assert_eq!(read(body).await.unwrap(), 100);
        }
        assert_eq!(unread.buffered.used(), 0);
    }
}
