//! Names of tests in skip lists and in the table of plants.
//!
//! Each of the [`FILES`] lists black-box tests that a run skips or selects. An entry is a string literal such as
//! `"lease::a_short_"`: the module of a test, and the beginning of its name. Each entry must match a test, because a
//! misspelled or outdated entry has no effect.
//!
//! A row of the table in [`PLANTS`] whose second cell is `a test` ends with the path of the test that found the plant.
//! This test function must exist.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, is_letter};
use super::tokens::{literals, tokens};

/// The files with the lists.
const FILES: [&str; 3] = ["crates/xtask/src/test.rs", "tests/src/company.rs", "tests/src/guard.rs"];

/// The page with the table of plants.
const PLANTS: &str = "docs/testing.md";

/// The directory of the black-box tests. Each file in a subdirectory is a module.
const TESTS: &str = "tests/tests/";

/// Macros whose arguments are the names of test functions.
const TEST_MACROS: [&str; 3] = ["on_both_servers", "on_quorate", "with_both_tools"];

/// Reports names that match no test.
pub(super) fn check_test_names(sources: &[Source], complaints: &mut Vec<String>) {
    check_plants(sources, complaints);
    check_lists(sources, complaints);
}

/// Reports rows in the table of plants that name a missing test.
fn check_plants(sources: &[Source], complaints: &mut Vec<String>) {
    let Some(page) = sources.iter().find(|source| source.path == PLANTS) else { return };
    for (number, line) in (1..).zip(page.text.lines()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, "a test", _, path, _] = cells[..] else { continue };
        // `on_quorate!` and similar macros add a segment for the server.
        let path = path.strip_suffix("::quorate").unwrap_or(path);
        let function = format!("fn {}(", path.rsplit("::").next().unwrap_or(path));
        let mut rust = sources.iter().filter(|source| source.path.ends_with(".rs"));
        if !rust.any(|source| source.text.contains(&function)) {
            complaints.push(format!("{PLANTS}:{number}: no test has the name {path}"));
        }
    }
}

/// Reports entries that match no test, and missing files.
fn check_lists(sources: &[Source], complaints: &mut Vec<String>) {
    let tests = tests(sources);
    if tests.is_empty() {
        return;
    }
    for path in FILES {
        let Some(source) = sources.iter().find(|source| source.path == path) else {
            complaints.push(format!("{path}: skip list not found"));
            continue;
        };
        for entry in literals(&source.text) {
            let Some((module, name)) = split(&entry) else { continue };
            let is_match = tests
                .get(module)
                .is_some_and(|names| names.iter().any(|known| known.starts_with(name)));
            if !is_match {
                complaints.push(format!("{path}: no test matches the entry {entry}"));
            }
        }
    }
}

/// Splits an entry into the module and the beginning of the test name. Names of lints (`clippy::..`) are not entries.
fn split(entry: &str) -> Option<(&str, &str)> {
    let (module, name) = entry.split_once("::")?;
    let is_entry = !module.is_empty() && module != "clippy";
    (is_entry && module.chars().chain(name.chars()).all(is_letter)).then_some((module, name))
}

/// Returns the names of the test functions in each module.
fn tests(sources: &[Source]) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut tests: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        let path = source.path.strip_prefix(TESTS).and_then(|path| path.strip_suffix(".rs"));
        if let Some((_, module)) = path.and_then(|path| path.split_once('/')) {
            tests.entry(module).or_default().extend(test_names(&tokens(&source.text)));
        }
    }
    tests
}

/// Returns the names of functions with `#[test]`, and the names in the arguments of [`TEST_MACROS`].
fn test_names<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let rest = &tokens[at + 1..];
        if TEST_MACROS.contains(token) && rest.starts_with(&["!", "{"]) {
            let arguments = rest.iter().skip(2).take_while(|token| **token != "}");
            names.extend(arguments.filter(|token| token.starts_with(is_letter)));
        } else if *token == "#" && rest.starts_with(&["[", "test", "]"]) {
            let function = rest.iter().skip_while(|token| **token != "fn").nth(1);
            names.extend(function);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the complaints about a list with these entries, in a repository with two test modules.
    fn complaints(entries: &[&str]) -> Vec<String> {
        let file = |path: &str, text: String| Source { path: path.to_owned(), text };
        let list = |entry: &&str| format!("const X: &str = \"{entry}\";\n");
        let lease = "on_both_servers! {\n    a_lease_ends,\n}\nasync fn a_lease_ends() {}\nfn helper() {}\n";
        let flags =
            "with_both_tools! { alone: flags_are_shown }\n#[test]\nfn flags_are_read() {}\n";
        let sources = [
            file(FILES[0], entries.iter().map(list).collect()),
            file(FILES[1], String::new()),
            file(FILES[2], String::new()),
            file("tests/tests/blackbox/lease.rs", lease.to_owned()),
            file("tests/tests/faults/flags.rs", flags.to_owned()),
        ];
        let mut complaints = Vec::new();
        check_test_names(&sources, &mut complaints);
        complaints
    }

    #[test]
    fn a_skip_list_entry_that_matches_no_test_is_reported() {
        let good = ["lease::", "lease::a_lease", "flags::flags_are_r", "flags::flags_are_shown"];
        assert_eq!(complaints(&good), [""; 0]);
        assert_eq!(complaints(&["::etcd", "clippy::lint", "a text", "_to_etcd"]), [""; 0]);
        for bad in ["leases::", "lease::a_lease_ends_early", "lease::helper", "flags::a_lease"] {
            let expected = format!("{}: no test matches the entry {bad}", FILES[0]);
            assert_eq!(complaints(&[bad]), [expected]);
        }
    }

    #[test]
    fn a_plant_whose_test_is_missing_is_reported() {
        let page = "| plant | seeds | time | failure |\n|---|---|---|---|\n| `a` | 3 | 1 s | x::gone |\n\
                    | `b` | a test | 1 s | x::tests::kept::quorate |\n| `c` | a test | 1 s | x::tests::gone |\n";
        let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let sources =
            [file(PLANTS, page), file("crates/x/src/tests.rs", "async fn kept(kind: Kind) {}\n")];
        let mut complaints = Vec::new();
        check_test_names(&sources, &mut complaints);
        assert_eq!(complaints, [format!("{PLANTS}:5: no test has the name x::tests::gone")]);
    }
}
