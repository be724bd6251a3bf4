//! The encodings of the two kinds of streams: the message stream, and the append stream with its short form.
//!
//! ```text
//! message stream    u64 length, raftpb.Message                            repeated
//! append stream     0x00                                                  link heartbeat
//!                   0x01, u64 n, n x (u64 length, raftpb.Entry), u64 commit
//!                   0x02, u64 length, raftpb.Message
//! ```
//!
//! All numbers are big endian. Both ends of an append stream remember the term and index at which the last append
//! ended. An append that continues from that position in the leader's current term is sent in the short form (0x01).
//!
//! # Guarantees
//!
//! * A decoder that has received all output of one encoder returns exactly the encoded messages, regardless of how the
//!   bytes are split into reads.
//! * A decoder buffers only received bytes. It allocates no memory for an announced length, and refuses frames longer
//!   than [`FRAME_BYTES_MAX`].
//! * Payloads are slices of the decoder's buffer, which is filled without gaps. Slices of the connection's buffer would
//!   waste memory, because the connection allocates a new block for every read while a slice is in use. A small entry
//!   in the log would then retain kilobytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quorate_raft::{Entry, LogIndex, MemberId, Message, MessageKind, Term};

use crate::wire::{self, WireError};

/// Maximum length of an accepted frame.
pub(crate) const FRAME_BYTES_MAX: u64 = 512 << 20;

const LENGTH_BYTES: usize = 8;

/// Size of a buffer block. A block is freed when the last message in it is dropped.
const BLOCK_BYTES: usize = 64 << 10;

const LINK_HEARTBEAT: u8 = 0;
const ENTRIES: u8 = 1;
const WHOLE_MESSAGE: u8 = 2;

/// The two streams that a member opens to each peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamKind {
    /// Append messages from a leader.
    Append,
    /// All other messages, and appends while the append stream is not open.
    Message,
}

impl StreamKind {
    pub(crate) const ALL: [Self; 2] = [Self::Append, Self::Message];

    /// Returns the stream's name in log lines.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Append => "stream MsgApp v2",
            Self::Message => "stream Message",
        }
    }

    /// Returns the path of the request that opens the stream, without the member id.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::Append => "/raft/stream/msgapp/",
            Self::Message => "/raft/stream/message/",
        }
    }
}

/// Invalid bytes in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("rafthttp: error limit exceeded")]
    TooLong,
    #[error("failed to parse type {0} in msgappv2 stream")]
    Type(u8),
    #[error(transparent)]
    Wire(#[from] WireError),
}

/// Encodes the messages of one stream.
#[derive(Debug)]
pub(crate) struct Encoder {
    kind: StreamKind,
    position: Position,
}

/// The position at which the last append of a stream ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    term: Term,
    index: LogIndex,
}

impl Position {
    fn after(message: &Message) -> Self {
        let index = message.entries.last().map_or(message.index, |entry| entry.index);
        Self { term: message.term, index }
    }
}

impl Encoder {
    pub(crate) fn new(kind: StreamKind) -> Self {
        Self { kind, position: Position::default() }
    }

    pub(crate) fn put(&mut self, message: &Message, out: &mut BytesMut) {
        if self.kind == StreamKind::Append {
            if self.continues(message) {
                self.put_entries(message, out);
                return;
            }
            out.put_u8(WHOLE_MESSAGE);
            self.position = Position::after(message);
        }
        put_framed(message, out);
    }

    pub(crate) fn put_link_heartbeat(&self, out: &mut BytesMut) {
        match self.kind {
            StreamKind::Append => out.put_u8(LINK_HEARTBEAT),
            StreamKind::Message => put_framed(&Message::new(MessageKind::Heartbeat, 0), out),
        }
    }

    fn continues(&self, message: &Message) -> bool {
        let before = Position { term: message.log_term, index: message.index };
        message.kind == MessageKind::Append
            && before == self.position
            && message.log_term == message.term
    }

    fn put_entries(&mut self, message: &Message, out: &mut BytesMut) {
        out.put_u8(ENTRIES);
        out.put_u64(message.entries.len() as u64);
        for entry in &message.entries {
            out.put_u64(wire::entry_len(entry) as u64);
            wire::put_entry(entry, out);
        }
        out.put_u64(message.commit.get());
        self.position.index += message.entries.len() as u64;
    }
}

/// Appends a message preceded by its length, as in the message stream and before a snapshot.
pub(crate) fn put_framed(message: &Message, out: &mut BytesMut) {
    let len = wire::message_len(message);
    out.reserve(LENGTH_BYTES + len);
    out.put_u64(len as u64);
    wire::put_message(message, out);
}

/// Decodes the messages of one stream.
#[derive(Debug)]
pub(crate) struct Decoder {
    kind: StreamKind,
    from: MemberId,
    to: MemberId,
    position: Position,
    /// The received part of an incomplete frame. The buffer may share its allocation with earlier frames that are still
    /// in use.
    buffer: BytesMut,
    extent: Extent,
    link_heartbeats: u64,
}

impl Decoder {
    /// Creates a decoder for the stream that `from` sends to `to`.
    pub(crate) fn new(kind: StreamKind, from: MemberId, to: MemberId) -> Self {
        Self {
            kind,
            from,
            to,
            position: Position::default(),
            buffer: BytesMut::new(),
            extent: Extent::default(),
            link_heartbeats: 0,
        }
    }

    /// Returns the number of link heartbeats since the last call.
    pub(crate) fn take_link_heartbeats(&mut self) -> u64 {
        std::mem::take(&mut self.link_heartbeats)
    }

