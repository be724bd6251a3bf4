//! Public items of library crates that no production code uses.
//!
//! The compiler does not report unused `pub` items, because other crates may use them. In this repository, all crates
//! that use them are known. An item is used if its name occurs in the production code of any crate. For crates that
//! exist for tests ([`FOR_TESTS`]), occurrences in the tests of other crates also count. Imports (`use`) and
//! definitions do not count. An unused item is not reported if a used item has the same name. A used item is never
//! reported.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Source, is_letter, is_test_file};
use super::tokens::{tokens, without_tests};

/// Keywords that precede the name of an item.
const DEFINING: [&str; 8] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static"];

/// Items that only tests use, each with the reason.
const EXEMPT: &[(&str, &str)] = &[
    ("override_election_timeout", "the test scenarios of etcd's raft choose the first candidate"),
    (
        "set_hard_state",
        "the scenarios of etcd's raft write the state synchronously, but `node` does not",
    ),
    (
        "clear_bucket",
        "bbolt has this operation, and the tests read files that bbolt has changed with it",
    ),
    ("inject", "a simulated disk with failing operations, for tests"),
    ("limit_growth", "a simulated full disk, for tests"),
    ("crash", "a simulated disk that loses power, for tests"),
    ("abandon", "an engine that ends like a crashed process, for tests"),
    ("stop_at", "a simulated disk that loses power at one operation, for tests"),
];

/// Crates that only tests use.
const FOR_TESTS: [&str; 2] = ["crates/history_checker/", "crates/test_support/"];

/// The sources of one crate, split into production code and tests.
#[derive(Default)]
struct Code<'a> {
    /// The tokens of each file, with the file's path.
    production: Vec<(&'a str, Vec<&'a str>)>,
    tests: Vec<Vec<&'a str>>,
}

/// The number of uses of each public name.
type Uses<'a> = BTreeMap<&'a str, usize>;

/// Reports public items that production code does not use.
pub(super) fn check_unused(sources: &[Source], complaints: &mut Vec<String>) {
    let crates = read(sources);
    let is_library = |folder: &str| {
        let root = format!("{folder}src/lib.rs");
        folder.starts_with("crates/") && sources.iter().any(|source| source.path == root)
    };
    let public: BTreeMap<&str, Vec<(&str, &str)>> = crates
        .iter()
        .filter(|(folder, _)| is_library(folder))
        .map(|(folder, code)| (*folder, public_items(&code.production)))
        .collect();
    let names: BTreeSet<&str> = public.values().flatten().map(|(_, name)| *name).collect();
    let count = |files: &mut dyn Iterator<Item = &Vec<&'_ str>>| -> Uses<'_> {
        let mut uses: Uses<'_> = names.iter().map(|name| (*name, 0)).collect();
        for name in files.flat_map(|tokens| used(tokens)) {
            if let Some(count) = uses.get_mut(name) {
                *count += 1;
            }
        }
        uses
    };
    let in_production = count(
        &mut crates.values().flat_map(|code| code.production.iter().map(|(_, tokens)| tokens)),
    );
    for (folder, items) in public {
        let others = crates.iter().filter(|(other, _)| **other != folder);
        let in_tests_of_others = match FOR_TESTS.contains(&folder) {
            true => count(&mut others.flat_map(|(_, code)| &code.tests)),
            false => Uses::new(),
        };
        for (path, name) in items {
            let is_exempt = EXEMPT.iter().any(|(exempt, _)| *exempt == name);
            let is_used = in_production[name] > 0
                || in_tests_of_others.get(name).is_some_and(|uses| *uses > 0);
            match (!is_used, is_exempt) {
                (true, false) => complaints
                    .push(format!("{path}: production code does not use the public item {name}")),
                (false, true) => {
                    complaints.push(format!("{path}: {name} is used; remove it from EXEMPT"));
                }
                (true, true) | (false, false) => {}
            }
        }
    }
}

/// Splits the sources of each crate into tokens. The keys are the directories of the crates.
fn read(sources: &[Source]) -> BTreeMap<&str, Code<'_>> {
    let mut crates: BTreeMap<&str, Code<'_>> = BTreeMap::new();
    let mut test_modules = Vec::new();
    let folders: Vec<&str> =
        sources.iter().filter_map(|source| source.path.strip_suffix("Cargo.toml")).collect();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        let own = folders.iter().filter(|folder| source.path.starts_with(**folder));
        let Some(folder) = own.max_by_key(|folder| folder.len()) else { continue };
        let code = crates.entry(folder).or_default();
        let tokens = tokens(&source.text);
        if is_test_file(&source.path) {
            code.tests.push(tokens);
            continue;
        }
        let (kept, marked) = without_tests(&tokens);
        test_modules.extend(marked.iter().map(|name| module_path(&source.path, name)));
        if kept.len() < tokens.len() {
            code.tests.push(left_out(&tokens, &kept));
        }
        code.production.push((&source.path, kept));
    }
    for code in crates.values_mut() {
        let is_test = |path: &str| {
            test_modules.iter().any(|module| {
                path.strip_prefix(&module[..])
                    .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            })
        };
        let (tests, production) =
            std::mem::take(&mut code.production).into_iter().partition(|(path, _)| is_test(path));
        code.production = production;
        let tests: Vec<(&str, Vec<&str>)> = tests;
        code.tests.extend(tests.into_iter().map(|(_, tokens)| tokens));
    }
    crates
}

/// Returns the path of a submodule of this file, without its extension.
fn module_path(path: &str, name: &str) -> String {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let (folder, file) = stem.rsplit_once('/').unwrap_or(("", stem));
    match file {
        "lib" | "main" | "mod" => format!("{folder}/{name}"),
        _ => format!("{stem}/{name}"),
    }
}

