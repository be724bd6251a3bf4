//! Finds the commit of a checkout, by reading git's own files.
//!
//! No program is run. Without a checkout (in a source archive), or with a repository layout unknown to this
//! code, the commit is unknown, which is no error.

use std::fs;
use std::path::{Path, PathBuf};

/// The maximum length of a chain of symbolic references.
const NAMES_MAX: usize = 5;

/// The result.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) hash: Option<String>,
    /// The files that determine the commit: a change of any of them may mean another commit. All of them exist.
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

/// The folders of git.
struct Git {
    /// The files of this checkout only, such as `HEAD`.
    own: PathBuf,
    /// The files that all checkouts of the repository share.
    shared: PathBuf,
}

impl Git {
    fn of(root: &Path) -> Option<Self> {
        let place = root.join(".git");
        let own = match fs::read_to_string(&place) {
            // The checkout is a worktree or a submodule, whose files are elsewhere.
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

    /// The value of a reference: the content of its own file, or its line in the packed references.
    fn look_up(&self, name: &str, read: &mut Vec<PathBuf>) -> Option<String> {
        for place in [&self.own, &self.shared] {
            if let Some(value) = text(place.join(name), read) {
                return Some(value);
            }
        }
        // The next commit creates the reference's own file here.
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
