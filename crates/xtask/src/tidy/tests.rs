//! Checks that the repository passes all rules, and that a violation of each rule is reported.

use super::*;

fn complaints(path: &str, text: &str) -> Vec<String> {
    check(&[Source { path: path.to_owned(), text: text.to_owned() }])
}

#[test]
fn the_repository_is_tidy() {
    let sources = read_all(&root()).unwrap();
    assert!(sources.len() > 20, "found only {} files", sources.len());
    let mut complaints = check(&sources);
    check_asserts(&sources, &mut complaints);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn a_removed_assert_is_reported() {
    let (folder, floor) = asserts::ASSERTS[0];
    let with = |asserts: usize, rest: &str| {
        let text =
            format!("//! X.\n{}{rest}", "    assert!(true, \"it holds\");\n".repeat(asserts));
        let mut complaints = Vec::new();
        check_asserts(&[Source { path: format!("{folder}x.rs"), text }], &mut complaints);
        complaints.len()
    };
    assert_eq!(with(floor, ""), 0);
    assert_eq!(with(floor - 1, ""), 1);
    assert_eq!(with(floor - 1, "    debug_assert!(true);\n"), 1);
    assert_eq!(with(floor - 1, "#[cfg(test)]\nmod tests {\n    assert!(true);\n}\n"), 1);
    assert_eq!(
        with(floor, &"let x = 1;\n".repeat(1000 * floor / 4)),
        1,
        "too few asserts for the number of lines"
    );
}

#[test]
fn a_file_without_a_header_is_reported() {
    assert_eq!(complaints("crates/api/src/x.rs", "fn f() {}\n").len(), 1);
    assert!(complaints("crates/api/src/x.rs", "//! Purpose.\n\nfn f() {}\n").is_empty());
}

#[test]
fn a_file_that_is_too_long_is_reported() {
    let text = |lines: usize| format!("//! Long.\n{}", "\n".repeat(lines - 1));
    assert!(complaints("crates/api/src/x.rs", &text(LINES_MAX)).is_empty());
    assert_eq!(complaints("crates/api/src/x.rs", &text(LINES_MAX + 1)).len(), 1);
}

#[test]
fn a_long_line_of_prose_is_reported() {
    let long = "word ".repeat(21);
    let reported = |text: &str| {
        let found = complaints("docs/page.md", text);
        found.iter().any(|complaint| complaint.ends_with("wraps at 100 columns"))
    };
    assert!(reported(&long));
    assert!(reported(&format!("- {long}")));
    assert!(!reported(&"é".repeat(100)), "columns are characters");
    for unwrapped in ["| ", "<!-- ", "# ", "![", "```\n"] {
        assert!(!reported(&format!("{unwrapped}{long}")), "{unwrapped}");
    }
    assert!(!reported(&format!("- [{long}](page.md)")));
    assert!(!reported(&format!("`{long}`")));
    assert!(!reported(&format!("# Page\n\nThis page is generated from a table.\n\n{long}")));
}

#[test]
fn a_clock_in_a_pure_crate_is_reported_outside_tests_and_comments() {
    let header = "//! Pure.\n";
    let clock = "let now = Instant::now();\n";
    let pure = "crates/raft/src/raft.rs";
    assert_eq!(complaints(pure, &format!("{header}{clock}")).len(), 1);
    assert_eq!(complaints(pure, &format!("{header}use std::env;\n")).len(), 1);
    assert!(complaints(pure, &format!("{header}// {clock}")).is_empty());
    assert!(complaints(pure, &format!("{header}let x = operand::new();\n")).is_empty());
    let tests = format!("{header}#[cfg(test)]\nmod tests {{\n{clock}}}\n");
    assert!(complaints(pure, &tests).is_empty());
    let elsewhere = format!("{header}#[cfg(test)]\nmod tests;\n{clock}");
    assert_eq!(complaints(pure, &elsewhere).len(), 1);
    assert!(complaints("crates/raft/src/raft/tests.rs", &format!("{header}{clock}")).is_empty());
    assert!(complaints("crates/server/src/x.rs", &format!("{header}{clock}")).is_empty());
}

#[test]
fn a_pure_crate_whose_clippy_toml_lacks_the_common_bans_is_reported() {
    let file = |path: String, text: &str| Source { path, text: text.to_owned() };
    let with = |last: Option<&str>| {
        let mut sources = vec![file("clippy.toml".to_owned(), "a = 1\n")];
        let (end, others) = PURE.split_last().unwrap();
        let copies = others.iter().map(|folder| (folder, "a = 1\nb = 2\n"));
        for (folder, text) in copies.chain(last.map(|text| (end, text))) {
            sources.push(file(format!("{folder}clippy.toml"), text));
        }
        check(&sources).len()
    };
    assert_eq!(with(Some("a = 1\nb = 2\n")), 0);
    assert_eq!(with(Some("a = 1\nb = 3\n")), 1);
    assert_eq!(with(Some("b = 2\n")), 1);
    assert_eq!(with(None), 1);
}

#[test]
fn unfinished_work_and_local_paths_are_reported() {
    let unfinished = format!("//! X.\n{})\n", UNFINISHED[0]);
    assert_eq!(complaints("crates/api/src/x.rs", &unfinished).len(), 1);
    let local = format!("See {}notes.\n", LOCAL_PATHS[0]);
    assert_eq!(complaints("README.md", &local).len(), 1);
}

#[test]
fn packages_keep_the_symbol_table_and_differ_from_releases_only_in_the_optimisation_of_tools() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let settings = |profile: &str| -> Vec<String> {
        let (_, rest) = manifest.split_once(&format!("[profile.{profile}]\n")).unwrap();
        let lines = rest.split("\n[").next().unwrap().lines();
        lines.filter(|line| line.contains('=')).map(ToOwned::to_owned).collect()
    };
    // Crash reports and profiles need the symbol table.
    assert!(settings("release").contains(&"strip = \"debuginfo\"".to_owned()));
    assert_eq!(settings("dist"), ["inherits = \"release\""]);
}

#[test]
fn a_reimplementation_of_production_code_in_the_simulator_is_reported() {
    let with = |simulator: &str| {
        let mut texts = std::collections::BTreeMap::<&str, String>::new();
        let mut used = "//! Simulates.\n".to_owned();
        for (name, path) in decisions::DECISIONS {
            let text = texts.entry(path).or_insert_with(|| "//! Decides.\n".to_owned());
            text.push_str(&format!("pub fn {name}() {{}}\n"));
            used.push_str(&format!("use core::{name};\n"));
        }
        texts.insert("crates/sim/src/x.rs", used + simulator);
        let sources = texts
            .into_iter()
            .map(|(path, text)| Source { path: path.to_owned(), text })
            .collect::<Vec<_>>();
        let mut complaints = Vec::new();
        check_decisions(&sources, &mut complaints);
        complaints.len()
    };
    assert_eq!(with("fn is_blank_line() {}\n"), 0);
    assert_eq!(with("fn is_blank() {}\n"), 1);
    assert_eq!(with("struct Depot;\n"), 1);
}
