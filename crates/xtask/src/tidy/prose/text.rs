//! Extracts the sentences and headings of a Markdown page, or of the comments in a Rust file.

use super::super::source::Source;

/// The minimum number of words in a sentence.
const WORDS_MIN: usize = 4;

/// Returns the sentences of a file.
pub(super) fn sentences(source: &Source) -> Vec<String> {
    let paragraphs = if source.path.ends_with(".md") {
        paragraphs(source.text.lines().map(|line| Some(line.trim_end())), true)
    } else if source.path.ends_with(".rs") {
        paragraphs(source.text.lines().map(comment), false)
    } else {
        Vec::new()
    };
    paragraphs.iter().flat_map(|paragraph| split(paragraph)).collect()
}

/// Returns the headings of a Markdown page, without the `#` marks and without the number of a decision record.
pub(super) fn headings(source: &Source) -> Vec<String> {
    if !source.path.ends_with(".md") {
        return Vec::new();
    }
    let mut is_code = false;
    let mut found = Vec::new();
    for line in source.text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let text = line.trim_start_matches('#');
        if !is_code && text.len() < line.len() && text.starts_with(' ') {
            let number = |letter: char| letter.is_ascii_digit() || letter == '.' || letter == ' ';
            found.push(text.trim_start_matches(number).trim_end().to_owned());
        }
    }
    found
}

/// Returns the text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    let text = text.strip_prefix(['/', '!']).unwrap_or(text);
    Some(text.strip_prefix(' ').unwrap_or(text).trim_end())
}

/// Joins lines into paragraphs. Blank lines, list items, headings, tables, code and lines without text end a paragraph.
fn paragraphs<'a>(lines: impl Iterator<Item = Option<&'a str>>, is_page: bool) -> Vec<String> {
    let mut done = Vec::new();
    let mut open = String::new();
    let mut is_code = false;
    for line in lines {
        let Some(text) = line.map(str::trim_start) else {
            done.push(std::mem::take(&mut open));
            is_code = false;
            continue;
        };
        if text.starts_with("```") {
            is_code = !is_code;
            done.push(std::mem::take(&mut open));
        } else if !is_code {
            let item = without_mark(text);
            let is_apart =
                text.is_empty() || text.starts_with('|') || is_page && text.starts_with("<!--");
            if is_apart || item.is_some() {
                done.push(std::mem::take(&mut open));
            }
            if !is_apart {
                open.push_str(item.unwrap_or(text));
                open.push(' ');
            }
        }
    }
    done.push(open);
    done.retain(|paragraph| !paragraph.trim().is_empty());
    done
}

/// Returns the text of a list item, a quotation or a heading.
fn without_mark(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let mark = match rest.len() < text.len() {
        true => rest.strip_prefix('.'),
        false => text.strip_prefix(['-', '*', '>']).or_else(|| {
            let rest = text.trim_start_matches('#');
            (rest.len() < text.len()).then_some(rest)
        }),
    };
    mark.filter(|rest| rest.starts_with(' ')).map(str::trim_start)
}

/// Splits a paragraph into sentences. A sentence begins with a capital letter, code, a link or emphasis.
fn split(paragraph: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for word in paragraph.split_whitespace() {
        let begins =
            word.starts_with(|letter: char| letter.is_ascii_uppercase() || "[`*".contains(letter));
        if begins && open.last().is_some_and(|last| last.ends_with(['.', '!', '?'])) {
            found.push(std::mem::take(&mut open));
        }
        open.push(word);
    }
    found.push(open);
    let is_see = |words: &[&str]| words == ["See", "the", "module."];
    found.retain(|words| words.len() >= WORDS_MIN || is_see(words));
    found.iter().map(|words| words.join(" ")).collect()
}
