//! An in-memory disk that fails on demand, can be full, and loses unsynced changes when the power is cut.
//!
//! The disk provides the guarantees that [`super`] lists, and no others. For each file and directory, it records the
//! writes and name changes that no sync has made durable. [`FaultyDisk::cut_power`] selects one of the states that such
//! a disk could have after a power cut. [`FaultyDisk::crash`] writes one of these states to a directory of this
//! machine.
//! The end of a process ([`FaultyDisk::end_process`]) loses no data.
//!
//! # Effects of a power cut
//!
//! * Each unsynced write is kept, lost, or torn (any subset of its 512-byte sectors is written).
//!   Writes are independent, so a later one may be kept without an earlier one.
//! * A file that was extended by an unsynced write may keep the new length and contain zeros
//!   instead of the written bytes.
//! * A prefix of a directory's unsynced changes is kept, as in file systems with a metadata
//!   journal. Directories are independent of each other. A rename within a directory is atomic.
//! * The writes of a failed sync remain undecided, even after later syncs. If the same bytes are
//!   written again and synced, they are durable.
//!
//! The selected state depends only on the seed.
//!
//! # Other faults
//!
//! The power can be cut at the n-th operation, which may or may not reach the medium ([`Faults`]). The process can be
//! killed before the n-th operation. Operations of a given kind can fail ([`Fault`]), space can be limited, and a bit can
//! flip ([`FaultyDisk::rot`]).
//!
//! # Not here
//!
//! The duration of operations, which the caller decides.

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

/// `EIO`, which has the same number on every Unix.
pub const IO_ERROR: i32 = 5;
/// `ENOSPC`, which has the same number on every Unix.
pub const NO_SPACE: i32 = 28;

/// A kind of operation, used to select the operations that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening or creating a file.
    Open,
    /// Reading from a file.
    Read,
    /// Listing a directory.
    List,
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
    /// Renaming a file or directory.
    Rename,
    /// Removing a file or a tree.
    Remove,
    /// Creating directories.
    CreateDir,
}

/// A fault to inject, which determines the operations that fail and their error.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of operation that fails.
    pub operation: Operation,
    /// A string that the path of the operation must contain.
    pub path_contains: String,
    /// The number of matching operations that succeed before the first failure.
    pub skip_count: u64,
    /// The number of matching operations that then fail.
    pub fail_count: u64,
    /// The system's error number. `ENOSPC` makes [`Operation::Open`] fail only if it would create a file.
    pub errno: i32,
    /// For a write, the number of bytes that are written before it fails.
    pub bytes_written: usize,
}

impl Fault {
    /// Creates a fault that allows `skip_count` operations to succeed and then makes the next operation fail with
    /// `errno`.
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

/// Faults that are still to be injected.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Failures of operations.
    pub failing: Vec<Fault>,
    /// The number of operations, not counting reads, that complete before the power is cut at the next one, or `None`
    /// if the power is not cut.
    pub power_cut_after: Option<u64>,
    /// The number of operations, not counting reads, that complete before the process is killed, or `None` if the
    /// process is not killed. All later operations fail without effect until [`FaultyDisk::end_process`].
    pub kill_after: Option<u64>,
    /// The number of bytes by which all files together may grow, or `None` if their growth is not
    /// limited.
    pub room: Option<u64>,
    /// Whether the backend file cannot grow. This simulates a disk with too little room for the
    /// next allocation of the backend file, but enough room for all other files.
    pub is_backend_full: bool,
}

/// The faults that have occurred.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultsHit {
    /// Whether the power was cut.
    pub power_cut: bool,
    /// Whether the process was killed.
    pub killed: bool,
    /// Whether an operation failed, other than for lack of room.
    pub failure: bool,
    /// Whether a file could not grow or a name could not be added because the disk was full.
    pub no_room: bool,
}

/// Which non-durable changes survive a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surviving {
    /// None of the changes.
    None,
    /// All changes.
    All,
    /// A random selection of the changes.
    Drawn,
}

#[derive(Debug, Default)]
struct World {
    tree: Tree,
    faults: Faults,
    faults_hit: FaultsHit,
    /// The number of operations so far, not counting reads.
    operation_count: u64,
    /// The number of the current process. Files opened by an earlier process are closed.
    process: u64,
    next_handle: u64,
}

/// A simulated disk. Clones are handles to the same disk.
#[derive(Clone, Debug, Default)]
pub struct FaultyDisk {
    root: PathBuf,
    world: Arc<Mutex<World>>,
}

impl FaultyDisk {
    /// Creates a disk with a copy of the machine's directory `root`, under the same path. The whole
    /// copy is durable.
    pub fn new(root: &Path) -> io::Result<Self> {
        let tree = Tree::read(root)?;
        let world = Arc::new(Mutex::new(World { tree, ..World::default() }));
        Ok(Self { root: root.to_path_buf(), world })
    }

