//! Finds the commit of a checkout, by reading git's own files.
//!
//! No program is run. Without a checkout (in a source archive), or if the repository has an unknown layout, the commit
//! is unknown, which is not an error.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of a chain of symbolic references.
const NAMES_MAX: usize = 5;

/// The commit, and the files from which it was read.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) hash: Option<String>,
    /// The files that determine the commit. If any of them changes, the commit may have changed. All of them exist.
    pub(crate) read: Vec<PathBuf>,
}

/// Finds the commit of the checkout at `root`.
pub(crate) fn find(root: &Path) -> Found {
    let mut found = Found::default();
    if let Some(git) = Git::of(root) {
        found.hash = git.commit(&mut found.read);
    }
    found
}

/// The two directories in which git keeps its files.
struct Git {
    /// The directory of the files that belong to this checkout only, such as `HEAD`.
    own: PathBuf,
    /// The directory of the files that all checkouts of the repository share.
    shared: PathBuf,
}

impl Git {
    fn of(root: &Path) -> Option<Self> {
        let place = root.join(".git");
        let own = match fs::read_to_string(&place) {
            // The checkout is a worktree or a submodule, whose files are in another directory.
            Ok(text) => root.join(text.strip_prefix("gitdir:")?.trim()),
            Err(_) => place,
        };
        let shared = match fs::read_to_string(own.join("commondir")) {
            Ok(path) => own.join(path.trim()),
            Err(_) => own.clone(),
        };
        Some(Self { own, shared })
    }

    fn commit(&self, read: &mut Vec<PathBuf>) -> Option<String> {
        let mut value = text(self.own.join("HEAD"), read)?;
        for _ in 0..NAMES_MAX {
            let Some(name) = value.trim().strip_prefix("ref:") else { break };
            value = self.look_up(name.trim(), read)?;
        }
        let hash = value.trim();
        let is_hash = hash.len() >= 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hash.then(|| hash.to_owned())
    }

    /// Returns the value of a reference, from its own file or from its line in the packed references.
    fn look_up(&self, name: &str, read: &mut Vec<PathBuf>) -> Option<String> {
        for place in [&self.own, &self.shared] {
            if let Some(value) = text(place.join(name), read) {
                return Some(value);
            }
        }
        // The directory is listed as well, because the next commit creates a file for the reference in it.
        let folder = self.shared.join(name);
        read.extend(folder.parent().filter(|folder| folder.is_dir()).map(Path::to_owned));
        let packed = text(self.shared.join("packed-refs"), read)?;
        let line = packed.lines().find(|line| line.split(' ').nth(1) == Some(name))?;
        line.split(' ').next().map(str::to_owned)
    }
}

fn text(path: PathBuf, read: &mut Vec<PathBuf>) -> Option<String> {
    let text = fs::read_to_string(&path).ok()?;
    read.push(path);
    Some(text)
}
