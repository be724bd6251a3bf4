//! Records: their frames in a segment, and the five record types.
//!
//! ```text
//! frame    0       8                        8 + n                  8 + n + pad
//!          | length | walpb.Record, n bytes | zeros up to a multiple of 8 |
//! length   little-endian: low 56 bits n; high byte 0, or 0x80 | pad when there is padding
//! Record   1 type (varint), 2 crc (varint), 3 data (bytes; absent in a crc record)
//! ```
//!
//! The crc is a running CRC-32C over the data fields of all records in all segments.

use bytes::Bytes;
use quorate_protobuf::{Fields, Value};

use crate::checksum::crc32c_extend;
use crate::head::Head;

/// The types of records, with their numbers in the format.
pub(super) mod kind {
    pub(in crate::wal) const METADATA: i64 = 1;
    pub(in crate::wal) const ENTRY: i64 = 2;
    pub(in crate::wal) const STATE: i64 = 3;
    pub(in crate::wal) const CRC: i64 = 4;
    pub(in crate::wal) const SNAPSHOT: i64 = 5;
}

/// The size of the length field before each record, in bytes.
pub(super) const LENGTH_BYTES: usize = 8;

/// The maximum number of bytes of memory that an encoder keeps between batches.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A raft log entry (`raftpb.Entry`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The entry's position in the raft log.
    pub index: u64,
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// The type: 0 normal, 1 `ConfChange`, 2 `ConfChangeV2`.
    pub kind: u8,
    /// The data for the state machine. Empty for a leader's no-op entry.
    pub data: Bytes,
}

/// A raft log entry with borrowed data, for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The entry's position in the raft log.
    pub index: u64,
    /// The term of the leader that proposed the entry.
    pub term: u64,
    /// The type: 0 normal, 1 `ConfChange`, 2 `ConfChangeV2`.
    pub kind: u8,
    /// The data for the state machine. Empty for a leader's no-op entry.
    pub data: &'a [u8],
}

impl<'a> From<&'a Entry> for EntryRef<'a> {
    fn from(entry: &'a Entry) -> Self {
        Self { index: entry.index, term: entry.term, kind: entry.kind, data: &entry.data }
    }
}

/// The state that a member must remember across restarts (`raftpb.HardState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardState {
    /// The latest term.
    pub term: u64,
    /// The member that this member voted for in `term`, or 0.
    pub vote: u64,
    /// The highest index known to be committed.
    pub commit: u64,
}

impl HardState {
    /// Returns whether every field is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A log record of a snapshot that was taken or received (`walpb.Snapshot`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotMark {
    /// The last log index that the snapshot contains.
    pub index: u64,
    /// The term of the entry at `index`.
    pub term: u64,
    /// The encoded `raftpb.ConfState`. Missing in the first mark of every log, and in old logs.
    pub conf_state: Option<Bytes>,
}

/// The fields of a record, whose data is still in the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) kind: i64,
    pub(super) crc: u32,
    pub(super) data: &'a [u8],
}

/// A buffer of encoded records. It continues the checksum from one record to the next.
#[derive(Debug)]
pub(super) struct RecordEncoder {
    pub(super) buffer: Vec<u8>,
    pub(super) crc: u32,
}

impl RecordEncoder {
    pub(super) const fn new(crc: u32) -> Self {
        Self { buffer: Vec::new(), crc }
    }

    /// Removes the records that have been written. Keeps up to [`KEPT_BYTES_MAX`] bytes of memory,
    /// which is enough for an average batch.
    pub(super) fn clear(&mut self) {
        self.buffer.clear();
        self.buffer.shrink_to(KEPT_BYTES_MAX);
    }

    /// Adds a record that contains the checksum so far.
    pub(super) fn push_crc(&mut self) {
        let head = Head::new().number(1, kind::CRC as u64).number(2, u64::from(self.crc));
        self.push_frame(head, [&[], &[]]);
    }

    pub(super) fn push_metadata(&mut self, metadata: &[u8]) {
        self.push(kind::METADATA, [metadata, &[]]);
    }

    pub(super) fn push_entry(&mut self, entry: EntryRef<'_>) {
        let mut head = Head::new();
        if entry.kind != 0 {
            head = head.number(1, u64::from(entry.kind));
        }
        head = head.number(2, entry.term).number(3, entry.index);
        if !entry.data.is_empty() {
            head = head.bytes(4, entry.data.len());
        }
        self.push(kind::ENTRY, [head.as_slice(), entry.data]);
    }

