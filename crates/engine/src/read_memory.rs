//! The memory for the rows of one read, which is counted while the rows arrive.
//!
//! The caller of a read decides whether there is room ([`Reserve`]), because the bounds on memory belong to the whole
//! server. In addition, the rows of a single read may take at most as much memory as the keys that a write loads.

use tokio_postgres::Row;

/// Reserves memory for this many bytes of rows in total, and returns whether there was room. A read calls this function
/// whenever its total has grown, and once the total is final. A smaller total than before always has room.
pub type Reserve<'a> = dyn FnMut(u64) -> bool + Send + 'a;

/// The reason why a row cannot be kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryShortage {
    /// There is no room at the moment.
    NoRoom,
    /// The read needs more memory than a single read may use.
    TooLarge { bytes: usize, bytes_max: usize },
}

/// Estimated memory of a row in addition to its contents: its entries in the working set and in the response.
const ROW_BYTES: usize = 256;

/// The memory for the rows of one read.
pub(crate) struct ReadMemory<'a, 'r> {
    reserve: &'a mut Reserve<'r>,
    bytes: usize,
    bytes_max: usize,
}

impl std::fmt::Debug for ReadMemory<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadMemory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<'a, 'r> ReadMemory<'a, 'r> {
    pub(crate) fn new(reserve: &'a mut Reserve<'r>, bytes_max: usize) -> Self {
        Self { reserve, bytes: 0, bytes_max }
    }

    /// Returns the bytes of the rows that are in memory.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a row that has arrived.
    pub(crate) fn add_row(&mut self, row: &Row) -> Result<(), MemoryShortage> {
        self.add(row.raw_size_bytes())
    }

    /// Counts a version with contents of this length.
    fn add(&mut self, bytes: usize) -> Result<(), MemoryShortage> {
        self.set(self.bytes + ROW_BYTES + bytes)
    }

    fn set(&mut self, bytes: usize) -> Result<(), MemoryShortage> {
        let bytes_max = self.bytes_max;
        if bytes > bytes_max {
            return Err(MemoryShortage::TooLarge { bytes, bytes_max });
        }
        if !(self.reserve)(bytes as u64) {
            return Err(MemoryShortage::NoRoom);
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Sets the number of bytes after rows have been dropped.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
        let _is_smaller = (self.reserve)(self.bytes as u64);
    }

    /// Sets the number of bytes after all rows have been dropped except those of a response. `bytes` is the number
    /// before the rows were read, and `records` contains the length of each record in the response. The records that
    /// come from the tail have not been counted before.
    pub(crate) fn keep(
        &mut self,
        bytes: usize,
        records: impl Iterator<Item = usize>,
    ) -> Result<(), MemoryShortage> {
        self.set(records.fold(bytes, |sum, record| sum + ROW_BYTES + record))
    }
}
