//! Tests that import cycles between files and between modules are reported, and that permitted imports are not.

use super::*;

/// Returns the complaints about a crate with these files below `src/`.
fn complaints(files: &[(&str, &str)]) -> Vec<String> {
    let source = |path: String, text: &str| Source { path, text: text.to_owned() };
    let mut sources = vec![source("crates/x/Cargo.toml".to_owned(), "")];
    sources.extend(files.iter().map(|(path, text)| source(format!("crates/x/src/{path}"), text)));
    let mut complaints = Vec::new();
    check_cycles(&sources, &mut complaints);
    complaints
}

#[test]
fn two_files_that_import_each_other_are_reported() {
    let found = complaints(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::{self, Beta};"),
        ("b.rs", "fn f(alpha: super::a::Alpha) {}"),
    ]);
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(found.starts_with("import cycle of 2 files"), "{found}");
    assert!(found.contains("crates/x/src/a.rs -> crates/x/src/b.rs: Beta, self"), "{found}");
    assert!(found.contains("crates/x/src/b.rs -> crates/x/src/a.rs: Alpha"), "{found}");
}

#[test]
fn imports_in_one_direction_are_not_reported_as_a_cycle() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; pub use a::Alpha;"),
        ("a.rs", "use crate::b::Beta; use crate::c::Gamma;"),
        ("b.rs", "use crate::c::Gamma; use std::fmt;"),
        (
            "c.rs",
            "// crate::a::Alpha\nconst TEXT: &str = \"crate::a::Alpha\"; pub(in crate::a) fn f() {}",
        ),
    ];
    assert_eq!(complaints(&files), [""; 0]);
}

#[test]
fn a_module_may_import_from_its_parents() {
    let files = [
        ("lib.rs", "mod a; pub struct Root; use a::Alpha;"),
        ("a/mod.rs", "mod b; use b::Beta; pub struct Alpha;"),
        ("a/b.rs", "use super::Alpha; use crate::Root;"),
    ];
    assert_eq!(complaints(&files), [""; 0]);
    // The cycle leads through a file outside the parent module.
    let files = [
        ("lib.rs", "mod a; mod c;"),
        ("a.rs", "mod b; use b::Beta; pub struct Alpha;"),
        ("a/b.rs", "use crate::c::Gamma;"),
        ("c.rs", "use crate::a::Alpha;"),
    ];
    let found = complaints(&files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("import cycle of 3 files"), "{found:?}");
}

#[test]
fn imported_names_are_followed_to_their_definitions() {
    let files = [
        ("lib.rs", "mod a; mod b; pub use b::Beta;"),
        ("a.rs", "use crate::Beta; pub struct Alpha;"),
        ("b.rs", "use crate::a; fn f(x: a::Alpha) {} pub struct Beta;"),
    ];
    let found = complaints(&files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("a.rs -> crates/x/src/b.rs: Beta"), "{found:?}");
    // The path leads through an imported module to its submodule.
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b; fn f() { b::c::gamma() }"),
        ("b.rs", "pub mod c;"),
        ("b/c.rs", "use crate::a::f;"),
    ];
    let found = complaints(&files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("a.rs -> crates/x/src/b/c.rs: gamma"), "{found:?}");
}

#[test]
fn imports_of_tests_are_ignored() {
    let files = [
        ("lib.rs", "mod a; mod b; #[cfg(test)] mod fixture;"),
        ("a.rs", "use crate::b::Beta; #[cfg(test)] mod tests;"),
        (
            "b.rs",
            "#[cfg(test)] use crate::a::Alpha; #[cfg(test)] mod tests { use crate::a::Alpha; }",
        ),
        ("b/tests.rs", "use crate::a::Alpha;"),
        ("fixture.rs", "use crate::a::Alpha;"),
    ];
    assert_eq!(complaints(&files), [""; 0]);
}

#[test]
fn modules_whose_submodules_import_each_other_are_reported() {
    // There is no cycle of files, because a submodule may import from its parent.
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod deep; use deep::Deep; use crate::b::Beta; pub struct Alpha;"),
        ("a/deep.rs", "use super::Alpha; pub struct Deep;"),
        ("b/mod.rs", "mod low; use low::Low; pub struct Beta;"),
        ("b/low.rs", "use crate::a::deep::Deep; pub struct Low;"),
    ];
    let found = complaints(&files);
    let [found] = &found[..] else { panic!("{found:?}") };
    assert!(found.starts_with("import cycle of modules: a, b"), "{found}");
    assert!(found.contains("crates/x/src/b/low.rs -> crates/x/src/a/deep.rs"), "{found}");
    // The rule also applies to siblings below the crate root.
    let files = [
        ("lib.rs", "mod top;"),
        ("top.rs", "mod a; mod b;"),
        ("top/a.rs", "mod deep; use super::b::Beta;"),
        ("top/a/deep.rs", "pub struct Deep;"),
        ("top/b.rs", "use super::a::deep::Deep; pub struct Beta;"),
    ];
    let found = complaints(&files);
    assert!(found[0].contains("modules: top::a, top::b"), "{found:?}");
}
