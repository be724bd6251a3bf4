//! The table of plants in the documentation: one row for each plant, sorted by name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Found;
use crate::Outcome;

/// The first lines of the table.
pub(super) const HEADER: &str = "| plant | seeds | time | failure |\n|---|---|---|---|";

/// The maximum length of a failure text in the table, in characters.
const FAILURE_CHARS_MAX: usize = 110;

/// The cells of a plant that has not been tried.
const NOT_TRIED: &str = "not tried | | |";

/// Returns the row of a plant.
pub(super) fn row(name: &str, first: u64, theme: Option<&str>, found: Option<&Found>) -> String {
    let Some(found) = found else { return format!("| `{name}` | not found | | |") };
    let failure: String = found.failure.chars().take(FAILURE_CHARS_MAX).collect();
    // A vertical bar would end the table cell, and an unmatched quotation mark would open a quotation.
    let failure = failure.replace('|', "/");
    let failure = match failure.rfind('"') {
        Some(last) if failure.matches('"').count() % 2 == 1 => &failure[..last],
        _ => &failure,
    };
    let time = found.time.as_secs().max(1);
    let seeds = match (found.seed, theme) {
        (None, _) => "a test".to_owned(),
        (Some(seed), None) => (seed - first + 1).to_string(),
        // Only some of the seeds have the theme, so the row contains the failed seed instead of the number of seeds.
        (Some(seed), Some(theme)) => format!("{seed}, {theme}"),
    };
    format!("| `{name}` | {seeds} | {time} s | {} |", failure.trim())
}

/// Writes a row to the table. Also adds missing rows for `names`, and removes all rows with other names.
pub(super) fn write(path: &Path, names: &BTreeSet<String>, name: &str, row: &str) -> Outcome {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let text = with_row(&text, names, name, row)
        .ok_or_else(|| format!("{}: there is no table of plants", path.display()))?;
    std::fs::write(path, text).map_err(failed)
}

fn with_row(text: &str, names: &BTreeSet<String>, name: &str, row: &str) -> Option<String> {
    let (before, table) = text.split_once(HEADER)?;
    let (rows, after) = table.split_once("\n\n")?;
    let known: BTreeMap<&str, &str> =
        rows.lines().filter_map(|line| Some((name_of(line)?, line))).collect();
    let mut text = format!("{before}{HEADER}\n");
    for one in names {
        let known = known.get(&one[..]).copied();
        match known {
            _ if one == name => text.push_str(row),
            Some(known) => text.push_str(known),
            None => text.push_str(&format!("| `{one}` | {NOT_TRIED}")),
        }
        text.push('\n');
    }
    text.push('\n');
    text.push_str(after);
    Some(text)
}

/// Returns the names of the plants in the table.
pub(super) fn names(text: &str) -> BTreeSet<String> {
    let rows = text.split_once(HEADER).and_then(|(_, table)| table.split_once("\n\n"));
    let names = rows.map(|(rows, _)| rows.lines().filter_map(name_of).map(str::to_owned));
    names.into_iter().flatten().collect()
}

fn name_of(row: &str) -> Option<&str> {
    row.strip_prefix("| `")?.split_once('`').map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_new_row_replaces_the_old_row_of_the_same_plant() {
        let names: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
        let found =
            Found { seed: Some(12), failure: "x | y".to_owned(), time: Duration::from_millis(10) };
        let found = row("b", 3, None, Some(&found));
        assert_eq!(found, "| `b` | 10 | 1 s | x / y |");
        let old = format!(
            "t\n\n{HEADER}\n| `b` | not found | | |\n| `c` | 7 | 2 s | z |\n| `d` | 1 |\n\nu\n"
        );
        let new = with_row(&old, &names, "b", &found).unwrap();
        let rows = "| `a` | not tried | | |\n| `b` | 10 | 1 s | x / y |\n| `c` | 7 | 2 s | z |";
        assert_eq!(new, format!("t\n\n{HEADER}\n{rows}\n\nu\n"));
        assert_eq!(super::names(&new), names);
        assert!(with_row("t", &names, "b", &found).is_none());
    }
}
