//! Which commit a checkout is of, read from git's own files.
//!
//! Nothing is run. Where there is no checkout (a source archive), or nothing that is understood here, no commit
//! is known, which is no error.

use std::fs;
use std::path::{Path, PathBuf};

/// How many names may lead to one another before one leads to a commit.
const NAMES_MAX: usize = 5;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) hash: Option<String>,
    /// What says so: a change of any of these may be another commit. All of them exist.
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

/// Where git keeps its files.
struct Git {
    /// What is this checkout's own, such as `HEAD`.
    own: PathBuf,
    /// What all checkouts of the repository share.
    shared: PathBuf,
}

impl Git {
    fn of(root: &Path) -> Option<Self> {
        let place = root.join(".git");
        let own = match fs::read_to_string(&place) {
            // A worktree or a submodule, whose files are elsewhere.
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

    /// What a name stands for: the content of a file of its own, or a line among the packed ones.
    fn look_up(&self, name: &str, read: &mut Vec<PathBuf>) -> Option<String> {
        for place in [&self.own, &self.shared] {
            if let Some(value) = text(place.join(name), read) {
                return Some(value);
            }
        }
        // The next commit puts a file of its own here.
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
