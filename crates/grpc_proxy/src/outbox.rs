//! The queue of messages for a client's stream, which ends with a status.
//!
//! Any thread can add a message without waiting. The transport takes messages while the client grants flow-control
//! credit. If several clients receive the same message, their outboxes share its bytes.
//!
//! # Bound
//!
//! [`Outbox::offer`], for messages that the caller can drop, fills an outbox with at most [`BYTES_MAX`] bytes plus one
//! message. A full outbox still accepts responses to the client's own requests ([`Outbox::put`]), but no more requests
//! are read until the outbox has space again.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{BufMut as _, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use parking_lot::Mutex;
use prost::encoding::int64;
use quorate_grpc::ending::trailers;
use quorate_grpc::framing::message_head;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tonic::Status;

/// Number of queued bytes at which the outbox is full.
pub(crate) const BYTES_MAX: usize = 4 << 20;

/// Number of bytes of short messages that are collected before they are passed to the transport.
const CHUNK_BYTES: usize = 64 << 10;

/// Messages with more bytes than this are passed to the transport without a copy.
const COPIED_BYTES_MAX: usize = 8 << 10;

/// Memory overhead of a queued message, in bytes.
const ENTRY_BYTES: usize = 64;

/// A message: fields specific to this client, and fields shared by all clients.
#[derive(Clone, Debug)]
pub(crate) struct OutboxMessage {
    /// Field 2 of a `WatchResponse`; 0 if the field is absent.
    pub(crate) watch_id: i64,
    pub(crate) shared: Bytes,
}

impl OutboxMessage {
    /// A message that all clients receive unchanged.
    pub(crate) const fn of(shared: Bytes) -> Self {
        Self { watch_id: 0, shared }
    }

    fn bytes(&self) -> usize {
        self.shared.len() + ENTRY_BYTES
    }

    /// Writes the gRPC prefix and the fields for this client.
    fn begin(&self, chunk: &mut BytesMut) {
        let has_id = self.watch_id != 0;
        let own = if has_id { int64::encoded_len(WATCH_ID_FIELD, &self.watch_id) } else { 0 };
        let head = message_head(own + self.shared.len());
        chunk.put_slice(&head.expect("no message from a member is longer than 2 GiB"));
        if has_id {
            int64::encode(WATCH_ID_FIELD, &self.watch_id, chunk);
        }
    }
}

/// The field number of `watch_id` in a `WatchResponse`.
const WATCH_ID_FIELD: u32 = 2;

/// The outbox of one client stream.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Wakes the stream's task when the outbox has space again or there is other work.
    woken: Notify,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<OutboxMessage>,
    bytes: usize,
    end: Option<Status>,
    is_closed: bool,
    waker: Option<Waker>,
}

