//! One `WatchResponse` in wire form: shared bytes with a small header for each watcher.
//!
//! A frame owns only handles, and [`Frame::encode`] writes it without allocating, so sending an event to ten thousand
//! watchers of one key costs only ten thousand small copies.

use bytes::{BufMut, Bytes};
use prost::encoding::{encode_varint, encoded_len_varint};

/// The fields of a response header, except the revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderFields {
    /// The id of the cluster.
    pub cluster_id: u64,
    /// The id of this member.
    pub member_id: u64,
    /// Term of the last entry that this member has applied.
    pub raft_term: u64,
}

/// Field 1 of a response, in wire form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    len: u8,
    bytes: [u8; Self::LEN_MAX],
}

impl Header {
    /// The maximum length: four varints of at most ten bytes with a tag each, and the tag and
    /// length of the whole header.
    const LEN_MAX: usize = 4 * 11 + 2;

    pub(super) fn new(fields: &HeaderFields, revision: i64) -> Self {
        let numbers =
            [fields.cluster_id, fields.member_id, revision.cast_unsigned(), fields.raft_term];
        let mut bytes = [0; Self::LEN_MAX];
        let mut rest = &mut bytes[2..];
        for (tag, number) in [0x08, 0x10, 0x18, 0x20].into_iter().zip(numbers) {
            if number != 0 {
                rest.put_u8(tag);
                encode_varint(number, &mut rest);
            }
        }
        let len = Self::LEN_MAX - 2 - rest.len();
        bytes[0] = 0x0a;
        bytes[1] = u8::try_from(len).expect("the length of a header is at most 44");
        Self { len: bytes[1] + 2, bytes }
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.len)
    }
}

/// The content of a response.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Created,
    /// The watcher was not created, for this reason.
    Rejected(Box<str>),
    /// The watcher was cancelled. The compacted revision is 0 if the client cancelled it.
    Canceled {
        compact_revision: i64,
    },
    Progress,
    /// Events. If `partial` is set, more events of the same revision may follow in the next
    /// response.
    Events {
        events: Bytes,
        /// The number of events.
        count: usize,
        partial: bool,
    },
}

/// One response for one watcher.
#[derive(Clone, Debug)]
pub struct Frame {
    pub(super) header: Header,
    pub(super) watch_id: i64,
    pub(super) body: Body,
}

impl Frame {
    /// Returns whether the response carries events.
    #[cfg(test)]
    pub(crate) fn has_events(&self) -> bool {
        matches!(self.body, Body::Events { .. })
    }

    /// Returns the number of events in the response.
    #[must_use]
    pub const fn event_count(&self) -> usize {
        match self.body {
            Body::Events { count, .. } => count,
            Body::Created | Body::Rejected(_) | Body::Canceled { .. } | Body::Progress => 0,
        }
    }

    /// Returns the length of the message, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let body = match &self.body {
            Body::Created => 2,
            Body::Rejected(reason) => {
                4 + 1 + encoded_len_varint(reason.len() as u64) + reason.len()
            }
            Body::Canceled { compact_revision } => 2 + number_len(*compact_revision),
            Body::Progress => 0,
            Body::Events { events, partial, .. } => 2 * usize::from(*partial) + events.len(),
        };
        self.header.len() + number_len(self.watch_id) + body
    }

    /// Appends the message to `buf`.
    pub fn encode(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.header.bytes[..self.header.len()]);
        put_number(0x10, self.watch_id, buf);
        match &self.body {
            Body::Created => buf.put_slice(&[0x18, 1]),
            Body::Rejected(reason) => {
                buf.put_slice(&[0x18, 1, 0x20, 1, 0x32]);
                encode_varint(reason.len() as u64, buf);
                buf.put_slice(reason.as_bytes());
            }
            Body::Canceled { compact_revision } => {
                buf.put_slice(&[0x20, 1]);
                put_number(0x28, *compact_revision, buf);
            }
            Body::Progress => {}
            Body::Events { events, partial, .. } => {
                if *partial {
                    buf.put_slice(&[0x38, 1]);
                }
                buf.put_slice(events);
            }
        }
    }
}

/// Returns the length of an optional varint field with a one-byte tag.
pub(super) fn number_len(number: i64) -> usize {
    if number == 0 { 0 } else { 1 + encoded_len_varint(number.cast_unsigned()) }
}

fn put_number(tag: u8, number: i64, buf: &mut impl BufMut) {
    if number != 0 {
        buf.put_u8(tag);
        encode_varint(number.cast_unsigned(), buf);
    }
}
