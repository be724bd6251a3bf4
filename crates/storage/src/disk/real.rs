//! The machine's own files, accessed through the same system calls that etcd uses.
#![expect(clippy::disallowed_types, reason = "this module implements `Disk` with real files")]

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};

use super::open_file::OpenFile;
use super::{Disk, DiskFile, FileFacts, LockKind, Mapping, OpenMode};

/// The file systems of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// The maximum number of slices in one vectored write. Most systems refuse more.
const SLICES_PER_WRITE_MAX: usize = 1024;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile { file: Arc::new(OpenFile::new(open_file(path, mode)?)) }))
    }

    fn create_dir_all(&self, path: &Path, mode: u32) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(mode).create(path)
    }

    fn read_dir(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let mut names =
            fs::read_dir(path)?.map(|e| Ok(e?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn metadata(&self, path: &Path) -> io::Result<Option<FileFacts>> {
        match fs::metadata(path) {
            Ok(found) => Ok(Some(FileFacts {
                len: found.len(),
                is_dir: found.is_dir(),
                is_file: found.is_file(),
                mode: found.permissions().mode() & 0o7777,
                modified: found.modified().ok(),
            })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// Creates a file without a name. Its bytes are in memory, and it can be mapped like any other
/// file. The simulated disk stores the content of a mapped file in an unnamed file.
///
/// # Errors
///
/// Fails if the system does not support such files, or cannot create one.
pub(super) fn unnamed_file() -> io::Result<Arc<dyn DiskFile>> {
    let file = unnamed()?;
    Ok(Arc::new(RealFile { file: Arc::new(OpenFile::new(file)) }))
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn unnamed() -> io::Result<File> {
    let file = rustix::fs::memfd_create("quorate", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(File::from(file))
}

#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
fn unnamed() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// An open file of this machine.
#[derive(Debug)]
struct RealFile {
    file: Arc<OpenFile>,
}

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.file.read_at(buffer, offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn write_all_vectored_at(&self, slices: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for group in slices.chunks(SLICES_PER_WRITE_MAX) {
            at = write_group(&self.file, group, at)?;
        }
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        match fallocate(&**self.file, FallocateFlags::empty(), 0, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INTR) => {
                if self.len()? < len {
                    self.file.set_len(len)
                } else {
                    Ok(())
                }
            }
            Err(e) => Err(e.into()),
        }
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let facts = rustix::fs::fstatvfs(&**self.file)?;
        Ok(free_bytes_of(facts.f_blocks, facts.f_bavail, facts.f_frsize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn try_lock(&self, kind: LockKind) -> io::Result<bool> {
        self.file.try_lock(kind)
    }

    fn map(&self, len: usize) -> io::Result<Mapping> {
        Mapping::new(Arc::clone(&self.file), len)
    }
}

/// Returns the free bytes of a file system. Some file systems in user space report zero for everything, although they
/// have space.
fn free_bytes_of(total_blocks: u64, free_blocks: u64, block_bytes: u64) -> Option<u64> {
    if total_blocks == 0 { None } else { free_blocks.checked_mul(block_bytes) }
}

/// Opens a file as `mode` specifies. The file is always closed on exec.
pub(super) fn open_file(path: &Path, mode: OpenMode) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    match mode {
        OpenMode::Read => {}
        OpenMode::ReadWrite => {
            options.write(true);
        }
        OpenMode::Create(bits) => {
            options.write(true).create(true).truncate(false).mode(bits);
        }
        OpenMode::CreateNew(bits) => {
            options.write(true).create_new(true).mode(bits);
        }
        OpenMode::Truncate(bits) => {
            options.write(true).create(true).truncate(true).mode(bits);
        }
    }
    options.open(path)
}

/// Writes a group of slices and returns the offset after them.
fn write_group(file: &File, group: &[IoSlice<'_>], mut at: u64) -> io::Result<u64> {
    let mut rest = group.to_vec();
    let mut rest = rest.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::pwritev(file, rest, at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                at += count as u64;
                IoSlice::advance_slices(&mut rest, count);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_space_is_unknown_if_the_file_system_reports_no_blocks_at_all() {
        assert_eq!(free_bytes_of(0, 0, 4096), None);
        assert_eq!(free_bytes_of(10, 0, 4096), Some(0));
        assert_eq!(free_bytes_of(10, 3, 4096), Some(12288));
    }
}
