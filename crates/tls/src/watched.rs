//! Something made of files, made anew when one of them has changed.
//!
//! The files are looked at on every use, which takes a system call each, and read when they look different. A file that
//! was written a moment ago is read again on the next use: a second write could look the same. Nothing is kept of
//! files that could not be read: the next use tries again.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::material::MaterialError;

/// Clocks of files are no finer than this anywhere that matters.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// What tells one state of a file from another: where it lies, its size, and when it changed.
type Stamp = Vec<(u64, u64, u64, i64, i64)>;

/// See the module.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    paths: Vec<PathBuf>,
    /// Without a stamp if it must be read again.
    kept: Mutex<Option<(Option<Stamp>, Arc<T>)>>,
}

impl<T> Watched<T> {
    pub(crate) const fn new(paths: Vec<PathBuf>) -> Self {
        Self { paths, kept: Mutex::new(None) }
    }

    /// What the files say now.
    pub(crate) fn get(
        &self,
        load: impl FnOnce() -> Result<T, MaterialError>,
    ) -> Result<Arc<T>, MaterialError> {
        let stamp = self.stamp();
        let kept = self.kept.lock().clone();
        if let Some((of, value)) = kept
            && stamp.is_some()
            && stamp == of
        {
            return Ok(value);
        }
        let value = Arc::new(load()?);
        *self.kept.lock() = Some((stamp, Arc::clone(&value)));
        Ok(value)
    }

    /// What was made last, though the files may say something else by now.
    pub(crate) fn last(&self) -> Option<Arc<T>> {
        self.kept.lock().as_ref().map(|(_, value)| Arc::clone(value))
    }

    /// `None` when a file is not there or has just been written.
    fn stamp(&self) -> Option<Stamp> {
        let now = SystemTime::now();
        let stamp = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            let age = now.duration_since(found.modified().ok()?);
            // A time to come is the affair of a clock elsewhere.
            let is_settled = age.is_err() || age.is_ok_and(|age| age >= SETTLED_AFTER);
            is_settled.then(|| identity(&found))
        };
        self.paths.iter().map(stamp).collect()
    }
}

fn identity(found: &Metadata) -> (u64, u64, u64, i64, i64) {
    let nanos = |secs: i64, nanos: i64| secs.wrapping_mul(1_000_000_000).wrapping_add(nanos);
    (
        found.dev(),
        found.ino(),
        found.size(),
        nanos(found.mtime(), found.mtime_nsec()),
        nanos(found.ctime(), found.ctime_nsec()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::File;

    #[test]
    fn files_are_read_when_they_have_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let (watched, loads) = (Watched::new(vec![path.clone()]), Cell::new(0));
        let get = || {
            watched.get(|| {
                loads.set(loads.get() + 1);
                std::fs::read_to_string(&path)
                    .map_err(|source| MaterialError::Read { path: path.clone(), source })
            })
        };
        let write = |text: &str, age_secs| {
            std::fs::write(&path, text).unwrap();
            let written = SystemTime::now() - Duration::from_secs(age_secs);
            File::options().write(true).open(&path).unwrap().set_modified(written).unwrap();
        };
        assert!(get().unwrap_err().is_missing());
        write("one", 100);
        assert_eq!((get().unwrap().as_str(), get().unwrap().as_str()), ("one", "one"));
        assert_eq!(loads.get(), 2);
        write("two", 99);
        assert_eq!(get().unwrap().as_str(), "two");
        // Just written: read each time.
        write("six", 0);
        assert_eq!((get().unwrap().as_str(), get().unwrap().as_str()), ("six", "six"));
        assert_eq!(loads.get(), 5);
        std::fs::remove_file(&path).unwrap();
        assert!(get().unwrap_err().is_missing());
        assert_eq!(watched.last().unwrap().as_str(), "six");
    }
}
