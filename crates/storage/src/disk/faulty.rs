//! A disk that fails on demand and knows what a power cut could still undo.
//!
//! [`FaultyDisk`] works on a real directory, so that everything behaves as on the machine, and keeps
//! a record beside it: every write since the last sync of its file, every name changed since the
//! last sync of its directory. [`FaultyDisk::crash`] turns the record into a second directory that
//! holds one of the states the first could be found in after a power cut.
//!
//! # What a power cut may do here
//!
//! * Each unsynced write is kept, lost, or torn: any subset of its 512-byte sectors arrives. Writes
//!   are independent, so a later one may arrive without an earlier one.
//! * A file that an unsynced write had grown may keep the new length with zeros inside.
//! * Of a directory's unsynced changes a prefix arrives, as file systems with a metadata journal
//!   have it; directories are independent of each other. A rename within a directory is atomic.
//! * A failed sync leaves its writes undecided for good, whatever is synced later; written once more and synced they
//!   are durable.
//!
//! The choice is a function of the seed alone.
//!
//! # Not here
//!
//! Bytes that rot while nobody writes: a test flips those itself.

mod image;
mod world;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::world::{Verdict, World};
use super::real::open_file;
use super::{Disk, DiskFile, FileChange, FileFacts, LockKind, Mapping, OpenMode, RealDisk};

/// What is being asked of the disk, for choosing where a [`Fault`] strikes.
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

/// One failure to come.
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

/// A real directory behind injected failures and a record of what is not durable yet.
///
/// Clones are handles to the same disk. Only paths below the root may be used.
#[derive(Clone, Debug)]
pub struct FaultyDisk {
    root: PathBuf,
    world: Arc<Mutex<World>>,
}

impl FaultyDisk {
    /// Takes over `root`; all that is in it now counts as durable.
    pub fn new(root: &Path) -> io::Result<Self> {
        let world = World::scan(root)?;
        Ok(Self { root: root.to_path_buf(), world: Arc::new(Mutex::new(world)) })
    }

    /// Arms a fault; several may be armed at once.
    pub fn inject(&self, fault: Fault) {
        self.world.lock().faults.push(fault);
    }

    /// Lets files grow by `bytes` more in all before the disk is full; `None` lifts the limit.
    pub fn limit_growth(&self, bytes: Option<u64>) {
        self.world.lock().growth_left = bytes;
    }

    /// Cuts the power at the operation with this number, counted as [`Self::operation_count`] does.
    ///
    /// That operation may have reached the disk but reports failure (a sync has done nothing), and
    /// everything after it fails without effect.
    pub fn stop_at(&self, operation: u64) {
        self.world.lock().stop_at = Some(operation);
    }

    /// Returns how many operations that change the disk there have been.
    #[must_use]
    pub fn operation_count(&self) -> u64 {
        self.world.lock().operation_count
    }

    /// Writes one possible state after a power cut into `into`, an empty or missing directory.
    ///
    /// The disk itself is not affected: any number of seeds can be tried at the same point. Seeds 0
    /// and 1 are the two extremes, where everything undecided is lost or has arrived.
    pub fn crash(&self, seed: u64, into: &Path) -> io::Result<()> {
        image::materialise(&self.world.lock(), seed, into)
    }