impl Outbox {
    /// Adds a message even if the outbox is full.
    pub(crate) fn put(&self, message: OutboxMessage) {
        let waker = {
            let mut state = self.state.lock();
            if state.is_closed || state.end.is_some() {
                return;
            }
            state.bytes += message.bytes();
            state.queue.push_back(message);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Adds a message unless the outbox is full. Returns whether it was added.
    pub(crate) fn offer(&self, message: OutboxMessage) -> bool {
        let has_space = !self.is_full();
        if has_space {
            self.put(message);
        }
        has_space
    }

    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().bytes >= BYTES_MAX
    }

    /// Ends the stream after the queued messages.
    pub(crate) fn end(&self, status: Status) {
        let waker = {
            let mut state = self.state.lock();
            state.end.get_or_insert(status);
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether the client has disconnected.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Waits until [`Self::wake`] is called or the outbox has space again.
    pub(crate) async fn woken(&self) {
        self.woken.notified().await;
    }

    pub(crate) fn wake(&self) {
        self.woken.notify_one();
    }

    /// Returns the response body that takes messages from the outbox. Dropping the body aborts `task`.
    pub(crate) fn body(self: &Arc<Self>, task: AbortHandle) -> OutboxBody {
        OutboxBody { outbox: Arc::clone(self), next: None, has_ended: false, task }
    }
}

/// The response body returned by [`Outbox::body`].
#[derive(Debug)]
pub(crate) struct OutboxBody {
    outbox: Arc<Outbox>,
    /// The shared part of a long message, which is sent next.
    next: Option<Bytes>,
    has_ended: bool,
    task: AbortHandle,
}

impl Drop for OutboxBody {
    fn drop(&mut self) {
        self.task.abort();
        let mut state = self.outbox.state.lock();
        state.is_closed = true;
        state.queue.clear();
        state.bytes = 0;
    }
}

impl HttpBody for OutboxBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(rest) = self.next.take() {
            return Poll::Ready(Some(Ok(Frame::data(rest))));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        let mut chunk = BytesMut::new();
        let mut long = None;
        let outbox = Arc::clone(&self.outbox);
        let mut state = outbox.state.lock();
        let was_full = state.bytes >= BYTES_MAX / 2;
        while chunk.len() < CHUNK_BYTES
            && let Some(message) = state.queue.pop_front()
        {
            state.bytes -= message.bytes();
            message.begin(&mut chunk);
            if message.shared.len() > COPIED_BYTES_MAX {
                long = Some(message.shared);
                break;
            }
            chunk.put_slice(&message.shared);
        }
        if was_full && state.bytes < BYTES_MAX / 2 {
            outbox.woken.notify_one();
        }
        if !chunk.is_empty() {
            self.next = long;
            return Poll::Ready(Some(Ok(Frame::data(chunk.freeze()))));
        }
        if let Some(status) = state.end.take() {
            // No message is accepted after the end.
            state.is_closed = true;
            self.has_ended = true;
            return Poll::Ready(Some(trailers(&status)));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use prost::Message as _;
    use quorate_api::etcdserverpb::WatchResponse;

    use super::*;

    fn body(outbox: &Arc<Outbox>) -> OutboxBody {
        outbox.body(tokio::spawn(std::future::pending::<()>()).abort_handle())
    }

    #[tokio::test]
    async fn the_body_contains_all_messages_in_order_followed_by_the_status() {
        let outbox = Arc::new(Outbox::default());
        let shared =
            WatchResponse { cancel_reason: "x".repeat(20_000), ..WatchResponse::default() };
        let bytes: Bytes = shared.encode_to_vec().into();
        for watch_id in [0, 7, -1, 300] {
            outbox.put(OutboxMessage { watch_id, shared: bytes.clone() });
        }
        outbox.end(Status::unavailable("gone"));
        let collected = body(&outbox).collect().await.unwrap();
        assert_eq!(collected.trailers().unwrap()["grpc-message"], "gone");
        let mut wire = collected.to_bytes();
        for watch_id in [0, 7, -1, 300] {
            let head = wire.split_to(5);
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            let message = wire.split_to(length as usize);
            let expected = WatchResponse { watch_id, ..shared.clone() };
            assert_eq!(WatchResponse::decode(message).unwrap(), expected);
        }
        assert!(wire.is_empty());
    }

    #[tokio::test]
    async fn the_outbox_of_a_client_that_does_not_read_is_bounded() {
        let outbox = Arc::new(Outbox::default());
        let mut body = body(&outbox);
        let message = || OutboxMessage::of(vec![0; 100 << 10].into());
        let mut taken = 0;
        while outbox.offer(message()) {
            taken += 1;
        }
        assert_eq!(taken, 41);
        while outbox.state.lock().bytes >= BYTES_MAX / 2 {
            body.frame().await.unwrap().unwrap();
        }
        outbox.woken().await;
        assert!(outbox.offer(message()));
        drop(body);
        assert!(outbox.is_closed());
        outbox.put(message());
        assert_eq!(outbox.state.lock().bytes, 0);
    }
}
