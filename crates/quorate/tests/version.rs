//! Tests of the commit that a build reports.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../build/commit.rs"]
mod commit;

use std::fs;
use std::path::Path;
use std::process::Command;

const ONE: &str = "1111111111111111111111111111111111111111";
const TWO: &str = "2222222222222222222222222222222222222222";

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Returns the commit that is found, and the files that determine it, as paths from `root`.
fn found(checkout: &Path, root: &Path) -> (Option<String>, Vec<String>) {
    let found = commit::find(checkout);
    assert!(found.read.iter().all(|path| path.exists()), "{found:?}");
    let inside = |path: &std::path::PathBuf| {
        let path = path.canonicalize().unwrap();
        path.strip_prefix(root).unwrap().display().to_string()
    };
    (found.hash, found.read.iter().map(inside).collect())
}

#[test]
fn the_program_reports_the_commit_of_its_checkout() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_quorate")).arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let given = option_env!("QUORATE_GIT_SHA").map(str::to_owned);
    let expected = given.or_else(|| commit::find(root).hash);
    let expected = expected.unwrap_or_else(|| "Not provided".to_owned());
    assert!(text.contains(&format!("\nGit SHA: {expected}")), "{text}");
}

#[test]
fn a_commit_is_found_in_every_git_layout() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let git = root.join(".git");
    // A source archive contains no commit.
    assert_eq!(found(&root, &root), (None, Vec::new()));
    // A branch may have a file of its own.
    write(&git.join("HEAD"), "ref: refs/heads/main\n");
    write(&git.join("refs/heads/main"), &format!("{ONE}\n"));
    let read = vec![".git/HEAD".to_owned(), ".git/refs/heads/main".to_owned()];
    assert_eq!(found(&root, &root), (Some(ONE.to_owned()), read));
    // The branch's file takes precedence over the packed references.
    write(&git.join("packed-refs"), &format!("# pack-refs\n{TWO} refs/heads/main\n^{ONE}\n"));
    assert_eq!(found(&root, &root).0.unwrap(), ONE);
    fs::remove_file(git.join("refs/heads/main")).unwrap();
    let (hash, read) = found(&root, &root);
    assert_eq!(hash.unwrap(), TWO);
    assert_eq!(read, [".git/HEAD", ".git/refs/heads", ".git/packed-refs"]);
    // `HEAD` may be detached.
    write(&git.join("HEAD"), &format!("{ONE}\n"));
    assert_eq!(found(&root, &root), (Some(ONE.to_owned()), vec![".git/HEAD".to_owned()]));
    // If the syntax is unknown, no commit is found.
    write(&git.join("HEAD"), "ref: refs/heads/.invalid\n");
    assert_eq!(found(&root, &root).0, None);
}

#[test]
fn the_commit_of_a_worktree_is_read_from_the_head_of_the_worktree() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let (git, tree) = (root.join("main/.git"), root.join("tree"));
    write(&git.join("HEAD"), "ref: refs/heads/main\n");
    write(&git.join("refs/heads/main"), ONE);
    write(&git.join("refs/heads/other"), TWO);
    write(&git.join("worktrees/tree/HEAD"), "ref: refs/heads/other\n");
    write(&git.join("worktrees/tree/commondir"), "../..\n");
    write(&tree.join(".git"), &format!("gitdir: {}\n", git.join("worktrees/tree").display()));
    let (hash, read) = found(&tree, &root);
    assert_eq!(hash.unwrap(), TWO);
    assert_eq!(read, ["main/.git/worktrees/tree/HEAD", "main/.git/refs/heads/other"]);
}
