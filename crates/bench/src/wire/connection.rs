//! The client side of one HTTP/2 connection with gRPC calls, without I/O.
//!
//! The `engine` passes in received bytes ([`Connection::receive`]) and writes the output buffer to the socket
//! ([`Connection::output`], [`Connection::wrote`]). Each call has a tag chosen by the caller, which is returned
//! with every event of that call.
//!
//! # Invariants
//!
//! * No frame exceeds the server's flow-control windows. Data that does not fit waits in `blocked`, in order, and later
//!   data waits behind it.
//! * Every opened call ends with exactly one [`Event::Closed`]; [`Connection::end`] closes all calls that are still
//!   open.
//! * After a GOAWAY frame no new call is opened, but the server may still answer calls that it has accepted.
//!
//! # Not here
//!
//! Queueing: the caller checks [`Connection::has_room`] before it opens a call.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use quorate_grpc::framing::{HEAD_BYTES, first_message, message_head};
use quorate_grpc::status::percent_decoded;

use super::frame::{FrameHeader, HEADER_LEN, PREFACE, flag, kind, read_u32};
use super::hpack::{Decoder, Encoder, Field};
use crate::secret::Secret;

const WINDOW_DEFAULT: u32 = 65_535;
const WINDOW_MAX: u32 = 0x7fff_ffff;
/// Number of used bytes at which a window is refilled.
const WINDOW_REFILL_BYTES: u32 = 1 << 29;

const SETTING_MAX_STREAMS: u16 = 3;
const SETTING_INITIAL_WINDOW: u16 = 4;
const SETTING_FRAME_LEN_MAX: u16 = 5;
const SETTING_ENABLE_PUSH: u16 = 2;

/// gRPC codes that this client sets itself.
const UNKNOWN: u16 = 2;
const UNAVAILABLE: u16 = 14;

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The gRPC code; 0 for success.
    pub(crate) code: u16,
    /// The server's message; empty on success.
    pub(crate) message: String,
}

/// An event of a call.
#[derive(Debug)]
pub(crate) enum Event<'a, T> {
    /// A complete message of a call whose replies are collected.
    Message { tag: &'a mut T, body: &'a [u8] },
    /// The call has ended.
    Closed { tag: T, status: Status, reply_bytes: u64 },
}

/// The reason why a connection cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the server violated the protocol: {0}")]
    Protocol(&'static str),
}

/// How to handle the reply messages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    /// Reply bytes are counted and dropped.
    Discard,
    /// Each message is passed to the caller.
    Collect,
}

/// The id of an open call.
pub(crate) type StreamId = u32;

#[derive(Debug)]
struct Stream<T> {
    tag: T,
    replies: Replies,
    send_window: i64,
    /// Bytes received since the window was last refilled.
    received_bytes: u32,
    reply_bytes: u64,
    /// The received part of an incomplete message.
    partial: Vec<u8>,
    http_status: Option<u16>,
    grpc_status: Option<u16>,
    message: String,
}

/// Data that cannot be sent until the server enlarges a window.
#[derive(Debug)]
struct Blocked {
    stream: StreamId,
    data: Vec<u8>,
    sent: usize,
    ends_stream: bool,
}

/// An incomplete header block.
#[derive(Debug)]
struct OpenBlock {
    stream: StreamId,
    flags: u8,
    block: Vec<u8>,
}

/// A connection. `T` is the type of the calls' tags.
#[derive(Debug)]
pub(crate) struct Connection<T> {
    output: Vec<u8>,
    written: usize,
    encoder: Encoder,
    decoder: Decoder,
    streams: HashMap<StreamId, Stream<T>, BuildHasherDefault<IdHasher>>,
    next_stream: StreamId,
    blocked: VecDeque<Blocked>,
    open_block: Option<OpenBlock>,
    send_window: i64,
    received_bytes: u32,
    settings_seen: bool,
    /// The reason why no more calls may be opened; set when the server sends GOAWAY.
    farewell: Option<String>,
    peer_window: u32,
    peer_streams_max: u32,
    peer_frame_len_max: usize,
}

