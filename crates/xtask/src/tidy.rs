//! The rules of this repository that no lint knows.
//!
//! * Dependencies between our crates follow the arrows of the architecture, and no others.
//! * Every Rust file opens with a header that says what it is for.
//! * No Rust file grows over [`LINES_MAX`] lines. The files that once did are listed in [`LONG_FILES`];
//!   the list may only shrink.
//! * Rings 0 and 1 have no clock, thread, environment or ambient randomness: time and seeds are arguments.
//! * Nothing is left unfinished, and no file names a path of somebody's machine.
//!
//! Tests of the pure crates are free to use the environment; what counts as a test is said at
//! [`production`]. The rules also run as a test of this crate.

use std::path::Path;

use crate::workspace::root;
use crate::{Outcome, say};

#[cfg(test)]
mod tests;

/// Lines that a Rust file may have.
const LINES_MAX: usize = 800;

/// Files that are longer, with the length they may not exceed.
const LONG_FILES: &[(&str, usize)] = &[];

/// Each package and those of ours it may depend on. Arrows point down only.
const ARROWS: &[(&str, &[&str])] = &[
    ("quorate-api", &[]),
    ("quorate-raft", &[]),
    ("quorate-node", &["quorate-raft"]),
    ("quorate-storage", &[]),
    ("quorate-state", &["quorate-api", "quorate-release", "quorate-storage"]),
    ("quorate-gotext", &[]),
    ("quorate-release", &[]),
    ("quorate-telemetry", &["quorate-gotext", "quorate-release"]),
    ("quorate-config", &["quorate-gotext", "quorate-release", "quorate-telemetry"]),
    (
        "quorate-server",
        &[
            "quorate-api",
            "quorate-config",
            "quorate-gotext",
            "quorate-node",
            "quorate-raft",
            "quorate-release",
            "quorate-state",
            "quorate-storage",
            "quorate-telemetry",
        ],
    ),
    ("quorate-ctl", &["quorate-api"]),
    ("quorate-bench", &["quorate-api"]),
    ("quorate", &["quorate-bench", "quorate-ctl", "quorate-release", "quorate-server"]),
    ("quorate-tests", &["quorate-api"]),
    ("xtask", &[]),
];

/// Folders of the crates that get time and chance as arguments.
const PURE: [&str; 4] = ["crates/raft/", "crates/node/", "crates/storage/", "crates/state/"];

/// What the pure crates do without.
const AMBIENT: [&str; 6] =
    ["Instant::now", "SystemTime::now", "thread::", "std::env", "rand::", "env::var"];

/// What marks unfinished work. Spelled in halves, because this file is checked too.
const UNFINISHED: [&str; 2] = [concat!("to", "do!("), concat!("unimple", "mented!(")];

/// Paths that exist on one machine only.
const LOCAL_PATHS: [&str; 1] = [concat!("/wo", "rk/")];

/// Files worth reading, by extension; those without one are read too when they are text.
const TEXT: [&str; 8] = ["rs", "toml", "md", "proto", "sh", "yml", "yaml", "json"];

/// A file of the repository: its path from the root, with `/`, and its text.
#[derive(Debug)]
struct Source {
    path: String,
    text: String,
}

/// Prints every broken rule, and fails when there is one.
pub(crate) fn run() -> Outcome {
    let complaints = check(&read_all(&root())?);
    for complaint in &complaints {
        say(complaint);
    }
    match complaints.len() {
        0 => Ok(()),
        count => Err(format!("tidy: {count} complaints")),
    }
}

fn check(sources: &[Source]) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in sources {
        if source.path.ends_with("Cargo.toml") {
            check_arrows(source, &mut complaints);
        }
        if source.path.ends_with(".rs") {
            check_header(source, &mut complaints);
            check_length(source, &mut complaints);
            check_finished(source, &mut complaints);
            if PURE.iter().any(|folder| source.path.starts_with(folder)) {
                check_pure(source, &mut complaints);
            }
        }
        check_paths(source, &mut complaints);
    }
    for (path, _) in LONG_FILES {
        if !sources.iter().any(|source| source.path == *path) {
            complaints.push(format!("{path}: on the list of long files, but gone"));
        }
    }
    complaints
}

