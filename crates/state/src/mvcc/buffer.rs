//! Where encoded records are put side by side, so that few allocations carry many of them.

use bytes::{Bytes, BytesMut};
use quorate_api::record::Fields;

/// A slice that is held for long keeps no more than this alive, or its own record if that is longer.
const ALLOCATION_BYTES: usize = 64 << 10;

/// Makes records, each a slice of an allocation it shares with its neighbours.
#[derive(Debug, Default)]
pub(super) struct RecordBuffer {
    free: BytesMut,
}

impl RecordBuffer {
    /// Encodes a record.
    pub(super) fn encode(&mut self, fields: &Fields<'_>) -> Bytes {
        let len = fields.encoded_len();
        self.reserve(len);
        // A slice takes bytes faster than a buffer that could grow.
        self.free.resize(len, 0);
        fields.encode(&mut &mut self.free[..]);
        self.free.split().freeze()
    }

    /// Copies a record that was encoded before.
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
