//! A value that is built from files and rebuilt when a file changes.
//!
//! The files are checked at each use, which takes one system call per file, and are read again if they seem to have
//! changed. A file that was written very recently is also read again at the next use, because a second write could
//! leave the same timestamp and size.
//!
//! # Invariants
//!
//! * A value stays in force until the files contain another valid value. A missing, incomplete or invalid file does not
//!   change the value. Each error, and each recovery from an error, is logged once and not at each use.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use quorate_telemetry::log;

use crate::material::MaterialError;

/// Minimum age of a file whose timestamps are trusted: the coarsest supported resolution of file timestamps.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Identifies a version of each file: device, inode, size, modification time and change time.
type Stamp = Vec<(u64, u64, u64, i64, i64)>;

/// A value built from files.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    /// The purpose of the files, for the log.
    purpose: &'static str,
    paths: Vec<PathBuf>,
    current: Mutex<Current<T>>,
}

#[derive(Debug)]
struct Current<T> {
    /// The version of the files that was last read; `None` if the files must be read again.
    stamp: Option<Stamp>,
    /// The value in force.
    value: Option<Arc<T>>,
    /// The last error about the files that was logged.
    logged_error: Option<String>,
}

impl<T> Watched<T> {
    pub(crate) const fn new(purpose: &'static str, paths: Vec<PathBuf>) -> Self {
        Self {
            purpose,
            paths,
            current: Mutex::new(Current { stamp: None, value: None, logged_error: None }),
        }
    }

    /// Returns the value of the current files, or the previous value if they are invalid.
    ///
    /// # Errors
    ///
    /// Returns an error if the files are invalid and have never been valid.
    pub(crate) fn get(
        &self,
        load: impl FnOnce() -> Result<T, MaterialError>,
    ) -> Result<Arc<T>, MaterialError> {
        let stamp = self.stamp();
        {
            let current = self.current.lock();
            if stamp.is_some()
                && stamp == current.stamp
                && let Some(value) = &current.value
            {
                return Ok(Arc::clone(value));
            }
        }
        match load() {
            Ok(value) => Ok(self.replace(stamp, Arc::new(value))),
            Err(error) => self.keep_previous(stamp, error),
        }
    }

    fn replace(&self, stamp: Option<Stamp>, value: Arc<T>) -> Arc<T> {
        let logged_error = {
            let mut current = self.current.lock();
            current.stamp = stamp;
            current.value = Some(Arc::clone(&value));
            current.logged_error.take()
        };
        if logged_error.is_some() {
            log::info!(
                "TLS files are valid again and in use",
                "purpose" = self.purpose,
                "files" = self.names()
            );
        }
        value
    }

    fn keep_previous(
        &self,
        stamp: Option<Stamp>,
        error: MaterialError,
    ) -> Result<Arc<T>, MaterialError> {
        let text = error.to_string();
        let (value, is_new) = {
            let mut current = self.current.lock();
            let Some(value) = current.value.clone() else { return Err(error) };
            current.stamp = stamp;
            let is_new = current.logged_error.as_ref() != Some(&text);
            if is_new {
                current.logged_error = Some(text.clone());
            }
            (value, is_new)
        };
        if is_new {
            log::warn!(
                "TLS files are invalid; the previous contents stay in use",
                "purpose" = self.purpose,
                "files" = self.names(),
                "error" = text
            );
        }
        Ok(value)
    }

    fn names(&self) -> Vec<String> {
        self.paths.iter().map(|path| path.display().to_string()).collect()
    }

    /// Returns the version of the files, or `None` if a file is missing or was just written.
    fn stamp(&self) -> Option<Stamp> {
        let now = SystemTime::now();
        let stamp = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            let age = now.duration_since(found.modified().ok()?);
            // A timestamp in the future comes from another machine's clock and does not show the file's age, so the
            // file counts as settled.
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

    /// Reads the file and counts the reads.
    struct Reader {
        path: PathBuf,
        watched: Watched<String>,
        loads: Cell<u32>,
    }

    impl Reader {
        fn new(path: PathBuf) -> Self {
            let watched = Watched::new("a test", vec![path.clone()]);
            Self { path, watched, loads: Cell::new(0) }
        }

        fn get(&self) -> Result<String, MaterialError> {
            let found = self.watched.get(|| {
                self.loads.set(self.loads.get() + 1);
                let text = crate::material::read(&self.path)?;
                let text = String::from_utf8(text).unwrap();
                if text.contains("broken") {
                    return Err(crate::material::content(&self.path, text));
                }
                Ok(text)
            });
            found.map(|text| (*text).clone())
        }

        fn write(&self, text: &str, age_secs: u64) {
            std::fs::write(&self.path, text).unwrap();
            let written = SystemTime::now() - Duration::from_secs(age_secs);
            File::options().write(true).open(&self.path).unwrap().set_modified(written).unwrap();
        }

        fn logged_error(&self) -> Option<String> {
            self.watched.current.lock().logged_error.clone()
        }
    }

    #[test]
    fn changed_files_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = Reader::new(dir.path().join("file"));
        assert!(file.get().is_err(), "the file was never valid");
        file.write("one", 100);
        assert_eq!((file.get().unwrap().as_str(), file.get().unwrap().as_str()), ("one", "one"));
        assert_eq!(file.loads.get(), 2);
        file.write("two", 99);
        assert_eq!(file.get().unwrap(), "two");
        // A recently written file is read at each use.
        file.write("six", 0);
        assert_eq!((file.get().unwrap().as_str(), file.get().unwrap().as_str()), ("six", "six"));
        assert_eq!(file.loads.get(), 5);
    }

    #[test]
    fn an_invalid_file_is_logged_once_and_the_previous_contents_stay_in_use() {
        let dir = tempfile::tempdir().unwrap();
        let file = Reader::new(dir.path().join("file"));
        file.write("one", 100);
        assert_eq!((file.get().unwrap().as_str(), file.logged_error()), ("one", None));
        file.write("broken", 99);
        assert_eq!(file.get().unwrap(), "one");
        let logged_error = file.logged_error().unwrap();
        assert!(logged_error.ends_with("broken"), "{logged_error}");
        // The file is not read again, so the error is not logged again.
        assert_eq!((file.get().unwrap().as_str(), file.loads.get()), ("one", 2));
        std::fs::remove_file(&file.path).unwrap();
        assert_eq!(file.get().unwrap(), "one");
        assert_ne!(file.logged_error(), Some(logged_error), "the new error was not logged");
        file.write("two", 98);
        assert_eq!((file.get().unwrap().as_str(), file.logged_error()), ("two", None));
    }
}
