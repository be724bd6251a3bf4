//! Streams: their state, and how they end.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::event::violation;
use super::limits::RESET_KEPT_MAX;
use super::messages::Messages;
use super::{Connection, Event, StreamId, Violation};
use crate::frame::{Code, Header, kind, read_u32};

/// An open stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tag: u32,
    pub(super) send_window: i64,
    /// The number of bytes that the client may still send.
    pub(super) receive_window: i64,
    /// The number of bytes that were read but not yet returned to the client's window.
    pub(super) released: u32,
    /// If the length of the body is known, the number of bytes still to be received.
    pub(super) missing: Option<u64>,
    /// Whether the client may still send data.
    pub(super) is_open: bool,
    pub(super) is_answered: bool,
    /// The position in the response body, if the body consists of gRPC messages.
    pub(super) messages: Option<Messages>,
}

impl Connection {
    pub(super) fn on_reset<'a>(
        &mut self,
        header: Header,
        payload: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        let (Some(code), 4) = (read_u32(payload), header.len) else {
            return violation(Code::FRAME_SIZE_ERROR, "RST_STREAM has the wrong length");
        };
        let id = header.stream;
        let Some(stream) = self.streams.remove(&id) else {
            if self.is_idle(id) {
                return violation(
                    Code::PROTOCOL_ERROR,
                    "a frame on a stream that was never opened",
                );
            }
            return self.idle_frame().map(|()| None);
        };
        self.note_given_up(&stream)?;
        Ok(Some(Event::Reset { stream: id, tag: stream.tag, code: Code(code) }))
    }

    /// Returns whether the client has not opened a stream with this id: the id is even, or higher than all ids used so
    /// far.
    pub(super) const fn is_idle(&self, id: StreamId) -> bool {
        id > self.last_stream || id.is_multiple_of(2)
    }

    /// Handles a frame on a stream that has never been opened or is closed.
    pub(super) fn on_unknown(
        &mut self,
        id: StreamId,
        reason: &'static str,
    ) -> Result<(), Violation> {
        self.idle_frame()?;
        if self.is_idle(id) {
            return violation(Code::PROTOCOL_ERROR, "a frame on a stream that was never opened");
        }
        if self.has_forgotten_resets || self.is_past_goaway(id) || self.reset.contains(&id) {
            return Ok(());
        }
        violation(Code::STREAM_CLOSED, reason)
    }

    pub(super) fn is_past_goaway(&self, id: StreamId) -> bool {
        self.last_served.is_some_and(|last| id > last)
    }

    /// Ends a stream because of a client error.
    ///
    /// The error is counted like a reset by the client, because both make the server start a request and then drop it.
    pub(super) fn fail<'a>(
        &mut self,
        id: StreamId,
        code: Code,
    ) -> Result<Option<Event<'a>>, Violation> {
        let failed = self.streams.remove(&id);
        self.put_reset(id, code);
        let Some(stream) = failed else { return Ok(None) };
        self.note_given_up(&stream)?;
        Ok(Some(Event::Reset { stream: id, tag: stream.tag, code }))
    }

    /// Counts a stream that the client has ended before receiving the response.
    fn note_given_up(&mut self, stream: &Stream) -> Result<(), Violation> {
        if !stream.is_answered {
            self.given_up += 1;
            if self.given_up > self.limits.given_up_max {
                return violation(Code::ENHANCE_YOUR_CALM, "too many requests were cancelled");
            }
        }
        Ok(())
    }

    pub(super) fn put_reset(&mut self, id: StreamId, code: Code) {
        Header { len: 4, kind: kind::RST_STREAM, flags: 0, stream: id }.put(&mut self.out);
        self.out.extend_from_slice(&code.0.to_be_bytes());
        if self.reset.len() == RESET_KEPT_MAX {
            self.reset.pop_front();
            self.has_forgotten_resets = true;
        }
        self.reset.push_back(id);
    }

    /// Resets a stream.
    pub fn reset(&mut self, id: StreamId, code: Code) {
        if self.streams.remove(&id).is_some() {
            self.put_reset(id, code);
        }
    }

    /// Handles the end of this side of a stream. A client that is still sending its request is asked to stop.
    pub(super) fn ended(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.remove(&id)
            && stream.is_open
        {
            self.put_reset(id, Code::NO_ERROR);
        }
    }
}

/// Hashes stream ids by multiplying them with a random number, so that clients cannot choose ids whose hashes collide.
#[derive(Clone, Debug)]
pub(super) struct IdHashing(u64);

impl Default for IdHashing {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish() | 1)
    }
}

impl BuildHasher for IdHashing {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { factor: self.0, hash: 0 }
    }
}

#[derive(Debug)]
pub(super) struct IdHasher {
    factor: u64,
    hash: u64,
}

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, id: u32) {
        // The high bits of the product depend on all bits of the id, but the map uses the low bits of the hash. The
        // rotation therefore exchanges the two halves.
        self.hash = (self.hash ^ u64::from(id)).wrapping_mul(self.factor).rotate_left(32);
    }
}
