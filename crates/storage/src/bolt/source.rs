//! The bytes that a transaction's edits refer to.
//!
//! An edited entry consists of two [`Span`]s. Each span is a position in the base snapshot's mapping, in the
//! transaction's key buffer, or among the added values. So loading a page does not copy data, and moving entries
//! between nodes moves only numbers.

use std::sync::Arc;

use bytes::Bytes;

use super::page::u32_of;
use super::snapshot::Snapshot;
use crate::size::in_memory;

/// All bytes that the spans of a transaction refer to. Bytes are added but never removed.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) snapshot: Arc<Snapshot>,
    keys: Vec<u8>,
    values: Vec<Bytes>,
}

/// A range of bytes in the [`Source`] that created the span.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    at: u64,
    len: u32,
    origin: Origin,
}

#[derive(Clone, Copy, Debug)]
enum Origin {
    /// `at` is a position in the snapshot's bytes.
    Mapped,
    /// `at` is a position in the key buffer.
    Keys,
    /// `at` is an index into the values.
    Values,
}

impl Source {
    pub(super) fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot, keys: Vec::new(), values: Vec::new() }
    }

    pub(super) fn bytes(&self, span: Span) -> &[u8] {
        let at = in_memory(span.at);
        match span.origin {
            Origin::Mapped => &self.snapshot.data[at..at + span.len as usize],
            Origin::Keys => &self.keys[at..at + span.len as usize],
            Origin::Values => &self.values[at],
        }
    }

    /// Copies a key. The caller has checked its length.
    pub(super) fn add_key(&mut self, key: &[u8]) -> Span {
        let at = self.keys.len() as u64;
        self.keys.extend_from_slice(key);
        Span { at, len: u32_of(key.len()), origin: Origin::Keys }
    }

    /// Stores a value. The caller has checked its length.
    pub(super) fn add_value(&mut self, value: Bytes) -> Span {
        let (at, len) = (self.values.len() as u64, u32_of(value.len()));
        self.values.push(value);
        Span { at, len, origin: Origin::Values }
    }

    /// Returns the span of a slice of the base snapshot.
    pub(super) fn mapped(&self, slice: &[u8]) -> Span {
        let at = if slice.is_empty() { 0 } else { self.snapshot.offset_of(slice) as u64 };
        Span { at, len: u32_of(slice.len()), origin: Origin::Mapped }
    }
}

impl Span {
    pub(super) fn len(self) -> usize {
        self.len as usize
    }
}
