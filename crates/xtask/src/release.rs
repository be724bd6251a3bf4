//! `release` builds the files of a release from a commit: the packages, a bill of materials, the text of the tag, and
//! the checksums of all files. `release prepare` creates the commit.
//!
//! # Guarantees
//!
//! * All files are built from one commit in a checkout without changes. The changelog has a section for the release's
//!   version.
//! * Nothing is published, pushed or tagged. The last lines of the output list the commands that do this.
//!
//! # Not here
//!
//! The tests that a release must pass: see `docs/compatibility.md`.

mod bill;
mod changelog;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{cargo, output, root, status, target};
use crate::{Outcome, deny, dependencies, package, say, train};

const USAGE: &str = "\
usage: cargo xtask release prepare VERSION
       cargo xtask release [--binary PATH] [--into FOLDER]";

/// Prepares a release, or builds one.
pub(crate) fn run(args: &[String]) -> Outcome {
    match args {
        [verb, version] if verb == "prepare" => prepare(version),
        [verb, ..] if verb == "prepare" => Err(USAGE.to_owned()),
        _ => make(args),
    }
}

/// Sets the version, and adds its section to the changelog.
fn prepare(version: &str) -> Outcome {
    check_unchanged()?;
    let present = env!("CARGO_PKG_VERSION");
    if numbers(version)? < numbers(present)? || is_tagged(version)? {
        return Err(format!("{version} is older than {present}, or already has a tag"));
    }
    let date = output(Command::new("date").args(["-u", "+%F"]))?;
    edit("CHANGELOG.md", |text| changelog::release(text, version, date.trim()))?;
    edit("Cargo.toml", |text| {
        let (from, to) = (format!("version = \"{present}\""), format!("version = \"{version}\""));
        text.contains(&from)
            .then(|| text.replacen(&from, &to, 1))
            .ok_or(format!("no line contains {from}"))
    })?;
    // The lock file contains the versions of the workspace's packages, so it is updated as well.
    status(&mut cargo(&["update", "--workspace", "--offline"]))?;
    say(&format!(
        "review the changelog, run `cargo xtask train` and `cargo xtask ci`, and commit this as `Release {version}`.\n\
         Then `cargo xtask release` builds the files to publish."
    ));
    Ok(())
}

/// Builds all files of the release from this commit.
fn make(args: &[String]) -> Outcome {
    let (binary, folder) = package::read_args(args).map_err(|_| USAGE.to_owned())?;
    let folder = match folder {
        Some(folder) => folder,
        None => target()?.join("release-files"),
    };
    check_unchanged()?;
    train::check(&root()).map_or(Ok(()), Err)?;
    let version = env!("CARGO_PKG_VERSION");
    let changelog = root().join("CHANGELOG.md");
    let changelog = fs::read_to_string(&changelog)
        .map_err(|error| format!("{}: {error}", changelog.display()))?;
    let section = changelog::section(&changelog, version).ok_or_else(|| {
        format!("CHANGELOG.md has no section for {version}: run `cargo xtask release prepare {version}` first")
    })?;
    deny::run()?;
    let all = dependencies::all()?;
    let bill = bill::of_materials(&dependencies::of_program(&all, "quorate"), "quorate", version);
    let (mut files, summary) = package::make(binary, &folder, package::Naming::Release)?;
    files.insert(format!("quorate-{version}.cdx.json"), bill.into_bytes());
    let tag = format!("Quorate {version}\n\n{section}");
    files.insert(format!("quorate-{version}.tag.txt"), tag.into_bytes());
    package::write(&folder, &package::with_sums(files))?;
    let shown = folder.display();
    say(&format!(
        "{summary}built in {shown}. To publish:\n  \
         git tag --sign v{version} --file {shown}/quorate-{version}.tag.txt\n  git push origin v{version}"
    ));
    Ok(())
}

/// Parses a version of three numbers.
fn numbers(version: &str) -> Result<[u64; 3], String> {
    let parts: Vec<_> =
        version.split('.').map(str::parse).collect::<Result<_, _>>().unwrap_or_default();
    parts
        .try_into()
        .map_err(|_| format!("{version}: a version must consist of three numbers, such as 1.2.3"))
}

fn git(args: &[&str]) -> Result<String, String> {
    output(Command::new("git").current_dir(root()).args(args))
}

fn check_unchanged() -> Outcome {
    let changes = git(&["status", "--porcelain"])?;
    if changes.is_empty() {
        return Ok(());
    }
    Err(format!("there are uncommitted changes:\n{}", changes.trim_end()))
}

fn is_tagged(version: &str) -> Result<bool, String> {
    Ok(!git(&["tag", "--list", &format!("v{version}")])?.trim().is_empty())
}

/// Changes a file of the repository.
fn edit(name: &str, change: impl FnOnce(&str) -> Result<String, String>) -> Outcome {
    let path: PathBuf = root().join(name);
    let named = |error: std::io::Error| format!("{}: {error}", Path::new(name).display());
    let text = fs::read_to_string(&path).map_err(named)?;
    let text = change(&text).map_err(|why| format!("{name}: {why}"))?;
    fs::write(&path, text).map_err(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_version_must_have_three_numbers() {
        assert_eq!(numbers("1.20.3"), Ok([1, 20, 3]));
        assert!(numbers("0.9.0").unwrap() < numbers("0.10.0").unwrap());
        for wrong in ["1.2", "1.2.3.4", "1.2.x", "v1.2.3", ""] {
            assert!(numbers(wrong).is_err(), "{wrong}");
        }
    }
}
