//! A log file that is rotated when it is full, and the clean-up of rotated files.
//!
//! File names, sizes and retention rules are the same as in lumberjack, the library that etcd uses, so that log
//! collectors for etcd find the files: `etcd.log` is renamed to `etcd-2006-01-02T15-04-05.000.log`, with `.gz` appended
//! if it is compressed.
//!
//! # Invariants
//!
//! * A line is never split across two files. A file exceeds the size limit only if it consists of a single line.
//! * No rotated file is ever overwritten. A file that is being compressed exists until its compressed copy is
//!   complete.
//! * If a file cannot be rotated, lines are still appended to it, because an oversized log is better than lost lines.
//! * A separate thread compresses and removes files, so that this work never delays a line.
//!
//! # Not here
//!
//! Parsing the settings (`config`).

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use flate2::{Compression, write::GzEncoder};
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

use super::stderr::write_stderr;

/// The conditions for rotating a log file and for removing rotated files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rotation {
    /// The maximum size of a file. A file is rotated before it would exceed this size.
    pub bytes_max: u64,
    /// The maximum age of a rotated file. Older files are removed; `None` keeps all files.
    pub age_max: Option<Duration>,
    /// The maximum number of rotated files. The oldest files are removed; `None` keeps all files.
    pub backups_max: Option<usize>,
    /// Whether the names of rotated files contain local time rather than UTC.
    pub local_time: bool,
    /// Whether rotated files are compressed.
    pub compress: bool,
}

impl Rotation {
    /// Returns whether rotated files need no maintenance.
    fn is_idle(&self) -> bool {
        self.age_max.is_none() && self.backups_max.is_none() && !self.compress
    }
}

/// The format of the time in the name of a rotated file, without milliseconds.
const NAME_TIME: &str = "%Y-%m-%dT%H-%M-%S";
const COMPRESSED: &str = ".gz";
/// The permissions of a log file. Only the owner of the file may read it.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o755;

/// The current log file.
#[derive(Debug)]
pub(crate) struct RotatedFile {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    bytes: u64,
    /// Notifies the thread that maintains rotated files; `None` if they need no maintenance.
    caretaker: Option<Sender<()>>,
    /// Whether the last rotation failed. Only the first of consecutive failures is reported.
    is_stuck: bool,
}

impl RotatedFile {
    /// Opens the log file. Creates the file and its directory if they are missing.
    pub(crate) fn open(path: &str, rotation: Rotation) -> io::Result<Self> {
        let path = PathBuf::from(path);
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir)?;
        }
        let file = OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(&path)?;
        let bytes = file.metadata()?.len();
        let caretaker = if rotation.is_idle() { None } else { Some(care(&path, &rotation)?) };
        Ok(Self { path, rotation, file, bytes, caretaker, is_stuck: false })
    }

    /// Appends lines, and rotates the file whenever it is full.
    pub(crate) fn write<'a>(&mut self, lines: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
        let mut text = Vec::new();
        for line in lines {
            let bytes = self.bytes + (text.len() + line.len()) as u64;
            if bytes > self.rotation.bytes_max && self.bytes + text.len() as u64 > 0 {
                self.append(&text)?;
                text.clear();
                self.set_aside(Timestamp::now());
            }
            text.extend_from_slice(line);
        }
        self.append(&text)
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        self.file.write_all(text)?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// Rotates the file. On failure, the current file remains in use.
    fn set_aside(&mut self, now: Timestamp) {
        match self.replace(now) {
            Ok(file) => {
                (self.file, self.bytes, self.is_stuck) = (file, 0, false);
                if let Some(caretaker) = &self.caretaker {
                    // If the channel is full, the thread has a notification pending.
                    let _outcome = caretaker.try_send(());
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut self.is_stuck, true) {
                    let path = self.path.display();
                    let text = format!(
                        "cannot rotate the log file {path}, so lines are still appended to it: {error}\n"
                    );
                    write_stderr(text.as_bytes());
                }
            }
        }
    }

    fn replace(&self, now: Timestamp) -> io::Result<File> {
        // A file that another process removed or replaced counts as rotated.
        let metadata = self.file.metadata()?;
        let is_same = fs::metadata(&self.path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (metadata.dev(), metadata.ino()));
        let backup = free_name(&self.path, now, self.rotation.local_time)?;
        if is_same {
            fs::rename(&self.path, &backup)?;
        }
        let mode = metadata.permissions().mode() & 0o777;
        let created = OpenOptions::new().append(true).create(true).mode(mode).open(&self.path);
        if created.is_err() && is_same {
            // The current file is renamed back, because readers expect the log at this path.
            fs::rename(&backup, &self.path)?;
        }
        created
    }
}

