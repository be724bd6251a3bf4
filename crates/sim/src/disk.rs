//! A disk in memory that forgets, tears, fails and fills up.
//!
//! It keeps to what [`quorate_storage::disk`] promises and to nothing more: beside every file stand the writes that no
//! sync has made durable, beside every directory the names that no sync of it has. A power cut ([`SimDisk::cut_power`])
//! leaves one of the states that such a disk could be found in: each unsynced write kept, lost or torn by sectors, and
//! of each directory a prefix of its changes. The end of a process alone ([`SimDisk::end_process`]) loses nothing.
//!
//! # What may go wrong
//!
//! [`Faults`] of a disk are set by whoever drives it: the power goes at the n-th operation, which may then have
//! reached the medium or not; operations of a kind fail; there is only so much room. [`SimDisk::rot`] flips a bit.
//!
//! # Not here
//!
//! How long an operation takes: whoever calls machines decides when (`member`).

mod content;
mod tree;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_random::SplitMix64;
use quorate_storage::disk::{Disk, DiskFile, FileFacts, LockKind, Mapping, OpenMode};

use self::content::Change;
use self::tree::{NodeId, Tree};

/// `EIO`, as every Unix numbers it.
const IO_ERROR: i32 = 5;
/// `ENOSPC`, as every Unix numbers it.
const NO_SPACE: i32 = 28;

/// What is asked of a disk, for choosing where a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening or creating a file.
    Open,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Changing a file's length, or reserving room for it.
    Resize,
    /// Syncing a file.
    Sync,
    /// Syncing a directory.
    SyncDir,
    /// Renaming, removing, making directories.
    Name,
}

/// What is going to go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The power goes at the operation after so many others that change the disk.
    pub power_cut_after: Option<u64>,
    /// An operation of this kind fails after so many others of it have not.
    pub fails: Option<(Operation, u64)>,
    /// Files may grow by so many bytes in all.
    pub room: Option<u64>,
    /// The backend file may not grow: there is less room than it takes at a time, and more than anything else needs.
    pub is_backend_full: bool,
}

/// What went wrong so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// The power is gone.
    pub power_cut: bool,
    /// An operation has failed.
    pub failure: bool,
    /// Somebody found no room.
    pub no_room: bool,
}

/// How much of what is not durable a power cut spares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mercy {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// Each piece by itself, as drawn.
    Drawn,
}

#[derive(Debug, Default)]
struct World {
    tree: Tree,
    faults: Faults,
    struck: Struck,
    /// Counts processes: files that an earlier one had open are closed.
    process: u64,
    next_handle: u64,
}

/// A disk. Clones are handles to the same one.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
}

impl SimDisk {
    /// Says what is going to go wrong.
    pub fn set_faults(&self, faults: Faults) {
        self.world.lock().faults = faults;
    }

    /// What is going to go wrong still.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.world.lock().faults
    }

    /// What went wrong since the last call.
    #[must_use]
    pub fn take_struck(&self) -> Struck {
        std::mem::take(&mut self.world.lock().struck)
    }

    /// Whether anything went wrong since somebody has taken note of it.
    #[must_use]
    pub fn is_struck(&self) -> bool {
        self.world.lock().struck != Struck::default()
    }

    /// Ends whatever has files open. What was written stays, synced or not.
    pub fn end_process(&self) {
        let mut world = self.world.lock();
        world.process += 1;
        world.tree.release_locks();
        world.faults.power_cut_after = None;
        world.faults.fails = None;
    }

    /// Cuts the power: afterwards the disk holds one of the states that it may be found in then.
    pub fn cut_power(&self, mercy: Mercy, draw: &mut SplitMix64) {
        let mut world = self.world.lock();
        let tree = world.tree.after_power_cut(&mut content::Fate { mercy, draw });
        world.tree = tree;
        world.process += 1;
        world.faults.power_cut_after = None;
        world.faults.fails = None;
    }

    /// A copy of the disk as it is, of which nothing is unsynced.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut draw = SplitMix64::new(0);
        let mut fate = content::Fate { mercy: Mercy::All, draw: &mut draw };
        let tree = self.world.lock().tree.after_power_cut(&mut fate);
        Self { world: Arc::new(Mutex::new(World { tree, ..World::default() })) }
    }

    /// Puts the content of another disk in place of this one's.
    pub fn become_copy_of(&self, other: &Self) {
        let copied = other.copy();
        let tree = std::mem::take(&mut copied.world.lock().tree);
        let mut world = self.world.lock();
        world.tree = tree;
        world.process += 1;
    }

    /// Throws everything away.
    pub fn wipe(&self) {
        let mut world = self.world.lock();
        world.tree = Tree::default();
        world.process += 1;
    }

    /// Flips one bit of a file, as if it had always been so. Says whether there is such a byte.
    pub fn rot(&self, path: &Path, offset: u64, bit: u32) -> bool {
        self.world.lock().tree.flip(path, offset, bit)
    }

    /// Bytes that files take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.world.lock().tree.bytes()
    }

    fn change_names(&self, act: impl FnOnce(&mut Tree) -> io::Result<()>) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(Operation::Name) {
            Verdict::Proceed => act(&mut world.tree),
            Verdict::Fail => Err(io_error()),
            Verdict::LastOne => act(&mut world.tree).and(Err(io_error())),
        }
    }
}

/// What happens to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Proceed,
    Fail,
    /// The power goes while it is under way: it has reached the medium, and nobody hears of it.
    LastOne,
}

