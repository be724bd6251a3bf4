//! Plain language: the numbers of stilted sentences and of headings that are sentences may only fall.
//!
//! A sentence is stilted if it contains one of the [`PHRASES`], or if one of its clauses begins with one of the
//! [`OPENINGS`]. A heading is a sentence if it has more than [`HEADING_WORDS_MAX`] words, contains one of the
//! [`VERBS`], begins with a question word, or ends like a sentence (`.`, `?`, `!`). Doc comments that only refer to the
//! module are counted as well.
//!
//! Sentences in Markdown pages and in Rust comments are counted. Code, tables and words in backticks are ignored.
//! [`TABLE`] contains the count of each group. A group is a crate, a directory, or a Markdown page. The count of a
//! group that is not in the table is 0. Tidy fails if a count rises. `cargo xtask tidy --lower` writes lower counts to
//! the table, and `cargo xtask tidy --prose [GROUP]` prints the counts, or the sentences of a group.
//!
//! The list of phrases is incomplete: a text that contains none of them may still be hard to read.

use std::collections::BTreeMap;
use std::path::Path;

use super::source::{Source, is_letter};

mod text;

#[cfg(test)]
mod tests;

use text::{headings, sentences};

/// The file with the maximum counts.
pub(super) const TABLE: &str = "crates/xtask/prose.toml";

/// The maximum number of words of a heading.
const HEADING_WORDS_MAX: usize = 8;

/// Phrases of stilted sentences. The comments list plain replacements.
const PHRASES: &[&str] = &[
    // log, report, return, print, receive, notify
    "tell of",
    "tells of",
    "told of",
    "is told",
    "are told",
    "be told",
    "was told",
    "has to say",
    "have to say",
    "is said of",
    "is said when",
    "stays unsaid",
    // the client, the caller, the member
    "whoever",
    "whomever",
    "nobody",
    "somebody",
    "such a one",
    "the like",
    "the same for",
    // continue, again, automatically, yield
    "anew",
    "by itself",
    "by themselves",
    "once more",
    "go on",
    "goes on",
    "went on",
    "give way",
    "gives way",
    "come to nothing",
    "comes to nothing",
    "has come",
    "have come",
    "as far as is known",
    // invalid, missing, available, considered, instead of, compared with
    "that is none",
    "that are none",
    "is to be had",
    "looked at",
    "look on",
    "looks on",
    "takes in what",
    "take in what",
    "in the place of",
    "held against",
    "the affair of",
    "'s affair",
    "see the module",
];

/// Words that replace a noun at the start of a clause, each with the words that may follow it.
const OPENINGS: &[(&str, &[&str])] = &[
    (
        "what",
        &[
            "is", "was", "has", "comes", "follows", "a", "an", "the", "nobody", "others",
            "clients", "members",
        ],
    ),
    (
        "who",
        &[
            "is", "was", "has", "may", "ask", "asks", "wait", "waits", "come", "comes", "look",
            "looks",
        ],
    ),
];

/// Verbs that make a heading a sentence.
const VERBS: &[&str] = &[
    "is", "are", "was", "were", "has", "have", "had", "does", "do", "did", "can", "may", "must",
    "will", "shall", "should", "gets", "goes", "comes", "stays", "stands", "takes", "makes",
    "needs", "holds", "keeps", "leaves", "differs", "costs", "brings", "asks", "says", "carries",
];

/// First words that make a heading a question.
const QUESTIONS: &[&str] =
    &["what", "who", "whose", "when", "where", "why", "which", "how", "whether"];

/// The kinds of counts, in table order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Stilted,
    SeeTheModule,
    Headings,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Stilted, Self::SeeTheModule, Self::Headings];

    fn section(self) -> &'static str {
        match self {
            Self::Stilted => "stilted-sentences",
            Self::SeeTheModule => "see-the-module",
            Self::Headings => "headings-that-are-sentences",
        }
    }
}

/// Counts by kind and group. Zero counts are omitted.
type Counts = BTreeMap<(Kind, String), usize>;

/// A counted sentence or heading, and its file.
struct Finding<'a> {
    kind: Kind,
    path: &'a str,
    text: String,
}

