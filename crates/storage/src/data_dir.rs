//! The data directory: the paths of a member's files, and a check that the directory is usable.
//!
//! ```text
//! <data-dir>/member/wal/      the log (elsewhere if --wal-dir is given)
//! <data-dir>/member/snap/     .snap files, received backend files, db
//! ```
//!
//! This module does not log, but returns warnings for the operator.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::disk::{Disk, OpenMode, create_dir_durably};
use crate::wal;

/// Permission bits of new directories. Existing directories should have the same bits.
const DIR_MODE: u32 = 0o700;

/// The reason why a data directory is unusable. The error texts are etcd's, if etcd has the same error.
#[derive(Debug, Error)]
pub enum DataDirError {
    /// The data directory cannot be created or written to.
    #[error("cannot access data directory: {}: {source}", path.display())]
    Data {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The member's directory cannot be created or written to.
    #[error("cannot access member directory: {}: {source}", path.display())]
    Member {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory for snapshots cannot be created or written to.
    #[error("failed to create snapshot directory: {}: {source}", path.display())]
    Snap {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The log's directory cannot be read, so it may contain a log.
    #[error("cannot read WAL directory: {}: {source}", path.display())]
    WalUnreadable {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The log's directory cannot be written to.
    #[error("cannot write to WAL directory: {}: {source}", path.display())]
    Wal {
        /// The path of the directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The directory contains both a member and a proxy.
    #[error("invalid datadir; both member and proxy directories exist")]
    MemberAndProxy,
    /// The directory belongs to a proxy, a mode that etcd removed in 3.6.
    #[error("invalid datadir; a proxy directory exists: {}", path.display())]
    Proxy {
        /// The path of the directory.
        path: PathBuf,
    },
}

/// The paths of one member's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataDir {
    root: PathBuf,
    wal: PathBuf,
}

/// Warnings about a usable directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryWarnings {
    /// Names in the data directory that etcd does not use.
    pub unexpected: Vec<OsString>,
    /// Directories whose permission bits differ from the expected ones, each with its permission bits.
    pub open_modes: Vec<(PathBuf, u32)>,
}

/// The directory in which etcd and Quorate store a member's self-signed certificates.
const OWN_CERTIFICATES: &str = "fixtures";

impl DataDir {
    /// Builds the paths below `root`. If `wal_dir` is given, it is the log's directory.
    #[must_use]
    pub fn new(root: &Path, wal_dir: Option<&Path>) -> Self {
        let wal = wal_dir.map_or_else(|| root.join("member").join("wal"), Path::to_path_buf);
        Self { root: root.to_path_buf(), wal }
    }

    /// Returns the data directory itself.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the member's directory.
    #[must_use]
    pub fn member(&self) -> PathBuf {
        self.root.join("member")
    }

    /// Returns the log's directory.
    #[must_use]
    pub fn wal(&self) -> &Path {
        &self.wal
    }

    /// Returns the directory that contains the snapshots and the backend file.
    #[must_use]
    pub fn snap(&self) -> PathBuf {
        self.root.join("member").join("snap")
    }

    /// Returns the path of the backend file.
    #[must_use]
    pub fn backend(&self) -> PathBuf {
        self.snap().join("db")
    }

    /// Returns whether the directory contains a member, that is, whether it has a log.
    pub fn is_initialised(&self, disk: &dyn Disk) -> Result<bool, DataDirError> {
        wal::exists(disk, &self.wal)
            .map_err(|source| DataDirError::WalUnreadable { path: self.wal.clone(), source })
    }

    /// Creates the missing directories durably, and checks that each directory is writable.
    ///
    /// The log's directory is created together with the log, not here, and is checked only if it
    /// contains a log. Returns warnings about the directories.
    pub fn prepare(&self, disk: &dyn Disk) -> Result<DirectoryWarnings, DataDirError> {
        let mut warnings =
            DirectoryWarnings { unexpected: self.inspect(disk)?, ..DirectoryWarnings::default() };
        let (member, snap) = (self.member(), self.snap());
        let mut touch = |dir: &Path| check_dir(disk, dir, &mut warnings.open_modes);
        touch(&self.root)
            .map_err(|source| DataDirError::Data { path: self.root.clone(), source })?;
        touch(&member).map_err(|source| DataDirError::Member { path: member.clone(), source })?;
        touch(&snap).map_err(|source| DataDirError::Snap { path: snap.clone(), source })?;
        if self.is_initialised(disk)? {
            touch(&self.wal)
                .map_err(|source| DataDirError::Wal { path: self.wal.clone(), source })?;
        } else {
            // An earlier process may have been killed before it synced the name of the last directory.
            create_dir_durably(disk, &snap, DIR_MODE)
                .map_err(|source| DataDirError::Snap { path: snap, source })?;
        }
        Ok(warnings)
    }

    /// Returns the names in the data directory that etcd does not use.
    fn inspect(&self, disk: &dyn Disk) -> Result<Vec<OsString>, DataDirError> {
        let mut names = match disk.read_dir(&self.root) {
            Ok(names) => names,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(DataDirError::Data { path: self.root.clone(), source }),
        };
        let has = |wanted: &str| names.iter().any(|name| name == wanted);
        match (has("member"), has("proxy")) {
            (true, true) => return Err(DataDirError::MemberAndProxy),
            (false, true) => return Err(DataDirError::Proxy { path: self.root.join("proxy") }),
            _ => {}
        }
        names.retain(|name| name != "member" && name != OWN_CERTIFICATES);
        Ok(names)
    }
}

/// Ensures that a directory exists and is writable. Adds it to `odd` if its permission bits are not [`DIR_MODE`].
fn check_dir(disk: &dyn Disk, dir: &Path, odd: &mut Vec<(PathBuf, u32)>) -> io::Result<()> {
    match disk.metadata(dir)? {
        Some(facts) if facts.mode & 0o777 != DIR_MODE => odd.push((dir.to_path_buf(), facts.mode)),
        Some(_) => {}
        None => create_dir_durably(disk, dir, DIR_MODE)?,
    }
    let probe = dir.join(".touch");
    disk.open(&probe, OpenMode::Truncate(0o600))?;
    disk.remove_file(&probe)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::disk::{Fault, Faults, FaultyDisk, Operation, RealDisk};

    #[test]
    fn a_missing_data_directory_is_created_durably() {
        let root = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let place = DataDir::new(&root.path().join("a/default.etcd"), None);
        assert_eq!(place.prepare(&disk).unwrap(), DirectoryWarnings::default());
        assert!(!place.is_initialised(&disk).unwrap());
        let image = tempfile::tempdir().unwrap();
        disk.crash(0, image.path()).unwrap();
        assert!(image.path().join("a/default.etcd/member/snap").is_dir());
        let mode = |path: &Path| disk.metadata(path).unwrap().unwrap().mode;
        assert_eq!((mode(place.root()), mode(&place.snap())), (0o700, 0o700));
        assert_eq!(place.backend(), place.member().join("snap/db"));
        assert_eq!(disk.read_dir(&place.snap()).unwrap(), [""; 0]);
    }

    #[test]
    fn directories_left_by_a_killed_process_are_durable_once_they_are_prepared_again() {
        for kill_after in 0.. {
            let root = tempfile::tempdir().unwrap();
            let disk = FaultyDisk::new(root.path()).unwrap();
            let place = DataDir::new(&root.path().join("a/default.etcd"), None);
            disk.set_faults(Faults { kill_after: Some(kill_after), ..Faults::default() });
            let is_killed = place.prepare(&disk).is_err();
            assert_eq!(disk.take_faults_hit().killed, is_killed);
            disk.end_process();
            place.prepare(&disk).unwrap();
            let image = tempfile::tempdir().unwrap();
            disk.crash(0, image.path()).unwrap();
            let snap = image.path().join("a/default.etcd/member/snap");
            assert!(snap.is_dir(), "killed after {kill_after} operations");
            if !is_killed {
                break;
            }
        }
    }

    #[test]
    fn a_data_directory_is_initialised_only_if_it_has_a_log() {
        let root = tempfile::tempdir().unwrap();
        let elsewhere = root.path().join("log");
        let place = DataDir::new(&root.path().join("data"), Some(&elsewhere));
        place.prepare(&RealDisk).unwrap();
        fs::write(place.backend(), b"x").unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("0.tmp"), b"x").unwrap();
        assert!(!place.is_initialised(&RealDisk).unwrap());
        fs::write(elsewhere.join("x.wal"), b"x").unwrap();
        assert!(place.is_initialised(&RealDisk).unwrap());
    }

    #[test]
    fn an_unreadable_wal_directory_is_reported_as_such_and_not_as_a_missing_log() {
        let root = tempfile::tempdir().unwrap();
        let place = DataDir::new(root.path(), None);
        fs::create_dir_all(place.wal()).unwrap();
        fs::write(place.wal().join("0.wal"), b"").unwrap();
        let disk = FaultyDisk::new(root.path()).unwrap();
        let inject = || disk.inject(Fault::nth(Operation::List, 0, 13).on("member/wal"));
        inject();
        let error = place.prepare(&disk).unwrap_err().to_string();
        assert!(error.starts_with("cannot read WAL directory: "), "{error}");
        assert!(error.ends_with("member/wal: Permission denied (os error 13)"), "{error}");
        inject();
        assert!(place.is_initialised(&disk).is_err());
        assert!(place.is_initialised(&disk).unwrap());
    }

    #[test]
    fn unexpected_files_are_reported_and_proxy_directories_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let place = DataDir::new(root.path(), None);
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(root.path().join("lost+found"), b"").unwrap();
        fs::create_dir(root.path().join("fixtures")).unwrap();
        let odd = place.prepare(&RealDisk).unwrap();
        assert_eq!(odd.unexpected, ["lost+found"]);
        assert_eq!(odd.open_modes, [(root.path().to_path_buf(), 0o755)]);
        fs::create_dir(root.path().join("proxy")).unwrap();
        assert!(matches!(place.prepare(&RealDisk), Err(DataDirError::MemberAndProxy)));
        fs::remove_dir_all(root.path().join("member")).unwrap();
        assert!(matches!(place.prepare(&RealDisk), Err(DataDirError::Proxy { .. })));
    }

    #[test]
    fn the_error_for_an_unwritable_directory_states_the_purpose_of_the_directory() {
        for (text, expected) in [
            ("data/.touch", "cannot access data directory: "),
            ("member/.touch", "cannot access member directory: "),
            ("snap/.touch", "failed to create snapshot directory: "),
            ("wal/.touch", "cannot write to WAL directory: "),
        ] {
            let root = tempfile::tempdir().unwrap();
            let place = DataDir::new(&root.path().join("data"), None);
            fs::create_dir_all(place.wal()).unwrap();
            fs::write(place.wal().join("0.wal"), b"").unwrap();
            let disk = FaultyDisk::new(root.path()).unwrap();
            disk.inject(Fault::nth(Operation::Open, 0, 30).on(text));
            let error = place.prepare(&disk).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
