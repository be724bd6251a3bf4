//! The open database file: opening, creating and locking it, starting read transactions on it, and its statistics.
//!
//! [`Db`] is a reference-counted handle. A read transaction ends when its last handle and its last `Bytes` are dropped,
//! on any thread, without a call to this module.
//!
//! # Not here
//!
//! Waiting for the file's lock, because [`Db::open`] returns [`BoltError::Locked`] immediately. The
//! state that handles share (`shared`), building and committing a transaction (`write`, `commit`),
//! and reclaiming space (`reclaim`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::error::{BoltError, Result};
use super::free::{FreePages, PendingPages};
use super::meta::{self, Meta};
use super::page::{FLAG_FREELIST, Header, put_header, put_leaf};
use super::reach::{self, Reach};
use super::read::ReadTx;
use super::shared::{Options, Published, Shared, Tracked, Writer, io_fault, map_capacity};
use super::snapshot::Snapshot;
use super::write::WriteTx;
use super::{PageId, TxId};
use crate::disk::{Disk, DiskFile, LockKind, OpenMode, is_no_room};
use crate::size::in_memory;
use crate::sync_failure;

/// Permission bits of a new file, as in etcd.
const FILE_MODE: u32 = 0o600;
/// The number of pages in a new file: two meta pages, an empty free list, and an empty leaf.
const NEW_FILE_PAGES: u64 = 4;

/// Sizes of the file, and counts of its pages and readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// The length of the file, in bytes.
    pub file_bytes: u64,
    /// The number of bytes up to the high-water mark. etcd reports this as the size, and a snapshot
    /// has this length.
    pub size_bytes: u64,
    /// `size_bytes` without the free pages and without the pages that only older snapshots may still need.
    pub in_use_bytes: u64,
    /// The number of free pages.
    pub free_pages: u64,
    /// The number of pages that only older snapshots may still need. They become free when those snapshots end.
    pub pending_pages: u64,
    /// The number of live read transactions, including clones.
    pub open_readers: usize,
    /// The number of states, not counting the current one, that are kept alive by read transactions
    /// or by bytes taken from them.
    pub pinned_states: usize,
    /// The size of a page, in bytes.
    pub page_bytes: u32,
    /// The number of the last commit.
    pub txid: u64,
}

/// An open backend file. Clones are handles to the same file.
#[derive(Clone, Debug)]
pub struct Db {
    pub(super) shared: Arc<Shared>,
}

impl Db {
    /// Opens a file. A missing file is created, and an empty file initialised, unless the file is opened for reading
    /// only. With [`Options::must_be_new`], an existing file is refused, and remains unchanged.
    ///
    /// The file's lock is held until all handles, readers and writers are dropped. If the file is opened for reading
    /// only, only the meta pages are read. Otherwise the branch pages are read too, and either all leaves or, with
    /// [`Options::flat`], only the few leaves that are needed to find the free pages. Damage in another page is
    /// detected when the page is read, or by [`ReadTx::check`].
    pub fn open(disk: &Arc<dyn Disk>, path: &Path, options: Options) -> Result<Self> {
        if !meta::is_page_size(options.page_bytes_new) {
            return Err(BoltError::Options {
                reason: "the page size must be a power of two from 1 to 64 KiB",
            });
        }
        let path: Arc<Path> = Arc::from(path);
        let file = open_file(&**disk, &path, &options)?;
        let (meta, place) = meta::read_current(&*file, &path)?;
        let fault = |operation, offset| io_fault(&path, operation, offset);
        let file_bytes = file.len().map_err(fault("read the length of the file", 0))?;
        let needed = meta.image_bytes();
        if file_bytes < needed {
            return Err(BoltError::CutOff { path, len: file_bytes, needed });
        }
        if !options.read_only && !options.no_sync {
            make_durable(&**disk, (&*file, &path), &meta, place)?;
        }
        let capacity = map_capacity(file_bytes, &options);
        let mapping = file.map(capacity).map_err(fault("map the file", file_bytes))?;
        let mapping = Arc::new(mapping);
        let (snapshot, pin) =
            Snapshot::new(meta, Arc::clone(&path), Arc::clone(&file), Arc::clone(&mapping))?;
        let snapshot = Arc::new(snapshot);
        let reach = if options.read_only {
            Reach { free: FreePages::all_free(PageId(2)), stored_list: None }
        } else {
            reach::reach(&snapshot, options.flat)?
        };
        let published = Published {
            tracked: vec![Tracked::new(&snapshot, &pin)],
            snapshot,
            free_pages: reach.free.count(),
            pending_pages: 0,
            file_bytes,
        };
        let writer = Writer {
            poisoned: None,
            free: reach.free,
            pending: PendingPages::default(),
            mapping,
            file_bytes,
            // The file may end in a hole, so only the space up to the high-water mark counts as
            // reserved.
            reserved_bytes: needed,
            awaits_truncation: false,
            meta_in_flight: None,
            superseded: reach.stored_list.into_iter().collect(),
            pass: None,
            buffer: Vec::new(),
        };
        let (published, writer) = (Mutex::new(published), Mutex::new(writer));
        let disk = Arc::clone(disk);
        Ok(Self { shared: Arc::new(Shared { disk, path, file, options, published, writer }) })
    }

