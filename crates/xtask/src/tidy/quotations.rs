//! Log and error messages that the documentation quotes.
//!
//! A quotation is a passage of at least [`WORDS_MIN`] words between backticks or double quotes on a page for users, or
//! the value of `"msg"` in a code block. Commands and [`OTHER_TEXTS`] are not quotations. The words of a quotation must
//! occur in this order in a string literal of production code. A word with a placeholder in the literal, such as
//! `{path}`, matches any word.

use super::source::{Source, is_test_file, production};
use super::tokens::literals;

/// The minimum number of words in a quotation. Shorter texts are often names or commands.
const WORDS_MIN: usize = 3;

/// First words of commands.
const PROGRAMS: [&str; 7] = ["cargo", "ctl", "etcd", "etcdctl", "etcdutl", "go", "quorate"];

/// Texts on the pages that are not messages of our own, such as messages that only etcd has, each with the reason.
const OTHER_TEXTS: &[(&str, &str)] = &[("some extra key", "a key in an example")];

/// Reports quotations that no string literal contains, and entries of [`OTHER_TEXTS`] that no page contains.
pub(super) fn check_quotations(sources: &[Source], complaints: &mut Vec<String>) {
    let quotations: Vec<(&str, usize, String)> = sources
        .iter()
        .filter(|source| is_page(&source.path))
        .flat_map(|page| {
            let found = quotations(&page.text).into_iter();
            found.map(|(number, text)| (&page.path[..], number, text))
        })
        .collect();
    if quotations.is_empty() {
        return;
    }
    let literals: Vec<Vec<String>> = sources
        .iter()
        .filter(|source| has_messages(&source.path))
        .flat_map(|source| {
            let lines: Vec<&str> = production(&source.text).map(|(_, line)| line).collect();
            literals(&lines.join("\n")).into_iter().map(|literal| words(&literal))
        })
        .collect();
    let is_other = |text: &str| OTHER_TEXTS.iter().any(|(other, _)| *other == text);
    for (path, number, text) in &quotations {
        let quoted = words(text);
        if !is_other(text) && !literals.iter().any(|literal| contains(literal, &quoted)) {
            complaints.push(format!(
                "{path}:{number}: no source contains the quoted message: {text} (if it is not one of ours, add it to \
                 OTHER_TEXTS)"
            ));
        }
    }
    for (other, _) in OTHER_TEXTS {
        if !quotations.iter().any(|(_, _, text)| text == other) {
            complaints
                .push(format!("no page contains this text; remove it from OTHER_TEXTS: {other}"));
        }
    }
}

/// Returns whether a file is a page for users. Decision records do not count, because they may quote former messages.
fn is_page(path: &str) -> bool {
    let is_direct = |page: &str| page.ends_with(".md") && !page.contains('/');
    path.strip_prefix("docs/").is_some_and(is_direct)
        || ["README.md", "SECURITY.md"].contains(&path)
}

/// Returns whether a file contains messages of the product.
fn has_messages(path: &str) -> bool {
    let is_source = path.starts_with("crates/") && path.ends_with(".rs");
    is_source && !path.starts_with("crates/xtask/") && !is_test_file(path)
}

/// Returns the quotations of a page, each with its line number.
fn quotations(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    // The current paragraph, and the number of its first line. A quotation may continue on the next line.
    let (mut first, mut paragraph) = (1, String::new());
    for (number, line) in (1..).zip(page.lines()).chain([(0, "")]) {
        let is_fence = line.trim_start().starts_with("```");
        if is_fence || is_code || line.trim().is_empty() {
            found.extend(spans(&paragraph).map(|(lines, text)| (first + lines, text)));
            paragraph.clear();
            first = number + 1;
        }
        match (is_fence, is_code) {
            (true, _) => is_code = !is_code,
            (false, true) => {
                let value = line.split_once("\"msg\":").map(|(_, rest)| rest.trim_start());
                let text = value.and_then(|rest| rest.strip_prefix('"')?.split('"').next());
                found.extend(text.map(|text| (number, text.to_owned())));
            }
            (false, false) if line.trim().is_empty() => {}
            (false, false) => {
                paragraph.push_str(line);
                paragraph.push('\n');
            }
        }
    }
    found.retain(|(_, text)| is_message(text));
    found
}

