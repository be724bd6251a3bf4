//! Tests which sentences and headings are counted, and how the counts are compared with the table.

use super::*;

fn file(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

#[test]
fn a_sentence_with_a_listed_phrase_counts_as_stilted() {
    assert!(is_stilted("The leader is told of the entry."));
    assert!(is_stilted("Whoever asks gets an answer."));
    assert!(is_stilted("The lease ends, what is left is removed."));
    assert!(is_stilted("That is the client's affair."));
    assert!(!is_stilted("The member forgoes one round."));
    assert!(!is_stilted("The test shows what is left."));
    assert!(!is_stilted("The field `nobody` is empty in this record."));
}

#[test]
fn sentences_are_taken_from_comments_and_pages_but_not_from_code_or_tables() {
    let code = "//! Reads one\n//! log record. Returns `None` at its end.\n//! ```\n//! nobody calls this code here\n//! ```\n\
        let x = \"nobody reads this string here\"; // not the start of a line\n// A plain comment counts too.\n";
    let expected =
        ["Reads one log record.", "Returns `None` at its end.", "A plain comment counts too."];
    assert_eq!(sentences(&file("crates/x/src/x.rs", code)), expected);
    let page = "# Log of a member\n\n| nobody reads this table here |\n\n- One item of it.\n- Two items\n  of this list.\n";
    let expected = ["Log of a member", "One item of it.", "Two items of this list."];
    assert_eq!(sentences(&file("docs/x.md", page)), expected);
}

#[test]
fn a_heading_with_a_verb_a_question_or_many_words_counts_as_a_sentence() {
    for noun in
        ["Backup and restore", "`quorate ctl put [options] <key>`", "Clusters of three members"]
    {
        assert!(!is_sentence(noun), "{noun}");
    }
    let nine = "A page about one two three four five six";
    for sentence in ["What is promised", "Where to look", "The quorum is lost", "Reads stay.", nine]
    {
        assert!(is_sentence(sentence), "{sentence}");
    }
    assert_eq!(
        headings(&file("x.md", "# 0007. Native formats\n```sh\n# no heading\n```\n")),
        ["Native formats"]
    );
}

/// Returns the number of complaints about a text with this table.
fn complaints(table: &str, text: &str) -> usize {
    let mut complaints = Vec::new();
    check_prose(&[file(TABLE, table), file("crates/log/src/log.rs", text)], &mut complaints);
    complaints.len()
}

#[test]
fn a_count_above_the_maximum_in_the_prose_table_is_reported() {
    let stilted = "//! Nobody reads the log.\n//!\n//! Somebody writes the log.\n";
    assert_eq!(complaints("[stilted-sentences]\n\"crates/log\" = 2\n", stilted), 0);
    assert_eq!(complaints("[stilted-sentences]\n\"crates/log\" = 3\n", stilted), 0);
    assert_eq!(complaints("[stilted-sentences]\n\"crates/log\" = 1\n", stilted), 1);
    assert_eq!(complaints("", stilted), 1);
    assert_eq!(complaints("nonsense\n", "//! Log.\n"), 1);
    assert_eq!(complaints("[see-the-module]\n\"crates/log\" = 1\n", "/// See the module.\n"), 0);
    assert_eq!(complaints("[stilted-sentences]\n\"crates/log\" = 1\n", "/// See the module.\n"), 1);
}

#[test]
fn counts_in_the_prose_table_only_decrease() {
    let key = |group: &str| (Kind::Stilted, group.to_owned());
    let old = Counts::from([(key("a"), 5), (key("b"), 2), (key("c"), 1)]);
    let new = Counts::from([(key("a"), 3), (key("b"), 4), (key("d"), 7)]);
    let table = lowered(Some(&old), new);
    assert_eq!(parse(&table), Ok(Counts::from([(key("a"), 3), (key("b"), 2)])));
}