/// Reports counts that exceed the counts in the table, if there is a table.
pub(super) fn check_prose(sources: &[Source], complaints: &mut Vec<String>) {
    let Some(table) = sources.iter().find(|source| source.path == TABLE) else { return };
    let allowed = match parse(&table.text) {
        Ok(allowed) => allowed,
        Err(problem) => return complaints.push(problem),
    };
    let findings = findings(sources);
    for ((kind, group), count) in counts(&findings) {
        let most = allowed.get(&(kind, group.clone())).copied().unwrap_or(0);
        if count > most {
            let section = kind.section();
            complaints.push(format!(
                "{group}: {count} in {section}, but the maximum is {most} ({TABLE}; `cargo xtask tidy --prose {group}` lists them)"
            ));
        }
    }
}

/// Returns a note about counts that are below the counts in the table.
pub(super) fn fallen(sources: &[Source]) -> Option<String> {
    let allowed = parse(&sources.iter().find(|source| source.path == TABLE)?.text).ok()?;
    let counts = counts(&findings(sources));
    let fallen =
        allowed.iter().filter(|(key, most)| counts.get(key).copied().unwrap_or(0) < **most).count();
    (fallen > 0)
        .then(|| format!("tidy: {fallen} counts are below {TABLE}: run `cargo xtask tidy --lower`"))
}

/// Writes lower counts to the table. Higher counts are ignored.
pub(super) fn lower(root: &Path, sources: &[Source]) -> Result<(), String> {
    let old = match sources.iter().find(|source| source.path == TABLE) {
        Some(table) => Some(parse(&table.text)?),
        None => None,
    };
    let table = lowered(old.as_ref(), counts(&findings(sources)));
    let path = root.join(TABLE);
    std::fs::write(&path, table).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the table with the new counts, each limited to the old count. Without an old table there is no limit.
fn lowered(old: Option<&Counts>, new: Counts) -> String {
    let limit = |key: &(Kind, String), count| match old {
        Some(old) => old.get(key).copied().unwrap_or(0).min(count),
        None => count,
    };
    let mut text = "# Counts of stilted sentences, written by `cargo xtask tidy --lower`. They may only fall.\n".to_owned();
    for kind in Kind::ALL {
        text += &format!("\n[{}]\n", kind.section());
        for (key, count) in new.iter().filter(|((of, _), _)| *of == kind) {
            let count = limit(key, *count);
            if count > 0 {
                text += &format!("\"{}\" = {count}\n", key.1);
            }
        }
    }
    text
}

/// Returns the counts of all groups, or the findings of one group.
pub(super) fn report(sources: &[Source], group: Option<&str>) -> String {
    let findings = findings(sources);
    if let Some(group) = group {
        let found = findings.iter().filter(|finding| group_of(finding.path) == group);
        return found
            .map(|finding| {
                format!("{}: [{}] {}\n", finding.path, finding.kind.section(), finding.text)
            })
            .collect();
    }
    let mut sentences_of: BTreeMap<String, usize> = BTreeMap::new();
    for source in sources {
        let count = sentences(source).len();
        if count > 0 {
            *sentences_of.entry(group_of(&source.path)).or_default() += count;
        }
    }
    let counts = counts(&findings);
    let count = |kind, group: &str| counts.get(&(kind, group.to_owned())).copied().unwrap_or(0);
    let mut text = String::new();
    let (mut all, mut stilted) = (0, 0);
    for (group, sentences) in &sentences_of {
        let [found, module, headings] = Kind::ALL.map(|kind| count(kind, group));
        all += sentences;
        stilted += found;
        text += &format!(
            "{group:<28} {sentences:>6} sentences {:>5} % stilted {module:>4} see the module {headings:>4} headings\n",
            percent(found, *sentences)
        );
    }
    text + &format!("{all} sentences, {stilted} stilted, {} %", percent(stilted, all))
}

/// Formats a share in percent, with one decimal place.
fn percent(part: usize, whole: usize) -> String {
    let tenths = (1000 * part + whole / 2).checked_div(whole).unwrap_or(0);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Reads the table.
fn parse(table: &str) -> Result<Counts, String> {
    let mut counts = Counts::new();
    let mut section = None;
    for (number, line) in
        (1..).zip(table.lines()).filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    {
        let invalid = || format!("{TABLE}:{number}: not a section or a count");
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = Some(
                Kind::ALL.into_iter().find(|kind| kind.section() == name).ok_or_else(invalid)?,
            );
            continue;
        }
        let (group, count) = line.split_once(" = ").ok_or_else(invalid)?;
        let count = count.parse().map_err(|_| invalid())?;
        let kind = section.ok_or_else(invalid)?;
        counts.insert((kind, group.trim_matches('"').to_owned()), count);
    }
    Ok(counts)
}

fn counts(findings: &[Finding<'_>]) -> Counts {
    let mut counts = Counts::new();
    for finding in findings {
        *counts.entry((finding.kind, group_of(finding.path))).or_default() += 1;
    }
    counts
}

/// Returns the group of a file: its crate, its directory if that is not `docs`, or the page itself.
fn group_of(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["crates", name, _, ..] => format!("crates/{name}"),
        ["docs", folder, _, ..] => format!("docs/{folder}"),
        ["docs", _] | [_] => path.to_owned(),
        [folder, ..] => folder.to_owned(),
        [] => String::new(),
    }
}

fn findings(sources: &[Source]) -> Vec<Finding<'_>> {
    let mut findings = Vec::new();
    for source in sources {
        let path = &*source.path;
        for text in sentences(source) {
            let is_see = text.to_lowercase().starts_with("see the module.");
            if is_see {
                findings.push(Finding { kind: Kind::SeeTheModule, path, text: text.clone() });
            } else if is_stilted(&text) {
                findings.push(Finding { kind: Kind::Stilted, path, text });
            }
        }
        let sentences = headings(source).into_iter().filter(|heading| is_sentence(heading));
        findings.extend(sentences.map(|text| Finding { kind: Kind::Headings, path, text }));
    }
    findings
}

