//! The writing end of a stream: a queue of messages for the connection that the peer has opened.
//!
//! The consensus thread adds messages; the body of the response to the peer's stream request takes them. Whenever the
//! connection can accept more, the body encodes all queued messages into one buffer, which is sent as one chunk. While
//! the connection is busy, messages accumulate. No separate writer task is needed.
//!
//! While the connection's task sleeps, a few short messages are written by the thread that has added them
//! ([`Outgoing::flush`]). Waking the task for them would cost two context switches.
//!
//! # Bounds
//!
//! At most [`MESSAGES_QUEUED_MAX`] messages wait for each stream, and for each peer at most as many bytes as its
//! [`Allowance`] permits. Each stream also holds one encoded chunk. If messages wait and the connection accepts nothing
//! for the write timeout, the connection is detached: its messages are lost, and its body ends when it is polled again.
//!
//! # Not here
//!
//! The choice of the stream, and the handling of messages that do not fit (`peer`).

use std::collections::VecDeque;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use parking_lot::Mutex;
use quorate_net::listen::{DirectWriter, Written};
use quorate_raft::Message;
use tokio::time::{Interval, MissedTickBehavior};

use crate::body::BoxError;
use crate::frame::{Encoder, StreamKind};

/// Maximum number of messages that wait in one stream.
pub(crate) const MESSAGES_QUEUED_MAX: usize = 4096;

/// Maximum total size of the messages that wait for one peer, in bytes.
pub(crate) const QUEUED_BYTES_MAX: usize = 64 << 20;

// The queue also holds the memory of the entries (`cost`), which is several times the size of very small entries.
const _: () = assert!(
    QUEUED_BYTES_MAX as u64 >= 4 * quorate_core::INFLIGHT_BYTES_MAX,
    "the queue for a peer holds all unacknowledged appends: otherwise appends are lost without a fault of the \
     network, and the leader sends the entries in the queue again and again"
);

/// Approximate number of bytes that are encoded at a time. Further messages stay queued until the connection has
/// accepted these bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Maximum number of bytes passed to the connection in one piece. A connection that accepts this many bytes within the
/// write timeout is slow but not stuck.
const PIECE_BYTES: usize = 64 << 10;

/// Maximum total size of messages that are written by the thread that added them.
const WRITTEN_AT_ONCE_BYTES_MAX: usize = 16 << 10;

/// Counts the bytes that wait for one peer, in all queues.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    used_bytes: AtomicUsize,
}

impl Allowance {
    /// Reserves space for a message. A message of any size is accepted if no other message is waiting.
    pub(crate) fn reserve(&self, message: &Message) -> bool {
        let cost = cost(message);
        let used = self.used_bytes.fetch_add(cost, Ordering::Relaxed);
        let fits = used == 0 || used.saturating_add(cost) <= QUEUED_BYTES_MAX;
        if !fits {
            self.used_bytes.fetch_sub(cost, Ordering::Relaxed);
        }
        fits
    }

    pub(crate) fn release(&self, message: &Message) {
        self.used_bytes.fetch_sub(cost(message), Ordering::Relaxed);
    }
}

/// Returns the approximate memory use of a message.
fn cost(message: &Message) -> usize {
    let entries = message.entries.iter().map(|entry| size_of_val(entry) + entry.data.len());
    size_of_val(message) + message.context.len() + entries.sum::<usize>()
}

/// A connection that waits for messages.
#[derive(Debug)]
pub(crate) struct Wake {
    attachment: u64,
    waker: Waker,
}

/// The result of adding a message.
#[derive(Debug)]
pub(crate) enum Pushed {
    /// The message is queued. A returned value must be passed to [`Outgoing::flush`] after all messages of the batch
    /// are added.
    Taken(Option<Wake>),
    /// No connection is attached. Contains the message that was not added.
    Detached(Message),
    Full,
    /// The connection has accepted nothing for too long. It was detached, and all queued messages are lost.
    Stuck,
}

