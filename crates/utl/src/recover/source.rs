//! A directory that was passed to `recover`. It is locked and verified, but never changed.
//!
//! # Invariants
//!
//! * All files are opened for reading only. The backend file stays locked while the command runs, so that no member can
//!   start on the directory. A directory in use by a running member is refused.
//! * A directory is sound if `verify` finds no damage in it and its member need not fetch its state from another
//!   member. Whether the cluster has removed the member does not matter, nor whether the directory was restored from a
//!   snapshot.

use std::path::{Path, PathBuf};

use quorate_state::backend::Backend;
use quorate_state::members::FOUNDING_TERM;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::Disk;
use quorate_storage::{restored, snap};

use super::choice::{Candidate, Origin};
use super::outline::Outline;
use crate::failure::Failure;
use crate::files;
use crate::session::Session;
use crate::verify::{Assessment, Findings, assess, examine_backend};

/// Separates a data directory from its WAL directory in an argument, if the WAL directory is located elsewhere.
const WAL_MARK: char = '=';

/// The state of a directory, as stored in one of its files.
#[derive(Debug)]
pub(super) struct Image {
    pub(super) path: PathBuf,
    /// The file, opened for reading.
    pub(super) backend: Backend,
    /// Applied index of the file.
    pub(super) applied: u64,
    pub(super) revision: Option<i64>,
}

/// A directory and its content.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) dirs: DataDir,
    pub(super) outline: Outline,
    /// Whether the log was read to its end.
    pub(super) is_log_whole: bool,
    /// The file that a starting member would use: the backend file, or the image of a leader's snapshot that has not
    /// replaced the backend file yet.
    pub(super) image: Option<Image>,
    /// Reasons not to recover from the directory.
    pub(super) damage: Vec<String>,
    /// Whether the cluster has removed the member.
    pub(super) is_removed: bool,
    pub(super) origin: Origin,
    /// Holds the backend file's lock.
    _backend: Option<Backend>,
}

impl Source {
    /// Opens and verifies a directory, written `DATA-DIR` or `DATA-DIR=WAL-DIR`.
    pub(super) fn open(session: &Session, argument: &str) -> Result<Self, Failure> {
        let disk = files::disk();
        let dirs = places(&*disk, argument)?;
        let opened = match files::open(session, &dirs.backend()) {
            Err(failure @ Failure::InUse { .. }) => return Err(failure),
            opened => opened,
        };
        let Assessment { findings, backend: facts, removed, bad_state } =
            assess(&*disk, &dirs, opened.as_ref())?;
        let bad = bad_state.map(|reason| format!("mark: the state is corrupt: {reason}"));
        let (outline, is_log_whole) = Outline::read(&*disk, dirs.wal());
        let mut source = Self {
            dirs,
            outline,
            is_log_whole,
            image: None,
            damage: findings.damage().chain(bad).collect(),
            is_removed: removed.is_some(),
            origin: Origin::default(),
            _backend: opened.ok(),
        };
        if source.outline.member.is_none() && source.damage.is_empty() {
            source.damage.push("log: it contains no member id".to_owned());
        }
        source.image = match (&source._backend, facts) {
            (Some(_), Some(facts)) if facts.applied < source.outline.mark().index => {
                source.received_image(session, &*disk)
            }
            (Some(backend), Some(facts)) => Some(Image {
                path: source.dirs.backend(),
                backend: backend.clone(),
                applied: facts.applied,
                revision: facts.revision,
            }),
            (None, _) | (_, None) => None,
        };
        // A received image contains the mark of the leader's state, which has replaced the member's own state.
        let mark = source.image.as_ref().map(|image| image.backend.read().restore_mark());
        match mark.transpose() {
            Ok(mark) => source.origin.restore_mark = mark.flatten(),
            Err(fault) => source.damage.push(format!("backend: {fault}")),
        }
        let is_marked = restored::is_marked(&*disk, &source.dirs);
        let is_marked = is_marked.map_err(Failure::io("read it", source.path()))?;
        source.origin.is_unused = is_marked && source.outline.last().0 <= FOUNDING_TERM;
        Ok(source)
    }

