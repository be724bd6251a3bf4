//! A disk in memory that fails on demand, fills up, and loses at a power cut what was not synced.
//!
//! It keeps the promises of [`super`] and no more: each file has the writes that no sync has made durable, each
//! directory the changes of names that no sync of it has. [`FaultyDisk::cut_power`] leaves one of the states that such a
//! disk could be found in, [`FaultyDisk::crash`] writes one out as a directory of this machine. The end of a process
//! alone ([`FaultyDisk::end_process`]) loses nothing.
//!
//! # What a power cut may do here
//!
//! * Each unsynced write is kept, lost, or torn: any subset of its 512-byte sectors arrives. Writes are independent, so
//!   a later one may arrive without an earlier one.
//! * A file that an unsynced write had grown may keep the new length with zeros inside.
//! * Of a directory's unsynced changes a prefix arrives, as file systems with a metadata journal have it; directories
//!   are independent of each other. A rename within a directory is atomic.
//! * A failed sync leaves its writes undecided for good, whatever is synced later; written again and synced they are
//!   durable.
//!
//! What happens is a function of the seed alone.
//!
//! # What else may go wrong
//!
//! The power is cut at the n-th operation, which may then have reached the medium or not ([`Faults`]); operations of a
//! kind fail ([`Fault`]); there is only so much room; a bit flips ([`FaultyDisk::rot`]).
//!
//! # Not here
//!
//! How long an operation takes: that is up to the caller.

mod content;
mod tree;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use quorate_seeded_random::SplitMix64;

use self::content::{Change, Fate};
use self::tree::{NodeId, Tree};
use super::{Disk, DiskFile, FileFacts, LockKind, Mapping, OpenMode};

/// `EIO`, as every Unix numbers it.
pub const IO_ERROR: i32 = 5;
/// `ENOSPC`, as every Unix numbers it.
const NO_SPACE: i32 = 28;

/// What is asked of the disk, for choosing where a [`Fault`] strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening or creating a file.
    Open,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// Setting a file's length.
    SetLen,
    /// Reserving space.
    Allocate,
    /// Syncing a file, with or without its attributes.
    Sync,
    /// Syncing a directory.
    SyncDir,
    /// Renaming.
    Rename,
    /// Removing a file or a tree.
    Remove,
    /// Creating directories.
    CreateDir,
}

/// Operations that are to fail.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The operation it strikes.
    pub operation: Operation,
    /// It strikes only where the path contains this text.
    pub path_contains: String,
    /// How many such operations succeed before.
    pub skip_count: u64,
    /// How many such operations fail then.
    pub fail_count: u64,
    /// The system's error number.
    pub errno: i32,
    /// For a write: how many bytes still get written.
    pub bytes_written: usize,
}

impl Fault {
    /// A fault that lets `skip_count` operations pass and then fails one with `errno`.
    #[must_use]
    pub fn nth(operation: Operation, skip_count: u64, errno: i32) -> Self {
        Self {
            operation,
            path_contains: String::new(),
            skip_count,
            fail_count: 1,
            errno,
            bytes_written: 0,
        }
    }

    /// Restricts the fault to paths that contain `text`.
    #[must_use]
    pub fn on(mut self, text: &str) -> Self {
        text.clone_into(&mut self.path_contains);
        self
    }
}

/// What is to go wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// These operations fail.
    pub failing: Vec<Fault>,
    /// The power is cut at the operation after so many others that change the disk.
    pub power_cut_after: Option<u64>,
    /// Files may take so many bytes more in all.
    pub room: Option<u64>,
    /// The backend file may not take more space: there is less room than it takes at a time, and more than anything else needs.
    pub is_backend_full: bool,
}

/// What has gone wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Struck {
    /// The power was cut.
    pub power_cut: bool,
    /// An operation has failed.
    pub failure: bool,
    /// A file found no room to grow.
    pub no_room: bool,
}

/// How much of what is not durable a power cut spares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mercy {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// Each piece independently, as drawn.
    Drawn,
}

#[derive(Debug, Default)]
struct World {
    tree: Tree,
    faults: Faults,
    struck: Struck,
    /// Operations so far that change the disk.
    operation_count: u64,
    /// Counts processes: files that an earlier one had open are closed.
    process: u64,
    next_handle: u64,
}

/// A disk. Clones are handles to the same one.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk {
    root: PathBuf,
    world: Arc<Mutex<World>>,
}

impl FaultyDisk {
    /// A copy of the directory `root` of this machine, under the same path. All that is in it counts as durable.
    pub fn new(root: &Path) -> io::Result<Self> {
        let tree = Tree::read(root)?;
        let world = Arc::new(Mutex::new(World { tree, ..World::default() }));
        Ok(Self { root: root.to_path_buf(), world })
    }

