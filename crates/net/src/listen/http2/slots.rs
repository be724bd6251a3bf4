//! The requests of a connection. Each request has a slot, which holds the request's future or the response body.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http::{HeaderMap, StatusCode};
use hyper::body::Body;
use quorate_http2::connection::StreamId;
use quorate_http2::frame::Code;
use quorate_http2::hpack::is_grpc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Sleep;

use super::super::read_limit::{ReadLimit, Reading, ResponseDeadline};
use super::body::Delivery;
use super::ready::SlotWaker;
use super::{CONTROL, Http2Service, Server, WholeCall};

/// Maximum number of bytes of a response that are sent before the other waiting responses of the connection have their
/// turns. This is the smallest maximum size of a frame, and the same as in grpc-go.
pub(super) const TURN_BYTES: usize = 16 << 10;

pub(super) struct Slot<G: Http2Service> {
    pub(super) stream: StreamId,
    pub(super) waker: Arc<SlotWaker>,
    /// The waker that is passed to futures.
    pub(super) task: Waker,
    pub(super) work: Work<G>,
    pub(super) delivery: Option<Delivery>,
    pub(super) waits_for_room: bool,
    pub(super) waits_for_window: bool,
    pub(super) waits_for_socket: bool,
    /// Whether the response waits until its client has read more. The flags above say only in which lists the slot is.
    is_delayed: bool,
    /// The read limit of the response, if it has one.
    pub(super) limited: Option<Box<Limited>>,
    /// The timer of the deadline of the response, if it has one.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// A response with a limit on how slowly its client may read.
pub(super) struct Limited {
    limit: ReadLimit,
    /// The bytes of the response that are sent or wait for the socket.
    sent: u64,
    reading: Reading,
}

/// The status and headers of a response.
type Head = (StatusCode, HeaderMap);

pub(super) enum Work<G: Http2Service> {
    Free,
    Whole(WholeCall<G::ResponseBody>),
    Call(Pin<Box<G::Future>>),
    Body {
        /// The head of a gRPC response, until the first frame of the body. As in grpc-go, no client receives the head of
        /// a stream before its first message, and a response without messages consists of a single frame.
        head: Option<Box<Head>>,
        body: G::ResponseBody,
        part: Bytes,
    },
    /// The last part of a response body. `is_whole` means that this part answers a complete call, so the trailers of a
    /// successful call follow.
    Last {
        part: Bytes,
        is_whole: bool,
    },
}

impl<G: Http2Service> Slot<G> {
    fn count_sent(&mut self, len: usize) {
        if let Some(limited) = &mut self.limited {
            limited.sent += len as u64;
        }
    }