/// Returns the texts between backticks or double quotes in a paragraph, each with the number of lines before it.
fn spans(paragraph: &str) -> impl Iterator<Item = (usize, String)> {
    let mut rest = paragraph;
    std::iter::from_fn(move || {
        let start = rest.find(['`', '"'])?;
        let quote = &rest[start..=start];
        let text = rest[start + 1..].split(quote).next()?;
        let lines = paragraph.len() - rest.len() + start;
        let lines = paragraph[..lines].matches('\n').count();
        rest = rest.get(start + text.len() + 2..).unwrap_or_default();
        Some((lines, text.split_whitespace().collect::<Vec<_>>().join(" ")))
    })
}

/// Returns whether a text is a sequence of words but not a command.
fn is_message(text: &str) -> bool {
    let words: Vec<&str> = text.split(' ').collect();
    let is_command =
        PROGRAMS.contains(&words[0]) || words.iter().any(|word| word.starts_with(['-', '{', '$']));
    !is_command && words.len() >= WORDS_MIN
}

/// Returns the words of a text, without surrounding punctuation.
fn words(text: &str) -> Vec<String> {
    let trimmed = text.split_whitespace().map(|word| {
        let edge = |letter: char| !letter.is_alphanumeric() && !"{}".contains(letter);
        word.trim_matches(edge).to_owned()
    });
    trimmed.filter(|word| !word.is_empty()).collect()
}

/// Returns whether the words of a quotation occur in a literal. At least half of them must match literally, not through
/// a placeholder.
fn contains(literal: &[String], quoted: &[String]) -> bool {
    !quoted.is_empty()
        && literal.windows(quoted.len()).any(|window| {
            let same = window.iter().zip(quoted).filter(|(word, quoted)| word == quoted).count();
            let is_match =
                |(word, quoted): (&String, &String)| word == quoted || word.contains('{');
            2 * same >= quoted.len() && window.iter().zip(quoted).all(is_match)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the complaints about a page and one source file, without complaints about [`OTHER_TEXTS`].
    fn complaints(page: &str, source: &str) -> Vec<String> {
        let file = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
        let sources = [file("docs/runbook.md", page), file("crates/log/src/log.rs", source)];
        let mut complaints = Vec::new();
        check_quotations(&sources, &mut complaints);
        complaints.retain(|complaint| complaint.starts_with("docs/"));
        complaints
    }

    const SOURCE: &str =
        "log::warn!(\"the disk of {member} is full; free space \\\n      on it\");\n";

    #[test]
    fn a_quotation_missing_from_the_sources_is_reported() {
        for page in [
            "It logs `the disk of a is full` then.",
            "It logs `full; free\nspace on it`.",
            "It logs \"the disk of a is full\".",
            "```text\n{\"level\":\"warn\",\"msg\":\"the disk of MEMBER is full\"}\n```\n",
        ] {
            assert_eq!(complaints(page, SOURCE), [""; 0], "{page}");
        }
        for page in [
            "First.\n\nIt logs\n`the disk of a is\nempty` then.",
            "\n\n\nIt logs \"the log is full\".",
            "\n\n```text\n{\"level\":\"warn\",\"msg\":\"a full disk was found\"}\n```\n",
        ] {
            let found = complaints(page, SOURCE);
            assert_eq!(found.len(), 1, "{page}: {found:?}");
            assert!(found[0].starts_with("docs/runbook.md:4:"), "{found:?}");
        }
    }

    #[test]
    fn messages_in_tests_and_comments_are_not_sources_of_quotations() {
        let page = "It logs `the disk is full` then.";
        assert_eq!(complaints(page, "let x = \"the disk is full\";\n").len(), 0);
        assert_eq!(complaints(page, "// \"the disk is full\"\n").len(), 1);
        let test = "#[cfg(test)]\nmod tests {\n    const X: &str = \"the disk is full\";\n}\n";
        assert_eq!(complaints(page, test).len(), 1);
    }

    #[test]
    fn a_literal_made_of_placeholders_matches_no_quotation() {
        let page = "It logs `the disk is full` then.";
        assert_eq!(complaints(page, "format!(\"{a} {b} {c} {d}\");\n").len(), 1);
    }

    #[test]
    fn commands_and_short_names_are_not_checked_as_quotations() {
        let page = "Run `quorate ctl alarm list`, `alarm disarm` or `tar -x -f file`; set `{\"a\": 1, \"b\": 2}`.";
        assert_eq!(complaints(page, SOURCE), [""; 0]);
    }
}