    /// Arms a fault; several may be armed at once.
    pub fn inject(&self, fault: Fault) {
        self.world.lock().faults.failing.push(fault);
    }

    /// Sets what is to go wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.world.lock().faults = faults;
    }

    /// What is to go wrong still.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.world.lock().faults.clone()
    }

    /// Lets files grow by `bytes` more in all before the disk is full; `None` lifts the limit.
    pub fn limit_growth(&self, bytes: Option<u64>) {
        self.world.lock().faults.room = bytes;
    }

    /// Cuts the power at the operation with this number, counted as [`Self::operation_count`] does.
    ///
    /// That operation may have reached the medium but reports failure (a sync has done nothing), and everything after
    /// it fails without effect.
    pub fn stop_at(&self, operation: u64) {
        let mut world = self.world.lock();
        world.faults.power_cut_after = Some(operation.saturating_sub(world.operation_count));
    }

    /// Returns how many operations that change the disk there have been.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.world.lock().operation_count
    }

    /// Takes what has gone wrong since the last call.
    #[must_use]
    pub fn take_struck(&self) -> Struck {
        std::mem::take(&mut self.world.lock().struck)
    }

    /// Whether anything has gone wrong since it was last taken.
    #[must_use]
    pub fn is_struck(&self) -> bool {
        self.world.lock().struck != Struck::default()
    }

    /// Ends whatever has files open. What was written stays, synced or not.
    pub fn end_process(&self) {
        let mut world = self.world.lock();
        world.end_process();
        world.tree.release_locks();
    }

    /// Cuts the power: afterwards the disk holds one of the states that it may be found in then.
    pub fn cut_power(&self, mercy: Mercy, draw: &mut SplitMix64) {
        let mut world = self.world.lock();
        world.tree = world.tree.after_power_cut(&mut Fate { mercy, draw });
        world.end_process();
    }

    /// Writes one possible state after a power cut into `into`, an empty or missing directory of this machine.
    ///
    /// The disk itself is not affected: any number of seeds can be tried at the same point. Seeds 0 and 1 are the two
    /// extremes, where everything undecided is lost or has arrived.
    pub fn crash(&self, seed: u64, into: &Path) -> io::Result<()> {
        let mercy = match seed {
            0 => Mercy::None,
            1 => Mercy::All,
            _ => Mercy::Drawn,
        };
        let fate = &mut Fate { mercy, draw: &mut SplitMix64::new(seed) };
        self.world.lock().tree.after_power_cut(fate).write(&self.root, into)
    }

    /// A copy of the disk as it is, of which nothing is unsynced.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self { root: self.root.clone(), ..Self::default() };
        copy.become_copy_of(self);
        copy
    }

    /// Puts the content of another disk in place of this one's.
    pub fn become_copy_of(&self, other: &Self) {
        let mut draw = SplitMix64::new(0);
        let fate = &mut Fate { mercy: Mercy::All, draw: &mut draw };
        let tree = other.world.lock().tree.after_power_cut(fate);
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

    /// Flips one bit of a file, as if it had always been so. Returns whether there is such a byte.
    pub fn rot(&self, path: &Path, offset: u64, bit: u32) -> bool {
        self.world.lock().tree.flip(path, offset, bit)
    }

    /// Bytes that files take.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.world.lock().tree.bytes()
    }

    fn change_names(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce(&mut Tree) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(operation, path) {
            Verdict::Proceed => act(&mut world.tree),
            Verdict::Fail(error, _) => Err(error),
            Verdict::LastOne => act(&mut world.tree).and(Err(power_cut())),
        }
    }
}

/// What happens to an operation.
enum Verdict {
    Proceed,
    /// It fails; a write after so many bytes.
    Fail(io::Error, usize),
    /// The power is cut while it is under way: it has reached the medium, and its caller gets an error.
    LastOne,
}

fn power_cut() -> io::Error {
    io::Error::from_raw_os_error(IO_ERROR)
}

impl World {
    fn end_process(&mut self) {
        self.process += 1;
        self.faults.power_cut_after = None;
        self.faults.failing.clear();
    }

    /// Decides what happens to an operation, and counts it.
    fn judge(&mut self, operation: Operation, path: &Path) -> Verdict {
        if self.struck.power_cut {
            return Verdict::Fail(power_cut(), 0);
        }
        if operation != Operation::Read {
            self.operation_count += 1;
            if let Some(left) = &mut self.faults.power_cut_after {
                match left.checked_sub(1) {
                    Some(rest) => *left = rest,
                    None => {
                        self.struck.power_cut = true;
                        return Verdict::LastOne;
                    }
                }
            }
        }
        for fault in &mut self.faults.failing {
            let here = path.to_string_lossy().contains(&fault.path_contains);
            if fault.operation != operation || !here {
                continue;
            }
            if fault.skip_count > 0 {
                fault.skip_count -= 1;
            } else if fault.fail_count > 0 {
                fault.fail_count -= 1;
                self.struck.failure = true;
                let error = io::Error::from_raw_os_error(fault.errno);
                return Verdict::Fail(error, fault.bytes_written);
            }
        }
        Verdict::Proceed
    }