/// Writes to a stream's connection without using the connection's task.
#[derive(Clone, Debug)]
pub(crate) struct DirectStream {
    writer: DirectWriter,
    /// Shared with the body.
    encoder: Arc<Mutex<TimedEncoder>>,
}

/// The encoder of a stream, and the time of the last message.
#[derive(Debug)]
struct TimedEncoder {
    encoder: Encoder,
    last_message: tokio::time::Instant,
}

impl TimedEncoder {
    fn put(&mut self, message: &Message, out: &mut BytesMut) {
        self.encoder.put(message, out);
        self.last_message = tokio::time::Instant::now();
    }
}

/// The queue of one stream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    allowance: Arc<Allowance>,
    stuck_after: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the current attachment, if a connection is attached.
    attached: Option<u64>,
    attachments: u64,
    /// Whether the peer was removed, so that no more connections may attach.
    is_closed: bool,
    messages: VecDeque<Message>,
    /// Whether the connection has taken messages and has not asked for more since. If so, it may not have accepted all
    /// of their bytes.
    has_unsent: bool,
    /// The time since which messages have been queued without the connection accepting any data.
    waiting_since: Option<Instant>,
    /// Wakes the connection when messages are added.
    waker: Option<Waker>,
    /// `None` if only the connection's task may write.
    direct: Option<DirectStream>,
}

impl State {
    /// Writes the queued messages to the connection if the messages are short and the connection's task sleeps. Returns
    /// the number of bytes and whether the connection has accepted all of them, or `None` if nothing is written.
    fn write_directly(&mut self, allowance: &Allowance) -> Option<(usize, bool)> {
        let direct = self.direct.as_ref()?;
        let bytes: usize = self.messages.iter().map(cost).sum();
        if self.has_unsent || self.messages.is_empty() || bytes > WRITTEN_AT_ONCE_BYTES_MAX {
            return None;
        }
        let (messages, mut encoder) = (&mut self.messages, direct.encoder.lock());
        let mut encoded = BytesMut::new();
        let written = direct.writer.write(&mut |out| {
            for message in messages.drain(..) {
                encoder.put(&message, &mut encoded);
                allowance.release(&message);
            }
            put_chunk(&encoded, out);
        });
        match written {
            Written::Busy => None,
            Written::Complete => {
                self.waiting_since = None;
                Some((encoded.len(), true))
            }
            Written::Partly => {
                self.has_unsent = true;
                self.waiting_since = Some(Instant::now());
                Some((encoded.len(), false))
            }
        }
    }

    /// Returns whether the connection has accepted nothing for too long while messages wait.
    fn is_stuck(&self, stuck_after: Duration) -> bool {
        self.attached.is_some()
            && self.waker.is_none()
            && self.waiting_since.is_some_and(|since| since.elapsed() > stuck_after)
    }

    /// Detaches the connection. Returns the queued messages and the connection's waker.
    fn detach(&mut self) -> (VecDeque<Message>, Option<Waker>) {
        self.attached = None;
        self.direct = None;
        self.has_unsent = false;
        self.waiting_since = None;
        (std::mem::take(&mut self.messages), self.waker.take())
    }
}

/// The result of ending an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) was_attached: bool,
    /// Whether messages were lost, either from the queue or from a chunk that the connection had not completely
    /// accepted. Messages in the connection's own buffers do not count.
    pub(crate) lost_any: bool,
}

impl Outgoing {
    pub(crate) fn new(allowance: &Arc<Allowance>, stuck_after: Duration) -> Self {
        Self { allowance: Arc::clone(allowance), stuck_after, state: Mutex::default() }
    }