    /// Processes the next bytes of the stream, and adds each message that is now complete to the list. Link heartbeats
    /// are not added.
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        messages: &mut Vec<Message>,
    ) -> Result<(), FrameError> {
        if self.buffer.capacity() - self.buffer.len() < input.len() {
            self.buffer.reserve(input.len().max(BLOCK_BYTES));
        }
        self.buffer.extend_from_slice(input);
        while self.extent.find(self.kind, &self.buffer)? {
            let frame = self.buffer.split_to(self.extent.known).freeze();
            self.extent = Extent::default();
            messages.extend(self.decode(frame)?);
        }
        Ok(())
    }

    fn decode(&mut self, mut frame: Bytes) -> Result<Option<Message>, FrameError> {
        if self.kind == StreamKind::Message {
            frame.advance(LENGTH_BYTES);
            let message = wire::decode_message(&frame)?;
            let is_link =
                message.kind == MessageKind::Heartbeat && message.from == 0 && message.to == 0;
            self.link_heartbeats += u64::from(is_link);
            return Ok((!is_link).then_some(message));
        }
        match frame.get_u8() {
            LINK_HEARTBEAT => {
                self.link_heartbeats += 1;
                Ok(None)
            }
            ENTRIES => self.decode_entries(frame).map(Some),
            _ => {
                frame.advance(LENGTH_BYTES);
                let message = wire::decode_message(&frame)?;
                self.position = Position::after(&message);
                Ok(Some(message))
            }
        }
    }

    fn decode_entries(&mut self, mut frame: Bytes) -> Result<Message, FrameError> {
        let count = frame.get_u64();
        let mut entries: Vec<Entry> = Vec::new();
        for _ in 0..count {
            let len = usize::try_from(frame.get_u64()).map_err(|_| FrameError::TooLong)?;
            let entry = frame.split_to(len);
            entries.push(wire::decode_entry(&entry, &entry)?);
        }
        let Position { term, index } = self.position;
        self.position.index = LogIndex(index.get().wrapping_add(count));
        Ok(Message {
            from: self.from,
            term,
            log_term: term,
            index,
            entries,
            commit: LogIndex(frame.get_u64()),
            ..Message::new(MessageKind::Append, self.to)
        })
    }
}

/// The length of a frame, as far as the received bytes determine it.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    /// The minimum length of the frame.
    known: usize,
    /// In the short form, the number of entries beyond `known`; `None` until that number is read.
    entries_left: Option<u64>,
    /// Whether `known` is the final length.
    is_final: bool,
}

impl Extent {
    /// Continues where the last call stopped. Returns true if `bytes` contains the whole frame; `known` is then the
    /// frame's length. Otherwise `known` is a minimum length that exceeds the length of `bytes`.
    fn find(&mut self, kind: StreamKind, bytes: &[u8]) -> Result<bool, FrameError> {
        loop {
            if bytes.len() < self.known {
                return Ok(false);
            }
            if self.is_final {
                return Ok(true);
            }
            self.advance(kind, bytes)?;
        }
    }

    /// Extends `known` by the next part, using the bytes before `known`, all of which have been received.
    fn advance(&mut self, kind: StreamKind, bytes: &[u8]) -> Result<(), FrameError> {
        match (kind, self.known, self.entries_left) {
            (StreamKind::Message, 0, _) => self.add(LENGTH_BYTES as u64),
            (StreamKind::Append, 0, _) => self.add(1),
            (StreamKind::Append, 1, _) => match bytes[0] {
                LINK_HEARTBEAT => {
                    self.is_final = true;
                    Ok(())
                }
                ENTRIES | WHOLE_MESSAGE => self.add(LENGTH_BYTES as u64),
                other => Err(FrameError::Type(other)),
            },
            (StreamKind::Append, known, None) if bytes[0] == ENTRIES => {
                let count = number_before(bytes, known);
                if count > wire::ENTRIES_MAX as u64 {
                    return Err(FrameError::TooLong);
                }
                self.entries_left = Some(count);
                self.expect_entry_or_commit()
            }
            (StreamKind::Append, known, Some(left)) => {
                // This number is the length of an entry. The entry is followed by the next length or by the commit
                // index.
                self.entries_left = Some(left - 1);
                self.add(number_before(bytes, known))?;
                self.expect_entry_or_commit()
            }
            (_, known, None) => {
                self.is_final = true;
                self.add(number_before(bytes, known))
            }
            (StreamKind::Message, _, Some(_)) => {
                unreachable!("only the append stream has the short form")
            }
        }
    }

    /// Extends `known` by eight bytes, the size of both an entry's length and the commit index.
    fn expect_entry_or_commit(&mut self) -> Result<(), FrameError> {
        self.is_final = self.entries_left == Some(0);
        self.add(LENGTH_BYTES as u64)
    }

    fn add(&mut self, bytes: u64) -> Result<(), FrameError> {
        let known = (self.known as u64).checked_add(bytes).filter(|sum| *sum <= FRAME_BYTES_MAX);
        let known = known.and_then(|sum| usize::try_from(sum).ok());
        self.known = known.ok_or(FrameError::TooLong)?;
        Ok(())
    }
}

/// Returns the big-endian number that ends at `end`.
fn number_before(bytes: &[u8], end: usize) -> u64 {
    let number =
        bytes[..end].last_chunk().expect("the bytes of a number have arrived before it is read");
    u64::from_be_bytes(*number)
}

#[cfg(test)]
mod tests;