/// Returns the tokens missing from `kept`, which is a subsequence of `tokens`.
fn left_out<'a>(tokens: &[&'a str], kept: &[&'a str]) -> Vec<&'a str> {
    let mut kept = kept.iter().peekable();
    let is_kept = |token: &&&str| {
        // Tokens are compared by their position in the text, not by content.
        let is_next = kept.peek().is_some_and(|next| std::ptr::eq(**next, **token));
        if is_next {
            kept.next();
        }
        !is_next
    };
    tokens.iter().filter(is_kept).copied().collect()
}

/// Returns the names of all public items, each with its file.
fn public_items<'a>(files: &[(&'a str, Vec<&'a str>)]) -> Vec<(&'a str, &'a str)> {
    let in_file = |(path, tokens): &(&'a str, Vec<&'a str>)| {
        let path = *path;
        let starts = tokens.iter().enumerate().filter(|(_, token)| **token == "pub");
        let names = starts.filter_map(|(at, _)| item_name(&tokens[at + 1..]));
        names.map(|name| (path, name)).collect::<Vec<_>>()
    };
    files.iter().flat_map(in_file).collect()
}

/// Returns the name of the first item, if its kind is checked. Items with `pub(crate)` are not checked here, because
/// the compiler checks them.
fn item_name<'a>(tokens: &[&'a str]) -> Option<&'a str> {
    let mut rest = tokens.iter();
    let mut is_defined = false;
    loop {
        match *rest.next()? {
            "async" | "unsafe" | "extern" => {}
            word if DEFINING.contains(&word) => is_defined = true,
            word => return (is_defined && word.starts_with(is_letter)).then_some(word),
        }
    }
}

/// Returns the words of a source, except for imports and for the names of defined items.
fn used<'a>(tokens: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let mut is_import = false;
    let mut before = "";
    tokens.iter().enumerate().filter_map(move |(at, token)| {
        // `impl Trait + use<'_>` is not an import.
        is_import = match *token {
            "use" => tokens.get(at + 1) != Some(&"<"),
            ";" => false,
            _ => is_import,
        };
        let is_defined = before == "mod" || DEFINING.contains(&before);
        before = token;
        (!is_import && !is_defined).then_some(*token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(files: &[(&str, &str)]) -> Vec<String> {
        let file = |(path, text): &(&str, &str)| Source {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        let manifests = ["crates/a/Cargo.toml", "crates/b/Cargo.toml"].map(|path| (path, ""));
        let sources: Vec<Source> = manifests.iter().chain(files).map(file).collect();
        let mut complaints = Vec::new();
        check_unused(&sources, &mut complaints);
        complaints
    }

    const LIBRARY: &str = "pub mod x; pub struct Used; impl Used { pub const fn make() -> Self { Used } } \
                           pub(crate) fn own() {}";

    #[test]
    fn an_unused_item_is_reported() {
        let found = complaints(&[("crates/a/src/lib.rs", LIBRARY)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .contains("crates/a/src/lib.rs: production code does not use the public item make"),
            "{found:?}"
        );
        let other = ("crates/b/src/main.rs", "fn main() { let _ = a::Used::make(); }");
        assert!(complaints(&[("crates/a/src/lib.rs", LIBRARY), other]).is_empty());
    }

    #[test]
    fn uses_in_tests_count_only_for_test_support_crates() {
        let text = format!("{LIBRARY} #[cfg(test)] mod tests {{ fn t() {{ Used::make(); }} }}");
        assert_eq!(complaints(&[("crates/a/src/lib.rs", &text)]).len(), 1);
        let marked = format!("{LIBRARY} #[cfg(test)] mod harness;");
        for path in ["crates/a/tests/t.rs", "crates/a/src/tests.rs", "crates/a/src/harness.rs"] {
            let test = (path, "fn t() { a::Used::make(); }");
            assert_eq!(complaints(&[("crates/a/src/lib.rs", &marked), test]).len(), 1, "{path}");
        }
        let others = ("crates/b/tests/t.rs", "fn t() { a::Used::make(); }");
        assert_eq!(complaints(&[("crates/a/src/lib.rs", LIBRARY), others]).len(), 1);
        let manifest = ("crates/test_support/Cargo.toml", "");
        let for_tests = ("crates/test_support/src/lib.rs", LIBRARY);
        assert_eq!(complaints(&[manifest, for_tests]).len(), 1);
        assert!(complaints(&[manifest, for_tests, others]).is_empty());
    }

    #[test]
    fn imports_and_definitions_do_not_count_as_uses() {
        let import = ("crates/b/src/main.rs", "pub use a::{x, make}; fn make() {}");
        assert_eq!(complaints(&[("crates/a/src/lib.rs", LIBRARY), import]).len(), 1);
        let captures = ("crates/b/src/main.rs", "fn f() -> impl Sized + use<> { make }");
        assert!(complaints(&[("crates/a/src/lib.rs", LIBRARY), captures]).is_empty());
    }

    #[test]
    fn an_unneeded_exemption_is_reported() {
        let text = "pub fn clear_bucket() {}";
        assert!(complaints(&[("crates/a/src/lib.rs", text)]).is_empty());
        let text = "pub fn clear_bucket() {} pub(crate) fn f() { clear_bucket() }";
        assert_eq!(complaints(&[("crates/a/src/lib.rs", text)]).len(), 1);
    }

    #[test]
    fn public_items_of_programs_are_not_checked() {
        assert!(complaints(&[("crates/a/src/main.rs", LIBRARY)]).is_empty());
    }
}
