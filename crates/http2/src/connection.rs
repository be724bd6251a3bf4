//! The server side of a connection as a state machine: received bytes become events, and responses become bytes.
//!
//! The caller passes received bytes to [`Connection::next`] until it returns `None`, keeps the unprocessed bytes for
//! the next read, and writes the [`Connection::output`] to the socket. Before the caller sends data, it calls
//! [`Connection::room`] to learn how much the client accepts. When a service has read received data, the caller
//! releases it ([`Connection::release`]).
//!
//! # Invariants
//!
//! * No frame exceeds the client's windows or its maximum frame size.
//! * A stream is known from its request until both sides have ended it, or one side has reset it. A command for an
//!   unknown stream has no effect, because the client may have reset the stream.
//! * The decoder processes the header block of every request, including refused requests.
//!
//! # Bound
//!
//! [`Limits`] bound the received part of a header block and, through the windows, the data of a stream. Replies to
//! settings and pings accumulate in the output, so the caller bounds them by not reading while the output is long.

mod event;
mod limits;
mod messages;
mod requests;
mod send;
mod settings;
mod streams;
#[cfg(test)]
mod tests;
mod windows;

use std::collections::{HashMap, VecDeque};

use self::event::violation;
pub use self::event::{Event, Violation};
use self::limits::IDLE_FRAMES_MAX;
pub use self::limits::Limits;
use self::requests::{KnownHead, OpenBlock};
use self::send::LastData;
use self::streams::{IdHashing, Stream};
use self::windows::{put_window_update, signed};
use super::frame::{
    Code, HEADER_BYTES, Header, MAX_31_BITS, PAYLOAD_BYTES_DEFAULT, PREFACE, WINDOW_DEFAULT, flag,
    kind, read_u32, setting,
};
use super::hpack::{Decoder, Encoder};

/// The id of a stream.
pub type StreamId = u32;

/// The tag of a stream until the caller sets another tag.
pub const NO_TAG: u32 = u32::MAX;

/// The server side of a client's connection.
#[derive(Debug)]
pub struct Connection {
    limits: Limits,
    out: Vec<u8>,
    written: usize,
    /// The last DATA frame in the output, if nothing has been written to the socket since the frame was added.
    last_data: Option<LastData>,
    decoder: Decoder,
    encoder: Encoder,
    streams: HashMap<StreamId, Stream, IdHashing>,
    last_stream: StreamId,
    /// The streams that this side has reset, oldest first.
    reset: VecDeque<StreamId>,
    has_forgotten_resets: bool,
    open_block: Option<OpenBlock>,
    known_heads: Vec<KnownHead>,
    next_known: usize,
    send_window: i64,
    receive_window: i64,
    released: u32,
    preface_seen: bool,
    settings_seen: bool,
    /// If set, streams with higher ids are not served.
    last_served: Option<StreamId>,
    given_up: u32,
    idle_frames: u32,
    client_window: u32,
    client_frame_bytes: usize,
}

