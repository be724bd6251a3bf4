//! Sending: responses, pings and the end of the connection.

use http::{HeaderMap, StatusCode};

use super::messages::Messages;
use super::windows::signed;
use super::{Connection, StreamId};
use crate::frame::{Code, HEADER_BYTES, Header, MAX_31_BITS, flag, kind};
use crate::hpack::is_grpc;

/// Maximum number of DATA frames of a stream that follow each other in the output and contain one message each. Further
/// messages share the last frame.
///
/// Some clients expect one message in each DATA frame, because grpc-go never sends more. Clients with h2 0.4.16 or
/// later, however, close a connection on which many small frames wait for the application.
pub(super) const MESSAGE_FRAMES_MAX: u32 = 64;

/// A DATA frame in the output that does not end its stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastData {
    stream: StreamId,
    /// The positions of the frame's first byte and of the byte after the frame.
    start: usize,
    end: usize,
    /// The number of DATA frames of the stream that follow each other in the output, up to this one.
    frames: u32,
}

impl LastData {
    const fn len(&self) -> usize {
        self.end - self.start - HEADER_BYTES
    }
}

impl Connection {
    /// Records that a request has a response, even if the head of the response is not sent yet. If the client resets
    /// the stream from now on, the request does not count as cancelled.
    pub fn answered(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !std::mem::replace(&mut stream.is_answered, true)
        {
            self.given_up = self.given_up.saturating_sub(1);
        }
    }

    /// Sends the head of a response.
    pub fn respond(&mut self, id: StreamId, status: StatusCode, headers: &HeaderMap, ends: bool) {
        self.answered(id);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.messages = is_grpc(headers).then(Messages::default);
        let start = self.begin_block();
        self.encoder.status(status.as_u16(), &mut self.out);
        for (name, value) in headers {
            self.encoder.field(name, value, &mut self.out);
        }
        self.end_block(start, id, ends);
        if ends {
            self.ended(id);
        }
    }

    /// Sends the trailers of a response.
    pub fn trailers(&mut self, id: StreamId, trailers: &HeaderMap) {
        if !self.streams.contains_key(&id) {
            return;
        }
        let start = self.begin_block();
        for (name, value) in trailers {
            self.encoder.field(name, value, &mut self.out);
        }
        self.end_block(start, id, true);
        self.ended(id);
    }