    /// Adds a message.
    pub(crate) fn push(&self, message: Message) -> Pushed {
        let mut state = self.state.lock();
        let Some(attachment) = state.attached else { return Pushed::Detached(message) };
        if state.is_stuck(self.stuck_after) {
            drop(state);
            self.detach();
            return Pushed::Stuck;
        }
        state.waiting_since.get_or_insert_with(Instant::now);
        if state.messages.len() >= MESSAGES_QUEUED_MAX || !self.allowance.reserve(&message) {
            return Pushed::Full;
        }
        state.messages.push_back(message);
        Pushed::Taken(state.waker.take().map(|waker| Wake { attachment, waker }))
    }

    /// Sends the queued messages: writes them on the calling thread if possible, or wakes the connection's task.
    /// Returns the number of bytes that were written on the calling thread.
    pub(crate) fn flush(&self, Wake { attachment, waker }: Wake) -> usize {
        let mut state = self.state.lock();
        if state.attached != Some(attachment) {
            // The attachment has ended, so its connection's task is woken to end the body.
            drop(state);
            waker.wake();
            return 0;
        }
        let written = state.write_directly(&self.allowance);
        if let Some((bytes, true)) = written {
            // The task still sleeps. Its waker is kept for later messages.
            state.waker.get_or_insert(waker);
            return bytes;
        }
        drop(state);
        waker.wake();
        written.map_or(0, |(bytes, _)| bytes)
    }

    /// Detaches the connection if it has accepted nothing for too long. Returns whether the connection was detached.
    pub(crate) fn give_up_if_stuck(&self) -> bool {
        let is_stuck = self.state.lock().is_stuck(self.stuck_after);
        is_stuck && self.detach().was_attached
    }

    /// Returns whether any messages are queued, or have been taken by a connection that may not have accepted all of
    /// their bytes yet.
    pub(crate) fn has_unsent(&self) -> bool {
        let state = self.state.lock();
        state.has_unsent || !state.messages.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn is_attached(&self) -> bool {
        self.state.lock().attached.is_some()
    }

    /// Attaches a new connection, which replaces any earlier one.
    pub(crate) fn attach(&self, direct: Option<DirectStream>) -> (u64, Ended) {
        let ended = self.detach();
        let mut state = self.state.lock();
        state.attachments += 1;
        state.direct = direct.filter(|_| !state.is_closed);
        // A stream request may arrive just as its sender is removed. In that case, the stream ends immediately.
        state.attached = (!state.is_closed).then_some(state.attachments);
        (state.attachments, ended)
    }

    /// Ends the current attachment and prevents later ones.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.detach();
    }

    /// Ends the current attachment.
    pub(crate) fn detach(&self) -> Ended {
        self.detach_if(|_| true)
    }

    /// Ends this attachment unless it has already ended.
    fn detach_own(&self, attachment: u64) -> Ended {
        self.detach_if(|attached| attached == attachment)
    }

    fn detach_if(&self, is_meant: impl FnOnce(u64) -> bool) -> Ended {
        let mut state = self.state.lock();
        if !state.attached.is_some_and(is_meant) {
            return Ended { was_attached: false, lost_any: false };
        }
        let has_unsent = state.has_unsent;
        let (messages, waker) = state.detach();
        drop(state);
        for message in &messages {
            self.allowance.release(message);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        Ended { was_attached: true, lost_any: has_unsent || !messages.is_empty() }
    }

    /// Moves queued messages with a total size of about [`CHUNK_BYTES`] into `batch`. Returns `None` if the attachment
    /// has ended.
    fn take(&self, attachment: u64, batch: &mut VecDeque<Message>, cx: &Context<'_>) -> Option<()> {
        let mut state = self.state.lock();
        if state.attached != Some(attachment) {
            return None;
        }
        let mut bytes = 0;
        while bytes < CHUNK_BYTES
            && let Some(message) = state.messages.pop_front()
        {
            bytes += cost(&message);
            batch.push_back(message);
        }
        state.has_unsent = bytes > 0;
        if !state.messages.is_empty() {
            state.waiting_since = Some(Instant::now());
        } else {
            state.waiting_since = None;
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                state.waker = Some(cx.waker().clone());
            }
        }
        Some(())
    }

