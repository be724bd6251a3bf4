//! The reference page of the flags is what the table says.

use std::path::Path;

use super::super::usage;

/// Writes the page instead of comparing it.
const UPDATE: &str = "QUORATE_UPDATE_DOCS";

#[test]
fn the_reference_page_is_what_the_table_of_flags_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flags.md");
    let page = usage::reference();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/flags.md is out of date: run this test with {UPDATE}=1");
}