    /// Adds a fault. Several faults may be active at once.
    pub fn inject(&self, fault: Fault) {
        self.world.lock().faults.failing.push(fault);
    }

    /// Replaces the faults that are still to be injected.
    pub fn set_faults(&self, faults: Faults) {
        self.world.lock().faults = faults;
    }

    /// Returns the faults that have not occurred yet.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.world.lock().faults.clone()
    }

    /// Allows files to grow by at most `bytes` in total before the disk is full. `None` removes the
    /// limit.
    pub fn limit_growth(&self, bytes: Option<u64>) {
        self.world.lock().faults.room = bytes;
    }

    /// Cuts the power at the operation with this number, counted as [`Self::operation_count`] does.
    ///
    /// That operation may have reached the medium, but it reports a failure. If it is a sync, it has no effect. All
    /// later operations of the kinds in [`Operation`] fail without effect.
    pub fn stop_at(&self, operation: u64) {
        let mut world = self.world.lock();
        world.faults.power_cut_after = Some(operation.saturating_sub(world.operation_count));
    }

    /// Returns the number of operations so far, not counting reads.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.world.lock().operation_count
    }

    /// Returns the faults that have occurred since the last call.
    #[must_use]
    pub fn take_faults_hit(&self) -> FaultsHit {
        std::mem::take(&mut self.world.lock().faults_hit)
    }

    /// Returns whether any fault has occurred since the last [`Self::take_faults_hit`].
    #[must_use]
    pub fn has_faults_hit(&self) -> bool {
        self.world.lock().faults_hit != FaultsHit::default()
    }

    /// Ends the process that has opened the files. All written bytes are kept, synced or not.
    pub fn end_process(&self) {
        let mut world = self.world.lock();
        world.end_process();
        world.tree.release_locks();
    }

    /// Cuts the power. `mercy` decides which non-durable changes survive.
    pub fn cut_power(&self, mercy: Surviving, draw: &mut SplitMix64) {
        let mut world = self.world.lock();
        world.tree = world.tree.after_power_cut(&mut Fate { mercy, draw });
        world.end_process();
    }

    /// Writes one of the possible states after a power cut to the directory `into` on this machine,
    /// which must be empty or missing.
    ///
    /// The disk itself does not change, so any number of seeds can be tried at the same point.
    /// Seeds 0 and 1 are the two extremes: all undecided changes are lost, or all are kept.
    pub fn crash(&self, seed: u64, into: &Path) -> io::Result<()> {
        let mercy = match seed {
            0 => Surviving::None,
            1 => Surviving::All,
            _ => Surviving::Drawn,
        };
        let fate = &mut Fate { mercy, draw: &mut SplitMix64::new(seed) };
        self.world.lock().tree.after_power_cut(fate).write(&self.root, into)
    }

    /// Returns a copy of the disk in its current state, with all changes durable.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self { root: self.root.clone(), ..Self::default() };
        copy.replace_with(self);
        copy
    }

    /// Replaces the content of this disk with the content of another disk.
    pub fn replace_with(&self, other: &Self) {
        let mut draw = SplitMix64::new(0);
        let fate = &mut Fate { mercy: Surviving::All, draw: &mut draw };
        let tree = other.world.lock().tree.after_power_cut(fate);
        let mut world = self.world.lock();
        world.tree = tree;
        world.process += 1;
    }

    /// Removes all files and directories.
    pub fn wipe(&self) {
        let mut world = self.world.lock();
        world.tree = Tree::default();
        world.process += 1;
    }

    /// Flips one bit of a file on the medium. Returns whether the file has a byte at that offset.
    pub fn rot(&self, path: &Path, offset: u64, bit: u32) -> bool {
        self.world.lock().tree.flip(path, offset, bit)
    }

    /// Returns the total length of the files in bytes. A removed file counts until the next power cut or copy.
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
        match world.decide(operation, path) {
            FaultEffect::Proceed => act(&mut world.tree),
            FaultEffect::Fail(error, _) => Err(error),
            FaultEffect::LastOne => act(&mut world.tree).and(Err(power_cut())),
        }
    }
}

/// The effect of the faults on an operation.
enum FaultEffect {
    Proceed,
    /// The operation fails with this error. A write first writes this many bytes.
    Fail(io::Error, usize),
    /// The power is cut during the operation. Its change is recorded and may survive, but the caller receives an error.
    /// A sync has no effect.
    LastOne,
}

fn power_cut() -> io::Error {
    io::Error::from_raw_os_error(IO_ERROR)
}

impl World {
    fn end_process(&mut self) {
        self.process += 1;
        self.faults.power_cut_after = None;
        self.faults.kill_after = None;
        self.faults.failing.clear();
    }