    /// Records that the connection has accepted data. Returns whether the attachment is still valid.
    fn advance(&self, attachment: u64) -> bool {
        let mut state = self.state.lock();
        if state.waiting_since.is_some() {
            state.waiting_since = Some(Instant::now());
        }
        state.attached == Some(attachment)
    }
}

/// Appends a chunk of a chunked body (RFC 9112, section 7.1).
fn put_chunk(data: &[u8], out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    _ = write!(out, "{:x}\r\n", data.len());
    out.extend_from_slice(data);
    out.extend_from_slice(b"\r\n");
}

/// Observes the progress and the end of a stream.
pub(crate) trait Observer: Send + 'static {
    /// Called when this many bytes were written.
    fn wrote(&self, bytes: usize);
    /// Called when the connection ends, unless its attachment has already ended.
    fn lost(&self, ended: Ended);
}

/// The body of the response to a stream request.
#[derive(Debug)]
pub(crate) struct StreamBody<O: Observer> {
    outgoing: Arc<Outgoing>,
    attachment: u64,
    encoder: Arc<Mutex<TimedEncoder>>,
    batch: VecDeque<Message>,
    buffer: BytesMut,
    link_heartbeat: Interval,
    observer: O,
}

impl<O: Observer> StreamBody<O> {
    /// Attaches a new connection to the queue. Returns the body for the connection, and the result of ending the
    /// attachment that it replaces. With a `writer`, other threads also write to the connection.
    pub(crate) fn attach(
        kind: StreamKind,
        outgoing: &Arc<Outgoing>,
        writer: Option<DirectWriter>,
        link_heartbeat: Duration,
        observer: O,
    ) -> (Self, Ended) {
        let last_message = tokio::time::Instant::now();
        let encoder = TimedEncoder { encoder: Encoder::new(kind), last_message };
        let encoder = Arc::new(Mutex::new(encoder));
        let direct = writer.map(|writer| DirectStream { writer, encoder: Arc::clone(&encoder) });
        let (attachment, replaced) = outgoing.attach(direct);
        let start = tokio::time::Instant::now() + link_heartbeat;
        let mut link_heartbeat = tokio::time::interval_at(start, link_heartbeat);
        link_heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let body = Self {
            outgoing: Arc::clone(outgoing),
            attachment,
            encoder,
            batch: VecDeque::new(),
            buffer: BytesMut::new(),
            link_heartbeat,
            observer,
        };
        (body, replaced)
    }

    pub(crate) const fn observer(&self) -> &O {
        &self.observer
    }

    /// Encodes the batch, and a link heartbeat if one is due. A link heartbeat is omitted if a message was encoded in
    /// the half interval before it is due, so the stream is never silent for more than one and a half intervals.
    fn encode(&mut self, cx: &mut Context<'_>) {
        let mut encoder = self.encoder.lock();
        for message in self.batch.drain(..) {
            encoder.put(&message, &mut self.buffer);
            self.outgoing.allowance.release(&message);
        }
        if self.link_heartbeat.poll_tick(cx).is_ready() {
            if encoder.last_message.elapsed() > self.link_heartbeat.period() / 2 {
                encoder.encoder.put_link_heartbeat(&mut self.buffer);
            }
            // The timer is polled until it is pending, because only then does it wake this task again.
            while self.link_heartbeat.poll_tick(cx).is_ready() {}
        }
    }
}

impl<O: Observer + Unpin> Body for StreamBody<O> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        if this.buffer.is_empty() {
            if this.outgoing.take(this.attachment, &mut this.batch, cx).is_none() {
                return Poll::Ready(None);
            }
            this.encode(cx);
            if this.buffer.is_empty() {
                return Poll::Pending;
            }
            this.observer.wrote(this.buffer.len());
        } else if !this.outgoing.advance(this.attachment) {
            return Poll::Ready(None);
        }
        let piece = this.buffer.split_to(this.buffer.len().min(PIECE_BYTES)).freeze();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

