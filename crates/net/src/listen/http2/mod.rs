//! Serves an HTTP/2 connection: moves bytes between the socket and the state machine (`quorate_http2`), and polls the
//! requests.
//!
//! One task serves a connection with all its requests. Each time the task runs, it reads the received bytes, polls the
//! woken requests, and writes all responses together.
//!
//! The responses of a connection share the socket in turns of [`slots::TURN_BYTES`], so that a large response does not
//! delay a watch event or a small response for long.
//!
//! A complete unary call takes a short path if the service offers one ([`Http2Service::call_whole`]): the head is
//! shared with earlier calls, and the response is one message.
//!
//! # Bound
//!
//! At most about [`OUTPUT_BYTES_MAX`] bytes and one part of each body wait for the socket. Beyond that, no request and
//! no body is polled and no input is read, so a client that does not read delays only itself. A body is polled only
//! while its stream has room. If a response has a [`ReadLimit`](super::ReadLimit) and its client reads too slowly, the
//! response is dropped and its stream is reset. A response also ends at its deadline
//! ([`ResponseDeadline`](super::ResponseDeadline)) while its client does not read.

mod body;
mod ready;
mod slots;
#[cfg(test)]
mod tests;
mod until;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use quorate_http2::connection::{Connection, Event, Limits, StreamId, Violation};
use quorate_http2::frame::Code;
use quorate_http2::head::Head;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use self::body::Delivery;
pub use self::body::{Lost, StreamBody};
use self::ready::{Ready, SlotWaker};
use self::slots::{Slot, Work};
pub(super) use self::until::{Ended, Until};
use super::ping_floor::Rules;
use super::read_limit::CHECKED_EVERY;
use super::{Http2Service, Served};
use crate::runtime::set_stream_count;

/// Maximum number of bytes that wait for the socket. The frame that reaches the limit may exceed it.
pub(super) const OUTPUT_BYTES_MAX: usize = 256 << 10;
/// Maximum number of bytes in one read.
const READ_BYTES: usize = 64 << 10;
/// Maximum number of reads from a connection before the other connections on its thread are polled.
const READS_PER_TURN_MAX: u32 = 4;
/// Minimum capacity at which the thread keeps an empty output buffer for reuse.
const BUFFER_KEPT_BYTES: usize = 4 << 10;
/// Maximum capacity at which it does. Larger buffers, which only a client with very large frames causes, are freed.
const BUFFER_KEPT_BYTES_MAX: usize = 4 * OUTPUT_BYTES_MAX;
/// The interval at which the counts of idle frames and cancelled requests are halved.
const FORGIVEN_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of output buffers that a thread keeps.
const SPARE_COUNT_MAX: usize = 16;
/// The payload of the ping that follows the announcement of the connection's end. The client's reply to the ping shows
/// that it has received the announcement.
const ENDING: [u8; 8] = *b"the end.";
/// The payload of the ping that checks an idle client.
const ALIVE: [u8; 8] = *b"alive? .";

thread_local! {
    static INPUT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The slot index that stands for the timer and the signal to close, which are not requests.
const CONTROL: u32 = u32::MAX;

/// The response to a complete call: a framed message of a successful call, or any other response.
pub type WholeAnswer<B> = Result<Bytes, Response<B>>;
/// The future of the response to a complete call.
pub type WholeCall<B> = Pin<Box<dyn Future<Output = WholeAnswer<B>> + Send>>;

/// The settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) limits: Limits,
    pub(super) ping_floor: Option<Duration>,
    /// Time after which an incomplete header block ends the connection.
    pub(super) head_timeout: Duration,
    pub(super) keepalive: Option<(Duration, Duration)>,
}

