//! Markdown prose wraps at [`COLUMNS_MAX`] columns, so that a changed sentence is a short diff.
//!
//! Tables, code blocks, headings, comments and links to images do not wrap, and neither do generated pages. A line that
//! cannot be broken, because it consists of one link or code span, may be longer.

use super::source::Source;

const COLUMNS_MAX: usize = 100;

/// A sentence at the beginning of each generated page.
const GENERATED: &str = "\n\nThis page is generated from ";

/// Beginnings of lines that do not wrap.
const UNWRAPPED: [&str; 5] = ["|", "<", "#", "{{", "!["];

/// Reports lines of prose that are too long.
pub(super) fn check_wrapping(source: &Source, complaints: &mut Vec<String>) {
    if source.text.contains(GENERATED) {
        return;
    }
    let mut is_block = false;
    for (number, line) in (1..).zip(source.text.lines()) {
        let text = line.trim_start();
        let is_fence = text.starts_with("```");
        is_block ^= is_fence;
        let is_prose = !is_block && !UNWRAPPED.iter().any(|start| text.starts_with(start));
        if is_prose && !is_fence && line.chars().count() > COLUMNS_MAX && has_break(text) {
            complaints.push(format!(
                "{}:{number}: prose in Markdown wraps at {COLUMNS_MAX} columns",
                source.path
            ));
        }
    }
}

/// Returns whether a line contains a space outside of links and code spans, not counting the space after `- `.
fn has_break(text: &str) -> bool {
    let text = text.strip_prefix("- ").unwrap_or(text);
    let (mut is_code, mut is_link) = (false, false);
    text.chars().any(|c| {
        match c {
            '`' => is_code ^= true,
            '[' if !is_code => is_link = true,
            ']' if !is_code => is_link = false,
            _ => {}
        }
        c == ' ' && !is_code && !is_link
    })
}
