//! Tables that fit the screen. On a narrow screen, the least important columns are omitted first.

use std::borrow::Cow;

use super::line::{Line, Style};
use super::text::cut;

/// A column of a table.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) title: Cow<'static, str>,
    /// The rank. Columns with a higher rank are omitted first, and columns with rank 0 are always shown.
    pub(super) rank: u8,
    /// The minimum width, which keeps the width stable from one refresh to the next.
    pub(super) width_min: usize,
    /// Whether the column contains text, which is aligned to the left, rather than numbers, which are aligned to the
    /// right.
    pub(super) is_text: bool,
}

impl Column {
    pub(super) fn text(title: impl Into<Cow<'static, str>>, rank: u8, width_min: usize) -> Self {
        Self { title: title.into(), rank, width_min, is_text: true }
    }

    pub(super) fn number(title: impl Into<Cow<'static, str>>, rank: u8, width_min: usize) -> Self {
        Self { title: title.into(), rank, width_min, is_text: false }
    }
}

/// The text and the style of a cell.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Cell {
    pub(super) fn styled(style: Style, text: impl Into<String>) -> Self {
        Self { text: text.into(), style }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), style: Style::Plain }
    }
}

/// The number of blanks between two columns.
const GAP: usize = 2;
/// The width below which text columns are not shortened to make room for other columns.
const TEXT_MIN: usize = 8;

/// Draws a table: the headings, in which the sort column `marked` is highlighted, and a line for each row.
pub(super) fn draw(
    columns: &[Column],
    rows: &[Vec<Cell>],
    marked: Option<&str>,
    width: usize,
) -> Vec<Line> {
    let mut widths: Vec<usize> = (0..columns.len())
        .map(|at| {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|cell| cell.text.chars().count()).max().unwrap_or_default();
            widest.max(columns[at].width_min).max(columns[at].title.chars().count())
        })
        .collect();
    let mut shown: Vec<usize> = (0..columns.len()).collect();
    let total = |shown: &[usize], widths: &[usize]| -> usize {
        shown.iter().map(|at| widths[*at] + GAP).sum::<usize>().saturating_sub(GAP)
    };
    // Long strings are shortened before a column is omitted.
    let shrink = |shown: &[usize], widths: &mut [usize]| {
        for at in shown.iter().copied().filter(|at| columns[*at].is_text) {
            let excess = total(shown, widths).saturating_sub(width);
            let least = widths[at].min(TEXT_MIN.max(columns[at].width_min));
            widths[at] = widths[at].saturating_sub(excess).max(least);
        }
    };
    loop {
        let mut trial = widths.clone();
        shrink(&shown, &mut trial);
        let least = shown.iter().copied().max_by_key(|at| (columns[*at].rank, *at));
        match least.filter(|at| columns[*at].rank > 0) {
            Some(least) if total(&shown, &trial) > width => shown.retain(|at| *at != least),
            _ => {
                widths = trial;
                break;
            }
        }
    }
    let line = |cell: &dyn Fn(usize) -> Cell| {
        let mut line = Line::default();
        for (position, at) in shown.iter().copied().enumerate() {
            if position > 0 {
                line.push(Style::Plain, " ".repeat(GAP));
            }
            let Cell { text, style } = cell(at);
            let (text, width) = (cut(&text, widths[at]), widths[at]);
            let padded = match columns[at].is_text {
                true => format!("{text:<width$}"),
                false => format!("{text:>width$}"),
            };
            line.push(style, padded);
        }
        line.fitted(width)
    };
    let heading = |at: usize| {
        let title = columns[at].title.clone();
        let style = if marked == Some(&*title) { Style::Reversed } else { Style::Strong };
        Cell::styled(style, title)
    };
    let body = rows.iter().map(|row| line(&|at| row.get(at).cloned().unwrap_or_default()));
    [line(&heading)].into_iter().chain(body).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(name: &str, width: usize) -> Vec<String> {
        let columns = [
            Column::text("NAME", 0, 4),
            Column::number("A", 1, 5),
            Column::number("B", 3, 5),
            Column::number("C", 2, 5),
        ];
        let row = vec![name.into(), "1".into(), "2".into(), Cell::styled(Style::Bad, "3")];
        draw(&columns, &[row], None, width).iter().map(Line::plain).collect()
    }

    #[test]
    fn the_least_important_columns_are_omitted_first() {
        assert_eq!(drawn("n", 40), ["NAME      A      B      C", "n         1      2      3"]);
        assert_eq!(drawn("n", 24), ["NAME      A      C", "n         1      3"]);
        assert_eq!(drawn("n", 12), ["NAME      A", "n         1"]);
        assert_eq!(drawn("n", 4), ["NAME", "n"]);
    }

    #[test]
    fn long_strings_are_shortened_before_columns_are_omitted() {
        assert_eq!(drawn("a-long-name", 29)[1], "a-long->      1      2      3");
        for width in 0..60 {
            assert!(drawn("a-long-name", width).iter().all(|line| line.len() <= width));
        }
    }
}
