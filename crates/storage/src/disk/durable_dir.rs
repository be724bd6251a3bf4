//! Creates directories durably.

use std::io;
use std::path::Path;

use super::Disk;

/// Creates a directory and its missing parents, if it does not exist, and makes its name durable.
///
/// The names of the directory and of its missing parents are synced one after another, from the top down. If the
/// process is killed in between, only the name of the lowest existing directory may not be durable, so this name is
/// synced when the function is called again.
pub(crate) fn create_dir_durably(disk: &dyn Disk, dir: &Path, mode: u32) -> io::Result<()> {
    let parent = parent(dir);
    if disk.metadata(dir)?.is_some() {
        return match disk.sync_dir(parent) {
            // A user without read permission for the parent cannot have left the name unsynced, and neither can a user
            // of a read-only file system, which may not support this sync.
            Err(error) if is_without_effect(error.kind()) => Ok(()),
            synced => synced,
        };
    }
    create_dir_durably(disk, parent, mode)?;
    disk.create_dir_all(dir, mode)?;
    disk.sync_dir(parent)
}

const fn is_without_effect(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput)
}

/// Returns the directory that contains this path.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