/// Returns the name for a file that is rotated at this moment. No file has this name, with or without `.gz`.
fn free_name(path: &Path, now: Timestamp, local_time: bool) -> io::Result<PathBuf> {
    const TRIES: i64 = 1_000;
    let zone = if local_time { TimeZone::system() } else { TimeZone::UTC };
    let Parts { stem, extension } = Parts::of(path);
    for millis in 0..TRIES {
        let time = Timestamp::from_millisecond(now.as_millisecond() + millis)
            .map_err(io::Error::other)?
            .to_zoned(zone.clone());
        let (seconds, millis) = (time.strftime(NAME_TIME), time.millisecond());
        let name = format!("{stem}-{seconds}.{millis:03}{extension}");
        let backup = path.with_file_name(&name);
        let compressed = path.with_file_name(name + COMPRESSED);
        if !backup.try_exists()? && !compressed.try_exists()? {
            return Ok(backup);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "no unused name was found for the rotated file",
    ))
}

/// The parts of a file name before and after the time of the rotation.
#[derive(Debug)]
struct Parts {
    stem: String,
    extension: String,
}

impl Parts {
    fn of(path: &Path) -> Self {
        let name = path.file_name().map(OsStr::to_string_lossy).unwrap_or_default();
        let dot = name.rfind('.').unwrap_or(name.len());
        Self { stem: name[..dot].to_owned(), extension: name[dot..].to_owned() }
    }

    /// Returns the rotation time in this file name, and whether the file is compressed; `None` if this is not the name
    /// of a rotated file.
    fn read(&self, name: &str) -> Option<(civil::DateTime, bool)> {
        let plain = name.strip_suffix(COMPRESSED);
        let time = plain
            .unwrap_or(name)
            .strip_prefix(&self.stem)?
            .strip_prefix('-')?
            .strip_suffix(&self.extension)?;
        let (seconds, millis) = time.rsplit_once('.')?;
        let millis: i16 = millis.parse().ok().filter(|_| millis.len() == 3)?;
        let time = civil::DateTime::strptime(NAME_TIME, seconds).ok()?;
        Some((time.with().millisecond(millis).build().ok()?, plain.is_some()))
    }
}

/// Starts the thread that maintains rotated files. The thread checks the files when it starts and after each
/// notification.
fn care(path: &Path, rotation: &Rotation) -> io::Result<Sender<()>> {
    let (caretaker, calls) = bounded(1);
    let (path, rotation) = (path.to_owned(), rotation.clone());
    std::thread::Builder::new().name("log-files".to_owned()).spawn(move || {
        loop {
            if let Err(error) = tend(&path, &rotation, Timestamp::now()) {
                let path = path.display();
                let text = format!("cannot remove or compress rotated files of {path}: {error}\n");
                write_stderr(text.as_bytes());
            }
            if calls.recv().is_err() {
                return;
            }
        }
    })?;
    // The thread's first check needs no notification.
    Ok(caretaker)
}

/// Removes rotated files that exceed the maximum age or number, and, if compression is enabled, compresses the others.
pub(super) fn tend(path: &Path, rotation: &Rotation, now: Timestamp) -> io::Result<()> {
    let parts = Parts::of(path);
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let mut backups = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some((time, is_compressed)) = parts.read(&name)
            && entry.file_type()?.is_file()
        {
            backups.push((time, is_compressed, entry.path()));
        }
    }
    // The newest files come first.
    backups.sort_by(|one, other| other.cmp(one));
    let zone = if rotation.local_time { TimeZone::system() } else { TimeZone::UTC };
    let mut kept = 0;
    for (time, is_compressed, backup) in backups {
        let set_aside = zone.to_timestamp(time).map_err(io::Error::other)?;
        let age = Duration::try_from(now.duration_since(set_aside)).unwrap_or_default();
        let is_old = rotation.age_max.is_some_and(|max| age > max);
        if is_old || rotation.backups_max.is_some_and(|max| kept >= max) {
            fs::remove_file(&backup)?;
            continue;
        }
        kept += 1;
        if rotation.compress && !is_compressed {
            compress(&backup)?;
        }
    }
    Ok(())
}