/// The server side of one connection, with its requests.
pub(super) struct Server<T, G: Http2Service> {
    io: T,
    service: G,
    connection: Connection,
    /// The received bytes of an incomplete frame.
    input: Vec<u8>,
    ready: Arc<Ready>,
    /// A buffer for the woken slots. It is empty between polls.
    woken: Vec<u32>,
    slots: Vec<Slot<G>>,
    free: Vec<u32>,
    /// Slots whose work has just started.
    started: Vec<u32>,
    /// Whether a complete response may wait for the socket.
    has_unwritten_response: bool,
    /// The waker with which the timer and the signal to close wake the task.
    control: Arc<SlotWaker>,
    control_task: Waker,
    is_control_woken: bool,
    /// A request that the next frame may complete.
    fresh: Option<Fresh>,
    /// Slots that wait for room in the connection's window, in wake-up order.
    waiting_for_room: VecDeque<u32>,
    /// Slots that wait for room in the windows of their streams.
    waiting_for_window: Vec<u32>,
    /// Slots that wait for the socket, or for their next turns to send a part of their responses.
    waiting_for_socket: VecDeque<u32>,
    pings: Rules,
    keepalive: Option<Keepalive>,
    head_timeout: Duration,
    /// The stream of an incomplete header block, and the deadline of the block.
    head_deadline: Option<(StreamId, Pin<Box<Sleep>>)>,
    /// The time of the next check of the responses with a read limit.
    reading_check: Option<Pin<Box<Sleep>>>,
    forgiven_at: Instant,
    ending: Ending,
    sent: Arc<AtomicU64>,
}

struct Fresh {
    stream: StreamId,
    head: Arc<Head>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Open,
    /// The end is announced, and the client may still open streams.
    Announced,
    /// No more streams are served.
    Draining,
    /// The remaining output is being sent.
    Closing,
}

struct Keepalive {
    interval: Duration,
    timeout: Duration,
    timer: Pin<Box<Sleep>>,
    heard_at: Instant,
    is_pinged: bool,
}

impl<T: AsyncRead + AsyncWrite + Unpin, G: Http2Service> Server<T, G> {
    /// Creates a server for a connection. The bytes in `first` have already been read from the socket.
    pub(super) fn new(io: T, first: Vec<u8>, service: G, settings: Settings) -> Self {
        let keepalive = settings.keepalive.map(|(interval, timeout)| Keepalive {
            interval,
            timeout,
            timer: Box::pin(tokio::time::sleep(interval)),
            heard_at: Instant::now(),
            is_pinged: false,
        });
        let ready = Ready::of_this_thread();
        let control = SlotWaker::new(&ready, CONTROL);
        Self {
            io,
            service,
            connection: Connection::new(settings.limits),
            input: first,
            ready,
            woken: Vec::new(),
            started: Vec::new(),
            control_task: Waker::from(Arc::clone(&control)),
            control,
            is_control_woken: true,
            slots: Vec::new(),
            has_unwritten_response: false,
            free: Vec::new(),
            fresh: None,
            waiting_for_room: VecDeque::new(),
            waiting_for_window: Vec::new(),
            waiting_for_socket: VecDeque::new(),
            pings: Rules::new(settings.ping_floor),
            keepalive,
            head_timeout: settings.head_timeout,
            head_deadline: None,
            reading_check: None,
            forgiven_at: Instant::now(),
            ending: Ending::Open,
            sent: Arc::default(),
        }
    }

    /// Announces the end of the connection. The connection ends when its requests have ended.
    pub(super) fn graceful_shutdown(&mut self) {
        if self.ending == Ending::Open {
            self.ending = Ending::Announced;
            self.connection.announce_end();
            self.connection.ping(ENDING);
        }
    }