    /// Returns whether the response has a read limit and its client reads too slowly. `delayed_connection` is the
    /// number of bytes sent on the connection, if the connection delays the response.
    fn is_read_too_slowly(&mut self, delayed_connection: Option<u64>) -> bool {
        let Some(Limited { limit, sent, reading }) = self.limited.as_deref_mut() else {
            return false;
        };
        if !self.is_delayed {
            *reading = Reading::new(*sent, delayed_connection.unwrap_or_default());
            return false;
        }
        reading.is_too_slow(limit.0.required_pace(), *sent, delayed_connection)
    }
}

/// The result of polling a slot.
enum Step {
    /// The slot waits until it is woken.
    Waiting,
    /// The stream of the slot has ended.
    Done,
}

impl<T: AsyncRead + AsyncWrite + Unpin, G: Http2Service> Server<T, G> {
    pub(super) fn reserve(&mut self, stream: StreamId) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("the number of streams is limited");
            let waker = SlotWaker::new(&self.ready, index);
            let task = Waker::from(Arc::clone(&waker));
            self.slots.push(Slot {
                stream,
                waker,
                task,
                work: Work::Free,
                delivery: None,
                waits_for_room: false,
                waits_for_window: false,
                waits_for_socket: false,
                is_delayed: false,
                limited: None,
                deadline: None,
            });
            index
        });
        self.slots[index as usize].stream = stream;
        self.connection.set_tag(stream, index);
        index
    }

    /// Drops the work of a slot whose stream has ended.
    pub(super) fn vacate(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        if matches!(slot.work, Work::Free) {
            return;
        }
        slot.work = Work::Free;
        slot.is_delayed = false;
        slot.limited = None;
        slot.deadline = None;
        // The unread bytes are returned to the connection's window, because all streams share it.
        if let Some(delivery) = slot.delivery.take() {
            self.connection.release_of_connection(delivery.outstanding());
        }
        self.free.push(index);
        if self.free.len() == self.slots.len() && self.slots.len() > 1024 {
            self.forget_slots();
        }
    }

    /// Drops all slots, and clears the lists of slots.
    pub(super) fn forget_slots(&mut self) {
        self.slots = Vec::new();
        self.free = Vec::new();
        self.waiting_for_room = VecDeque::new();
        self.waiting_for_window = Vec::new();
        self.waiting_for_socket = VecDeque::new();
    }

    /// Resets the streams whose clients read too slowly. Returns whether any response with a read limit remains.
    pub(super) fn reset_slowly_read(&mut self) -> bool {
        let is_delayed = self.is_output_full() || !self.connection.has_room();
        let delayed_connection = is_delayed.then(|| self.sent.load(Ordering::Relaxed));
        let (mut index, mut remains) = (0, false);
        while let Some(slot) = self.slots.get_mut(index as usize) {
            if slot.is_read_too_slowly(delayed_connection) {
                self.connection.reset(slot.stream, Code::ENHANCE_YOUR_CALM);
                self.vacate(index);
            } else {
                remains |= slot.limited.is_some();
            }
            index += 1;
        }
        remains
    }

    pub(super) fn poll_slot(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        slot.waker.reset();
        let stream = slot.stream;
        // A response that is sent as soon as it is available would exceed the bound on the output.
        if matches!(slot.work, Work::Whole(_) | Work::Call(_)) && self.is_output_full() {
            self.wait_for_socket(index);
            return;
        }
        if let Step::Done = self.step(index) {
            self.has_unwritten_response = true;
            self.vacate(index);
            return;
        }
        let slot = &self.slots[index as usize];
        if let Some(delivery) = &slot.delivery {
            let read = delivery.take_read();
            if read > 0 {
                self.connection.release(stream, read);
            }
        }
    }

    /// Polls the woken slots.
    pub(super) fn poll_woken(&mut self) {
        let mut woken = std::mem::take(&mut self.woken);
        self.ready.take(&mut woken);
        for index in woken.drain(..) {
            if index == CONTROL {
                self.is_control_woken = true;
            } else {
                self.poll_slot(index);
            }
        }
        self.woken = woken;
    }

    /// Polls the future or the body in a slot.
    fn step(&mut self, index: u32) -> Step {
        let Self { slots, connection, pings, .. } = self;
        let Slot { stream, task, work, is_delayed, deadline, .. } = &mut slots[index as usize];
        *is_delayed = false;
        let stream = *stream;
        let mut cx = Context::from_waker(task);
        let response = match work {
            Work::Free => return Step::Waiting,
            Work::Whole(call) => match call.as_mut().poll(&mut cx) {
                Poll::Pending => return Step::Waiting,
                Poll::Ready(Ok(message)) => {
                    pings.answered();
                    if connection.reply(stream, &message) {
                        return Step::Done;
                    }
                    connection.respond_grpc(stream);
                    *work = Work::Last { part: message, is_whole: true };
                    return self.send_last(index);
                }
                Poll::Ready(Err(response)) => response,
            },
            Work::Call(call) => match call.as_mut().poll(&mut cx) {
                Poll::Pending => return Step::Waiting,
                Poll::Ready(Ok(response)) => response,
            },
            Work::Body { .. } => return self.send_body(index),
            Work::Last { .. } => return self.send_last(index),
        };
        let (mut head, body) = response.into_parts();
        let limit = head.extensions.remove::<ReadLimit>();
        let ends_at = head.extensions.remove::<ResponseDeadline>();
        let ends = body.is_end_stream();
        let mut unsent = None;
        if is_grpc(&head.headers) && !ends {
            connection.answered(stream);
            unsent = Some(Box::new((head.status, head.headers)));
        } else {
            pings.answered();
            connection.respond(stream, head.status, &head.headers, ends);
            if ends {
                return Step::Done;
            }
        }
        *work = Work::Body { head: unsent, body, part: Bytes::new() };
        *deadline = ends_at.map(|ResponseDeadline(at)| Box::pin(tokio::time::sleep_until(at)));
        if let Some(limit) = limit {
            let reading = Reading::new(0, self.sent.load(Ordering::Relaxed));
            self.slots[index as usize].limited =
                Some(Box::new(Limited { limit, sent: 0, reading }));
            self.check_reading_later();
        }
        self.send_body(index)
    }

    /// Lets the slot wait for its next turn.
    fn wait_for_socket(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.is_delayed = true;
        if !std::mem::replace(&mut slot.waits_for_socket, true) {
            self.waiting_for_socket.push_back(index);
        }
    }

    /// Polls the slots that wait for the socket, until the output is full. A slot that has more to send joins the end of
    /// the queue, so that no response delays another one by more than its turn.
    pub(super) fn poll_waiting_for_socket(&mut self) {
        while !self.is_output_full()
            && let Some(index) = self.waiting_for_socket.pop_front()
        {
            if let Some(slot) = self.slots.get_mut(index as usize) {
                slot.waits_for_socket = false;
                self.poll_slot(index);
            }
        }
    }

    /// Returns the number of bytes that may be sent on a stream now. If it is 0, the slot is woken when there is room.
    fn room(&mut self, index: u32, stream: StreamId) -> usize {
        let is_output_full = self.is_output_full();
        let room = if is_output_full { 0 } else { self.connection.room(stream) };
        if room > 0 {
            return room;
        }
        if is_output_full {
            self.wait_for_socket(index);
            return 0;
        }
        let slot = &mut self.slots[index as usize];
        slot.is_delayed = true;
        if !self.connection.has_room() {
            if !std::mem::replace(&mut slot.waits_for_room, true) {
                self.waiting_for_room.push_back(index);
            }
        } else if !std::mem::replace(&mut slot.waits_for_window, true) {
            self.waiting_for_window.push(index);
        }
        0
    }

    /// Polls the slots that wait for the connection's window, while it has room. The remaining slots keep their places,
    /// so that a small window update neither causes work for every stream nor goes to the same response each time.
    pub(super) fn poll_waiting_for_room(&mut self) {
        while self.connection.has_room()
            && !self.is_output_full()
            && let Some(index) = self.waiting_for_room.pop_front()
        {
            if let Some(slot) = self.slots.get_mut(index as usize) {
                slot.waits_for_room = false;
                self.poll_slot(index);
            }
        }
    }

    /// Sends the head of a response, unless it has been sent.
    fn send_head(&mut self, index: u32) {
        let Slot { stream, work, .. } = &mut self.slots[index as usize];
        if let Work::Body { head, .. } = work
            && let Some(head) = head.take()
        {
            self.pings.answered();
            self.connection.respond(*stream, head.0, &head.1, false);
        }
    }

    fn send_last(&mut self, index: u32) -> Step {
        let stream = self.slots[index as usize].stream;
        let mut turn = TURN_BYTES;
        loop {
            let room = self.room(index, stream);
            if room == 0 || turn == 0 {
                return self.await_turn(index, room);
            }
            let Work::Last { part, is_whole } = &mut self.slots[index as usize].work else {
                return Step::Done;
            };
            let now = part.split_to(part.len().min(room).min(turn));
            let (is_whole, is_sent) = (*is_whole, part.is_empty());
            turn -= now.len();
            self.slots[index as usize].count_sent(now.len());
            self.connection.data(stream, &now, is_sent && !is_whole);
            self.pings.answered();
            if is_sent {
                if is_whole {
                    self.connection.end_grpc(stream);
                }
                return Step::Done;
            }
        }
    }

    /// Ends the turn of a slot that has more to send. If there is room, the slot waits for its next turn. Otherwise,
    /// [`Server::room`] has already let it wait for room.
    fn await_turn(&mut self, index: u32, room: usize) -> Step {
        if !self.connection.has_stream(self.slots[index as usize].stream) {
            return Step::Done;
        }
        if room > 0 {
            self.wait_for_socket(index);
        }
        Step::Waiting
    }

    /// Ends a response whose deadline has passed, without waiting for room: sends the trailers, or resets the stream as
    /// etcd does if the trailers would follow an incomplete message or a full output.
    fn end_at_deadline(&mut self, index: u32, cx: &mut Context<'_>) -> Step {
        let is_output_full = self.is_output_full();
        let Slot { stream, work, .. } = &mut self.slots[index as usize];
        let Work::Body { head, body, part } = work else { return Step::Done };
        let trailers = match Pin::new(body).poll_frame(cx) {
            // The timer of the body has the same deadline, and wakes the slot.
            Poll::Pending => return Step::Waiting,
            Poll::Ready(Some(Ok(frame))) => frame.into_trailers().ok(),
            Poll::Ready(Some(Err(_)) | None) => None,
        };
        match trailers {
            Some(trailers) if part.is_empty() && !is_output_full => {
                let (stream, head) = (*stream, head.take());
                self.end_with_trailers(stream, head, trailers);
            }
            Some(_) | None => self.connection.reset(*stream, Code::CANCEL),
        }
        Step::Done
    }

    /// Ends a response with trailers. If its head has not been sent, both are sent together, as grpc-go does.
    fn end_with_trailers(
        &mut self,
        stream: StreamId,
        head: Option<Box<Head>>,
        trailers: HeaderMap,
    ) {
        let Some(head) = head else { return self.connection.trailers(stream, &trailers) };
        let (status, mut headers) = *head;
        headers.extend(trailers);
        self.pings.answered();
        self.connection.respond(stream, status, &headers, true);
    }

    fn send_body(&mut self, index: u32) -> Step {
        let stream = self.slots[index as usize].stream;
        let task = self.slots[index as usize].task.clone();
        let mut cx = Context::from_waker(&task);
        let deadline = self.slots[index as usize].deadline.as_mut();
        if deadline.is_some_and(|deadline| deadline.as_mut().poll(&mut cx).is_ready()) {
            return self.end_at_deadline(index, &mut cx);
        }
        let mut turn = TURN_BYTES;
        loop {
            // Trailers need no room in a window, so a body that contains no more data is polled without room.
            let has_data = match &self.slots[index as usize].work {
                Work::Body { body, part, .. } => {
                    part.has_remaining() || body.size_hint().exact() != Some(0)
                }
                _ => return Step::Done,
            };
            let room = if has_data || self.is_output_full() { self.room(index, stream) } else { 1 };
            if room > 0 && turn == 0 {
                return self.await_turn(index, room);
            }
            if room == 0 {
                // A client may open the window of a stream only after it has received the head.
                if !self.is_output_full() {
                    self.send_head(index);
                }
                return self.await_turn(index, room);
            }
            let Work::Body { head, body, part } = &mut self.slots[index as usize].work else {
                return Step::Done;
            };
            if part.has_remaining() {
                let now = part.split_to(part.len().min(room).min(turn));
                turn -= now.len();
                self.slots[index as usize].count_sent(now.len());
                self.connection.data(stream, &now, false);
                self.pings.answered();
                continue;
            }
            match Pin::new(&mut *body).poll_frame(&mut cx) {
                Poll::Pending => return Step::Waiting,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    // The body is dropped as soon as its last part is available, because a body counts as a request in
                    // progress.
                    Ok(data) if body.is_end_stream() => {
                        self.send_head(index);
                        self.slots[index as usize].work =
                            Work::Last { part: data, is_whole: false };
                        return self.send_last(index);
                    }
                    Ok(data) => {
                        *part = data;
                        self.send_head(index);
                    }
                    Err(frame) => {
                        let head = head.take();
                        let trailers = frame.into_trailers().unwrap_or_default();
                        self.end_with_trailers(stream, head, trailers);
                        return Step::Done;
                    }
                },
                Poll::Ready(Some(Err(_))) => {
                    self.connection.reset(stream, Code::INTERNAL_ERROR);
                    return Step::Done;
                }
                Poll::Ready(None) => {
                    self.send_head(index);
                    self.connection.data(stream, b"", true);
                    return Step::Done;
                }
            }
        }
    }
}
