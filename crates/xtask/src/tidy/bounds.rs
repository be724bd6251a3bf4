//! The page of bounds says what is there.
//!
//! What stands between backticks in a table of [`PAGE`] is a name: of a constant or a type, of a series, of a test, a
//! field of limits, a flag. Each has to be declared somewhere.

use super::source::Source;

/// The page.
const PAGE: &str = "docs/bounds.md";

/// Complains of names in the page's tables that nothing has.
pub(super) fn check_bounds(sources: &[Source], complaints: &mut Vec<String>) {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return };
    for (number, line) in (1..).zip(page.text.lines()).filter(|(_, line)| line.starts_with('|')) {
        for name in line.split('`').skip(1).step_by(2) {
            let is_there = sources.iter().any(|source| declares(source, name));
            if !is_there {
                complaints.push(format!("{PAGE}:{number}: there is no {name}"));
            }
        }
    }
}

fn declares(source: &Source, name: &str) -> bool {
    if !source.path.ends_with(".rs") {
        return false;
    }
    let declared = match name.strip_prefix("--") {
        Some(flag) => vec![format!("\"{flag}\"")],
        None if name.starts_with("quorate_") || name.starts_with("etcd_") => {
            vec![format!("\"{name}\"")]
        }
        None => vec![
            format!("const {name}:"),
            format!("struct {name} "),
            format!("fn {name}("),
            format!("pub {name}:"),
        ],
    };
    declared.iter().any(|declared| source.text.contains(declared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_nothing_has_is_noticed() {
        let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let code = "const MOST: u64 = 1;\nfn most_is_most() {}\nlet x = \"quorate_most_bytes\";\n";
        let of = |row: &str| {
            let page = format!("`NOT_IN_A_TABLE`\n\n| bound |\n|---|\n{row}\n");
            let mut complaints = Vec::new();
            check_bounds(&[file(PAGE, &page), file("crates/x/src/x.rs", code)], &mut complaints);
            complaints.len()
        };
        assert_eq!(of("| `MOST` | `quorate_most_bytes` | `most_is_most` |"), 0);
        assert_eq!(of("| `MOST_OF_ALL` | `quorate_most` | `most_is` | `--most` |"), 4);
    }
}