    pub(super) fn push_state(&mut self, state: &HardState) {
        let head = Head::new().number(1, state.term).number(2, state.vote).number(3, state.commit);
        self.push(kind::STATE, [head.as_slice(), &[]]);
    }

    pub(super) fn push_mark(&mut self, mark: &SnapshotMark) {
        let mut head = Head::new().number(1, mark.index).number(2, mark.term);
        let conf_state = mark.conf_state.as_deref().unwrap_or_default();
        if mark.conf_state.is_some() {
            head = head.bytes(3, conf_state.len());
        }
        self.push(kind::SNAPSHOT, [head.as_slice(), conf_state]);
    }

    /// Adds a record whose data is the concatenation of two parts.
    pub(super) fn push(&mut self, kind: i64, data: [&[u8]; 2]) {
        self.crc = crc32c_extend(crc32c_extend(self.crc, data[0]), data[1]);
        let mut head = Head::new().number(1, kind.cast_unsigned()).number(2, u64::from(self.crc));
        let data_bytes = data[0].len() + data[1].len();
        if data_bytes > 0 {
            head = head.bytes(3, data_bytes);
        }
        self.push_frame(head, data);
    }

    fn push_frame(&mut self, head: Head, data: [&[u8]; 2]) {
        let record_bytes = head.as_slice().len() + data[0].len() + data[1].len();
        let padding = record_bytes.next_multiple_of(8) - record_bytes;
        let mut length = record_bytes as u64;
        if padding > 0 {
            length |= (0x80 | padding as u64) << 56;
        }
        self.buffer.reserve(LENGTH_BYTES + record_bytes + padding);
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(head.as_slice());
        self.buffer.extend_from_slice(data[0]);
        self.buffer.extend_from_slice(data[1]);
        self.buffer.extend_from_slice(&[0; 8][..padding]);
    }
}

/// Splits a length field into the record's length and the padding's length.
pub(super) const fn split_length(length: u64) -> (u64, u64) {
    let padding = if length >> 63 == 1 { length >> 56 & 7 } else { 0 };
    (length & 0x00ff_ffff_ffff_ffff, padding)
}

pub(super) fn decode_record(bytes: &[u8]) -> Option<Record<'_>> {
    let mut record = Record { kind: 0, crc: 0, data: &[] };
    for field in Fields::new(bytes) {
        match field.ok()? {
            (1, Value::Varint(kind)) => record.kind = kind.cast_signed(),
            (2, Value::Varint(crc)) => record.crc = (crc & 0xffff_ffff) as u32,
            (3, Value::Bytes(data)) => record.data = data,
            _ => {}
        }
    }
    Some(record)
}

pub(super) fn decode_entry(bytes: &[u8]) -> Option<EntryRef<'_>> {
    let mut entry = EntryRef { index: 0, term: 0, kind: 0, data: &[] };
    for field in Fields::new(bytes) {
        match field.ok()? {
            (1, Value::Varint(kind)) => entry.kind = u8::try_from(kind).ok()?,
            (2, Value::Varint(term)) => entry.term = term,
            (3, Value::Varint(index)) => entry.index = index,
            (4, Value::Bytes(data)) => entry.data = data,
            _ => {}
        }
    }
    Some(entry)
}

pub(super) fn decode_state(bytes: &[u8]) -> Option<HardState> {
    let mut state = HardState::default();
    for field in Fields::new(bytes) {
        match field.ok()? {
            (1, Value::Varint(term)) => state.term = term,
            (2, Value::Varint(vote)) => state.vote = vote,
            (3, Value::Varint(commit)) => state.commit = commit,
            _ => {}
        }
    }
    Some(state)
}

pub(super) fn decode_mark(bytes: &[u8]) -> Option<SnapshotMark> {
    let mut mark = SnapshotMark::default();
    for field in Fields::new(bytes) {
        match field.ok()? {
            (1, Value::Varint(index)) => mark.index = index,
            (2, Value::Varint(term)) => mark.term = term,
            (3, Value::Bytes(state)) => mark.conf_state = Some(Bytes::copy_from_slice(state)),
            _ => {}
        }
    }
    Some(mark)
}