    /// Returns the counter of the bytes that the kernel has accepted.
    pub(super) fn sent_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sent)
    }

    fn is_output_full(&self) -> bool {
        self.connection.output().len() >= OUTPUT_BYTES_MAX
    }

    /// Reads once, and processes the received bytes. Returns false at the end of the input.
    fn read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut buffer = INPUT.take();
        if buffer.is_empty() {
            buffer = vec![0; READ_BYTES];
        }
        let mut read = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut self.io).poll_read(cx, &mut read);
        let count = read.filled().len();
        if count > 0 {
            let now = Instant::now();
            if let Some(keepalive) = &mut self.keepalive {
                keepalive.heard_at = now;
            }
            if now.duration_since(self.forgiven_at) >= FORGIVEN_EVERY {
                self.forgiven_at = now;
                self.connection.forgive();
            }
            if let Err(Violation { code, reason }) = self.process(&buffer[..count]) {
                self.close(code, reason.as_bytes());
            }
            self.follow_head();
        }
        INPUT.set(buffer);
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => Poll::Ready(Ok(count > 0)),
        }
    }

    /// Processes received bytes, and keeps an incomplete frame for the next read.
    pub(super) fn process(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        if self.ending == Ending::Closing {
            return Ok(());
        }
        if self.input.is_empty() {
            let rest = self.take_frames(bytes)?;
            self.input.extend_from_slice(rest);
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let rest = self.take_frames(&input)?.len();
        if rest > 0 {
            let used = input.len() - rest;
            input.copy_within(used.., 0);
            input.truncate(rest);
            self.input = input;
        }
        Ok(())
    }

    /// Processes all complete frames and returns the rest.
    fn take_frames<'a>(&mut self, mut bytes: &'a [u8]) -> Result<&'a [u8], Violation> {
        while let Some(mut event) = self.connection.next(&mut bytes)? {
            if let Some(Fresh { stream, head }) = self.fresh.take() {
                if let Event::Data { stream: of, data, .. } = &event
                    && *of == stream
                    && self.start_whole(stream, &head, data)
                {
                    continue;
                }
                let index = self.start(stream, &head, false);
                event = event.tagged(stream, index);
            }
            self.take_event(event);
            if self.ending == Ending::Closing {
                return Ok(&[]);
            }
        }
        if let Some(Fresh { stream, head }) = self.fresh.take() {
            self.start(stream, &head, false);
        }
        Ok(bytes)
    }

    fn take_event(&mut self, event: Event<'_>) {
        match event {
            Event::Request { stream, head, ends: false } => {
                self.fresh = Some(Fresh { stream, head });
            }
            Event::Request { stream, head, ends: true } => _ = self.start(stream, &head, true),
            Event::Data { stream, tag, data, ends } => {
                let delivery = self.slots.get(tag as usize).and_then(|slot| slot.delivery.as_ref());
                if !delivery.is_some_and(|delivery| delivery.push(data, ends)) {
                    self.connection.release(stream, data.len());
                }
            }
            Event::Trailers { tag, .. } => {
                if let Some(delivery) =
                    self.slots.get(tag as usize).and_then(|slot| slot.delivery.as_ref())
                {
                    delivery.end();
                }
            }
            Event::Reset { tag, .. } => self.vacate(tag),
            // Nothing is done here, because the slots that wait for the connection's window are woken when the
            // responses are polled.
            Event::Room { stream: 0, .. } => {}
            Event::NewWindow => {
                for index in self.waiting_for_window.drain(..) {
                    if let Some(slot) = self.slots.get_mut(index as usize) {
                        slot.waits_for_window = false;
                        slot.waker.wake_by_ref();
                    }
                }
            }
            Event::Room { tag, .. } => {
                if let Some(slot) = self.slots.get(tag as usize) {
                    slot.waker.wake_by_ref();
                }
            }
            Event::Ping { payload } => {
                let is_busy = self.fresh.is_some() || self.service.activity().under_way > 0;
                if self.pings.admit(Instant::now().into_std(), is_busy) {
                    self.connection.pong(payload);
                } else {
                    self.close(Code::ENHANCE_YOUR_CALM, b"too_many_pings");
                }
            }
            Event::Pong { payload } => {
                if payload == ENDING && self.ending == Ending::Announced {
                    self.connection.end();
                    self.ending = Ending::Draining;
                }
            }
        }
    }

    /// Starts a call whose request message is complete, if the service has a short path for the call; otherwise returns
    /// false. The client may still have to end its side of the stream.
    fn start_whole(&mut self, stream: StreamId, head: &Arc<Head>, data: &[u8]) -> bool {
        let Some(call) = self.service.call_whole(head, None, data) else { return false };
        let index = self.reserve(stream);
        self.slots[index as usize].work = Work::Whole(call);
        self.started.push(index);
        self.connection.release(stream, data.len());
        true
    }

    /// Starts a request that has no body or whose body arrives later. Returns the request's slot.
    fn start(&mut self, stream: StreamId, head: &Head, is_empty: bool) -> u32 {
        let index = self.reserve(stream);
        if is_empty {
            self.call(index, head, StreamBody::EMPTY, None);
        } else {
            let (delivery, body) = body::open(&self.slots[index as usize].waker);
            self.call(index, head, body, Some(delivery));
        }
        index
    }

    fn call(&mut self, index: u32, head: &Head, body: StreamBody, delivery: Option<Delivery>) {
        let mut request = Request::new(body.into());
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = head.uri.clone();
        *request.headers_mut() = head.headers.clone();
        *request.version_mut() = http::Version::HTTP_2;
        let call = Box::pin(self.service.call(request));
        let slot = &mut self.slots[index as usize];
        slot.work = Work::Call(call);
        slot.delivery = delivery;
        self.started.push(index);
    }

    /// Ends the connection: drops all requests, and sends the reason.
    fn close(&mut self, code: Code, reason: &[u8]) {
        self.connection.close(code, reason);
        self.input = Vec::new();
        self.ending = Ending::Closing;
        self.fresh = None;
        self.forget_slots();
        self.started = Vec::new();
    }

    /// Writes the output of the connection to the socket.
    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut is_blocked = false;
        while !is_blocked && !self.connection.output().is_empty() {
            match Pin::new(&mut self.io).poll_write(cx, self.connection.output()) {
                Poll::Pending => is_blocked = true,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    self.connection.wrote(count);
                    self.sent.fetch_add(count as u64, Ordering::Relaxed);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        if is_blocked {
            return Poll::Pending;
        }
        self.has_unwritten_response = false;
        // The stream is flushed because TLS may buffer data itself.
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_keepalive(&mut self) -> bool {
        let mut cx = Context::from_waker(&self.control_task);
        let Some(keepalive) = &mut self.keepalive else { return true };
        while keepalive.timer.as_mut().poll(&mut cx).is_ready() {
            let silent = keepalive.heard_at.elapsed();
            if silent < keepalive.interval {
                keepalive.is_pinged = false;
                let left = keepalive.interval - silent;
                keepalive.timer.as_mut().reset(Instant::now() + left);
            } else if keepalive.is_pinged {
                return false;
            } else {
                keepalive.is_pinged = true;
                self.connection.ping(ALIVE);
                keepalive.timer.as_mut().reset(Instant::now() + keepalive.timeout);
            }
        }
        true
    }

    /// Starts or ends the deadline of an incomplete header block. Such a block occupies memory that is not counted for
    /// any request.
    fn follow_head(&mut self) {
        let open = self.connection.open_block_stream();
        if open == self.head_deadline.as_ref().map(|(stream, _)| *stream) {
            return;
        }
        let deadline = |stream| (stream, Box::pin(tokio::time::sleep(self.head_timeout)));
        self.head_deadline = open.map(deadline);
        self.poll_head_deadline();
    }

    fn poll_head_deadline(&mut self) {
        let mut cx = Context::from_waker(&self.control_task);
        if let Some((_, deadline)) = &mut self.head_deadline
            && deadline.as_mut().poll(&mut cx).is_ready()
        {
            self.head_deadline = None;
            self.close(Code::ENHANCE_YOUR_CALM, b"a header block was not completed in time");
        }
    }

    /// Schedules a check of the responses with a read limit.
    fn check_reading_later(&mut self) {
        if self.reading_check.is_none() {
            self.reading_check = Some(Box::pin(tokio::time::sleep(CHECKED_EVERY)));
            self.poll_reading_check();
        }
    }

    fn poll_reading_check(&mut self) {
        while let Some(timer) = &mut self.reading_check {
            if timer.as_mut().poll(&mut Context::from_waker(&self.control_task)).is_pending() {
                return;
            }
            if self.reset_slowly_read() {
                self.reading_check = Some(Box::pin(tokio::time::sleep(CHECKED_EVERY)));
            } else {
                self.reading_check = None;
            }
        }
    }

    fn run(&mut self, cx: &mut Context<'_>) -> Poll<Served> {
        if std::mem::take(&mut self.is_control_woken) {
            self.control.reset();
            if !self.poll_keepalive() {
                return Poll::Ready(Ok(()));
            }
            self.poll_head_deadline();
            self.poll_reading_check();
        }
        let (mut can_read, mut reads) = (true, 0);
        loop {
            if can_read && reads < READS_PER_TURN_MAX && !self.is_output_full() {
                match self.read(cx) {
                    Poll::Ready(Ok(true)) => reads += 1,
                    Poll::Ready(Ok(false)) => return Poll::Ready(Ok(())),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                    Poll::Pending => can_read = false,
                }
            }
            let unwritten = usize::from(self.has_unwritten_response);
            set_stream_count(self.connection.stream_count() + unwritten);
            // Responses that already wait have their turns before later ones.
            self.poll_waiting_for_socket();
            let has_started = !self.started.is_empty();
            let mut started = std::mem::take(&mut self.started);
            for index in started.drain(..) {
                self.poll_slot(index);
            }
            self.started = started;
            self.poll_waiting_for_room();
            self.poll_woken();
            self.poll_waiting_for_socket();
            set_stream_count(0);
            if has_started && can_read && reads < READS_PER_TURN_MAX {
                // More requests may have arrived. They are processed first, so that all responses are written together.
                continue;
            }
            let is_written = match self.write(cx) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => false,
            };
            if is_written && self.is_over() {
                return Pin::new(&mut self.io).poll_shutdown(cx).map_err(Into::into);
            }
            let has_waiting = !self.waiting_for_socket.is_empty()
                || self.connection.has_room() && !self.waiting_for_room.is_empty();
            if has_waiting && !self.is_output_full() && reads < READS_PER_TURN_MAX {
                continue;
            }
            if !can_read && self.ready.end() {
                return Poll::Pending;
            }
            if reads >= READS_PER_TURN_MAX {
                self.ready.yield_now();
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if !is_written && self.is_output_full() && self.ready.end() {
                return Poll::Pending;
            }
        }
    }

    fn is_over(&self) -> bool {
        match self.ending {
            Ending::Open | Ending::Announced => false,
            Ending::Draining => self.connection.stream_count() == 0,
            Ending::Closing => true,
        }
    }

    fn lend_buffer(&mut self) {
        if self.connection.buffer_capacity() == 0 {
            let mut spare = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
            self.connection.swap_buffer(&mut spare);
        }
    }

    fn return_buffer(&mut self) {
        if self.connection.output().is_empty()
            && self.connection.buffer_capacity() >= BUFFER_KEPT_BYTES
        {
            let mut buffer = Vec::new();
            self.connection.swap_buffer(&mut buffer);
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < SPARE_COUNT_MAX && buffer.capacity() <= BUFFER_KEPT_BYTES_MAX {
                    spare.push(buffer);
                }
            });
        }
    }
}

/// No field is ever pinned, so a server may be moved between polls.
impl<T: Unpin, G: Http2Service> Unpin for Server<T, G> {}

impl<T: AsyncRead + AsyncWrite + Unpin, G: Http2Service> Server<T, G> {
    fn poll_served(&mut self, cx: &mut Context<'_>) -> Poll<Served> {
        self.lend_buffer();
        let polled = self.run(cx);
        self.return_buffer();
        polled
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin, G: Http2Service> Future for Server<T, G> {
    type Output = Served;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Served> {
        let this = &mut *self;
        this.ready.begin(cx.waker());
        loop {
            let polled = this.poll_served(cx);
            if polled.is_ready() || !this.is_control_woken {
                return polled;
            }
        }
    }
}
