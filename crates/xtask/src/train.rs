//! `train` records how often the server executes each branch and each call, and writes the profile that release builds
//! are optimised with (`profile/quorate.profdata`).
//!
//! Instrumented members and proxies run the cases of `compare`, with a fifth of their operations. Code that no case
//! executes does not benefit from the profile, so a new kind of request needs a case. The profile remains
//! valid for functions that have not changed since, so it need not be written again with every change. Two runs write
//! different profiles, which is why the profile is committed: packages must be reproducible.
//!
//! Names of functions in the profile contain hashes of the build settings and of all dependencies. If one of these
//! changes, the profile no longer applies to any function. [`check`] reports this.
//!
//! # Not here
//!
//! Use of the profile: `profile/rustc`, which cargo calls instead of the compiler.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{cargo, digest, output, root, status, target};
use crate::{Outcome, compare, say};

/// The files of the profile: the counters, and the settings of the build that recorded them.
const PROFILE: &str = "profile/quorate.profdata";
const SETTINGS: &str = "profile/settings.sha256";
/// The script that passes the profile to the compiler.
const SCRIPT: &str = "profile/rustc";

/// The minimum number of counters of a function whose record is kept although the function was never executed.
const KEPT_COUNTERS: usize = 16;

/// Writes the profile.
pub(crate) fn run() -> Outcome {
    let merger = merger()?;
    let folder = target()?.join("train");
    let recorded = folder.join("recorded");
    drop(std::fs::remove_dir_all(&recorded));
    say("train: building the instrumented server");
    let mut build = cargo(&["build", "--profile", "dist", "--package", "quorate"]);
    status(build.arg("--target-dir").arg(&folder).env("QUORATE_TRAIN", &recorded))?;
    compare::exercise(folder.join("dist").join("quorate"))?;
    let (root, text) = (root(), folder.join("counters.txt"));
    let merge = |args: &[&str], to: &Path, from: &Path| {
        status(Command::new(&merger).arg("merge").args(args).arg("-o").arg(to).arg(from))
    };
    merge(&["--text"], &text, &recorded)?;
    let counters = std::fs::read_to_string(&text).map_err(|error| failed(&text, &error))?;
    std::fs::write(&text, without_unexecuted(&counters)).map_err(|error| failed(&text, &error))?;
    merge(&[], &root.join(PROFILE), &text)?;
    let path = root.join(SETTINGS);
    std::fs::write(&path, settings(&root)? + "\n").map_err(|error| failed(&path, &error))
}

/// Removes the records of functions that were never executed if they have few counters, so that the profile stays
/// small, or if nothing of their crate was executed, because the cases then do not show which code of the crate is
/// important. The compiler optimises functions with a record of zeros for size, and functions without a record as
/// usual.
///
/// The text is in the format that `llvm-profdata merge --text` writes: blank lines separate the records, and the first
/// record follows lines that begin with a colon.
fn without_unexecuted(text: &str) -> String {
    let counters = |record: &str| {
        let values = record.split_once("# Counter Values:\n").map_or("", |(_, rest)| rest);
        let values = values.lines().take_while(|line| !line.starts_with('#'));
        values.fold((0, false), |(count, executed), value| (count + 1, executed || value != "0"))
    };
    let executed_crates: HashSet<_> =
        text.split("\n\n").filter(|record| counters(record).1).map(crate_of).collect();
    let is_kept = |record: &&str| {
        let (count, executed) = counters(record);
        record.starts_with("# IR") // the header
            || executed
            || count >= KEPT_COUNTERS && executed_crates.contains(&crate_of(record))
    };
    text.split("\n\n").filter(is_kept).flat_map(|record| [record, "\n\n"]).collect()
}

/// Returns the first of our crates that the name of a record's function contains, or nothing for the other functions.
fn crate_of(record: &str) -> &str {
    let name = record.lines().next().unwrap_or_default();
    let ours = name.find("quorate_").map_or("", |at| &name[at..]);
    let end = ours.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(ours.len());
    &ours[..end]
}

/// Returns a complaint if the profile does not apply to the present build settings.
pub(crate) fn check(root: &Path) -> Option<String> {
    let path = root.join(SETTINGS);
    let recorded = std::fs::read_to_string(&path).map_err(|error| failed(&path, &error));
    match recorded.and_then(|recorded| Ok(recorded.trim() == settings(root)?)) {
        Ok(true) => None,
        Ok(false) => Some(format!(
            "{PROFILE}: the dependencies, the toolchain or the build profiles have changed, so the profile no longer \
             applies; run `cargo xtask train`"
        )),
        Err(why) => Some(why),
    }
}

