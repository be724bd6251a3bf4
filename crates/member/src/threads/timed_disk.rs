//! A disk that measures the time spent on writing and syncing the log and the backend file.
//!
//! Dashboards show writes and syncs separately, because a slow sync is caused by the medium and a slow write by a lack
//! of free memory. Files are distinguished by name. Each kind of file has one writer, which reads the time spent since
//! its previous reading.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate_storage::disk::{Disk, DiskFile, FileFacts, LockKind, Mapping, OpenMode};

/// Time spent on one kind of file since the last call to [`FileTimes::take`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) writing: Duration,
    pub(crate) syncing: Duration,
}

/// Sums up the time spent on one kind of file.
#[derive(Debug, Default)]
pub(crate) struct FileTimes {
    writing_nanos: AtomicU64,
    syncing_nanos: AtomicU64,
}

impl FileTimes {
    /// Returns the time spent since the last call.
    pub(crate) fn take(&self) -> Spent {
        let take = |nanos: &AtomicU64| Duration::from_nanos(nanos.swap(0, Ordering::Relaxed));
        Spent { writing: take(&self.writing_nanos), syncing: take(&self.syncing_nanos) }
    }
}

/// The times spent on the files that requests wait for.
#[derive(Clone, Debug, Default)]
pub struct DiskTimes {
    /// Segments of the write-ahead log.
    pub(crate) log: Arc<FileTimes>,
    /// The backend file, and the new file that replaces it.
    pub(crate) backend: Arc<FileTimes>,
}

impl DiskTimes {
    /// Returns the counter for a file's operations, or `None` if the file is not measured.
    fn of(&self, path: &Path) -> Option<&Arc<FileTimes>> {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let name = path.file_name().and_then(|name| name.to_str());
        match (name, extension) {
            (Some("db" | "db.tmp.new"), _) => Some(&self.backend),
            // A segment of the log has the extension `tmp` while it is being prepared.
            (_, Some("wal" | "tmp")) => Some(&self.log),
            _ => None,
        }
    }
}

/// A disk that measures the time of writes and syncs.
#[derive(Debug)]
pub struct TimedDisk<D> {
    inner: D,
    times: DiskTimes,
}

impl<D: Disk + 'static> TimedDisk<D> {
    /// Wraps a disk. Returns the wrapped disk with its times.
    pub fn over(inner: D) -> (Arc<dyn Disk>, DiskTimes) {
        let times = DiskTimes::default();
        (Arc::new(Self { inner, times: times.clone() }), times)
    }
}

impl<D: Disk> Disk for TimedDisk<D> {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.inner.open(path, mode)?;
        Ok(match self.times.of(path) {
            Some(times) => Arc::new(TimedFile { inner: file, times: Arc::clone(times) }),
            None => file,
        })
    }

    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.inner.create_dir_all(path, mode)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.inner.read_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<FileFacts>> {
        self.inner.metadata(path)
    }
}

#[derive(Debug)]
struct TimedFile {
    inner: Arc<dyn DiskFile>,
    times: Arc<FileTimes>,
}

fn timed<T>(nanos: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let done = work();
    let took = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    nanos.fetch_add(took, Ordering::Relaxed);
    done
}

impl DiskFile for TimedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        timed(&self.times.writing_nanos, || self.inner.write_all_at(bytes, offset))
    }

    fn write_all_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        timed(&self.times.writing_nanos, || self.inner.write_all_vectored_at(slices, offset))
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        self.inner.free_bytes()
    }

    fn sync_data(&self) -> io::Result<()> {
        timed(&self.times.syncing_nanos, || self.inner.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        timed(&self.times.syncing_nanos, || self.inner.sync_all())
    }

    fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        self.inner.try_lock(kind)
    }

    fn map(&self, len: usize) -> io::Result<Mapping> {
        self.inner.map(len)
    }
}

#[cfg(test)]
mod tests {
    use quorate_storage::disk::RealDisk;

    use super::*;

    #[test]
    fn write_and_sync_times_are_measured_for_each_kind_of_file() {
        let folder = tempfile::tempdir().unwrap();
        let (disk, times) = TimedDisk::over(RealDisk);
        let touch = |name: &str| {
            let mode = OpenMode::Create(0o600);
            let file = disk.open(&folder.path().join(name), mode).unwrap();
            file.write_all_at(b"x", 0).unwrap();
            let written = [times.log.take(), times.backend.take()];
            file.sync_data().unwrap();
            (written, [times.log.take(), times.backend.take()])
        };
        let none = Spent::default();
        for (name, at) in [("0.tmp", 0), ("0-0.wal", 0), ("db", 1), ("db.tmp.new", 1)] {
            let (written, synced) = touch(name);
            assert!(!written[at].writing.is_zero() && written[at].syncing.is_zero(), "{name}");
            assert!(!synced[at].syncing.is_zero() && synced[at].writing.is_zero(), "{name}");
            assert_eq!([written[1 - at], synced[1 - at]], [none; 2], "{name}");
        }
        assert_eq!(touch("0-0.snap"), ([none; 2], [none; 2]));
    }
}
