//! Header blocks: requests and trailers.

use std::sync::Arc;

use http::{HeaderMap, StatusCode};

use super::event::violation;
use super::limits::{
    BLOCK_FRAMES_MAX, IDLE_FRAMES_PER_REQUEST, KNOWN_BLOCK_BYTES_MAX, KNOWN_FIELDS_MAX,
    KNOWN_HEADS_MAX,
};
use super::streams::Stream;
use super::{Connection, Event, NO_TAG, StreamId, Violation, is_itself, without_padding};
use crate::frame::{Code, Header, flag};
use crate::head::{Builder, Fault, Head};

/// A header block whose last frame has not arrived.
#[derive(Debug)]
pub(super) struct OpenBlock {
    pub(super) stream: StreamId,
    flags: u8,
    depends_on_itself: bool,
    block: Vec<u8>,
    frame_count: u32,
}

/// A decoded head and its header block.
#[derive(Debug)]
pub(super) struct KnownHead {
    version: u64,
    pub(super) block: Vec<u8>,
    head: Arc<Head>,
}

impl Connection {
    pub(super) fn on_headers<'a>(
        &mut self,
        header: Header,
        payload: &'a [u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        if header.stream.is_multiple_of(2) {
            return violation(Code::PROTOCOL_ERROR, "HEADERS on a stream with an even id");
        }
        let Some(mut block) = without_padding(header, payload) else {
            return violation(Code::PROTOCOL_ERROR, "the padding is longer than the frame");
        };
        let mut depends_on_itself = false;
        if header.has(flag::PRIORITY) {
            let Some((priority, rest)) = block.split_at_checked(5) else {
                return violation(Code::FRAME_SIZE_ERROR, "HEADERS is too short");
            };
            depends_on_itself = is_itself(priority, header.stream);
            block = rest;
        }
        if header.has(flag::END_HEADERS) {
            return self.on_block(header.stream, header.flags, depends_on_itself, block);
        }
        let (stream, flags, block) = (header.stream, header.flags, block.to_vec());
        self.open_block =
            Some(OpenBlock { stream, flags, depends_on_itself, block, frame_count: 1 });
        Ok(None)
    }

    pub(super) fn on_continuation<'a>(
        &mut self,
        header: Header,
        payload: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        let Some(mut open) = self.open_block.take() else {
            return violation(Code::PROTOCOL_ERROR, "CONTINUATION without HEADERS");
        };
        open.frame_count += 1;
        if open.frame_count > BLOCK_FRAMES_MAX
            || open.block.len() + payload.len() > 2 * self.limits.header_list_bytes_max
        {
            return violation(
                Code::ENHANCE_YOUR_CALM,
                "a header block is too long or has too many frames",
            );
        }
        open.block.extend_from_slice(payload);
        if header.has(flag::END_HEADERS) {
            return self.on_block(open.stream, open.flags, open.depends_on_itself, &open.block);
        }
        self.open_block = Some(open);
        Ok(None)
    }

    /// Decodes a complete header block, which contains the head of a new request or trailers.
    fn on_block<'a>(
        &mut self,
        id: StreamId,
        flags: u8,
        depends_on_itself: bool,
        block: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        let ends = flags & flag::END_STREAM != 0;
        if id <= self.last_stream {
            return self.on_trailers(id, ends, block);
        }
        let head = self.head(block)?;
        self.last_stream = id;
        if self.is_past_goaway(id) {
            return Ok(None);
        }
        if self.streams.len() >= self.limits.streams_max {
            self.put_reset(id, Code::REFUSED_STREAM);
            return Ok(None);
        }
        let head = match head {
            Ok(head) if !depends_on_itself => head,
            Ok(_) | Err(Fault::Malformed) => {
                self.put_reset(id, Code::PROTOCOL_ERROR);
                return Ok(None);
            }
            Err(Fault::TooLong) => {
                self.open(id, ends, None);
                self.respond(
                    id,
                    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                    &HeaderMap::new(),
                    true,
                );
                return Ok(None);
            }
        };
        let length = head.content_length;
        if ends && length.is_some_and(|length| length > 0) {
            self.put_reset(id, Code::PROTOCOL_ERROR);
            return Ok(None);
        }
        self.idle_frames = self.idle_frames.saturating_sub(IDLE_FRAMES_PER_REQUEST);
        self.open(id, ends, length);
        Ok(Some(Event::Request { stream: id, head, ends }))
    }

    fn open(&mut self, id: StreamId, ends: bool, missing: Option<u64>) {
        let stream = Stream {
            tag: NO_TAG,
            send_window: i64::from(self.client_window),
            receive_window: i64::from(self.limits.stream_window),
            released: 0,
            missing,
            is_open: !ends,
            is_answered: false,
            messages: None,
        };
        self.streams.insert(id, stream);
    }

    /// Returns the head of a request. The head is reused if the same block has already been decoded with the same
    /// table.
    fn head(&mut self, block: &[u8]) -> Result<Result<Arc<Head>, Fault>, Violation> {
        let version = self.decoder.version();
        let known =
            self.known_heads.iter().find(|known| known.version == version && known.block == block);
        if let Some(known) = known {
            return Ok(Ok(Arc::clone(&known.head)));
        }
        let mut builder = Builder::new(self.limits.header_list_bytes_max);
        if self.decoder.decode(block, |field| builder.add(field)).is_err() {
            return violation(Code::COMPRESSION_ERROR, "a header block cannot be decoded");
        }
        let head = match builder.request() {
            Ok(head) => Arc::new(head),
            Err(fault) => return Ok(Err(fault)),
        };
        if self.decoder.version() == version
            && block.len() <= KNOWN_BLOCK_BYTES_MAX
            && head.headers.len() <= KNOWN_FIELDS_MAX
        {
            let known = KnownHead { version, block: block.to_vec(), head: Arc::clone(&head) };
            if self.known_heads.len() < KNOWN_HEADS_MAX {
                self.known_heads.push(known);
            } else {
                self.known_heads[self.next_known] = known;
                self.next_known = (self.next_known + 1) % KNOWN_HEADS_MAX;
            }
        }
        Ok(Ok(head))
    }

    fn on_trailers<'a>(
        &mut self,
        id: StreamId,
        ends: bool,
        block: &[u8],
    ) -> Result<Option<Event<'a>>, Violation> {
        let mut builder = Builder::new(self.limits.header_list_bytes_max);
        if self.decoder.decode(block, |field| builder.add(field)).is_err() {
            return violation(Code::COMPRESSION_ERROR, "a header block cannot be decoded");
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.on_unknown(id, "HEADERS on a closed stream").map(|()| None);
        };
        if !stream.is_open {
            return self.fail(id, Code::STREAM_CLOSED);
        }
        match builder.check_trailers() {
            Ok(()) if ends && stream.missing.unwrap_or_default() == 0 => {
                stream.is_open = false;
                Ok(Some(Event::Trailers { stream: id, tag: stream.tag }))
            }
            Ok(()) | Err(_) => self.fail(id, Code::PROTOCOL_ERROR),
        }
    }
}
