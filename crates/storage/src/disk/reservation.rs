//! Reserves space in advance, and limits the reservation if the disk is nearly full, because space
//! that is reserved early would not be available to writes that need it now.
//!
//! A caller can continue without the reservation. So a lack of space is not an error here, and if a
//! reservation fails, the space that it took is released.

use std::io;

use super::DiskFile;

/// If the disk is short of space, each reservation takes the free space divided by this number.
const SHARE_WHEN_SHORT: u64 = 8;

/// The minimum size of a reservation on a disk that is short of space, in bytes. A smaller reservation is not worth a
/// system call.
const SHARE_BYTES_MIN: u64 = 64 * 1024;

const PAGE_BYTES: u64 = 4096;

/// Reserves the space between `from`, which is the end of the file, and `to`, if `kept_free` bytes
/// then remain free. Otherwise, reserves only a share of the free space. Returns the end of the
/// reserved space, which is between `from` and `to`.
pub(crate) fn reserve_ahead(
    file: &dyn DiskFile,
    from: u64,
    to: u64,
    kept_free: u64,
) -> io::Result<u64> {
    let wanted = to.saturating_sub(from);
    let share = match file.free_bytes()? {
        Some(free) if free < wanted.saturating_add(kept_free) => share_of(free).min(wanted),
        Some(_) | None => wanted,
    };
    if share == 0 || !try_allocate(file, from + share)? {
        return Ok(from);
    }
    Ok(from + share)
}

/// Returns the number of bytes to reserve on a disk with `free` bytes of free space.
fn share_of(free: u64) -> u64 {
    let share = free / SHARE_WHEN_SHORT / PAGE_BYTES * PAGE_BYTES;
    if share < SHARE_BYTES_MIN { 0 } else { share }
}

/// Extends the file to at least `len` bytes and allocates the space. If there is no room, restores
/// the file's previous length and returns `false`.
pub(crate) fn try_allocate(file: &dyn DiskFile, len: u64) -> io::Result<bool> {
    let len_before = file.len()?;
    match file.allocate(len) {
        Ok(()) => Ok(true),
        Err(error) if is_no_room(&error) => {
            // Some file systems keep the space that they allocated before they ran out of space. Shortening the file
            // releases it.
            file.set_len(len_before)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether an operation failed for lack of space, because the disk is full or the process
/// has reached its quota.
pub(crate) fn is_no_room(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, FaultyDisk, OpenMode};

    const MIB: u64 = 1 << 20;

    #[test]
    fn reservations_leave_disk_space_for_other_files() {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let file = disk.open(&root.path().join("f"), OpenMode::CreateNew(0o600)).unwrap();
        for (free, reserved) in [
            (None, 64 * MIB),
            (Some(80 * MIB), 64 * MIB),
            (Some(80 * MIB - 1), 10 * MIB - 4096),
            (Some(40 * MIB), 5 * MIB),
            (Some(MIB), 128 * 1024),
            (Some(100 * 1024), 0),
            (Some(0), 0),
        ] {
            file.set_len(0).unwrap();
            disk.limit_growth(free);
            let to = reserve_ahead(&*file, 0, 64 * MIB, 16 * MIB).unwrap();
            assert_eq!(to, reserved, "{free:?} bytes free");
            assert_eq!(file.len().unwrap(), reserved);
        }
    }

    #[test]
    fn a_refused_reservation_leaves_the_file_unchanged() {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let file = disk.open(&root.path().join("f"), OpenMode::CreateNew(0o600)).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        disk.limit_growth(Some(10));
        assert!(!try_allocate(&*file, 100).unwrap());
        assert_eq!(file.len().unwrap(), 3);
        assert!(try_allocate(&*file, 13).unwrap());
    }
}