fn check_arrows(source: &Source, complaints: &mut Vec<String>) {
    let Some(package) = manifest_package(&source.text) else { return };
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package) else {
        complaints.push(format!("{}: package {package} has no place in the arrows", source.path));
        return;
    };
    for (line, dependency) in manifest_dependencies(&source.text) {
        let ours = ARROWS.iter().any(|(name, _)| *name == dependency);
        if ours && !allowed.contains(&dependency) {
            let path = &source.path;
            complaints.push(format!("{path}:{line}: {package} may not depend on {dependency}"));
        }
    }
}

fn manifest_package(manifest: &str) -> Option<&str> {
    let (_, section) = manifest.split_once("[package]")?;
    let line = section.lines().find(|line| line.starts_with("name"))?;
    line.split('"').nth(1)
}

/// The names of a manifest's dependencies of every kind, with their lines.
fn manifest_dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(manifest.lines()) {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = section.ends_with("dependencies") && section != "workspace.dependencies";
            // `[dependencies.name]`
            if let Some((kind, name)) = section.rsplit_once('.')
                && kind.ends_with("dependencies")
                && kind != "workspace.dependencies"
            {
                found.push((number, name));
            }
        } else if inside && !line.starts_with('#') {
            let name = line.split(['=', '.', ' ']).next().unwrap_or_default();
            if !name.is_empty() {
                found.push((number, name));
            }
        }
    }
    found
}

fn check_header(source: &Source, complaints: &mut Vec<String>) {
    if !source.text.starts_with("//!") {
        complaints.push(format!("{}: does not open with a `//!` header", source.path));
    }
}

fn check_length(source: &Source, complaints: &mut Vec<String>) {
    let path = &source.path;
    let lines = source.text.lines().count();
    let listed = LONG_FILES.iter().find(|(listed, _)| listed == path);
    let bound = listed.map_or(LINES_MAX, |(_, bound)| *bound);
    if lines > bound {
        complaints.push(format!("{path}: {lines} lines, at most {bound}"));
    } else if listed.is_some() && lines <= LINES_MAX {
        complaints.push(format!("{path}: no longer long, take it off the list"));
    }
}

fn check_finished(source: &Source, complaints: &mut Vec<String>) {
    for (number, line) in (1..).zip(source.text.lines()) {
        if let Some(mark) = UNFINISHED.iter().find(|mark| line.contains(*mark)) {
            complaints.push(format!("{}:{number}: {mark} is unfinished work", source.path));
        }
    }
}

fn check_pure(source: &Source, complaints: &mut Vec<String>) {
    if is_test_file(&source.path) {
        return;
    }
    for (number, line) in production(&source.text) {
        if let Some(word) = AMBIENT.iter().find(|word| mentions(line, word)) {
            complaints.push(format!("{}:{number}: {word} in a pure crate", source.path));
        }
    }
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.contains("/benches/")
}

/// The numbered lines of code that are no comment and no test. A test module is one that is marked
/// `#[cfg(test)]` and written out in the file; it stands last, so the rest of the file is a test.
fn production(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut marked = false;
    (1..)
        .zip(text.lines())
        .take_while(move |(_, line)| {
            let code = line.trim();
            let test_module = marked && code.contains("mod ") && code.ends_with('{');
            marked = code == "#[cfg(test)]" || marked && code.starts_with("#[");
            !test_module
        })
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// True when the word stands in the line and is not the end of a longer one.
fn mentions(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_')
    })
}

fn check_paths(source: &Source, complaints: &mut Vec<String>) {
    for (number, line) in (1..).zip(source.text.lines()) {
        if let Some(path) = LOCAL_PATHS.iter().find(|path| line.contains(*path)) {
            let place = &source.path;
            complaints.push(format!("{place}:{number}: {path} is a path of one machine"));
        }
    }
}

/// Every text file below the root, build products and repository metadata aside.
fn read_all(root: &Path) -> Result<Vec<Source>, String> {
    let mut sources = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
            if path.is_dir() {
                if name != "target" && name != ".git" {
                    folders.push(path);
                }
            } else if is_text(&path) {
                // Anything that is not UTF-8 is data.
                if let Ok(text) = std::fs::read_to_string(&path) {
                    let path = path.strip_prefix(root).expect("found below the root");
                    sources.push(Source { path: path.to_string_lossy().replace('\\', "/"), text });
                }
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

fn is_text(path: &Path) -> bool {
    match path.extension() {
        Some(extension) => TEXT.iter().any(|known| extension == *known),
        None => path.parent().and_then(Path::file_name).is_some_and(|folder| folder == ".ci"),
    }
}