    /// Determines the effect of the faults on opening a file, and counts the operation.
    fn decide_open(&mut self, path: &Path, mode: OpenMode) -> FaultEffect {
        let creates = !matches!(mode, OpenMode::Read | OpenMode::ReadWrite);
        let needs_room = creates && self.tree.find(path).is_none();
        self.decide_if(Operation::Open, path, |fault| needs_room || fault.errno != NO_SPACE)
    }

    /// Determines the effect of the faults on an operation, and counts the operation.
    fn decide(&mut self, operation: Operation, path: &Path) -> FaultEffect {
        self.decide_if(operation, path, |_| true)
    }

    fn decide_if(
        &mut self,
        operation: Operation,
        path: &Path,
        applies: impl Fn(&Fault) -> bool,
    ) -> FaultEffect {
        if self.faults_hit.power_cut || self.faults_hit.killed {
            return FaultEffect::Fail(power_cut(), 0);
        }
        if operation != Operation::Read {
            self.operation_count += 1;
            if let Some(left) = &mut self.faults.kill_after {
                match left.checked_sub(1) {
                    Some(rest) => *left = rest,
                    None => {
                        self.faults_hit.killed = true;
                        return FaultEffect::Fail(power_cut(), 0);
                    }
                }
            }
            if let Some(left) = &mut self.faults.power_cut_after {
                match left.checked_sub(1) {
                    Some(rest) => *left = rest,
                    None => {
                        self.faults_hit.power_cut = true;
                        return FaultEffect::LastOne;
                    }
                }
            }
        }
        match self.injected(operation, path, applies) {
            Some((error, bytes_written)) => FaultEffect::Fail(error, bytes_written),
            None => FaultEffect::Proceed,
        }
    }

    /// Returns the error of an injected fault that makes this operation fail, and the number of bytes that are written.
    fn injected(
        &mut self,
        operation: Operation,
        path: &Path,
        applies: impl Fn(&Fault) -> bool,
    ) -> Option<(io::Error, usize)> {
        for fault in &mut self.faults.failing {
            let here = path.to_string_lossy().contains(&fault.path_contains);
            if fault.operation != operation || !here || !applies(fault) {
                continue;
            }
            if fault.skip_count > 0 {
                fault.skip_count -= 1;
            } else if fault.fail_count > 0 {
                fault.fail_count -= 1;
                match fault.errno {
                    NO_SPACE => self.faults_hit.no_room = true,
                    _ => self.faults_hit.failure = true,
                }
                let error = io::Error::from_raw_os_error(fault.errno);
                return Some((error, fault.bytes_written));
            }
        }
        None
    }

    /// Takes disk space for a growing file, or releases the space of a shrinking file.
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
                self.faults_hit.no_room = true;
                Err(io::Error::from_raw_os_error(NO_SPACE))
            }
        }
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world.lock();
        let is_last = match world.decide_open(path, mode) {
            FaultEffect::Proceed => false,
            FaultEffect::LastOne => true,
            FaultEffect::Fail(error, _) => return Err(error),
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
        let mut world = self.world.lock();
        match world.injected(Operation::List, path, |_| true) {
            Some((error, _)) => Err(error),
            None => world.tree.names(path),
        }
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
        match world.decide(Operation::SyncDir, path) {
            FaultEffect::Proceed => world.tree.sync_dir(path),
            FaultEffect::Fail(error, _) => Err(error),
            FaultEffect::LastOne => Err(power_cut()),
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
    /// Applies a change, or the part of it that the faults allow.
    fn change(&self, operation: Operation, change: Change<'_>) -> io::Result<()> {
        let mut world = self.world.lock();
        if world.process != self.process {
            return Err(power_cut());
        }
        let (change, error) = match world.decide(operation, &self.path) {
            FaultEffect::Proceed => (change, None),
            FaultEffect::LastOne => (change, Some(power_cut())),
            FaultEffect::Fail(error, count) => match change.first(count) {
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
        let effect = world.decide(Operation::Sync, &self.path);
        let was_called = !world.faults_hit.killed;
        let file = world.tree.file_mut(self.node)?;
        match effect {
            FaultEffect::Proceed => {
                file.sync();
                Ok(())
            }
            FaultEffect::Fail(error, _) => {
                if was_called {
                    file.doom();
                }
                Err(error)
            }
            FaultEffect::LastOne => Err(power_cut()),
        }
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut world = self.world.lock();
        match world.decide(Operation::Read, &self.path) {
            FaultEffect::Proceed => Ok(world.tree.file_mut(self.node)?.read(buffer, offset)),
            FaultEffect::Fail(error, _) => Err(error),
            FaultEffect::LastOne => Err(power_cut()),
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
