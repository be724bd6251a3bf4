//! A copy of the source tree. Only changed files are written, so that build products of the other files stay valid.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Outcome;
use crate::workspace::output;

/// Updates the copy to the tree at `root`, including uncommitted changes.
pub(super) fn refresh(root: &Path, copy: &Path) -> Outcome {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = output(&mut git)?;
    let names = listed.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
    // `git` still lists files whose removal is not committed.
    let names: BTreeSet<PathBuf> = names.filter(|name| root.join(name).is_file()).collect();
    for name in &names {
        write_if_different(&root.join(name), &copy.join(name))?;
    }
    remove_others(copy, copy, &names)
}

fn write_if_different(from: &Path, to: &Path) -> Outcome {
    let failed = |error: std::io::Error| format!("{}: {error}", to.display());
    let wanted = std::fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    if std::fs::read(to).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    // Copying also preserves whether a file is executable.
    std::fs::copy(from, to).map_err(failed)?;
    Ok(())
}

fn remove_others(copy: &Path, folder: &Path, names: &BTreeSet<PathBuf>) -> Outcome {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            remove_others(copy, &path, names)?;
        } else if !names.contains(path.strip_prefix(copy).expect("every file is below the copy")) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}
