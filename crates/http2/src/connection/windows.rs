//! Flow control in both directions.

use super::event::violation;
use super::limits::{IDLE_FRAMES_PER_NEW_WINDOW, STREAMS_PER_IDLE_FRAME};
use super::{Connection, Event, NO_TAG, StreamId, Violation};
use crate::frame::{Code, Header, MAX_31_BITS, WINDOW_DEFAULT, kind, read_u32};

impl Connection {
    pub(super) fn on_window_update<'a>(
        &mut self,
        header: Header,
        payload: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        let (Some(more), 4) = (read_u32(payload), header.len) else {
            return violation(Code::FRAME_SIZE_ERROR, "WINDOW_UPDATE has the wrong length");
        };
        let (id, more) = (header.stream, i64::from(more & MAX_31_BITS));
        if id == 0 {
            self.send_window += more;
            if more == 0 {
                return violation(Code::PROTOCOL_ERROR, "WINDOW_UPDATE with an increment of zero");
            }
            if self.send_window > i64::from(MAX_31_BITS) {
                return violation(
                    Code::FLOW_CONTROL_ERROR,
                    "a flow-control window exceeds 2^31 - 1 bytes",
                );
            }
            return Ok(Some(Event::Room { stream: 0, tag: NO_TAG }));
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            if self.is_idle(id) {
                return violation(
                    Code::PROTOCOL_ERROR,
                    "a frame on a stream that was never opened",
                );
            }
            // The stream may have ended while the frame was in transit.
            return self.idle_frame().map(|()| None);
        };
        stream.send_window += more;
        if more == 0 {
            return self.fail(id, Code::PROTOCOL_ERROR);
        }
        if stream.send_window > i64::from(MAX_31_BITS) {
            return self.fail(id, Code::FLOW_CONTROL_ERROR);
        }
        Ok(Some(Event::Room { stream: id, tag: stream.tag }))
    }

    /// Changes the windows of all streams as the client's settings require. A frame changes the windows at most once,
    /// even if it repeats the setting.
    pub(super) fn set_client_window(&mut self, window: u32) -> Result<(), Violation> {
        let for_streams = u32::try_from(self.streams.len() / STREAMS_PER_IDLE_FRAME);
        self.idle_frames = self
            .idle_frames
            .saturating_add(IDLE_FRAMES_PER_NEW_WINDOW)
            .saturating_add(for_streams.unwrap_or(u32::MAX));
        let more = i64::from(window) - i64::from(self.client_window);
        self.client_window = window;
        for stream in self.streams.values_mut() {
            stream.send_window += more;
            if stream.send_window > i64::from(MAX_31_BITS) {
                return violation(
                    Code::FLOW_CONTROL_ERROR,
                    "a flow-control window exceeds 2^31 - 1 bytes",
                );
            }
        }
        Ok(())
    }

    /// Enlarges the receive windows by the number of bytes that a service has read from a request body.
    pub fn release(&mut self, id: StreamId, bytes: usize) {
        self.release_of_connection(bytes);
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.is_open
        {
            stream.released += u32::try_from(bytes).unwrap_or(u32::MAX);
            if stream.released >= self.limits.stream_window / 2 {
                let bytes = std::mem::take(&mut stream.released);
                stream.receive_window += i64::from(bytes);
                put_window_update(id, bytes, &mut self.out);
            }
        }
    }

    /// Enlarges the window of the connection, but not the window of any stream.
    pub fn release_of_connection(&mut self, bytes: usize) {
        self.released += u32::try_from(bytes).unwrap_or(u32::MAX);
        if self.released >= self.limits.connection_window.max(WINDOW_DEFAULT) / 2 {
            let bytes = std::mem::take(&mut self.released);
            self.receive_window += i64::from(bytes);
            put_window_update(0, bytes, &mut self.out);
        }
    }

    /// Returns how many bytes of data may be sent on a stream now.
    #[must_use]
    pub fn room(&self, id: StreamId) -> usize {
        let Some(stream) = self.streams.get(&id) else { return 0 };
        usize::try_from(stream.send_window.min(self.send_window)).unwrap_or(0)
    }

    /// Returns whether the window of the connection allows sending data on any stream.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.send_window > 0
    }
}

/// Converts a length to a signed number, which can be subtracted from a window.
pub(super) fn signed(len: usize) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

/// Appends a WINDOW_UPDATE frame.
pub(super) fn put_window_update(stream: StreamId, more: u32, out: &mut Vec<u8>) {
    Header { len: 4, kind: kind::WINDOW_UPDATE, flags: 0, stream }.put(out);
    out.extend_from_slice(&more.to_be_bytes());
}
