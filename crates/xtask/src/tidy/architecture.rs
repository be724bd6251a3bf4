//! The names in `ARCHITECTURE.md`.
//!
//! The diagram contains every crate, and every crate is named in a third-level heading. A path in backticks, such as
//! `storage::wal`, names a file, a module or a declared item of the crate at its start. Below the heading of a crate, a
//! single name in backticks also names such an item, unless it is the name of another crate.
//!
//! In the table of terms, a row that ends with a type, such as `raft::Term`, reserves the type's name (`Term`): no
//! other crate declares a type with that name.

use std::collections::BTreeMap;

use super::source::{Source, is_letter};
use super::tokens::tokens;

/// The path of the page, relative to the root of the repository.
const PAGE: &str = "ARCHITECTURE.md";

/// Keywords that precede a declared name.
const DECLARING: [&str; 7] = ["fn", "struct", "enum", "trait", "const", "mod", "type"];

/// Keywords that precede the name of a type.
const TYPES: [&str; 4] = ["struct", "enum", "trait", "type"];

/// The declared names of each crate, by the crate's directory name.
type Crates<'a> = BTreeMap<&'a str, Vec<&'a str>>;

/// Reports crates missing from the page, and undeclared names on it.
pub(super) fn check_architecture(sources: &[Source], complaints: &mut Vec<String>) {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return };
    let crates = read(sources);
    let drawing = page.text.split("```").nth(1).unwrap_or_default();
    let drawn: Vec<&str> = drawing.split(|letter| !is_letter(letter)).collect();
    let missing = crates.keys().filter(|name| !drawn.contains(name));
    complaints.extend(missing.map(|name| format!("{PAGE}: {name} is not in the diagram")));
    let headings = page.text.lines().filter_map(|line| line.strip_prefix("### "));
    let headed: Vec<&str> =
        headings.flat_map(|heading| heading.split('`').skip(1).step_by(2)).collect();
    let missing = crates.keys().filter(|name| !headed.is_empty() && !headed.contains(name));
    complaints.extend(missing.map(|name| format!("{PAGE}: {name} has no heading")));
    check_terms(&page.text, sources, complaints);
    let mut is_drawing = false;
    let mut entry: Vec<&str> = Vec::new();
    for (number, line) in (1..).zip(page.text.lines()) {
        if line.starts_with("```") {
            is_drawing = !is_drawing;
        }
        if line.starts_with('#') {
            let names = line.strip_prefix("### `").unwrap_or_default();
            entry = names.split('`').step_by(2).filter(|name| !name.is_empty()).collect();
        }
        if !is_drawing {
            let unknown = line.split('`').skip(1).step_by(2).filter_map(|name| {
                let owners = owners(name, &entry, &crates)?;
                segments(name).find(|segment| !is_declared(segment, &owners, &crates))
            });
            complaints
                .extend(unknown.map(|name| format!("{PAGE}:{number}: {name} is not declared")));
        }
    }
}

/// Reports types whose name is a term that another crate has reserved.
fn check_terms(page: &str, sources: &[Source], complaints: &mut Vec<String>) {
    let (_, terms) = page.split_once("\n## Terms\n").unwrap_or_default();
    let terms = terms.lines().take_while(|line| !line.starts_with("## "));
    for row in terms.filter(|line| line.starts_with('|')) {
        let path = row.rsplit('`').nth(1).unwrap_or_default();
        let Some((owner, term)) = path.rsplit_once("::") else { continue };
        if !term.starts_with(char::is_uppercase) {
            continue;
        }
        for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
            let folder = format!("crates/{owner}/");
            let declares = |pair: &[&str]| TYPES.contains(&pair[0]) && pair[1] == term;
            let is_other = source.path.starts_with("crates/") && !source.path.starts_with(&folder);
            if is_other
                && source.text.contains(term)
                && tokens(&source.text).windows(2).any(declares)
            {
                complaints.push(format!(
                    "{}: the name {term} is reserved for {owner} ({PAGE})",
                    source.path
                ));
            }
        }
    }
}