impl<T> Connection<T> {
    /// Creates a connection to `authority`. Its output begins with the preface.
    pub(crate) fn new(authority: String, is_secured: bool, token: Option<Secret>) -> Self {
        let mut output = PREFACE.to_vec();
        FrameHeader { len: 12, kind: kind::SETTINGS, flags: 0, stream: 0 }.put(&mut output);
        for (setting, value) in [(SETTING_ENABLE_PUSH, 0), (SETTING_INITIAL_WINDOW, WINDOW_MAX)] {
            output.extend_from_slice(&setting.to_be_bytes());
            output.extend_from_slice(&value.to_be_bytes());
        }
        put_window_update(0, WINDOW_MAX - WINDOW_DEFAULT, &mut output);
        Self {
            output,
            written: 0,
            encoder: Encoder::new(authority, is_secured, token),
            decoder: Decoder::new(),
            streams: HashMap::default(),
            next_stream: 1,
            blocked: VecDeque::new(),
            open_block: None,
            send_window: i64::from(WINDOW_DEFAULT),
            received_bytes: 0,
            settings_seen: false,
            farewell: None,
            peer_window: WINDOW_DEFAULT,
            peer_streams_max: u32::MAX,
            peer_frame_len_max: 16_384,
        }
    }

    /// Returns whether another call may be opened now: the server's limits are known and not reached, the server has
    /// sent no GOAWAY, stream ids are left, and no earlier request waits for a window.
    pub(crate) fn has_room(&self) -> bool {
        self.settings_seen
            && self.farewell.is_none()
            && self.blocked.is_empty()
            && self.streams.len() < self.peer_streams_max as usize
            && self.next_stream < WINDOW_MAX
    }

    /// Returns whether any call is open.
    pub(crate) fn is_busy(&self) -> bool {
        !self.streams.is_empty()
    }

    /// Returns whether the connection is finished: every call has ended, and the server has sent GOAWAY or the stream
    /// ids are used up.
    pub(crate) fn is_spent(&self) -> bool {
        self.streams.is_empty() && (self.farewell.is_some() || self.next_stream >= WINDOW_MAX)
    }

