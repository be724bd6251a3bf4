//! The names in the tables of `docs/bounds.md`.
//!
//! Each word in backticks is the name of a constant, a type, a metric, a test, a limit field or a flag. Each name must
//! be declared in a Rust file. The columns of [`FILLED`] have no empty cells. Each bound has one row.

use std::collections::HashSet;

use super::source::Source;

/// The path of the page, relative to the root of the repository.
const PAGE: &str = "docs/bounds.md";

/// The columns that must not have empty cells.
const FILLED: [&str; 2] = ["series", "reached by"];

/// Reports undeclared names and empty cells in the tables of the page.
pub(super) fn check_bounds(sources: &[Source], complaints: &mut Vec<String>) {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return };
    for (number, line) in (1..).zip(page.text.lines()).filter(|(_, line)| line.starts_with('|')) {
        for name in line.split('`').skip(1).step_by(2) {
            let is_there = sources.iter().any(|source| declares(source, name));
            if !is_there {
                complaints.push(format!("{PAGE}:{number}: {name} is not declared"));
            }
        }
    }
    check_cells(page, complaints);
}

/// Reports empty cells, repeated bounds, and tables without the required columns.
fn check_cells(page: &Source, complaints: &mut Vec<String>) {
    let mut heads: Vec<&str> = Vec::new();
    let mut bounds = HashSet::new();
    for (number, line) in (1..).zip(page.text.lines()) {
        let Some(row) = line.strip_prefix('|') else {
            heads.clear();
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        if heads.is_empty() {
            heads = cells;
            let missing = FILLED.iter().filter(|column| !heads.contains(column));
            let missing =
                missing.map(|column| format!("{PAGE}:{number}: there is no column {column:?}"));
            complaints.extend(missing);
        } else if !row.starts_with("---") {
            if !bounds.insert(cells[0]) {
                complaints.push(format!("{PAGE}:{number}: repeated row of {}", cells[0]));
            }
            let is_empty = |column: &&&str| {
                let at = heads.iter().position(|head| head == *column);
                at.is_some_and(|at| cells.get(at).is_none_or(|cell| cell.is_empty()))
            };
            let empty = FILLED.iter().filter(is_empty);
            complaints.extend(
                empty.map(|column| format!("{PAGE}:{number}: empty cell in column {column:?}")),
            );
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

    /// Returns the complaints about a table with this header and row.
    fn complaints_of(header: &str, row: &str) -> Vec<String> {
        let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let code = "const MOST: u64 = 1;\nfn most_is_most() {}\nlet x = \"quorate_most_bytes\";\n";
        let page = format!("`NOT_IN_A_TABLE`\n\n{header}\n|---|---|---|---|\n{row}\n");
        let mut complaints = Vec::new();
        check_bounds(&[file(PAGE, &page), file("crates/x/src/x.rs", code)], &mut complaints);
        complaints
    }

    const HEAD: &str = "| bound | series | reached by | from outside by |";

    #[test]
    fn an_undeclared_name_in_the_bounds_table_is_reported() {
        let of = |row| complaints_of(HEAD, row).len();
        assert_eq!(of("| `MOST` | `quorate_most_bytes` | `most_is_most` | |"), 0);
        assert_eq!(of("| `MOST_OF_ALL` | `quorate_most` | `most_is` | `--most` |"), 4);
    }

    #[test]
    fn a_second_row_of_the_same_bound_is_reported() {
        let row = "| `MOST` | none: why | `most_is_most` | |";
        let other = "| `MOST` of each | none: why | `most_is_most` | |";
        assert_eq!(complaints_of(HEAD, &format!("{row}\n{other}")), [""; 0]);
        assert_eq!(
            complaints_of(HEAD, &format!("{row}\n\n{HEAD}\n|---|---|---|---|\n{row}")),
            [format!("{PAGE}:9: repeated row of `MOST`")]
        );
    }

    #[test]
    fn a_bound_without_a_metric_or_a_test_is_reported() {
        let of = |row| complaints_of(HEAD, row);
        assert_eq!(of("| `MOST` | none: why | `most_is_most` | |"), [""; 0]);
        assert_eq!(
            of("| `MOST` | | `most_is_most` | |"),
            [format!("{PAGE}:5: empty cell in column \"series\"")]
        );
        assert_eq!(
            of("| `MOST` | `quorate_most_bytes` |  |"),
            [format!("{PAGE}:5: empty cell in column \"reached by\"")]
        );
        assert_eq!(of("| `MOST` |").len(), 2);
        assert_eq!(
            complaints_of("| bound | series |", "| `MOST` | none: why |"),
            [format!("{PAGE}:3: there is no column \"reached by\"")]
        );
    }
}