    /// Returns the image of a leader's snapshot that the log refers to. A starting member would rename it over the
    /// backend file.
    fn received_image(&mut self, session: &Session, disk: &dyn Disk) -> Option<Image> {
        let wanted = self.outline.mark().index;
        let found = snap::find_database(disk, &self.dirs.snap(), wanted);
        let opened = found.map_err(Failure::from).and_then(|path| {
            let backend = files::open(session, &path)?;
            Ok((path, backend))
        });
        let (path, backend) = match opened {
            Ok(opened) => opened,
            Err(failure) => {
                self.damage.push(format!("received image: {failure}"));
                return None;
            }
        };
        let mut findings = Findings::default();
        let facts = examine_backend(&backend, &mut findings);
        let shown = path.display();
        self.damage.extend(findings.damage().map(|says| format!("{shown}: {says}")));
        let facts = facts?;
        if facts.applied < wanted {
            let applied = facts.applied;
            self.damage
                .push(format!("{shown}: its last applied entry is {applied}, expected {wanted}"));
            return None;
        }
        Some(Image { path, backend, applied: facts.applied, revision: facts.revision })
    }

    /// Returns the path of the directory, for messages.
    pub(super) fn path(&self) -> &Path {
        self.dirs.root()
    }

    pub(super) fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.image.is_some()
    }

    /// Returns the highest index that the directory proves to be committed.
    pub(super) fn committed(&self) -> u64 {
        self.outline.commit.max(self.image.as_ref().map_or(0, |image| image.applied))
    }

    pub(super) fn candidate(&self) -> Candidate {
        Candidate {
            path: self.path().to_path_buf(),
            member: self.outline.member,
            cluster: self.outline.cluster,
            is_sound: self.is_sound(),
            origin: self.origin.clone(),
            last: self.outline.last(),
            applied: self.image.as_ref().map_or(0, |image| image.applied),
        }
    }
}

/// Returns the paths that an argument names.
fn places(disk: &dyn Disk, argument: &str) -> Result<DataDir, Failure> {
    let is_dir = |path: &Path| -> Result<bool, Failure> {
        let facts = disk.metadata(path).map_err(Failure::io("check whether it exists", path))?;
        Ok(facts.is_some_and(|facts| facts.is_dir))
    };
    let (root, wal) = match argument.split_once(WAL_MARK) {
        Some((root, wal)) if !is_dir(Path::new(argument))? => (root, Some(Path::new(wal))),
        Some(_) | None => (argument, None),
    };
    files::data_dir(Path::new(root), wal)
}

#[cfg(test)]
mod tests {
    use quorate_storage::disk::RealDisk;

    use super::*;

    #[test]
    fn an_argument_contains_a_data_directory_and_optionally_its_wal_directory() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for name in ["a", "log", "odd=name"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        let found = |argument: &str| {
            let dirs = places(&RealDisk, argument)?;
            Ok::<_, Failure>((dirs.root().to_path_buf(), dirs.wal().to_path_buf()))
        };
        let inside = folder.path().join("a/member/wal");
        assert_eq!(found(&path("a")).unwrap(), (path("a").into(), inside));
        let elsewhere = format!("{}={}", path("a"), path("log"));
        assert_eq!(found(&elsewhere).unwrap(), (path("a").into(), path("log").into()));
        assert_eq!(found(&path("odd=name")).unwrap().0, folder.path().join("odd=name"));
        for absent in [path("b"), format!("{}={}", path("a"), path("b"))] {
            let refused = found(&absent).unwrap_err().to_string();
            assert_eq!(refused, format!("stat {}: no such directory", path("b")));
        }
    }
}
