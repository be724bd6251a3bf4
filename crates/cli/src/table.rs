//! Tables for terminals: box-drawing characters, centred headings, right-aligned cells.

/// Draws a table with borders and headings. Each row takes one line.
#[must_use]
pub fn draw(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<String> =
        header.iter().map(|name| name.replace('_', " ").to_uppercase()).collect();
    let mut widths: Vec<usize> = header.iter().map(|name| name.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let border = |left: &str, middle: &str, right: &str| {
        let lines: Vec<_> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}\n", lines.join(middle))
    };
    let line = |cells: Vec<String>| format!("│{}│\n", cells.join("│"));
    let centred = |(name, width): (&String, &usize)| format!(" {name:^width$} ");
    let to_the_right = |(cell, width): (&String, &usize)| format!(" {cell:>width$} ");
    let mut out = border("┌", "┬", "┐");
    out.push_str(&line(header.iter().zip(&widths).map(centred).collect()));
    out.push_str(&border("├", "┼", "┤"));
    for row in rows {
        out.push_str(&line(row.iter().zip(&widths).map(to_the_right).collect()));
    }
    out.push_str(&border("└", "┴", "┘"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["1".to_owned(), "long cell".to_owned()]];
        let expected = "\
┌────────┬───────────┐
│ A NAME │     B     │
├────────┼───────────┤
│      1 │ long cell │
└────────┴───────────┘
";
        assert_eq!(draw(&["a_name", "b"], &rows), expected);
    }
}