    /// Takes room for a file that takes more space afterwards, or gives some back.
    fn take_room(&mut self, before: u64, after: u64, is_backend: bool) -> io::Result<()> {
        let no_room = is_backend && self.faults.is_backend_full && after > before;
        let left = match self.faults.room {
            Some(room) => (room + before).checked_sub(after).map(Some),
            None => Some(None),
        };
        match left {
            Some(left) if !no_room => {
                self.faults.room = left;
                Ok(())
            }
            _ => {
                self.struck.no_room = true;
                Err(io::Error::from_raw_os_error(NO_SPACE))
            }
        }
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world.lock();
        let is_last = match world.judge(Operation::Open, path) {
            Verdict::Proceed => false,
            Verdict::LastOne => true,
            Verdict::Fail(error, _) => return Err(error),
        };
        let node = match (world.tree.find(path), mode) {
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
            let taken = file.taken();
            file.apply(Change::Resize(0));
            world.take_room(taken, 0, false)?;
        }
        if is_last {
            return Err(power_cut());
        }
        world.next_handle += 1;
        Ok(Arc::new(FaultyFile {
            world: Arc::clone(&self.world),
            path: path.to_path_buf(),
            node,
            process: world.process,
            handle: world.next_handle,
        }))
    }

    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.change_names(Operation::CreateDir, path, |tree| tree.create_dirs(path, mode))
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.world.lock().tree.names(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change_names(Operation::Rename, from, |tree| tree.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.change_names(Operation::Remove, path, |tree| tree.remove(path))
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.change_names(Operation::Remove, path, |tree| match tree.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(Operation::SyncDir, path) {
            Verdict::Proceed => world.tree.sync_dir(path),
            Verdict::Fail(error, _) => Err(error),
            Verdict::LastOne => Err(power_cut()),
        }
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<FileFacts>> {
        Ok(self.world.lock().tree.facts(path))
    }
}

/// An open file of a [`FaultyDisk`].
#[derive(Debug)]
struct FaultyFile {
    world: Arc<Mutex<World>>,
    path: PathBuf,
    node: NodeId,
    process: u64,
    handle: u64,
}

impl FaultyFile {
    /// Carries a change out, as far as the disk lets it.
    fn change(&self, operation: Operation, change: Change<'_>) -> io::Result<()> {
        let mut world = self.world.lock();
        if world.process != self.process {
            return Err(power_cut());
        }
        let (change, error) = match world.judge(operation, &self.path) {
            Verdict::Proceed => (change, None),
            Verdict::LastOne => (change, Some(power_cut())),
            Verdict::Fail(error, count) => match change.first(count) {
                Some(part) => (part, Some(error)),
                None => return Err(error),
            },
        };
        let is_backend = self.path.file_name().is_some_and(|name| name == "db");
        let taken = world.tree.file_mut(self.node)?.taken();
        world.take_room(taken, change.taken_after(taken), is_backend)?;
        world.tree.file_mut(self.node)?.apply(change);
        error.map_or(Ok(()), Err)
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        if world.process != self.process {
            return Err(power_cut());
        }
        let verdict = world.judge(Operation::Sync, &self.path);
        let file = world.tree.file_mut(self.node)?;
        match verdict {
            Verdict::Proceed => {
                file.sync();
                Ok(())
            }
            Verdict::Fail(error, _) => {
                file.doom();
                Err(error)
            }
            Verdict::LastOne => Err(power_cut()),
        }
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.world.lock();
        match world.judge(Operation::Read, &self.path) {
            Verdict::Proceed => Ok(world.tree.file_mut(self.node)?.read(buffer, offset)),
            Verdict::Fail(error, _) => Err(error),
            Verdict::LastOne => Err(power_cut()),
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.change(Operation::Write, Change::Write { offset, bytes })
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.world.lock().tree.file_mut(self.node)?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(Operation::SetLen, Change::Resize(len))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.change(Operation::Allocate, Change::Allocate(len))
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

impl Drop for FaultyFile {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        if world.process == self.process
            && let Ok(file) = world.tree.file_mut(self.node)
        {
            file.unlock(self.handle);
        }
    }
}

#[cfg(test)]
mod tests;
