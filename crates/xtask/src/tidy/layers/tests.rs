//! Tests that imports from a higher layer, and files outside the layers, are reported.

use super::*;

/// Returns the complaints about a crate with these files below `src/`.
fn complaints(files: &[(&str, &str)]) -> Vec<String> {
    let layers = Layers { src: "crates/x/src/", layers: &["upper", "lower"], top: &["ties"] };
    let source = |(path, text): &(&str, &str)| Source {
        path: format!("crates/x/src/{path}"),
        text: (*text).to_owned(),
    };
    let sources: Vec<_> = files.iter().map(source).collect();
    let mut complaints = Vec::new();
    check_crate(&layers, &sources, &mut complaints);
    complaints
}

#[test]
fn a_higher_layer_may_import_from_a_lower_layer() {
    let files = [
        ("lib.rs", "mod lower; mod ties; mod upper; pub use upper::a::Alpha;"),
        ("ties.rs", "use crate::lower::b::Beta; use crate::upper::a::Alpha;"),
        ("upper/mod.rs", "pub mod a;"),
        ("upper/a.rs", "use crate::lower::b::Beta; pub struct Alpha;"),
        ("lower/mod.rs", "pub mod b;"),
        ("lower/b.rs", "pub struct Beta;"),
    ];
    assert_eq!(complaints(&files), [""; 0]);
}

#[test]
fn an_import_from_a_higher_layer_is_reported_even_through_a_re_export() {
    for import in ["use crate::upper::a::Alpha;", "use crate::Alpha;"] {
        let found = complaints(&[
            ("lib.rs", "mod lower; mod upper; pub use upper::a::Alpha;"),
            ("upper/mod.rs", "pub mod a;"),
            ("upper/a.rs", "pub struct Alpha;"),
            ("lower/mod.rs", "pub mod b;"),
            ("lower/b.rs", import),
        ]);
        let [found] = &found[..] else { panic!("{found:?}") };
        assert!(found.contains("lower/b.rs: `lower` imports Alpha"), "{found}");
    }
}

#[test]
fn a_file_outside_the_layers_is_reported() {
    let found = complaints(&[("lib.rs", "mod stray;"), ("stray.rs", "")]);
    assert_eq!(found, ["crates/x/src/stray.rs: belongs to no layer of its crate (upper, lower)"]);
}