    /// Ends all calls. Their error is the reason in the server's GOAWAY or, without a GOAWAY, the given reason.
    pub(crate) fn end(&mut self, reason: &str, each: &mut impl FnMut(Event<'_, T>)) {
        let reason = self.farewell.take().unwrap_or_else(|| reason.to_owned());
        self.end_above(0, &reason, each);
    }

    fn end_above(&mut self, last: StreamId, reason: &str, each: &mut impl FnMut(Event<'_, T>)) {
        let mut lost: Vec<_> = self.streams.keys().copied().filter(|id| *id > last).collect();
        lost.sort_unstable();
        for stream in lost.into_iter().filter_map(|id| self.streams.remove(&id)) {
            let status = Status { code: UNAVAILABLE, message: reason.to_owned() };
            each(Event::Closed { tag: stream.tag, status, reply_bytes: stream.reply_bytes });
        }
    }

    /// Opens a call with a single request.
    pub(crate) fn unary(&mut self, path: &'static str, message: &[u8], replies: Replies, tag: T) {
        let stream = self.open(path, replies, tag);
        self.data(stream, message, true);
    }

    /// Opens a call whose requests are sent with [`Connection::send`].
    pub(crate) fn open(&mut self, path: &'static str, replies: Replies, tag: T) -> StreamId {
        let stream = self.next_stream;
        self.next_stream += 2;
        let start = self.output.len();
        self.output.resize(start + HEADER_LEN, 0);
        self.encoder.encode(path, &mut self.output);
        let len = self.output.len() - start - HEADER_LEN;
        let mut header = Vec::with_capacity(HEADER_LEN);
        FrameHeader { len, kind: kind::HEADERS, flags: flag::END_HEADERS, stream }.put(&mut header);
        self.output[start..start + HEADER_LEN].copy_from_slice(&header);
        self.streams.insert(
            stream,
            Stream {
                tag,
                replies,
                send_window: i64::from(self.peer_window),
                received_bytes: 0,
                reply_bytes: 0,
                partial: Vec::new(),
                http_status: None,
                grpc_status: None,
                message: String::new(),
            },
        );
        stream
    }

    /// Sends another request on a call. Does nothing if the call has ended.
    pub(crate) fn send(&mut self, stream: StreamId, message: &[u8]) {
        self.data(stream, message, false);
    }

    /// Returns the bytes to write to the socket.
    pub(crate) fn output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    /// Removes the first `count` bytes of the output, which have been written.
    pub(crate) fn wrote(&mut self, count: usize) {
        self.written += count;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
    }

    /// Processes received bytes, and returns how many were consumed. The caller must pass the remaining bytes again,
    /// followed by newly received bytes.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<usize, WireError> {
        let mut used = 0;
        while let Some(header) = bytes.get(used..).and_then(FrameHeader::parse) {
            let start = used + HEADER_LEN;
            let Some(payload) = bytes.get(start..start + header.len) else { break };
            self.frame(header, payload, each)?;
            used = start + header.len;
        }
        Ok(used)
    }

    fn frame(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<(), WireError> {
        match header.kind {
            kind::DATA => self.received_data(header, payload, each),
            kind::HEADERS | kind::CONTINUATION => self.received_headers(header, payload, each),
            kind::RST_STREAM => {
                if let Some(stream) = self.streams.remove(&header.stream) {
                    let code = read_u32(payload).unwrap_or_default();
                    let message = format!("the server reset the stream (HTTP/2 error {code})");
                    let status = Status { code: UNAVAILABLE, message };
                    let Stream { tag, reply_bytes, .. } = stream;
                    each(Event::Closed { tag, status, reply_bytes });
                }
                Ok(())
            }
            kind::SETTINGS if !header.has(flag::ACK) => self.received_settings(payload),
            kind::PING if !header.has(flag::ACK) => {
                let flags = flag::ACK;
                FrameHeader { len: payload.len(), kind: kind::PING, flags, stream: 0 }
                    .put(&mut self.output);
                self.output.extend_from_slice(payload);
                Ok(())
            }
            kind::GOAWAY => {
                self.received_go_away(payload, each);
                Ok(())
            }
            kind::WINDOW_UPDATE => {
                let more = i64::from(read_u32(payload).unwrap_or_default() & WINDOW_MAX);
                if header.stream == 0 {
                    self.send_window += more;
                } else if let Some(stream) = self.streams.get_mut(&header.stream) {
                    stream.send_window += more;
                }
                self.send_blocked();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Records that the server accepts no new calls, and ends the calls on streams after the last stream named in the
    /// frame, because the server will not answer them.
    fn received_go_away(&mut self, payload: &[u8], each: &mut impl FnMut(Event<'_, T>)) {
        let last = read_u32(payload).unwrap_or_default() & WINDOW_MAX;
        let code = payload.get(4..).and_then(read_u32).unwrap_or_default();
        let reason = String::from_utf8_lossy(payload.get(8..).unwrap_or_default());
        let text = format!("the server sent GOAWAY (HTTP/2 error {code}: {reason})");
        self.end_above(last, &text, each);
        self.farewell = Some(text);
    }

    fn received_settings(&mut self, payload: &[u8]) -> Result<(), WireError> {
        for setting in payload.chunks(6) {
            let &[id0, id1, ref value @ ..] = setting else {
                return Err(WireError::Protocol("a SETTINGS frame is truncated"));
            };
            let Some(value) = read_u32(value) else {
                return Err(WireError::Protocol("a SETTINGS frame is truncated"));
            };
            match u16::from_be_bytes([id0, id1]) {
                SETTING_MAX_STREAMS => self.peer_streams_max = value,
                SETTING_INITIAL_WINDOW => {
                    // A new initial window also applies to open streams (RFC 9113, section 6.9.2).
                    let more = i64::from(value) - i64::from(self.peer_window);
                    self.peer_window = value;
                    self.streams.values_mut().for_each(|stream| stream.send_window += more);
                }
                SETTING_FRAME_LEN_MAX => self.peer_frame_len_max = value as usize,
                _ => {}
            }
        }
        self.settings_seen = true;
        FrameHeader { len: 0, kind: kind::SETTINGS, flags: flag::ACK, stream: 0 }
            .put(&mut self.output);
        self.send_blocked();
        Ok(())
    }

    fn received_headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<(), WireError> {
        let (stream, flags, joined);
        let block = if header.kind == kind::CONTINUATION {
            let Some(mut open) = self.open_block.take() else {
                return Err(WireError::Protocol("a CONTINUATION frame without HEADERS"));
            };
            open.block.extend_from_slice(payload);
            if !header.has(flag::END_HEADERS) {
                self.open_block = Some(open);
                return Ok(());
            }
            (stream, flags, joined) = (open.stream, open.flags, open.block);
            &joined[..]
        } else {
            let Some(block) = header_block(header, payload) else {
                return Err(WireError::Protocol("a header frame is shorter than its padding"));
            };
            (stream, flags) = (header.stream, header.flags);
            if !header.has(flag::END_HEADERS) {
                self.open_block = Some(OpenBlock { stream, flags, block: block.to_vec() });
                return Ok(());
            }
            block
        };
        let mut open = self.streams.get_mut(&stream);
        let decoded = self.decoder.decode(block, |field| match (field, open.as_mut()) {
            (Field::HttpStatus(status), Some(open)) => open.http_status = Some(*status),
            (Field::GrpcStatus(status), Some(open)) => open.grpc_status = Some(*status),
            (Field::GrpcMessage(message), Some(open)) => open.message.clone_from(message),
            (_, None) | (Field::Other, _) => {}
        });
        if decoded.is_none() {
            return Err(WireError::Protocol("a header block cannot be decoded"));
        }
        if flags & flag::END_STREAM != 0 {
            self.ended(stream, each);
        }
        Ok(())
    }

    fn received_data(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
        each: &mut impl FnMut(Event<'_, T>),
    ) -> Result<(), WireError> {
        let len = u32::try_from(payload.len()).expect("a frame length fits in 24 bits");
        self.received_bytes += len;
        if self.received_bytes >= WINDOW_REFILL_BYTES {
            put_window_update(0, self.received_bytes, &mut self.output);
            self.received_bytes = 0;
        }
        let Some(body) = unpadded(header, payload) else {
            return Err(WireError::Protocol("a data frame is shorter than its padding"));
        };
        let Some(stream) = self.streams.get_mut(&header.stream) else { return Ok(()) };
        stream.received_bytes += len;
        if stream.received_bytes >= WINDOW_REFILL_BYTES {
            put_window_update(header.stream, stream.received_bytes, &mut self.output);
            stream.received_bytes = 0;
        }
        stream.reply_bytes += body.len() as u64;
        if stream.replies == Replies::Collect {
            stream.messages(body, each);
        }
        if header.has(flag::END_STREAM) {
            self.ended(header.stream, each);
        }
        Ok(())
    }

    fn ended(&mut self, stream: StreamId, each: &mut impl FnMut(Event<'_, T>)) {
        let Some(stream) = self.streams.remove(&stream) else { return };
        let status = match (stream.http_status, stream.grpc_status) {
            (_, Some(0)) => Status::default(),
            (_, Some(code)) => Status { code, message: percent_decoded(&stream.message) },
            (Some(http), None) if http != 200 => {
                Status { code: UNKNOWN, message: format!("HTTP status {http}") }
            }
            _ => Status { code: UNKNOWN, message: "the response has no gRPC status".to_owned() },
        };
        each(Event::Closed { tag: stream.tag, status, reply_bytes: stream.reply_bytes });
    }

    /// Writes as much of a message as the windows allow, and queues the remainder.
    fn data(&mut self, stream: StreamId, message: &[u8], ends_stream: bool) {
        let Some(window) = self.streams.get(&stream).map(|open| open.send_window) else { return };
        let len = HEAD_BYTES + message.len();
        let fits = self.blocked.is_empty()
            && len <= self.peer_frame_len_max
            && wide(len) <= window.min(self.send_window);
        let head = message_head(message.len()).expect("the command line limits values to 64 MiB");
        if fits {
            self.charge(stream, len);
            let flags = if ends_stream { flag::END_STREAM } else { 0 };
            FrameHeader { len, kind: kind::DATA, flags, stream }.put(&mut self.output);
            self.output.extend_from_slice(&head);
            self.output.extend_from_slice(message);
            return;
        }
        let data = [&head, message].concat();
        self.blocked.push_back(Blocked { stream, data, sent: 0, ends_stream });
        self.send_blocked();
    }

    fn charge(&mut self, stream: StreamId, len: usize) {
        self.send_window -= wide(len);
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.send_window -= wide(len);
        }
    }

    fn send_blocked(&mut self) {
        while let Some(mut first) = self.blocked.pop_front() {
            let Some(open) = self.streams.get(&first.stream) else { continue };
            let window = usize::try_from(open.send_window.min(self.send_window)).unwrap_or(0);
            let rest = &first.data[first.sent..];
            let len = rest.len().min(window).min(self.peer_frame_len_max);
            if len == 0 {
                self.blocked.push_front(first);
                return;
            }
            let last = len == rest.len();
            let flags = if last && first.ends_stream { flag::END_STREAM } else { 0 };
            FrameHeader { len, kind: kind::DATA, flags, stream: first.stream }
                .put(&mut self.output);
            self.output.extend_from_slice(&rest[..len]);
            self.charge(first.stream, len);
            if !last {
                first.sent += len;
                self.blocked.push_front(first);
            }
        }
    }
}

impl<T> Stream<T> {
    /// Passes the messages that `body` completes to `each`, and keeps an incomplete message.
    fn messages(&mut self, body: &[u8], each: &mut impl FnMut(Event<'_, T>)) {
        if self.partial.is_empty() {
            let used = hand_out(body, &mut self.tag, each);
            self.partial.extend_from_slice(&body[used..]);
        } else {
            self.partial.extend_from_slice(body);
            let used = hand_out(&self.partial, &mut self.tag, each);
            self.partial.drain(..used);
        }
    }
}

/// Passes the complete messages at the front of `bytes` to `each`, and returns their total length.
fn hand_out<T>(bytes: &[u8], tag: &mut T, each: &mut impl FnMut(Event<'_, T>)) -> usize {
    let mut used = 0;
    while let Some(body) = first_message(&bytes[used..]) {
        each(Event::Message { tag, body });
        used += HEAD_BYTES + body.len();
    }
    used
}

fn put_window_update(stream: StreamId, more: u32, out: &mut Vec<u8>) {
    FrameHeader { len: 4, kind: kind::WINDOW_UPDATE, flags: 0, stream }.put(out);
    out.extend_from_slice(&more.to_be_bytes());
}

fn unpadded(header: FrameHeader, payload: &[u8]) -> Option<&[u8]> {
    if !header.has(flag::PADDED) {
        return Some(payload);
    }
    let (&padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(padding))?)
}

fn header_block(header: FrameHeader, payload: &[u8]) -> Option<&[u8]> {
    let block = unpadded(header, payload)?;
    if header.has(flag::PRIORITY) { block.get(5..) } else { Some(block) }
}

/// A hasher for stream ids, which are small consecutive numbers and need no strong hash. Multiplying an id by a
/// constant (2^64 divided by the golden ratio) spreads the ids over all hash values.
#[derive(Debug, Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Converts a length to a signed number, because windows may become negative.
fn wide(len: usize) -> i64 {
    i64::try_from(len).expect("a length in memory fits in 63 bits")
}

#[cfg(test)]
mod tests;
