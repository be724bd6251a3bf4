//! The table of plants in the documentation: a row for each, in the order of their names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Found;
use crate::Outcome;

/// How the table begins.
pub(super) const HEADER: &str = "| plant | seeds | time | what was said |\n|---|---|---|---|";

/// Characters of what the checker said that the table shows.
const SAID_MAX: usize = 110;

/// What is in the place of a plant that was not tried yet.
const NEVER_TRIED: &str = "not tried | | |";

/// What was found of a plant, in so many seeds.
pub(super) fn row(name: &str, first: u64, theme: Option<&str>, found: Option<&Found>) -> String {
    let Some(found) = found else { return format!("| `{name}` | not found | | |") };
    let said: String = found.said.chars().take(SAID_MAX).collect();
    // What would end a cell.
    let said = said.replace('|', "/");
    let time = found.time.as_secs().max(1);
    let seeds = match (found.seed, theme) {
        (None, _) => "a test".to_owned(),
        (Some(seed), None) => (seed - first + 1).to_string(),
        // Only some of these seeds are of the theme, so the count says less than the seed.
        (Some(seed), Some(theme)) => format!("{seed}, {theme}"),
    };
    format!("| `{name}` | {seeds} | {time} s | {} |", said.trim())
}

/// Writes a row to the table, which has a row for each of these names.
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
            None => text.push_str(&format!("| `{one}` | {NEVER_TRIED}")),
        }
        text.push('\n');
    }
    text.push('\n');
    text.push_str(after);
    Some(text)
}

/// The plants that the table in this text tells of.
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
    fn a_row_takes_the_place_of_the_one_before() {
        let names: BTreeSet<String> = ["a", "b", "c"].map(str::to_owned).into();
        let found =
            Found { seed: Some(12), said: "x | y".to_owned(), time: Duration::from_millis(10) };
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