impl Connection {
    /// Creates a connection whose output begins with the settings, and whose input begins with the preface.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let mut settings = vec![
            (setting::INITIAL_WINDOW_SIZE, limits.stream_window),
            (
                setting::MAX_HEADER_LIST_SIZE,
                u32::try_from(limits.header_list_bytes_max).unwrap_or(u32::MAX),
            ),
        ];
        if limits.is_announced {
            settings.push((
                setting::MAX_CONCURRENT_STREAMS,
                u32::try_from(limits.streams_max).unwrap_or(u32::MAX),
            ));
        }
        let mut out = Vec::new();
        Header { len: settings.len() * 6, kind: kind::SETTINGS, flags: 0, stream: 0 }.put(&mut out);
        for (id, value) in settings {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
        if limits.connection_window > WINDOW_DEFAULT {
            put_window_update(0, limits.connection_window - WINDOW_DEFAULT, &mut out);
        }
        Self {
            limits,
            out,
            written: 0,
            last_data: None,
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            streams: HashMap::default(),
            last_stream: 0,
            reset: VecDeque::new(),
            has_forgotten_resets: false,
            open_block: None,
            known_heads: Vec::new(),
            next_known: 0,
            send_window: i64::from(WINDOW_DEFAULT),
            receive_window: i64::from(limits.connection_window.max(WINDOW_DEFAULT)),
            released: 0,
            preface_seen: false,
            settings_seen: false,
            last_served: None,
            given_up: 0,
            idle_frames: 0,
            client_window: WINDOW_DEFAULT,
            client_frame_bytes: PAYLOAD_BYTES_DEFAULT,
        }
    }

    /// Returns the bytes to write to the socket.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Removes the first `count` bytes of the output, which have been written.
    pub fn wrote(&mut self, count: usize) {
        self.written += count;
        self.last_data = None;
        // Written bytes are removed once they are half of the buffer, so that the buffer stays bounded although a slow
        // client may never read all of it. Each removal moves at most as many bytes as it removes.
        if self.written >= self.out.len() / 2 {
            self.out.drain(..self.written);
            self.written = 0;
        }
    }

    /// Swaps the output's buffer, which must be empty, so that the caller can share buffers between connections.
    pub fn swap_buffer(&mut self, buffer: &mut Vec<u8>) {
        if self.out.is_empty() && buffer.is_empty() {
            std::mem::swap(&mut self.out, buffer);
        }
    }

    /// Returns the capacity of the output's buffer.
    #[must_use]
    pub fn buffer_capacity(&self) -> usize {
        self.out.capacity()
    }

    /// Halves the counts of idle frames and of requests that the client has cancelled. The caller calls this function
    /// at regular intervals.
    pub fn forgive(&mut self) {
        self.given_up /= 2;
        self.idle_frames /= 2;
    }

    /// Returns the number of open streams. A stream whose whole response is in the output is no longer open.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// Returns whether the stream is open.
    #[must_use]
    pub fn has_stream(&self, stream: StreamId) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Sets the tag of a stream. Later events of the stream carry the tag.
    pub fn set_tag(&mut self, stream: StreamId, tag: u32) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.tag = tag;
        }
    }

    /// Processes received bytes until the next event, and removes them from `input`. Incomplete frames remain.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Event<'a>>, Violation> {
        if !self.preface_seen {
            let Some(rest) = input.strip_prefix(PREFACE) else {
                if PREFACE.starts_with(input) {
                    return Ok(None);
                }
                return violation(Code::PROTOCOL_ERROR, "the connection preface is invalid");
            };
            *input = rest;
            self.preface_seen = true;
        }
        while let Some(header) = Header::parse(input) {
            if header.len > PAYLOAD_BYTES_DEFAULT {
                return violation(
                    Code::FRAME_SIZE_ERROR,
                    "a frame exceeds SETTINGS_MAX_FRAME_SIZE",
                );
            }
            let Some((frame, rest)) = input.split_at_checked(HEADER_BYTES + header.len) else {
                break;
            };
            *input = rest;
            if let Some(event) = self.frame(header, &frame[HEADER_BYTES..])? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Returns the stream with an incomplete header block: the block has begun, but its last frame has not arrived.
    #[must_use]
    pub fn open_block_stream(&self) -> Option<StreamId> {
        self.open_block.as_ref().map(|open| open.stream)
    }

    fn frame<'a>(
        &mut self,
        header: Header,
        payload: &'a [u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        if let Some(open) = &self.open_block
            && (header.kind != kind::CONTINUATION || header.stream != open.stream)
        {
            return violation(Code::PROTOCOL_ERROR, "another frame interrupts a header block");
        }
        if !self.settings_seen && header.kind != kind::SETTINGS {
            return violation(Code::PROTOCOL_ERROR, "the first frame is not SETTINGS");
        }
        match header.kind {
            kind::DATA => self.on_data(header, payload),
            kind::HEADERS => self.on_headers(header, payload),
            kind::CONTINUATION => self.on_continuation(header, payload),
            kind::WINDOW_UPDATE => self.on_window_update(header, payload),
            kind::RST_STREAM => self.on_reset(header, payload),
            kind::SETTINGS => self.on_settings(header, payload),
            kind::PING => self.on_ping(header, payload),
            kind::GOAWAY if header.stream != 0 => {
                violation(Code::PROTOCOL_ERROR, "GOAWAY on a stream")
            }
            kind::GOAWAY if header.len < 8 => {
                violation(Code::FRAME_SIZE_ERROR, "GOAWAY is too short")
            }
            kind::PRIORITY if header.stream == 0 => {
                violation(Code::PROTOCOL_ERROR, "PRIORITY without a stream")
            }
            kind::PRIORITY => {
                self.idle_frame()?;
                if header.len != 5 {
                    return self.fail(header.stream, Code::FRAME_SIZE_ERROR);
                }
                if is_itself(payload, header.stream) {
                    return self.fail(header.stream, Code::PROTOCOL_ERROR);
                }
                Ok(None)
            }
            kind::PUSH_PROMISE => violation(Code::PROTOCOL_ERROR, "a client cannot push"),
            _ => self.idle_frame().map(|()| None),
        }
    }

    /// Counts a frame that causes work but carries neither a request nor data.
    fn idle_frame(&mut self) -> Result<(), Violation> {
        self.idle_frames += 1;
        if self.idle_frames > IDLE_FRAMES_MAX {
            return violation(
                Code::ENHANCE_YOUR_CALM,
                "too many frames that carry no request data",
            );
        }
        Ok(())
    }

    fn on_data<'a>(
        &mut self,
        header: Header,
        payload: &'a [u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        let id = header.stream;
        if id == 0 {
            return violation(Code::PROTOCOL_ERROR, "DATA without a stream");
        }
        self.receive_window -= signed(payload.len());
        if self.receive_window < 0 {
            return violation(
                Code::FLOW_CONTROL_ERROR,
                "DATA exceeds the connection's flow-control window",
            );
        }
        let ends = header.has(flag::END_STREAM);
        let Some(data) = without_padding(header, payload) else {
            return violation(Code::PROTOCOL_ERROR, "the padding is longer than the frame");
        };
        if data.is_empty() && !ends {
            self.idle_frame()?;
        } else {
            self.idle_frames = self.idle_frames.saturating_sub(1);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            self.release_of_connection(payload.len());
            return self.on_unknown(id, "DATA on a closed stream").map(|()| None);
        };
        stream.receive_window -= signed(payload.len());
        let code = if !stream.is_open {
            Some(Code::STREAM_CLOSED)
        } else if stream.receive_window < 0 {
            Some(Code::FLOW_CONTROL_ERROR)
        } else {
            match &mut stream.missing {
                Some(missing) => match missing.checked_sub(data.len() as u64) {
                    Some(rest) if !ends || rest == 0 => {
                        *missing = rest;
                        None
                    }
                    _ => Some(Code::PROTOCOL_ERROR),
                },
                None => None,
            }
        };
        if let Some(code) = code {
            self.release_of_connection(payload.len());
            return self.fail(id, code);
        }
        stream.is_open = !ends;
        let tag = stream.tag;
        let padding = payload.len() - data.len();
        if padding > 0 {
            self.release(id, padding);
        }
        Ok(Some(Event::Data { stream: id, tag, data, ends }))
    }

    fn on_ping<'a>(
        &mut self,
        header: Header,
        payload: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        if header.stream != 0 {
            return violation(Code::PROTOCOL_ERROR, "PING on a stream");
        }
        let Ok(payload) = <[u8; 8]>::try_from(payload) else {
            return violation(Code::FRAME_SIZE_ERROR, "PING has the wrong length");
        };
        self.idle_frame()?;
        Ok(Some(if header.has(flag::ACK) {
            Event::Pong { payload }
        } else {
            Event::Ping { payload }
        }))
    }
}

/// Returns the payload of a frame without its padding.
fn without_padding(header: Header, payload: &[u8]) -> Option<&[u8]> {
    if !header.has(flag::PADDED) {
        return Some(payload);
    }
    let (&padding, rest) = payload.split_first()?;
    rest.get(..rest.len().checked_sub(usize::from(padding))?)
}

/// Returns whether this priority makes the stream depend on itself.
fn is_itself(priority: &[u8], stream: StreamId) -> bool {
    read_u32(priority).is_some_and(|id| id & MAX_31_BITS == stream)
}
