//! Installation of a leader's snapshot: its image replaces the backend file.
//!
//! # Invariants
//!
//! * The backend file is replaced only by an image that can be opened and whose index is exactly the snapshot's index.
//!   When a member starts, a newer image is accepted too, because it is the member's own backend file if a power cut has
//!   undone its installation.
//! * An image is kept until the backend file reaches the image's index, even if a later image has been received,
//!   because the later image may not be installed yet.

use std::path::Path;
use std::sync::Arc;

use quorate_raft::LogIndex;
use quorate_state::backend::{Backend, Fault, ImageFault, check_image};
use quorate_storage::disk::Disk;
use quorate_storage::snap::{self, SnapError};

/// Why an image was not installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The snapshot directory cannot be read or changed.
    #[error(transparent)]
    Snap(#[from] SnapError),
    /// The image must not replace the backend file.
    #[error(
        "the image of the snapshot at index {index} cannot replace the backend file, which is unchanged: {fault}; \
         remove this member from the cluster, delete its data directory, and add it again"
    )]
    Unfit {
        /// The snapshot's index.
        index: LogIndex,
        /// The reason why the image must not replace the backend file.
        fault: ImageFault,
    },
    /// The new file cannot be opened.
    #[error(transparent)]
    Backend(#[from] Fault),
}

/// Replaces the backend file with the received image of the snapshot at `index`. The backend file must not be open for
/// writing.
pub(crate) fn install(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    index: LogIndex,
) -> Result<(), InstallError> {
    install_up_to(disk, dir, index, index)
}

/// Like [`install`], but accepts an image that contains entries after the snapshot. The caller must check that the log
/// reaches the last of these entries.
pub(crate) fn install_at_start(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    index: LogIndex,
) -> Result<(), InstallError> {
    install_up_to(disk, dir, index, LogIndex::MAX)
}

fn install_up_to(
    disk: &Arc<dyn Disk>,
    dir: &Path,
    index: LogIndex,
    newest: LogIndex,
) -> Result<(), InstallError> {
    let image = snap::find_database(&**disk, dir, index.get())?;
    check_image(disk, &image, index.get()..=newest.get())
        .map_err(|fault| InstallError::Unfit { index, fault })?;
    snap::install_database(&**disk, dir, index.get())?;
    Ok(())
}

/// Replaces the file of an open backend with the received image of the snapshot at `index`. Later reads see the new
/// file. Existing views continue to read the old one.
pub(crate) fn replace(
    backend: &Backend,
    disk: &Arc<dyn Disk>,
    dir: &Path,
    index: LogIndex,
) -> Result<(), InstallError> {
    install(disk, dir, index)?;
    backend.reopen(disk)?;
    snap::release_databases(&**disk, dir, index.get())?;
    Ok(())
}