/// Returns whether the sentence contains a listed phrase or opening.
fn is_stilted(sentence: &str) -> bool {
    let text = plain(sentence).to_lowercase();
    let begins = text.char_indices().filter(|(at, letter)| {
        *letter == '\'' || is_letter(*letter) && !text[..*at].ends_with(is_letter)
    });
    let mut begins = begins.map(|(at, _)| at);
    begins.any(|at| {
        let rest = &text[at..];
        PHRASES.iter().any(|phrase| begins_with(rest, phrase))
            || OPENINGS.iter().any(|(opening, next)| {
                begins_with(rest, opening)
                    && begins_a_clause(&text[..at])
                    && next.iter().any(|word| begins_with(rest[opening.len()..].trim_start(), word))
            })
    })
}

/// Returns whether the text begins with the phrase, and the phrase ends at the end of a word.
fn begins_with(text: &str, phrase: &str) -> bool {
    text.strip_prefix(phrase).is_some_and(|rest| !rest.starts_with(is_letter))
}

/// Returns whether a clause begins after this text.
fn begins_a_clause(before: &str) -> bool {
    before.is_empty() || [". ", "; ", ": ", ", "].iter().any(|end| before.ends_with(end))
}

/// Returns the text with each code span replaced by a word.
fn plain(text: &str) -> String {
    let spans = text.split('`').enumerate();
    spans.map(|(number, part)| if number % 2 == 0 { part } else { "Code" }).collect()
}

/// Returns whether a heading is a sentence or a question rather than a noun phrase.
fn is_sentence(heading: &str) -> bool {
    let text = plain(heading).to_lowercase();
    let words: Vec<&str> = text
        .split_whitespace()
        .map(|word| word.trim_matches(|letter: char| !letter.is_alphanumeric()))
        .filter(|word| !word.is_empty() && !word.chars().all(|letter| letter.is_ascii_digit()))
        .collect();
    words.len() > HEADING_WORDS_MAX
        || text.ends_with(['.', '?', '!'])
        || words.first().is_some_and(|first| QUESTIONS.contains(first))
        || words.iter().any(|word| VERBS.contains(word))
}
