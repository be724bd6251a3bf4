//! Tests that forbidden and unused dependencies in manifests are reported.

use super::*;

const ARROWS: &[(&str, &[&str])] = &[("low", &[]), ("high", &["low"])];

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

#[test]
fn a_forbidden_dependency_is_reported() {
    let complaints = |dependency: &str| {
        let text =
            format!("[package]\nname = \"low\"\n\n[dependencies]\nbytes = \"1\"\n{dependency}\n");
        let mut complaints = Vec::new();
        check_arrows(&source("crates/low/Cargo.toml", &text), ARROWS, &mut complaints);
        complaints
    };
    assert!(complaints("").is_empty());
    for line in [
        "high.workspace = true",
        "high = { path = \"../high\" }",
        "[dev-dependencies]\nhigh.workspace = true",
        "[target.'cfg(unix)'.dependencies]\nhigh.workspace = true",
        "[dependencies.high]\npath = \"../high\"",
    ] {
        let found = complaints(line);
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(found[0].contains("low may not depend on high"), "{found:?}");
    }
}

#[test]
fn an_unknown_package_is_reported() {
    let mut found = Vec::new();
    let manifest = source("crates/new/Cargo.toml", "[package]\nname = \"new\"\n");
    check_arrows(&manifest, ARROWS, &mut found);
    assert_eq!(found.len(), 1, "{found:?}");
}

/// Returns the complaints about a crate that declares `http-body` in a section and has one source file.
fn unused(section: &str, path: &str, text: &str) -> Vec<String> {
    let manifest = format!("[package]\nname = \"low\"\n[{section}]\nhttp-body.workspace = true\n");
    let mut complaints = Vec::new();
    let sources = [source("crates/low/Cargo.toml", &manifest), source(path, text)];
    check_used(&sources, &mut complaints);
    complaints
}

#[test]
fn an_unused_dependency_is_reported() {
    let lib = "crates/low/src/lib.rs";
    for text in ["use http_body::Body;", "use http_body;", "use http_body as body;"] {
        assert!(unused("dependencies", lib, text).is_empty(), "{text}");
    }
    assert!(unused("dependencies", lib, "fn f(body: impl http_body::Body) {}").is_empty());
    for text in [
        "use http_body_util::Full;",
        "use crate::http_body::Full;",
        "let http_body = 1;",
        "// http_body::Body",
        "#[cfg(test)]\nmod tests {\nuse http_body::Body;\n}",
    ] {
        assert_eq!(unused("dependencies", lib, text).len(), 1, "{text}");
    }
    assert_eq!(unused("dependencies", "crates/high/src/lib.rs", "use http_body::Body;").len(), 1);
}

#[test]
fn a_dependency_used_only_by_tests_must_be_a_dev_dependency() {
    let (text, tests) = ("use http_body::Body;", "crates/low/src/x/tests.rs");
    assert_eq!(unused("dependencies", tests, text).len(), 1);
    assert_eq!(unused("dependencies", "crates/low/tests/all.rs", text).len(), 1);
    assert!(unused("dev-dependencies", tests, text).is_empty());
    assert!(unused("dev-dependencies", "crates/low/tests/all.rs", text).is_empty());
    assert!(unused("build-dependencies", "crates/low/build.rs", text).is_empty());
    assert_eq!(unused("build-dependencies", "crates/low/src/lib.rs", text).len(), 1);
}

#[test]
fn an_unused_workspace_dependency_is_reported() {
    let table = source("Cargo.toml", "[workspace.dependencies]\nhttp-body = \"1\"\n");
    let mut found = Vec::new();
    check_used(&[table], &mut found);
    assert_eq!(found, ["Cargo.toml:2: http-body is not used"]);
}
