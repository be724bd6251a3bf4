//! The format for terminals: a table in box-drawing characters, headings centred, cells to the right.

use super::{Reply, Shown, columns};

/// Renders a reply, or returns false for one that is no table.
pub(super) fn render(reply: &Reply, shown: &mut Shown) -> bool {
    let (header, rows) = match reply {
        Reply::MemberList(response) => (&columns::MEMBERS[..], columns::members(response)),
        Reply::Health(list) => (&columns::HEALTH[..], columns::health(list)),
        Reply::Status(list) => (&columns::STATUS[..], columns::status(list)),
        Reply::HashKv(list) => (&columns::HASH_KV[..], columns::hash_kv(list)),
        _ => return false,
    };
    draw(header, &rows, shown);
    true
}

fn draw(header: &[&str], rows: &[Vec<String>], shown: &mut Shown) {
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
        format!("{left}{}{right}", lines.join(middle))
    };
    let line = |cells: Vec<String>| format!("│{}│", cells.join("│"));
    let centred = |(name, width): (&String, &usize)| format!(" {name:^width$} ");
    let to_the_right = |(cell, width): (&String, &usize)| format!(" {cell:>width$} ");
    shown.line(border("┌", "┬", "┐"));
    shown.line(line(header.iter().zip(&widths).map(centred).collect()));
    shown.line(border("├", "┼", "┤"));
    for row in rows {
        shown.line(line(row.iter().zip(&widths).map(to_the_right).collect()));
    }
    shown.line(border("└", "┴", "┘"));
}
