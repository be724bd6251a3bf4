//! Buffers that contain many encoded records side by side, so that few allocations are needed.

use bytes::{Bytes, BytesMut};
use quorate_api::record::Fields;

/// The size of an allocation, in bytes. A long-lived slice keeps at most this much memory allocated. A larger record
/// has its own allocation.
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
        // Slicing a buffer that already has its full length is faster than growing it.
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