    /// Returns a view of the last committed state.
    #[must_use]
    pub fn read(&self) -> ReadTx {
        ReadTx::new(Arc::clone(&self.shared.published.lock().snapshot))
    }

    /// Begins a write transaction. Blocks until the current one ends.
    ///
    /// Dropping the transaction without a commit changes nothing.
    pub fn write(&self) -> Result<WriteTx<'_>> {
        WriteTx::begin(&self.shared)
    }

    /// Returns sizes and counts as of the last commit.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let published = self.shared.published.lock();
        let meta = published.snapshot.meta;
        let page_bytes = meta.page_bytes;
        let free_pages = published.free_pages + published.pending_pages;
        let free_bytes = free_pages * u64::from(page_bytes);
        let handles = published.tracked.iter().map(|state| state.handles.strong_count());
        let alive = published.tracked.iter().filter(|state| state.pin.strong_count() > 0);
        Stats {
            file_bytes: published.file_bytes,
            size_bytes: meta.image_bytes(),
            in_use_bytes: meta.image_bytes().saturating_sub(free_bytes),
            free_pages: published.free_pages,
            pending_pages: published.pending_pages,
            // One of the handles is kept for new readers and does not count.
            open_readers: handles.sum::<usize>().saturating_sub(1),
            pinned_states: alive.count().saturating_sub(1),
            page_bytes,
            txid: meta.txid.0,
        }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Makes all commits so far durable, for files opened with `no_sync`.
    ///
    /// A failure poisons the writer, as a failed commit does.
    pub fn sync(&self) -> Result<()> {
        let mut writer = self.shared.writer.lock();
        if let Some(cause) = &writer.poisoned {
            let (path, cause) = (Arc::clone(&self.shared.path), Arc::clone(cause));
            return Err(BoltError::Poisoned { path, cause });
        }
        let synced =
            self.shared.file.sync_data().map_err(io_fault(&self.shared.path, "sync the file", 0));
        if let Err(e) = &synced {
            writer.poisoned = Some(e.to_string().into());
        }
        synced
    }

    /// Locks the file's mapped pages in memory, so that reads do not wait for the disk.
    pub fn lock_in_memory(&self) -> Result<()> {
        let mapping = Arc::clone(&self.shared.writer.lock().mapping);
        mapping.lock_in_memory().map_err(io_fault(&self.shared.path, "lock the file in memory", 0))
    }
}

/// Opens and locks the file. A new file is initialised first.
fn open_file(disk: &dyn Disk, path: &Arc<Path>, options: &Options) -> Result<Arc<dyn DiskFile>> {
    let found = disk.metadata(path).map_err(io_fault(path, "read the metadata of the file", 0))?;
    let is_used = found.is_some_and(|facts| facts.len > 0) && !options.must_be_new;
    if is_used || options.read_only {
        let mode = if options.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
        let file = disk.open(path, mode).map_err(io_fault(path, "open the file", 0))?;
        lock(&*file, path, options)?;
        return Ok(file);
    }
    create(disk, path, options)
}

/// Makes the current meta page durable before new commits rely on it. This is necessary because
/// later commits overwrite pages that only the previous state needs, and because a process that
/// ended before its last sync may have left the meta page only in the system's memory.
///
/// After a failed sync of the meta page, the system treats the page as written, and no later sync would write it. A
/// mark records such a failure ([`failure_mark`]), and if there is a mark, the page is written again. The other meta
/// page and all its pages are durable and remain untouched, so a power cut during the write leaves at least one of the
/// two meta pages intact. If a sync fails before the meta page is written, no mark is left. In that case the current
/// meta page is the durable one and must not be overwritten.
fn make_durable(
    disk: &dyn Disk,
    (file, path): (&dyn DiskFile, &Arc<Path>),
    meta: &Meta,
    place: PageId,
) -> Result<()> {
    let mark = failure_mark(path);
    let has_failed = sync_failure::is_marked(disk, &mark);
    if has_failed {
        let mut page = vec![0; meta.page_bytes as usize];
        let offset = place.0 * u64::from(meta.page_bytes);
        let fault = |operation| io_fault(path, operation, offset);
        file.read_exact_at(&mut page, offset).map_err(fault("read the meta page"))?;
        match file.write_all_at(&page, offset) {
            // On a copy-on-write file system, overwriting may need space. The bytes do not change, so it is safe to
            // continue if there is no space.
            Err(error) if is_no_room(&error) => {}
            written => written.map_err(fault("write the meta page"))?,
        }
    }
    let synced = file.sync_data().map_err(io_fault(path, "sync the file", 0));
    match synced {
        Err(_) => sync_failure::note(disk, &mark),
        Ok(()) if has_failed => sync_failure::clear(disk, &mark),
        Ok(()) => {}
    }
    synced
}

