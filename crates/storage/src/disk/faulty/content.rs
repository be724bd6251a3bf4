//! The content of a file on the simulated disk: its bytes, the changes that no sync has made
//! durable, and the result of a power cut.
//!
//! A mapped file is moved into an unnamed file of the machine, so that its mappings show later
//! writes.

use std::io;
use std::sync::Arc;

use super::Surviving;
use crate::disk::change::FileChange;
use crate::disk::{DiskFile, Mapping, unnamed_file};
use quorate_seeded_random::SplitMix64;

/// A requested change to a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change<'a> {
    Write { offset: u64, bytes: &'a [u8] },
    Resize(u64),
    Allocate(u64),
}

impl Change<'_> {
    /// Returns a write of only the first `count` bytes, or `None` if there are no such bytes or
    /// this is not a write.
    pub(super) fn first(self, count: usize) -> Option<Self> {
        match self {
            Self::Write { offset, bytes } if count > 0 => {
                Some(Self::Write { offset, bytes: &bytes[..count.min(bytes.len())] })
            }
            Self::Write { .. } | Self::Resize(_) | Self::Allocate(_) => None,
        }
    }

    /// Returns the file's length after the change.
    const fn len_after(&self, len_before: u64) -> u64 {
        match *self {
            Self::Resize(len) => len,
            Self::Write { .. } | Self::Allocate(_) => self.taken_after(len_before),
        }
    }

    /// Returns the end of the file's allocated space after the change. Extending the file's length does not allocate
    /// space.
    pub(super) const fn taken_after(&self, taken_before: u64) -> u64 {
        let least = match *self {
            Self::Write { offset, bytes } => offset + bytes.len() as u64,
            Self::Allocate(len) => len,
            Self::Resize(len) => return if len < taken_before { len } else { taken_before },
        };
        if least > taken_before { least } else { taken_before }
    }
}

/// The bytes of a file, either in memory or in an unnamed file that can be mapped.
#[derive(Debug)]
enum Content {
    Plain(Vec<u8>),
    Mapped(Arc<dyn DiskFile>),
}

impl Content {
    fn len(&self) -> u64 {
        match self {
            Self::Plain(bytes) => bytes.len() as u64,
            Self::Mapped(file) => file.len().expect("an unnamed file has a length"),
        }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        match self {
            Self::Plain(bytes) => {
                let rest = bytes.get(position(offset)..).unwrap_or_default();
                let count = rest.len().min(buffer.len());
                buffer[..count].copy_from_slice(&rest[..count]);
                count
            }
            Self::Mapped(file) => {
                file.read_at(buffer, offset).expect("an unnamed file can be read")
            }
        }
    }

    fn write(&mut self, bytes: &[u8], offset: u64) {
        match self {
            Self::Plain(content) => put(content, position(offset), bytes),
            Self::Mapped(file) => {
                file.write_all_at(bytes, offset).expect("an unnamed file can be written");
            }
        }
    }

    fn resize(&mut self, len: u64) {
        match self {
            Self::Plain(bytes) => bytes.resize(position(len), 0),
            Self::Mapped(file) => file.set_len(len).expect("an unnamed file can have any length"),
        }
    }

    fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; position(self.len())];
        let count = self.read(&mut bytes, 0);
        bytes.truncate(count);
        bytes
    }
}

/// The locks on a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Lock {
    #[default]
    Free,
    Exclusive(u64),
    Shared(Vec<u64>),
}

/// A file on the simulated disk.
#[derive(Debug)]
pub(super) struct File {
    content: Content,
    /// The end of the allocated space.
    taken: u64,
    /// Changes that are not durable yet, in order.
    unsynced: Vec<FileChange>,
    /// The number of unsynced changes whose sync has failed. No later sync makes them durable unless the same bytes are
    /// written again.
    doomed: usize,
    lock: Lock,
    pub(super) mode: u32,
}

impl File {
    pub(super) const fn new(bytes: Vec<u8>, mode: u32) -> Self {
        Self {
            taken: bytes.len() as u64,
            content: Content::Plain(bytes),
            unsynced: Vec::new(),
            doomed: 0,
            lock: Lock::Free,
            mode,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.content.len()
    }

    pub(super) const fn taken(&self) -> u64 {
        self.taken
    }

    pub(super) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        self.content.read(buffer, offset)
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        self.content.to_vec()
    }