    fn relative<'p>(&self, path: &'p Path) -> io::Result<&'p Path> {
        path.strip_prefix(&self.root).map_err(|_| {
            let text = format!("{} is outside the disk {}", path.display(), self.root.display());
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })
    }

    /// Runs a change of names: the real thing first, then the record of it.
    fn change_names(
        &self,
        operation: Operation,
        path: &Path,
        act: impl FnOnce(&mut World) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(operation, path) {
            Verdict::Proceed => act(&mut world),
            Verdict::Fail(error, _) => Err(error),
            Verdict::LastOne(error) => act(&mut world).and(Err(error)),
        }
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let relative = self.relative(path)?;
        let mut world = self.world.lock();
        let last_error = match world.judge(Operation::Open, path) {
            Verdict::Proceed => None,
            Verdict::Fail(error, _) => return Err(error),
            Verdict::LastOne(error) => Some(error),
        };
        let gentle = match mode {
            OpenMode::Truncate(bits) => OpenMode::Create(bits),
            OpenMode::Read | OpenMode::ReadWrite | OpenMode::Create(_) | OpenMode::CreateNew(_) => {
                mode
            }
        };
        let inner = RealDisk.open(path, gentle)?;
        let node = match world.lookup(relative) {
            Some(node) => node,
            None => world.add_file(relative, Arc::new(open_file(path, OpenMode::Read)?)),
        };
        let file = FaultyFile { path: path.to_path_buf(), node, inner, world: self.world.clone() };
        if matches!(mode, OpenMode::Truncate(_)) {
            file.resize_within(&mut world, 0)?;
        }
        last_error.map_or_else(|| Ok(Arc::new(file) as Arc<dyn DiskFile>), Err)
    }

    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        let relative = self.relative(path)?;
        self.change_names(Operation::CreateDir, path, |world| {
            RealDisk.create_dir_all(path, mode)?;
            world.add_dirs(relative);
            Ok(())
        })
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        RealDisk.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (source, target) = (self.relative(from)?, self.relative(to)?);
        self.change_names(Operation::Rename, from, |world| {
            RealDisk.rename(from, to)?;
            world.rename(source, target);
            Ok(())
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let relative = self.relative(path)?;
        self.change_names(Operation::Remove, path, |world| {
            RealDisk.remove_file(path)?;
            world.remove(relative);
            Ok(())
        })
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let relative = self.relative(path)?;
        self.change_names(Operation::Remove, path, |world| {
            RealDisk.remove_dir_all(path)?;
            world.remove(relative);
            Ok(())
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let relative = self.relative(path)?;
        let mut world = self.world.lock();
        match world.judge(Operation::SyncDir, path) {
            Verdict::Proceed => {
                // The machine's own sync adds nothing to the record and costs real time.
                if world.sync_dir(relative) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
            }
            Verdict::Fail(error, _) | Verdict::LastOne(error) => Err(error),
        }
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<FileFacts>> {
        RealDisk.metadata(path)
    }
}

/// An open file of a [`FaultyDisk`].
#[derive(Debug)]
struct FaultyFile {
    path: PathBuf,
    node: u64,
    inner: Arc<dyn DiskFile>,
    world: Arc<Mutex<World>>,
}

impl FaultyFile {
    /// Reads what a change of `[offset, offset + len)` is about to overwrite.
    fn before(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        let end = offset.saturating_add(len).min(self.inner.len()?);
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(offset)).unwrap_or(0)];
        self.inner.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn write_within(&self, world: &mut World, bytes: &[u8], offset: u64) -> io::Result<()> {
        let len_before = self.inner.len()?;
        let len_after = len_before.max(offset + bytes.len() as u64);
        world.grow(len_after - len_before)?;
        let before = self.before(offset, bytes.len() as u64)?;
        self.inner.write_all_at(bytes, offset)?;
        let after = bytes.to_vec();
        world.record(self.node, FileChange { offset, before, after, len_before, len_after });
        Ok(())
    }

    fn resize_within(&self, world: &mut World, len: u64) -> io::Result<()> {
        let len_before = self.inner.len()?;
        let before = self.before(len, len_before.saturating_sub(len))?;
        self.inner.set_len(len)?;
        world.shrink(len_before.saturating_sub(len));
        let after = Vec::new();
        let change = FileChange { offset: len, before, after, len_before, len_after: len };
        world.record(self.node, change);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(Operation::Sync, &self.path) {
            Verdict::Proceed => {
                world.sync_file(self.node);
                Ok(())
            }
            Verdict::Fail(error, _) => {
                world.doom(self.node);
                Err(error)
            }
            Verdict::LastOne(error) => Err(error),
        }
    }
}

impl DiskFile for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self.world.lock().judge(Operation::Read, &self.path) {
            Verdict::Proceed => self.inner.read_at(buffer, offset),
            Verdict::Fail(error, _) | Verdict::LastOne(error) => Err(error),
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(Operation::Write, &self.path) {
            Verdict::Proceed => self.write_within(&mut world, bytes, offset),
            Verdict::LastOne(error) => self.write_within(&mut world, bytes, offset).and(Err(error)),
            Verdict::Fail(error, count) => {
                let part = &bytes[..count.min(bytes.len())];
                self.write_within(&mut world, part, offset).and(Err(error))
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        match world.judge(Operation::SetLen, &self.path) {
            Verdict::Proceed => self.resize_within(&mut world, len),
            Verdict::Fail(error, _) => Err(error),
            Verdict::LastOne(error) => self.resize_within(&mut world, len).and(Err(error)),
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        let last_error = match world.judge(Operation::Allocate, &self.path) {
            Verdict::Proceed => None,
            Verdict::Fail(error, _) => return Err(error),
            Verdict::LastOne(error) => Some(error),
        };
        let growth = len.saturating_sub(self.inner.len()?);
        if growth > 0 {
            world.grow(growth)?;
            self.resize_within(&mut world, len)?;
        }
        last_error.map_or(Ok(()), Err)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(self.world.lock().growth_left)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        self.inner.try_lock(kind)
    }

    fn map(&self, len: usize) -> io::Result<Mapping> {
        self.inner.map(len)
    }
}