/// Returns the path of the mark which records that a meta page was written but its sync failed.
pub(super) fn failure_mark(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".sync-failed");
    PathBuf::from(name)
}

/// Creates a new file under a temporary name and renames it, so that `path` never names an
/// incomplete file. etcd removes files with such names when it starts. With [`Options::must_be_new`], the file has its
/// own name from the beginning, because a rename would replace an existing file.
fn create(disk: &dyn Disk, path: &Arc<Path>, options: &Options) -> Result<Arc<dyn DiskFile>> {
    let (name, mode) = if options.must_be_new {
        (Arc::clone(path), OpenMode::CreateNew(FILE_MODE))
    } else {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp.new");
        (Arc::from(PathBuf::from(temporary)), OpenMode::Create(FILE_MODE))
    };
    let fault = |operation| io_fault(&name, operation, 0);
    let file = disk.open(&name, mode).map_err(fault("create the file"))?;
    lock(&*file, path, options)?;
    let content = new_file(options.page_bytes_new);
    file.set_len(0).map_err(fault("empty the file"))?;
    file.write_all_at(&content, 0).map_err(fault("write the file"))?;
    file.sync_all().map_err(fault("sync the file"))?;
    if name != *path {
        disk.rename(&name, path).map_err(fault("rename the file"))?;
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    disk.sync_dir(directory).map_err(io_fault(path, "sync its directory", 0))?;
    Ok(file)
}

fn lock(file: &dyn DiskFile, path: &Arc<Path>, options: &Options) -> Result<()> {
    let kind = if options.read_only { LockKind::FlockShared } else { LockKind::FlockExclusive };
    if file.try_lock(kind).map_err(io_fault(path, "lock the file", 0))? {
        Ok(())
    } else {
        Err(BoltError::Locked { path: Arc::clone(path) })
    }
}

/// Returns the content of a new file, as bbolt writes it: meta pages of transactions 0 and 1, no
/// free pages, and no buckets.
fn new_file(page_bytes: usize) -> Vec<u8> {
    let mut content = Vec::with_capacity(in_memory(NEW_FILE_PAGES) * page_bytes);
    for index in 0..2 {
        let meta = Meta {
            page_bytes: u32::try_from(page_bytes).expect("an accepted page size is at most 64 KiB"),
            root: PageId(3),
            root_sequence: 0,
            freelist: PageId(2),
            high_water: PageId(NEW_FILE_PAGES),
            txid: TxId(index),
        };
        meta.put(&mut content, PageId(index));
    }
    let freelist = Header { id: PageId(2), flags: FLAG_FREELIST, count: 0, overflow: 0 };
    put_header(&mut content, &freelist);
    content.resize(3 * page_bytes, 0);
    put_leaf(&mut content, PageId(3), 0, std::iter::empty());
    content.resize(4 * page_bytes, 0);
    content
}

#[cfg(test)]
impl Db {
    /// Returns the pages below the high-water mark that are not in exactly one of these groups:
    /// reached by the current state, waiting to be freed, free. Also returns the pages about which
    /// the two walks of the trees, flat and full, disagree.
    pub(super) fn unaccounted_pages(&self) -> Vec<u64> {
        let writer = self.shared.writer.lock();
        let snapshot = Arc::clone(&self.shared.published.lock().snapshot);
        let reach = reach::reach(&snapshot, false).expect("a sound state can be walked");
        let flat = reach::reach(&snapshot, true).expect("a sound state can be walked");
        let waiting: Vec<super::Run> =
            writer.pending.runs().chain(writer.superseded.clone()).collect();
        let mark = snapshot.meta.high_water.max(writer.free.high_water());
        let wrong = (2..mark.0).filter(|&page| {
            let reached = page < snapshot.meta.high_water.0
                && !reach.free.is_free(PageId(page))
                && !writer.superseded.iter().any(|run| (run.start.0..run.end().0).contains(&page));
            let waits = waiting.iter().filter(|run| (run.start.0..run.end().0).contains(&page));
            let free = writer.free.is_free(PageId(page)) || page >= writer.free.high_water().0;
            let same = reach.free.is_free(PageId(page)) == flat.free.is_free(PageId(page));
            usize::from(reached) + waits.count() + usize::from(free) != 1 || !same
        });
        wrong.collect()
    }
}