    /// Sends part of a response body. The part must not be longer than [`Connection::room`].
    ///
    /// Parts that are sent directly after each other share frames, but up to [`MESSAGE_FRAMES_MAX`] frames end at the
    /// ends of gRPC messages.
    pub fn data(&mut self, id: StreamId, mut data: &[u8], ends: bool) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.send_window -= signed(data.len());
        self.send_window -= signed(data.len());
        let mut messages = stream.messages;
        let mut last = match self.last_data {
            Some(last) if last.stream == id && last.end == self.out.len() => last,
            _ => self.begin_data(id, 1),
        };
        loop {
            let is_complete = last.len() > 0
                && last.frames < MESSAGE_FRAMES_MAX
                && messages.is_some_and(Messages::is_at_boundary);
            if !data.is_empty() && (is_complete || last.len() >= self.client_frame_bytes) {
                last = self.begin_data(id, last.frames + 1);
            }
            let room = self.client_frame_bytes.saturating_sub(last.len());
            let mut now = &data[..data.len().min(room)];
            if let Some(messages) = &mut messages {
                now = &now[..messages.advance(now)];
            }
            self.out.extend_from_slice(now);
            last.end = self.out.len();
            data = &data[now.len()..];
            let flags = if ends && data.is_empty() { flag::END_STREAM } else { 0 };
            let header = Header { len: last.len(), kind: kind::DATA, flags, stream: id };
            self.end_frame(last.start, header);
            if data.is_empty() {
                break;
            }
        }
        if ends {
            self.last_data = None;
            self.ended(id);
            return;
        }
        self.last_data = Some(last);
        if messages.is_some()
            && let Some(stream) = self.streams.get_mut(&id)
        {
            stream.messages = messages;
        }
    }

    /// Sends the complete response to a successful unary gRPC call, if it fits into the client's windows and one frame.
    /// The message includes its length prefix. Returns false if the response does not fit; true if it was sent, or if
    /// it is not needed because the stream has been reset.
    #[must_use]
    pub fn reply(&mut self, id: StreamId, message: &[u8]) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else { return true };
        let len = message.len();
        if stream.send_window.min(self.send_window) < signed(len) || len > self.client_frame_bytes {
            return false;
        }
        self.send_window -= signed(len);
        self.given_up = self.given_up.saturating_sub(1);
        self.out.reserve(3 * HEADER_BYTES + 16 + len);
        let start = self.begin_block();
        self.encoder.status(200, &mut self.out);
        self.encoder.grpc_content_type(&mut self.out);
        self.end_block(start, id, false);
        Header { len, kind: kind::DATA, flags: 0, stream: id }.put(&mut self.out);
        self.out.extend_from_slice(message);
        let start = self.begin_block();
        self.encoder.grpc_status_ok(&mut self.out);
        self.end_block(start, id, true);
        self.ended(id);
        true
    }

    /// Sends the head of a gRPC response.
    pub fn respond_grpc(&mut self, id: StreamId) {
        self.answered(id);
        if !self.streams.contains_key(&id) {
            return;
        }
        let start = self.begin_block();
        self.encoder.status(200, &mut self.out);
        self.encoder.grpc_content_type(&mut self.out);
        self.end_block(start, id, false);
    }

    /// Ends a successful gRPC response.
    pub fn end_grpc(&mut self, id: StreamId) {
        if self.streams.contains_key(&id) {
            let start = self.begin_block();
            self.encoder.grpc_status_ok(&mut self.out);
            self.end_block(start, id, true);
            self.ended(id);
        }
    }

    /// Reserves the place of the header of a DATA or HEADERS frame, and returns its position.
    ///
    /// The frame makes up for one idle frame, because clients may react to each part of a response: grpc-go sends pings
    /// to measure the round-trip time while it receives data. A client that makes the server send a frame for each of
    /// its idle frames causes no more work than with a request for each of them.
    fn begin_frame(&mut self) -> usize {
        self.idle_frames = self.idle_frames.saturating_sub(1);
        let start = self.out.len();
        self.out.extend_from_slice(&[0; HEADER_BYTES]);
        start
    }

    fn begin_data(&mut self, stream: StreamId, frames: u32) -> LastData {
        let start = self.begin_frame();
        LastData { stream, start, end: self.out.len(), frames }
    }

    fn end_frame(&mut self, start: usize, header: Header) {
        self.out[start..start + HEADER_BYTES].copy_from_slice(&header.bytes());
    }

    fn begin_block(&mut self) -> usize {
        let start = self.begin_frame();
        self.encoder.begin(&mut self.out);
        start
    }

    /// Writes the frame header of a header block, and splits a block that is too long for one frame.
    fn end_block(&mut self, start: usize, id: StreamId, ends: bool) {
        let len = self.out.len() - start - HEADER_BYTES;
        let ends = if ends { flag::END_STREAM } else { 0 };
        if len <= self.client_frame_bytes {
            let header =
                Header { len, kind: kind::HEADERS, flags: flag::END_HEADERS | ends, stream: id };
            self.end_frame(start, header);
            return;
        }
        let block = self.out.split_off(start + HEADER_BYTES);
        self.out.truncate(start);
        let (mut kind, mut flags) = (kind::HEADERS, ends);
        let mut parts = block.chunks(self.client_frame_bytes).peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                flags |= flag::END_HEADERS;
            }
            Header { len: part.len(), kind, flags, stream: id }.put(&mut self.out);
            self.out.extend_from_slice(part);
            (kind, flags) = (kind::CONTINUATION, 0);
        }
    }

    /// Answers a ping.
    pub fn pong(&mut self, payload: [u8; 8]) {
        self.put_ping(payload, flag::ACK);
    }

    /// Sends a ping.
    pub fn ping(&mut self, payload: [u8; 8]) {
        self.put_ping(payload, 0);
    }

    fn put_ping(&mut self, payload: [u8; 8], flags: u8) {
        Header { len: 8, kind: kind::PING, flags, stream: 0 }.put(&mut self.out);
        self.out.extend_from_slice(&payload);
    }

    /// Announces that the connection is about to close. The client may still open streams until it receives the
    /// announcement.
    pub fn announce_end(&mut self) {
        self.put_go_away(MAX_31_BITS, Code::NO_ERROR, b"");
    }

    /// Refuses all further streams.
    pub fn end(&mut self) {
        self.last_served = Some(self.last_stream);
        self.put_go_away(self.last_stream, Code::NO_ERROR, b"");
    }

    /// Sends a GOAWAY frame with an error code and the reason. The caller then closes the connection immediately.
    pub fn close(&mut self, code: Code, reason: &[u8]) {
        self.open_block = None;
        self.put_go_away(self.last_stream, code, reason);
    }

    fn put_go_away(&mut self, last: StreamId, code: Code, reason: &[u8]) {
        Header { len: 8 + reason.len(), kind: kind::GOAWAY, flags: 0, stream: 0 }
            .put(&mut self.out);
        self.out.extend_from_slice(&last.to_be_bytes());
        self.out.extend_from_slice(&code.0.to_be_bytes());
        self.out.extend_from_slice(reason);
    }
}