    pub(super) fn apply(&mut self, change: Change<'_>) {
        let len_before = self.len();
        let len_after = change.len_after(len_before);
        self.taken = change.taken_after(self.taken);
        let (offset, count, after) = match change {
            Change::Write { offset, bytes } => (offset, bytes.len() as u64, bytes.to_vec()),
            Change::Resize(_) | Change::Allocate(_) if len_after == len_before => return,
            Change::Resize(_) | Change::Allocate(_) => {
                (len_after, len_before.saturating_sub(len_after), Vec::new())
            }
        };
        let end = (offset + count).min(len_before);
        let mut before = vec![0; position(end.saturating_sub(offset))];
        self.content.read(&mut before, offset);
        match change {
            Change::Write { bytes, .. } => self.content.write(bytes, offset),
            Change::Resize(_) | Change::Allocate(_) => self.content.resize(len_after),
        }
        self.unsynced.push(FileChange { offset, before, after, len_before, len_after });
    }

    pub(super) fn sync(&mut self) {
        let durable = self.unsynced.split_off(self.doomed);
        let len = self.len();
        self.unsynced.retain_mut(|doomed| doomed.outlives(&durable, len));
        self.doomed = self.unsynced.len();
    }

    pub(super) const fn doom(&mut self) {
        self.doomed = self.unsynced.len();
    }

    pub(super) fn map(&mut self, len: usize) -> io::Result<Mapping> {
        if let Content::Plain(bytes) = &self.content {
            let file = unnamed_file()?;
            file.write_all_at(bytes, 0)?;
            self.content = Content::Mapped(file);
        }
        match &self.content {
            Content::Mapped(file) => file.map(len),
            Content::Plain(_) => unreachable!("the content was moved to an unnamed file above"),
        }
    }

    pub(super) fn flip(&mut self, offset: u64, bit: u32) -> bool {
        let mut byte = [0];
        if self.content.read(&mut byte, offset) == 0 {
            return false;
        }
        byte[0] ^= 1 << (bit % 8);
        self.content.write(&byte, offset);
        true
    }

    pub(super) fn lock(&mut self, handle: u64, is_shared: bool) -> bool {
        let (granted, lock) = match (&self.lock, is_shared) {
            (Lock::Free, true) => (true, Lock::Shared(vec![handle])),
            (Lock::Free, false) => (true, Lock::Exclusive(handle)),
            (Lock::Exclusive(holder), _) => (*holder == handle, self.lock.clone()),
            (Lock::Shared(holders), true) => {
                (true, Lock::Shared([&holders[..], &[handle]].concat()))
            }
            (Lock::Shared(_), false) => (false, self.lock.clone()),
        };
        self.lock = lock;
        granted
    }

    pub(super) fn unlock(&mut self, handle: u64) {
        match &mut self.lock {
            Lock::Exclusive(holder) if *holder == handle => self.lock = Lock::Free,
            Lock::Shared(holders) => {
                holders.retain(|holder| *holder != handle);
                if holders.is_empty() {
                    self.lock = Lock::Free;
                }
            }
            Lock::Free | Lock::Exclusive(_) => {}
        }
    }

    pub(super) fn release_locks(&mut self) {
        self.lock = Lock::Free;
    }

    /// Returns the state of the medium after a power cut.
    pub(super) fn after_power_cut(&self, fate: &mut Fate<'_>) -> Self {
        let mut bytes = self.content.to_vec();
        if fate.mercy != Surviving::All {
            for made in self.unsynced.iter().rev() {
                made.undo(&mut bytes);
            }
            for made in &self.unsynced {
                made.redo(&mut bytes, &mut || fate.spares());
            }
        }
        Self::new(bytes, self.mode)
    }
}

fn put(content: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    let end = at + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[at..end].copy_from_slice(bytes);
}

/// Decides which non-durable changes survive a power cut.
#[derive(Debug)]
pub(super) struct Fate<'a> {
    pub(super) mercy: Surviving,
    pub(super) draw: &'a mut SplitMix64,
}

impl Fate<'_> {
    pub(super) fn spares(&mut self) -> bool {
        match self.mercy {
            Surviving::None => false,
            Surviving::All => true,
            Surviving::Drawn => self.draw.below(2) == 0,
        }
    }

    /// Returns how many of a directory's `count` changes survive, counted from the oldest.
    pub(super) fn prefix(&mut self, count: usize) -> usize {
        match self.mercy {
            Surviving::None => 0,
            Surviving::All => count,
            Surviving::Drawn => self.draw.position(count + 1),
        }
    }
}

/// Converts an offset to `usize`. This cannot fail, because files on this disk fit in memory.
fn position(offset: u64) -> usize {
    usize::try_from(offset).expect("a file under test fits in memory")
}