fn io_error() -> io::Error {
    io::Error::from_raw_os_error(IO_ERROR)
}

impl World {
    fn judge(&mut self, operation: Operation) -> Verdict {
        if self.struck.power_cut {
            return Verdict::Fail;
        }
        if operation != Operation::Read
            && let Some(left) = &mut self.faults.power_cut_after
        {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => {
                    self.struck.power_cut = true;
                    return Verdict::LastOne;
                }
            }
        }
        if let Some((kind, left)) = &mut self.faults.fails
            && *kind == operation
        {
            match left.checked_sub(1) {
                Some(rest) => *left = rest,
                None => {
                    self.faults.fails = None;
                    self.struck.failure = true;
                    return Verdict::Fail;
                }
            }
        }
        Verdict::Proceed
    }

    /// Takes room for a file that becomes longer, or gives some back.
    fn take_room(&mut self, len_before: u64, len_after: u64, is_backend: bool) -> io::Result<()> {
        if is_backend && self.faults.is_backend_full && len_after > len_before {
            self.struck.no_room = true;
            return Err(io::Error::from_raw_os_error(NO_SPACE));
        }
        let Some(room) = &mut self.faults.room else { return Ok(()) };
        let left = (*room + len_before).checked_sub(len_after);
        match left {
            Some(left) => {
                *room = left;
                Ok(())
            }
            None => {
                self.struck.no_room = true;
                Err(io::Error::from_raw_os_error(NO_SPACE))
            }
        }
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world.lock();
        let verdict = world.judge(Operation::Open);
        if verdict == Verdict::Fail {
            return Err(io_error());
        }
        let found = world.tree.find(path);
        let node = match (found, mode) {
            (Some(_), OpenMode::CreateNew(_)) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::Read | OpenMode::ReadWrite) => {
                return Err(io::ErrorKind::NotFound.into());
            }
            (Some(node), _) => node,
            (
                None,
                OpenMode::Create(bits) | OpenMode::CreateNew(bits) | OpenMode::Truncate(bits),
            ) => world.tree.create_file(path, bits)?,
        };
        if matches!(mode, OpenMode::Truncate(_)) {
            let file = world.tree.file_mut(node)?;
            let len = file.len();
            file.apply(Change::resize(0));
            world.take_room(len, 0, false)?;
        }
        if verdict == Verdict::LastOne {
            return Err(io_error());
        }
        world.next_handle += 1;
        let file = SimFile {
            world: Arc::clone(&self.world),
            node,
            process: world.process,
            handle: world.next_handle,
            is_backend: path.file_name().is_some_and(|name| name == "db"),
        };
        Ok(Arc::new(file))
    }

    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.change_names(|tree| tree.create_dirs(path, mode))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.world.lock().tree.names(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change_names(|tree| tree.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change_names(|tree| tree.remove(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change_names(|tree| match tree.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(Operation::SyncDir) {
            Verdict::Proceed => world.tree.sync_dir(path),
            Verdict::Fail | Verdict::LastOne => Err(io_error()),
        }
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<FileFacts>> {
        Ok(self.world.lock().tree.facts(path))
    }
}

/// An open file.
#[derive(Debug)]
struct SimFile {
    world: Arc<Mutex<World>>,
    node: NodeId,
    process: u64,
    handle: u64,
    is_backend: bool,
}

impl SimFile {
    /// Carries a change out, as far as the disk lets it.
    fn change(&self, operation: Operation, change: Change<'_>) -> io::Result<()> {
        let mut world = self.world.lock();
        if world.process != self.process {
            return Err(io_error());
        }
        let verdict = world.judge(operation);
        if verdict == Verdict::Fail {
            return Err(io_error());
        }
        let len_before = world.tree.file_mut(self.node)?.len();
        world.take_room(len_before, change.len_after(len_before), self.is_backend)?;
        world.tree.file_mut(self.node)?.apply(change);
        if verdict == Verdict::LastOne { Err(io_error()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        if world.process != self.process {
            return Err(io_error());
        }
        let verdict = world.judge(Operation::Sync);
        let file = world.tree.file_mut(self.node)?;
        match verdict {
            Verdict::Proceed => {
                file.sync();
                Ok(())
            }
            Verdict::Fail => {
                file.doom();
                Err(io_error())
            }
            Verdict::LastOne => Err(io_error()),
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.world.lock();
        match world.judge(Operation::Read) {
            Verdict::Proceed => world.tree.file_mut(self.node)?.read(buffer, offset),
            Verdict::Fail | Verdict::LastOne => Err(io_error()),
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change(Operation::Write, Change::write(offset, bytes))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.world.lock().tree.file_mut(self.node)?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Operation::Resize, Change::resize(len))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let len = len.max(self.len()?);
        self.change(Operation::Resize, Change::resize(len))
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(self.world.lock().faults.room)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        let is_shared = kind == LockKind::FlockShared;
        let mut world = self.world.lock();
        Ok(world.tree.file_mut(self.node)?.lock(self.handle, is_shared))
    }

    fn map(&self, len: usize) -> io::Result<Mapping> {
        self.world.lock().tree.file_mut(self.node)?.map(len)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        if world.process == self.process
            && let Ok(file) = world.tree.file_mut(self.node)
        {
            file.unlock(self.handle);
        }
    }
}

/// Every path is below this.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from("/sim")
}

#[cfg(test)]
mod tests;