/// Returns the crates in which the name is looked up, or `None` if the name is not checked. At least one of them must
/// declare it.
fn owners<'a>(name: &'a str, entry: &[&'a str], crates: &Crates<'_>) -> Option<Vec<&'a str>> {
    match name.split_once("::") {
        Some((owner, _)) => crates.contains_key(owner).then(|| vec![owner]),
        None if entry.is_empty() || !name.chars().all(is_letter) => None,
        None => Some(entry.to_vec()),
    }
}

/// Returns the names in a path or in a list of paths.
fn segments(name: &str) -> impl Iterator<Item = &str> {
    name.split(|letter| !is_letter(letter)).filter(|segment| !segment.is_empty())
}

fn is_declared(name: &str, owners: &[&str], crates: &Crates<'_>) -> bool {
    crates.contains_key(name)
        || owners
            .iter()
            .any(|owner| crates.get(owner).is_some_and(|names| names.binary_search(&name).is_ok()))
}

/// Collects the names of each crate: its files, its directories and its declared items. The names are sorted.
fn read(sources: &[Source]) -> Crates<'_> {
    let mut crates = Crates::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".rs")) {
        let Some((owner, path)) =
            source.path.strip_prefix("crates/").and_then(|path| path.split_once('/'))
        else {
            continue;
        };
        let names = crates.entry(owner).or_default();
        names.extend(path.split(['/', '.']));
        let tokens = tokens(&source.text);
        let pairs = tokens.windows(2).filter(|pair| DECLARING.contains(&pair[0]));
        names.extend(pairs.map(|pair| pair[1]));
    }
    for names in crates.values_mut() {
        names.sort_unstable();
        names.dedup();
    }
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the complaints about a page with this drawing and these lines, in a repository with the crates `log` and
    /// `core`.
    fn complaints(drawing: &str, lines: &str) -> Vec<String> {
        let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let page = format!("# Map\n\n```text\n{drawing}\n```\n\n{lines}\n");
        let mut complaints = Vec::new();
        let log = "pub struct Frame; pub(crate) fn put() {}";
        let sources = [
            file(PAGE, &page),
            file("crates/log/src/record.rs", log),
            file("crates/core/src/lib.rs", "mod step {}"),
        ];
        check_architecture(&sources, &mut complaints);
        complaints
    }

    const DRAWING: &str = "core -> log";

    #[test]
    fn a_crate_missing_from_the_diagram_is_reported() {
        assert_eq!(complaints(DRAWING, ""), [""; 0]);
        assert_eq!(complaints("core", ""), [format!("{PAGE}: log is not in the diagram")]);
    }

    #[test]
    fn a_path_with_an_undeclared_name_is_reported() {
        let good =
            "`log::record`, `core::{step}`, `log::record::Frame::put`, `other::thing`, `thing`";
        assert_eq!(complaints(DRAWING, good), [""; 0]);
        assert_eq!(
            complaints(DRAWING, "as in `log::step`"),
            [format!("{PAGE}:7: step is not declared")]
        );
    }

    #[test]
    fn a_type_named_like_a_term_of_another_crate_is_reported() {
        let row = |owner: &str| {
            format!("### `core`, `log`\n\n## Terms\n\n| frame | a frame | `{owner}::Frame` |")
        };
        assert_eq!(complaints(DRAWING, &row("log")), [""; 0]);
        let taken =
            format!("crates/log/src/record.rs: the name Frame is reserved for core ({PAGE})");
        assert!(complaints(DRAWING, &row("core")).contains(&taken));
    }

    #[test]
    fn a_name_below_a_crate_heading_must_be_declared_by_that_crate() {
        let good = "### `core`, `log`\n`step` and `Frame`,\nwith `put`, for `core`; `--flag`\n\n## Other\n`thing`";
        assert_eq!(complaints(DRAWING, good), [""; 0]);
        let bad = "### `core`\n`step` and `Frame`";
        assert_eq!(
            complaints(DRAWING, bad),
            [format!("{PAGE}: log has no heading"), format!("{PAGE}:8: Frame is not declared")]
        );
    }
}