/// Returns a digest of the profile and of the script that passes it to the compiler.
pub(crate) fn digest_of_profile(root: &Path) -> Result<String, String> {
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read(&path).map_err(|error| failed(&path, &error))
    };
    Ok(digest(&[read(PROFILE)?, read(SCRIPT)?].concat()))
}

/// Returns a digest of the files and build profiles that determine the names of functions.
fn settings(root: &Path) -> Result<String, String> {
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read_to_string(&path).map_err(|error| failed(&path, &error))
    };
    let profiles = optimised_profiles(&read("Cargo.toml")?);
    let text = [read("Cargo.lock")?, read("rust-toolchain.toml")?, profiles].concat();
    Ok(digest(text.as_bytes()))
}

/// Returns the tables of a manifest that set the build profiles `release` and `dist`, without comments.
fn optimised_profiles(manifest: &str) -> String {
    let mut is_in = false;
    let lines = manifest.lines().filter(|line| {
        if line.starts_with('[') {
            is_in = line.starts_with("[profile.release") || line.starts_with("[profile.dist");
        }
        is_in && !line.is_empty() && !line.starts_with('#')
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// Returns the path of `llvm-profdata` of the pinned toolchain, and installs it if it is missing.
fn merger() -> Result<PathBuf, String> {
    let in_root = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.current_dir(root()).args(args);
        command
    };
    let system = output(&mut in_root("rustc", &["--print", "sysroot"]))?;
    let version = output(&mut in_root("rustc", &["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("rustc -vV does not print the host")?;
    let library = PathBuf::from(system.trim()).join("lib").join("rustlib");
    let program = library.join(host).join("bin").join("llvm-profdata");
    if !program.is_file() {
        status(&mut in_root("rustup", &["component", "add", "llvm-tools"]))?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, counters: &[u64]) -> String {
        let values: Vec<_> = counters.iter().map(u64::to_string).collect();
        let (count, values) = (counters.len(), values.join("\n"));
        format!(
            "{name}\n# Func Hash:\n7\n# Num Counters:\n{count}\n# Counter Values:\n{values}\n\n"
        )
    }

    #[test]
    fn functions_that_were_never_executed_are_left_out_if_they_are_small_or_nothing_of_their_crate_was_executed()
     {
        let first = format!("# IR level Instrumentation Flag\n:ir\n{}", record("first", &[0]));
        let executed = record("executed", &[0, 3]);
        let large = record("large", &[0; KEPT_COUNTERS]);
        let small = record("small", &[0; KEPT_COUNTERS - 1]);
        let targets = record("targets", &[0]).replace("0\n\n", "0\n# Num Value Kinds:\n1\n\n");
        let other = record("_ZN14quorate_engine3url", &[0; KEPT_COUNTERS]);
        let sibling = record("_ZN11quorate_net6listen", &[0; KEPT_COUNTERS]);
        let called = record("_ZN11quorate_net4poll", &[1]);
        let text =
            [&first[..], &small, &executed, &targets, &large, &other, &sibling, &called].concat();
        let kept = without_unexecuted(&text);
        let expected = [&first[..], &executed, &large, &sibling, &called].concat();
        assert_eq!(kept.trim_end(), expected.trim_end());
    }

    #[test]
    fn only_the_profiles_of_optimised_builds_are_among_the_build_settings() {
        let manifest = "\
[profile.dev]
debug = 1

# A comment.
[profile.release]
lto = true

[profile.release.package.a]
opt-level = 1
[profile.sim]
inherits = \"release\"
[profile.dist]
# Another.
inherits = \"release\"
";
        let expected = "\
[profile.release]
lto = true
[profile.release.package.a]
opt-level = 1
[profile.dist]
inherits = \"release\"
";
        assert_eq!(optimised_profiles(manifest), expected);
    }

    #[test]
    fn a_missing_digest_of_the_build_settings_is_reported() {
        let complaint = check(Path::new("/nonexistent")).unwrap();
        assert!(complaint.contains("profile/settings.sha256"), "{complaint}");
    }
}