impl<O: Observer> Drop for StreamBody<O> {
    fn drop(&mut self) {
        let ended = self.outgoing.detach_own(self.attachment);
        if ended.was_attached {
            self.observer.lost(ended);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Decoder;
    use super::*;
    use quorate_raft::{Entry, MessageKind, Term};

    struct Nobody;

    impl Observer for Nobody {
        fn wrote(&self, _: usize) {}
        fn lost(&self, _: Ended) {}
    }

    /// Reports the end of a stream to the test.
    struct Reports(std::sync::mpsc::Sender<Ended>);

    impl Observer for Reports {
        fn wrote(&self, _: usize) {}
        fn lost(&self, ended: Ended) {
            self.0.send(ended).unwrap();
        }
    }

    fn outgoing(stuck_after: Duration) -> Arc<Outgoing> {
        Arc::new(Outgoing::new(&Arc::new(Allowance::default()), stuck_after))
    }

    fn large(bytes: usize) -> Message {
        let entry = Entry { data: vec![0; bytes].into(), ..Entry::default() };
        Message { entries: vec![entry], ..Message::new(MessageKind::Append, 2) }
    }

    fn small() -> Message {
        Message { term: Term(1), ..Message::new(MessageKind::AppendResponse, 2) }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    fn attach(outgoing: &Arc<Outgoing>) -> StreamBody<Nobody> {
        StreamBody::attach(StreamKind::Message, outgoing, None, HOUR, Nobody).0
    }

    fn poll<O: Observer + Unpin>(body: &mut StreamBody<O>) -> Poll<Option<Bytes>> {
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(body).poll_frame(&mut cx).map(|frame| Some(frame?.unwrap().into_data().unwrap()))
    }

    #[tokio::test]
    async fn all_waiting_messages_are_sent_in_one_chunk_in_order() {
        let outgoing = outgoing(Duration::from_secs(5));
        assert!(matches!(outgoing.push(small()), Pushed::Detached(_)));
        let mut body = attach(&outgoing);
        assert!(poll(&mut body).is_pending());
        let messages: Vec<Message> =
            (1..=10).map(|term| Message { term: Term(term), ..small() }).collect();
        for (number, message) in messages.iter().enumerate() {
            let Pushed::Taken(waker) = outgoing.push(message.clone()) else {
                panic!("the message was not queued although the queue has space");
            };
            assert_eq!(waker.is_some(), number == 0, "the connection is woken once");
        }
        let Poll::Ready(Some(chunk)) = poll(&mut body) else { panic!("no message is waiting") };
        let (mut decoder, mut read) = (Decoder::new(StreamKind::Message, 1, 2), Vec::new());
        decoder.feed(&chunk, &mut read).unwrap();
        assert_eq!(read, messages);
        assert!(poll(&mut body).is_pending());
        assert_eq!(outgoing.allowance.used_bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn messages_count_as_unsent_until_the_connection_asks_for_more() {
        let outgoing = outgoing(HOUR);
        let mut body = attach(&outgoing);
        assert!(poll(&mut body).is_pending() && !outgoing.has_unsent());
        assert!(matches!(outgoing.push(small()), Pushed::Taken(_)) && outgoing.has_unsent());
        assert!(poll(&mut body).is_ready() && outgoing.has_unsent());
        assert!(poll(&mut body).is_pending() && !outgoing.has_unsent());
        assert!(matches!(outgoing.push(small()), Pushed::Taken(_)));
        outgoing.detach();
        assert!(!outgoing.has_unsent(), "a detached stream has lost its messages");
    }

    #[tokio::test(start_paused = true)]
    async fn link_heartbeats_are_sent_only_while_no_messages_are_sent() {
        let second = Duration::from_secs(1);
        let outgoing = outgoing(HOUR);
        let mut body = StreamBody::attach(StreamKind::Message, &outgoing, None, second, Nobody).0;
        tokio::time::advance(second - second / 10).await;
        assert!(matches!(outgoing.push(small()), Pushed::Taken(_)));
        assert!(poll(&mut body).is_ready() && poll(&mut body).is_pending());
        tokio::time::advance(second / 10).await;
        assert!(poll(&mut body).is_pending(), "a message was sent shortly before");
        tokio::time::advance(second).await;
        let Poll::Ready(Some(chunk)) = poll(&mut body) else { panic!("the stream is silent") };
        let (mut decoder, mut read) = (Decoder::new(StreamKind::Message, 1, 2), Vec::new());
        decoder.feed(&chunk, &mut read).unwrap();
        assert_eq!((decoder.take_link_heartbeats(), read.len()), (1, 0));
    }

    #[tokio::test]
    async fn a_large_message_is_sent_in_pieces() {
        let outgoing = outgoing(Duration::from_secs(5));
        let mut body = attach(&outgoing);
        let messages = [large(3 * PIECE_BYTES), small()];
        for message in &messages {
            assert!(matches!(outgoing.push(message.clone()), Pushed::Taken(_)));
        }
        let (mut decoder, mut read) = (Decoder::new(StreamKind::Message, 1, 2), Vec::new());
        let mut pieces = 0;
        while let Poll::Ready(Some(piece)) = poll(&mut body) {
            assert!(piece.len() <= PIECE_BYTES);
            decoder.feed(&piece, &mut read).unwrap();
            pieces += 1;
        }
        assert_eq!(pieces, 4);
        assert!(read == messages);
        // The connection is lost between two pieces.
        outgoing.push(large(2 * PIECE_BYTES));
        assert!(matches!(poll(&mut body), Poll::Ready(Some(_))));
        outgoing.detach();
        assert_eq!(poll(&mut body), Poll::Ready(None));
    }

    #[tokio::test]
    async fn messages_of_a_partly_sent_chunk_are_reported_as_lost() {
        let outgoing = outgoing(HOUR);
        let (reports, reported) = std::sync::mpsc::channel();
        let open = || {
            let observer = Reports(reports.clone());
            StreamBody::attach(StreamKind::Append, &outgoing, None, HOUR, observer)
        };
        let lost = |lost_any| Ended { was_attached: true, lost_any };
        // The connection breaks after the first piece.
        let (mut first, _) = open();
        assert!(matches!(outgoing.push(large(2 * PIECE_BYTES)), Pushed::Taken(_)));
        assert!(poll(&mut first).is_ready());
        drop(first);
        assert_eq!(reported.try_recv(), Ok(lost(true)));
        // A new connection replaces this one after the first piece.
        let (mut second, _) = open();
        assert!(matches!(outgoing.push(large(2 * PIECE_BYTES)), Pushed::Taken(_)));
        assert!(poll(&mut second).is_ready());
        let (mut third, replaced) = open();
        assert_eq!(replaced, lost(true));
        // The connection accepts all pieces and asks for more.
        assert!(matches!(outgoing.push(large(2 * PIECE_BYTES)), Pushed::Taken(_)));
        while poll(&mut third).is_ready() {}
        drop(third);
        assert_eq!(reported.try_recv(), Ok(lost(false)));
        drop(second);
        assert!(reported.try_recv().is_err(), "the loss was already reported");
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

        #[test]
        fn messages_of_any_size_are_sent_completely_and_in_order(
            sizes in proptest::collection::vec(0..3 * PIECE_BYTES, 1..8),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            let entered = runtime.unwrap();
            let _entered = entered.enter();
            let outgoing = outgoing(Duration::from_secs(5));
            let mut body = attach(&outgoing);
            let messages: Vec<Message> = sizes.into_iter().map(large).collect();
            for message in &messages {
                assert!(matches!(outgoing.push(message.clone()), Pushed::Taken(_)));
            }
            let (mut decoder, mut read) = (Decoder::new(StreamKind::Message, 1, 2), Vec::new());
            while let Poll::Ready(Some(piece)) = poll(&mut body) {
                assert!(piece.len() <= PIECE_BYTES);
                decoder.feed(&piece, &mut read).unwrap();
            }
            assert!(read == messages);
            assert_eq!(outgoing.allowance.used_bytes.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn a_new_connection_replaces_the_previous_one() {
        let outgoing = outgoing(Duration::from_secs(5));
        let open = || StreamBody::attach(StreamKind::Message, &outgoing, None, HOUR, Nobody);
        let (mut old, ended) = open();
        assert!(!ended.was_attached);
        assert!(matches!(outgoing.push(small()), Pushed::Taken(_)));
        let (mut new, ended) = open();
        assert_eq!(ended, Ended { was_attached: true, lost_any: true });
        assert_eq!(poll(&mut old), Poll::Ready(None));
        drop(old);
        assert!(matches!(outgoing.push(small()), Pushed::Taken(_)));
        assert!(matches!(poll(&mut new), Poll::Ready(Some(_))));
        drop(new);
        assert!(matches!(outgoing.push(small()), Pushed::Detached(_)));
        outgoing.close();
        assert_eq!(poll(&mut open().0), Poll::Ready(None));
        assert!(matches!(outgoing.push(small()), Pushed::Detached(_)));
    }

    #[tokio::test]
    async fn queues_are_bounded_by_count_and_by_bytes() {
        let outgoing = outgoing(Duration::from_secs(5));
        let mut body = attach(&outgoing);
        for _ in 0..MESSAGES_QUEUED_MAX {
            assert!(matches!(outgoing.push(small()), Pushed::Taken(_)));
        }
        assert!(matches!(outgoing.push(small()), Pushed::Full));
        while poll(&mut body).is_ready() {}
        // A single message may be larger than the limit.
        assert!(matches!(outgoing.push(large(QUEUED_BYTES_MAX + 1)), Pushed::Taken(_)));
        assert!(matches!(outgoing.push(small()), Pushed::Full));
        outgoing.detach();
        assert_eq!(outgoing.allowance.used_bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_connection_that_accepts_no_data_is_closed() {
        let outgoing = outgoing(Duration::ZERO);
        outgoing.attach(None);
        assert!(matches!(outgoing.push(small()), Pushed::Taken(_)));
        while outgoing.state.lock().waiting_since.is_some_and(|since| since.elapsed().is_zero()) {
            std::thread::yield_now();
        }
        assert!(matches!(outgoing.push(small()), Pushed::Stuck));
        assert!(matches!(outgoing.push(small()), Pushed::Detached(_)));
        assert_eq!(outgoing.allowance.used_bytes.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn a_stuck_connection_is_closed_even_if_no_new_message_is_pushed() {
        let patient = outgoing(Duration::from_secs(3600));
        let hasty = outgoing(Duration::ZERO);
        for outgoing in [&patient, &hasty] {
            assert!(!outgoing.give_up_if_stuck(), "no connection is attached");
            outgoing.attach(None);
            assert!(!outgoing.give_up_if_stuck(), "no message is waiting");
            assert!(matches!(outgoing.push(small()), Pushed::Taken(_)));
        }
        while hasty.state.lock().waiting_since.is_some_and(|since| since.elapsed().is_zero()) {
            std::thread::yield_now();
        }
        assert!(hasty.give_up_if_stuck());
        assert!(!hasty.is_attached());
        assert!(!hasty.give_up_if_stuck(), "the connection is already detached");
        assert!(!patient.give_up_if_stuck());
        assert!(patient.is_attached());
    }
}
