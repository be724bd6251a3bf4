//! Responses of one member that their clients have not read completely.
//!
//! All calls share one connection to the member. The member may send a limited number of bytes that the proxy has not
//! taken from the connection, so responses that no client reads could stop all other responses. The proxy therefore
//! takes the first [`BUFFERED_MAX`] bytes of a response to a unary call from the connection without waiting for the
//! client. Most responses are shorter, and occupy nothing of the connection's window afterwards. The rest of a longer
//! response is taken from the connection at the pace of the client.
//!
//! # Bound
//!
//! Buffered bytes are limited to [`BUFFERED_TOTAL_MAX`]. Beyond this, nothing is buffered. At most [`UNREAD_MAX`]
//! responses wait for their clients. If there are more, the response that has waited longest is ended, so that the
//! window always has room for other responses.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Response;
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tonic::Status;

use crate::byte_limit::{ByteLimit, Share};
use crate::framing::transport_error;

/// The flow-control window of a call, in bytes.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 256 << 10;

/// The flow-control window of a connection, in bytes. It has space for many calls whose clients do not read.
pub(crate) const CONNECTION_WINDOW_BYTES: u32 = 256 << 20;

/// Number of bytes of a response that are buffered.
const BUFFERED_MAX: usize = 64 << 10;

/// Maximum number of buffered bytes of all responses of a member.
const BUFFERED_TOTAL_MAX: usize = 64 << 20;

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
    /// From the response that has waited longest to the one whose client has read most recently.
    responses: BTreeMap<u64, Arc<Mutex<Option<Incoming>>>>,
}

impl UnreadResponses {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), buffered: ByteLimit::new(BUFFERED_TOTAL_MAX) })
    }

    /// Returns the response with a body that counts as unread until the client has read it. With `is_unary`, first
    /// waits for the bytes that are buffered.
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
            if let Some(data) = read.as_ref().ok().and_then(Frame::data_ref) {
                bytes.grow_regardless(data.len());
            }
            buffered.push_back(read.map_err(|error| transport_error(&error)));
        }
        let rest = (!has_ended).then(|| Arc::new(Mutex::new(Some(body))));
        let mut body = MemberBody { unread: self, buffered, bytes, rest, number: None };
        body.wait();
        Response::from_parts(head, body)
    }
}

/// Returns whether a body has no more frames after this one.
fn has_ended_after(read: Option<&Result<Frame<Bytes>, hyper::Error>>, body: &Incoming) -> bool {
    !matches!(read, Some(Ok(_))) || body.is_end_stream()
}

/// The body of a member's response.
#[derive(Debug)]
pub(crate) struct MemberBody {
    unread: Arc<UnreadResponses>,
    buffered: VecDeque<Result<Frame<Bytes>, Status>>,
    bytes: Share,
    /// The part that is not buffered. It contains `None` if the response was ended because it was not read.
    rest: Option<Arc<Mutex<Option<Incoming>>>>,
    /// The position among the waiting responses, if the response waits for its client.
    number: Option<u64>,
}

impl MemberBody {
    /// Records that the response waits for its client from now on.
    fn wait(&mut self) {
        let Some(rest) = &self.rest else { return };
        let longest = {
            let mut waiting = self.unread.waiting.lock();
            if let Some(number) = self.number {
                waiting.responses.remove(&number);
            }
            waiting.next += 1;
            self.number = Some(waiting.next);
            let number = waiting.next;
            waiting.responses.insert(number, Arc::clone(rest));
            let is_over = waiting.responses.len() > UNREAD_MAX;
            let longest = is_over.then(|| waiting.responses.pop_first()).flatten();
            longest.and_then(|(_, longest)| longest.lock().take())
        };
        // Dropping the body resets the stream, and returns its bytes to the connection's window.
        drop(longest);
    }

    /// Records that the response does not wait for its client. Returns true if it was ended because it was not read.
    fn stop_waiting(&mut self) -> bool {
        let Some(number) = self.number.take() else { return false };
        self.unread.waiting.lock().responses.remove(&number).is_none()
    }
}

