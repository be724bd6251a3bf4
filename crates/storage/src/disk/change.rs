//! A change to a simulated file that is not durable yet: how to undo the change, how it reaches the medium (as a whole
//! or in sectors), and which of its bytes are still undecided if its sync failed but later syncs succeeded.

/// The unit that a device writes atomically, in bytes.
const SECTOR_BYTES: u64 = 512;

/// A change to a file's bytes or length, with the data needed to undo it.
#[derive(Clone, Debug)]
pub(super) struct FileChange {
    /// The offset of the change.
    pub(super) offset: u64,
    /// The bytes at `offset` before the change, up to the end of the file.
    pub(super) before: Vec<u8>,
    /// The written bytes. Empty if only the length changes.
    pub(super) after: Vec<u8>,
    /// The file's length before the change.
    pub(super) len_before: u64,
    /// The file's length after the change.
    pub(super) len_after: u64,
}

impl FileChange {
    /// Undoes the change. It must be the last change to the file.
    pub(super) fn undo(&self, bytes: &mut Vec<u8>) {
        bytes.resize(position(self.len_before), 0);
        let at = position(self.offset);
        if let Some(place) = bytes.get_mut(at..at + self.before.len()) {
            place.copy_from_slice(&self.before);
        }
    }

    /// Repeats the change. For each sector, `lot` decides whether it reaches the medium.
    pub(super) fn redo(&self, bytes: &mut Vec<u8>, lot: &mut dyn FnMut() -> bool) {
        let whole = lot();
        if self.after.is_empty() {
            if whole {
                bytes.resize(position(self.len_after), 0);
            }
            return;
        }
        // The file system writes the length and the device writes the sectors, so either may be
        // lost without the other.
        if lot() && bytes.len() < position(self.len_after) {
            bytes.resize(position(self.len_after), 0);
        }
        let torn = !whole && lot();
        let mut at = 0;
        while at < self.after.len() {
            let offset = self.offset + at as u64;
            let room = position(SECTOR_BYTES - offset % SECTOR_BYTES);
            let piece = &self.after[at..self.after.len().min(at + room)];
            if whole || (torn && lot()) {
                let (start, end) = (position(offset), position(offset) + piece.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(piece);
            }
            at += piece.len();
        }
    }

    /// After the change's sync has failed, keeps only the bytes that are still undecided: the bytes within the file
    /// that no later durable change has overwritten. Returns whether any bytes are undecided.
    pub(super) fn outlives(&mut self, durable: &[Self], len: u64) -> bool {
        let count = self.after.len();
        self.before.resize(count, 0);
        for later in durable {
            if later.after.is_empty() {
                // A truncation removes the bytes after the new end, even if the file grows again
                // later.
                let kept = count.min(position(later.len_after.saturating_sub(self.offset)));
                self.before[kept..].fill(0);
                self.after[kept..].fill(0);
                continue;
            }
            let from = later.offset.max(self.offset);
            let to = (later.offset + later.after.len() as u64).min(self.offset + count as u64);
            if from < to {
                let bytes =
                    &later.after[position(from - later.offset)..position(to - later.offset)];
                let place = position(from - self.offset)..position(to - self.offset);
                self.before[place.clone()].copy_from_slice(bytes);
                self.after[place].copy_from_slice(bytes);
            }
        }
        let count = count.min(position(len.saturating_sub(self.offset)));
        self.before.truncate(count);
        self.after.truncate(count);
        (self.len_before, self.len_after) = (len, len);
        self.before != self.after
    }
}

/// Converts an offset to `usize`. This cannot fail, because files on this disk fit in memory.
fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("a file under test fits in memory")
}
