//! Dated files, whose names differ only in the date. Only the newest of them are kept.
//!
//! # Guarantees
//!
//! * Only files whose name is the given name plus a date are removed. The file that was saved last always remains, and
//!   so do the newest `keep - 1` other dated files.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::log::timestamp;

/// Pattern of the date in a file name, with zeros for digits. Dates such as `20261123T023311Z` sort chronologically.
const PATTERN: &str = "00000000T000000Z";

/// Returns the file name with a date inserted before the last extension, or at the end if there is no extension.
pub(crate) fn dated(path: &Path, since_1970: Duration) -> PathBuf {
    let moment = timestamp(Duration::from_secs(since_1970.as_secs()));
    let (date, _) = moment.split_once('.').unwrap_or((&moment, ""));
    let date: String = date.chars().filter(|c| c.is_ascii_alphanumeric()).chain(['Z']).collect();
    let (before, after) = around(path);
    path.with_file_name(OsString::from_vec([&before[..], date.as_bytes(), &after].concat()))
}

/// Files that were found or removed by [`prune`], oldest first.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    pub(crate) removed: Vec<PathBuf>,
    /// Remaining files with a later date than the saved file. Such files exist if the clock was set back.
    pub(crate) later: Vec<PathBuf>,
}

/// Removes dated files of this name, oldest first, until `keep` files remain. Never removes the file `saved`, because
/// after a change of the clock its date may be the oldest.
pub(crate) fn prune(path: &Path, keep: usize, saved: &Path) -> io::Result<Pruned> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let (before, after) = around(path);
    let mut names = Vec::new();
    for entry in fs::read_dir(parent.unwrap_or(Path::new(".")))? {
        let name = entry?.file_name();
        let rest = name.as_bytes().strip_prefix(&before[..]);
        let date = rest.and_then(|rest| rest.strip_suffix(&after[..]));
        if date.is_some_and(is_date) && Some(&*name) != saved.file_name() {
            names.push(name);
        }
    }
    names.sort_unstable();
    let mut removed: Vec<_> = names.iter().map(|name| path.with_file_name(name)).collect();
    let remaining = removed.split_off(names.len().saturating_sub(keep.saturating_sub(1)));
    removed.iter().try_for_each(fs::remove_file)?;
    // The files differ only in their dates, so they sort by date.
    let later = remaining.into_iter().filter(|other| other.file_name() > saved.file_name());
    Ok(Pruned { removed, later: later.collect() })
}

/// Returns the parts of the file name before and after the date.
fn around(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let stem = path.file_stem().unwrap_or_default().as_bytes();
    let extension = path.extension().map(|extension| [b".", extension.as_bytes()].concat());
    ([stem, b"-"].concat(), extension.unwrap_or_default())
}

fn is_date(text: &[u8]) -> bool {
    let fits = |(given, wanted): (&u8, u8)| match wanted {
        b'0' => given.is_ascii_digit(),
        wanted => *given == wanted,
    };
    text.len() == PATTERN.len() && text.iter().zip(PATTERN.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn the_date_is_inserted_before_the_extension() {
        let moment = Duration::new(951_782_399, 5);
        for (path, expected) in [
            ("/a/backup.db", "/a/backup-20000228T235959Z.db"),
            ("backup", "backup-20000228T235959Z"),
            ("a.b/c.d.e", "a.b/c.d-20000228T235959Z.e"),
        ] {
            assert_eq!(dated(Path::new(path), moment), Path::new(expected));
        }
        let [path, expected] =
            [&b"b\xe9.db"[..], b"b\xe9-20000228T235959Z.db"].map(OsStr::from_bytes);
        assert_eq!(dated(Path::new(path), moment), Path::new(expected));
    }

    #[test]
    fn the_oldest_snapshots_are_removed_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.db");
        let strangers = ["b.db", "b-1.db", "b-20000228T235959Z.db.part", "bb-20000228T235959Z.db"];
        strangers.iter().for_each(|name| fs::write(dir.path().join(name), "").unwrap());
        let days = |day: u64| dated(&path, Duration::from_secs(day * 86_400));
        (0..5).for_each(|day| fs::write(days(day), "").unwrap());
        assert_eq!(prune(&path, 2, &days(4)).unwrap().removed, [days(0), days(1), days(2)]);
        assert_eq!(prune(&path, 2, &days(4)).unwrap(), Pruned::default());
        assert!(days(3).exists() && days(4).exists());
        assert!(strangers.iter().all(|name| dir.path().join(name).exists()));
    }

    #[test]
    fn the_saved_snapshot_remains_if_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.db");
        let days = |day: u64| dated(&path, Duration::from_secs(day * 86_400));
        (0..5).for_each(|day| fs::write(days(day), "").unwrap());
        let pruned = prune(&path, 4, &days(1)).unwrap();
        assert_eq!(pruned.removed, [days(0)]);
        assert_eq!(pruned.later, [days(2), days(3), days(4)]);
        let pruned = prune(&path, 1, &days(1)).unwrap();
        assert_eq!(pruned.removed, [days(2), days(3), days(4)]);
        assert!(pruned.later.is_empty() && days(1).exists());
    }
}