impl Drop for MemberBody {
    fn drop(&mut self) {
        self.stop_waiting();
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
        let Some(rest) = &self.rest else { return Poll::Ready(None) };
        let (polled, has_ended) = match &mut *rest.lock() {
            Some(rest) => match Pin::new(&mut *rest).poll_frame(cx) {
                Poll::Pending => (Poll::Pending, false),
                Poll::Ready(read) => {
                    let has_ended = has_ended_after(read.as_ref(), rest);
                    (
                        Poll::Ready(read.map(|it| it.map_err(|error| transport_error(&error)))),
                        has_ended,
                    )
                }
            },
            None => {
                // For a client that receives this status, the outcome of a write is unknown.
                let status = Status::unavailable("etcdserver: request timed out");
                (Poll::Ready(Some(Err(status))), true)
            }
        };
        if has_ended {
            self.stop_waiting();
            self.rest = None;
        } else if polled.is_ready() {
            self.wait();
        } else if self.stop_waiting() {
            // The member's response was dropped after the poll, and will not wake the task.
            cx.waker().wake_by_ref();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty()
            && self
                .rest
                .as_ref()
                .is_none_or(|rest| rest.lock().as_ref().is_some_and(HttpBody::is_end_stream))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use http::Request;
    use http_body_util::{Empty, Full};
    use hyper::client::conn::http2::{Builder, SendRequest};
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};

    use super::*;

    const RESPONSE_BYTES: usize = 1 << 20;

    /// Connects to a member that answers each request with as many bytes as its path names.
    async fn member() -> SendRequest<Empty<Bytes>> {
        let (client, server) = tokio::io::duplex(1 << 20);
        let service = service_fn(|request: Request<Incoming>| {
            let bytes: usize = request.uri().path()[1..].parse().unwrap();
            let body = Full::new(Bytes::from(vec![7; bytes]));
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
    ) -> MemberBody {
        let request = Request::get(format!("http://member/{bytes}")).body(Empty::new()).unwrap();
        let answer = member.send_request(request).await.unwrap();
        Arc::clone(unread).receive(answer, true).await.into_body()
    }

    async fn read(body: MemberBody) -> Result<usize, Status> {
        Ok(body.collect().await?.to_bytes().len())
    }

    #[tokio::test]
    async fn unread_responses_do_not_stop_other_responses() {
        const MORE: usize = 300;
        let (mut member, unread) = (member().await, UnreadResponses::new());
        let mut bodies = VecDeque::new();
        for _ in 0..UNREAD_MAX + MORE {
            bodies.push_back(ask(&mut member, &unread, RESPONSE_BYTES).await);
        }
        assert_eq!(unread.waiting.lock().responses.len(), UNREAD_MAX);
        let buffered = unread.buffered.used();
        assert!((BUFFERED_TOTAL_MAX / 2..=BUFFERED_TOTAL_MAX + BUFFERED_MAX).contains(&buffered));
        let other = ask(&mut member, &unread, RESPONSE_BYTES).await;
        let other = tokio::time::timeout(Duration::from_secs(60), read(other)).await;
        assert_eq!(other.expect("the response is not stopped").unwrap(), RESPONSE_BYTES);
        let ended = read(bodies.pop_front().unwrap()).await.unwrap_err();
        assert_eq!(ended.message(), "etcdserver: request timed out");
        assert_eq!(read(bodies.pop_back().unwrap()).await.unwrap(), RESPONSE_BYTES);
        drop(bodies);
        assert!(unread.waiting.lock().responses.is_empty());
        assert_eq!(unread.buffered.used(), 0);
    }

    #[tokio::test]
    async fn short_responses_do_not_count_as_unread() {
        let (mut member, unread) = (member().await, UnreadResponses::new());
        let mut bodies = Vec::new();
        for _ in 0..2 * UNREAD_MAX {
            bodies.push(ask(&mut member, &unread, 100).await);
        }
        assert!(unread.waiting.lock().responses.is_empty());
        for body in bodies {
            assert_eq!(read(body).await.unwrap(), 100);
        }
        assert_eq!(unread.buffered.used(), 0);
    }
}
