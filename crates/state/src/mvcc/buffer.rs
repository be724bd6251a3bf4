//! Buffers in which encoded records are packed side by side, so that many records need few
//! allocations.

use bytes::{Bytes, BytesMut};
use quorate_api::record::Fields;

/// The size of an allocation. A long-lived slice keeps at most this much memory allocated, or just
/// its own record if the record is larger.
const ALLOCATION_BYTES: usize = 64 << 10;

/// Encodes records as slices of shared allocations.
#[derive(Debug, Default)]
pub(super) struct RecordBuffer {
    free: BytesMut,
}

impl RecordBuffer {
    /// Encodes a record.
    pub(super) fn encode(&mut self, fields: &Fields<'_>) -> Bytes {
        let len = fields.encoded_len();
        self.reserve(len);
        // Taking a slice of a buffer with its full length is faster than growing the buffer.
        self.free.resize(len, 0);
        fields.encode(&mut &mut self.free[..]);
        self.free.split().freeze()
    }

    /// Copies an encoded record.
    pub(super) fn copy(&mut self, record: &[u8]) -> Bytes {
        self.reserve(record.len());
        self.free.extend_from_slice(record);
        self.free.split().freeze()
    }

    fn reserve(&mut self, len: usize) {
        if self.free.capacity() < len {
            self.free = BytesMut::with_capacity(ALLOCATION_BYTES.max(len));
        }
    }
}