/// Replaces a file with a compressed copy, once the copy is complete and synced.
fn compress(path: &Path) -> io::Result<()> {
    let with_suffix = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let partial = with_suffix(".gz.tmp");
    let mut source = File::open(path)?;
    let mode = source.metadata()?.permissions().mode() & 0o777;
    let target =
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&partial)?;
    let mut encoder = GzEncoder::new(target, Compression::default());
    io::copy(&mut source, &mut encoder)?;
    encoder.finish()?.sync_all()?;
    fs::rename(&partial, with_suffix(COMPRESSED))?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    fn rotation(bytes_max: u64) -> Rotation {
        let (age_max, backups_max) = (None, None);
        Rotation { bytes_max, age_max, backups_max, local_time: false, compress: false }
    }

    /// Returns the contents of the rotated files, oldest first, then of the current file.
    fn contents(dir: &Path) -> Vec<String> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        // The names of rotated files sort before the name of the current file, because a hyphen sorts before a dot.
        paths.sort();
        paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    }

    fn write(file: &mut RotatedFile, lines: &[&str]) {
        file.write(lines.iter().map(|line| line.as_bytes())).unwrap();
    }

    #[test]
    fn rotation_loses_no_line_and_only_a_single_long_line_exceeds_the_size_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new").join("etcd.log");
        let mut file = RotatedFile::open(path.to_str().unwrap(), rotation(10)).unwrap();
        write(&mut file, &["1234\n", "5678\n", "9\n"]);
        write(&mut file, &["a line that alone is longer\n", "b\n"]);
        let dir = path.parent().unwrap();
        let written = ["1234\n5678\n", "9\n", "a line that alone is longer\n", "b\n"];
        assert_eq!(contents(dir), written);
        // The existing content must be kept, and must count towards the limit.
        drop(file);
        let mut file = RotatedFile::open(path.to_str().unwrap(), rotation(3)).unwrap();
        write(&mut file, &["c\n"]);
        assert_eq!(contents(dir)[3..], ["b\n", "c\n"]);
    }

    #[test]
    fn rotated_files_are_named_as_in_etcd_and_no_name_is_used_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.b.log");
        let at = Timestamp::from_millisecond(1_136_214_245_999).unwrap();
        let name = || {
            let name = free_name(&path, at, false).unwrap();
            fs::write(&name, "").unwrap();
            name.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(name(), "a.b-2006-01-02T15-04-05.999.log");
        assert_eq!(name(), "a.b-2006-01-02T15-04-06.000.log");
        fs::write(dir.path().join("a.b-2006-01-02T15-04-06.001.log.gz"), "").unwrap();
        assert_eq!(name(), "a.b-2006-01-02T15-04-06.002.log");
        let parts = Parts::of(Path::new("log"));
        assert!(parts.read("log-2006-01-02T15-04-05.999").is_some_and(|(_, gz)| !gz));
        assert!(parts.read("log-2006-01-02T15-04-05.999.gz").is_some_and(|(_, gz)| gz));
        for other in ["log", "log-1", "log-2006-01-02T15-04-05.9", "log-2006-13-02T15-04-05.999"] {
            assert!(parts.read(other).is_none(), "{other}");
        }
    }

    #[test]
    fn old_rotated_files_are_removed_and_newer_ones_are_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let now: Timestamp = "2006-01-10T00:00:00Z".parse().unwrap();
        for name in ["log", "log-2006-01-01T00-00-00.000", "other-2006-01-01T00-00-00.000"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        for day in 5..9 {
            let name = format!("log-2006-01-0{day}T00-00-00.000");
            fs::write(dir.path().join(&name), &name).unwrap();
        }
        let names = || {
            let entries = fs::read_dir(dir.path()).unwrap();
            let mut names: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.starts_with("log-"))
                .collect();
            names.sort();
            names
        };
        tend(&path, &rotation(1), now).unwrap();
        assert_eq!(names().len(), 5);
        let days = |days: u64| Some(Duration::from_secs(days * 86_400));
        tend(&path, &Rotation { age_max: days(8), ..rotation(1) }, now).unwrap();
        assert_eq!(names().len(), 4);
        let kept = Rotation { backups_max: Some(2), compress: true, ..rotation(1) };
        tend(&path, &kept, now).unwrap();
        tend(&path, &kept, now).unwrap();
        let expected = ["log-2006-01-07T00-00-00.000.gz", "log-2006-01-08T00-00-00.000.gz"];
        assert_eq!(names(), expected);
        let mut text = String::new();
        let file = File::open(dir.path().join(expected[1])).unwrap();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "log-2006-01-08T00-00-00.000");
        assert!(path.exists() && dir.path().join("other-2006-01-01T00-00-00.000").exists());
    }

    #[test]
    fn lines_are_appended_to_a_log_file_that_cannot_be_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        let path = inner.join("etcd.log");
        let mut file = RotatedFile::open(path.to_str().unwrap(), rotation(4)).unwrap();
        write(&mut file, &["abc\n"]);
        // File permissions do not restrict tests that run as root, so the directory is moved instead.
        let moved = dir.path().join("moved");
        fs::rename(&inner, &moved).unwrap();
        write(&mut file, &["def\n"]);
        assert_eq!(contents(&moved), ["abc\ndef\n"]);
        fs::rename(&moved, &inner).unwrap();
        write(&mut file, &["ghi\n"]);
        assert_eq!(contents(&inner), ["abc\ndef\n", "ghi\n"]);
    }
}
