//! The number of asserts in the crates that store a member's data and make its decisions. This number may only rise.
//!
//! An assert states an invariant, and also runs in release builds: if an invariant is violated, the member stops and
//! restarts from its files instead of acknowledging a write that it may lose. `debug_assert!` and asserts in tests do
//! not count.

use super::source::{Source, folder, is_letter, is_test_file, production};

/// The crates, each with its minimum number of asserts.
pub(super) const ASSERTS: [(&str, usize); 5] = [
    ("crates/raft/src/", 47),
    ("crates/node/src/", 17),
    ("crates/core/src/", 18),
    ("crates/storage/src/", 32),
    ("crates/state/src/", 42),
];

/// The minimum number of asserts per 1,000 lines of production code.
const PER_THOUSAND: usize = 4;

/// Reports crates that have fewer asserts than before, or too few asserts for their size.
pub(super) fn check_asserts(sources: &[Source], complaints: &mut Vec<String>) {
    for (crate_folder, floor) in ASSERTS {
        let (lines, asserts) = count(sources, crate_folder);
        if lines > 0 && asserts < floor {
            complaints
                .push(format!("{crate_folder}: {asserts} asserts, but the minimum is {floor}"));
        }
        if asserts * 1000 < lines * PER_THOUSAND {
            complaints.push(format!(
                "{crate_folder}: {asserts} asserts in {lines} lines, but the minimum is {PER_THOUSAND} in 1,000"
            ));
        }
    }
}

/// Counts the non-blank lines of production code below a directory, and the asserts in them.
fn count(sources: &[Source], crate_folder: &str) -> (usize, usize) {
    let sources: Vec<_> = sources
        .iter()
        .filter(|source| source.path.starts_with(crate_folder) && source.path.ends_with(".rs"))
        .collect();
    let tests: Vec<String> = sources.iter().flat_map(|source| test_modules(source)).collect();
    let production = sources
        .iter()
        .filter(|source| !is_test_file(&source.path) && !tests.contains(&source.path))
        .flat_map(|source| production(&source.text))
        .filter(|(_, line)| !line.trim().is_empty());
    production.fold((0, 0), |(lines, asserts), (_, line)| {
        (lines + 1, asserts + usize::from(has_assert(line)))
    })
}

/// Returns the paths of the test modules that a file declares.
fn test_modules(source: &Source) -> Vec<String> {
    let lines: Vec<_> = source.text.lines().map(str::trim).collect();
    let marked = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]");
    let names = marked
        .filter_map(|pair| pair[1].strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';')));
    names.map(|name| format!("{}{name}.rs", folder(&source.path))).collect()
}

/// Returns whether a line contains an assert that runs in release builds.
fn has_assert(line: &str) -> bool {
    ["assert!(", "assert_eq!(", "assert_ne!("]
        .iter()
        .any(|name| line.match_indices(name).any(|(at, _)| !line[..at].ends_with(is_letter)))
}
