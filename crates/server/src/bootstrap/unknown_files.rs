//! Logs unknown files in the data directory, in etcd's words. The files are left unchanged.

use std::ffi::OsString;

use quorate_storage::data_dir::{DataDir, DirectoryWarnings};
use quorate_storage::disk::Disk;
use quorate_storage::{snap, wal};
use quorate_telemetry::log;

/// Logs unknown files.
pub(super) fn name_files(disk: &dyn Disk, dirs: &DataDir) {
    // If a directory cannot be listed, the error is reported when its files are opened.
    for name in wal::list(disk, dirs.wal()).unwrap_or_default().ignored {
        log::warn!("ignored file in WAL directory", "path" = text_of(&name));
    }
    let of_members = |name: &OsString| {
        // Snapshots received from a leader, and files that were set aside, belong to the member and are not reported.
        let name = name.as_encoded_bytes();
        name.ends_with(b".snap.db") || name.ends_with(b".broken")
    };
    let ignored = snap::list(disk, &dirs.snap()).unwrap_or_default().ignored;
    for name in ignored.into_iter().filter(|name| !of_members(name)) {
        log::warn!("found unexpected non-snap file; skipping", "path" = text_of(&name));
    }
}

/// Logs unexpected files in the data directory, and unusual permissions of directories.
pub(super) fn name_oddities(data_dir: &str, oddities: &DirectoryWarnings) {
    for name in &oddities.unexpected {
        log::warn!(
            "found invalid file under data directory",
            "filename" = text_of(name),
            "data-dir" = data_dir
        );
    }
    for (path, mode) in &oddities.open_modes {
        log::warn!(
            "check file permission",
            "error" = format!(
                "directory {:?} exist, but the permission is {:?}. The recommended permission is \
                 \"-rwx------\" to prevent possible unprivileged access to the data",
                path.display().to_string(),
                drawn(*mode)
            )
        );
    }
}

fn text_of(name: &OsString) -> String {
    name.to_string_lossy().into_owned()
}

/// Formats the permissions of a directory as `ls` does.
fn drawn(mode: u32) -> String {
    let bits = (0..9).map(|place| match mode >> (8 - place) & 1 {
        0 => '-',
        _ => ['r', 'w', 'x'][place % 3],
    });
    std::iter::once('d').chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_permissions_are_formatted_as_in_ls() {
        assert_eq!(drawn(0o700), "drwx------");
        assert_eq!(drawn(0o755), "drwxr-xr-x");
        assert_eq!(drawn(0o4721), "drwx-w---x");
    }
}
