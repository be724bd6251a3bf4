//! The pages of `docs/` form a book. Each page is listed in the book's summary, every link has a target, and every
//! command block is tested or is marked with the reason why it is not tested.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns all pages in a directory and its subdirectories, as paths from the root.
fn pages(folder: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{folder}/{name}");
        if root().join(&path).is_dir() {
            found.extend(pages(&path));
        } else if name.ends_with(".md") {
            found.insert(path);
        }
    }
    found
}

/// Returns the text of a page with its included files.
fn text(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    let folder = Path::new(path).parent().unwrap();
    let lines = text.lines().map(|line| {
        match line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
            Some(other) => std::fs::read_to_string(root().join(folder).join(other)).unwrap(),
            None => line.to_owned(),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the lines of a page outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_block = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        !is_block && !is_fence
    })
}

/// Returns the links of a page, except links to other hosts.
fn links(text: &str) -> Vec<String> {
    let targets = prose(text).flat_map(|line| line.split("](").skip(1));
    let targets = targets.filter_map(|rest| rest.split(')').next().map(str::to_owned));
    targets.filter(|target| !target.contains("://")).collect()
}

/// Returns the anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let titles = prose(text).filter_map(|line| {
        let title = line.trim_start_matches('#');
        title.strip_prefix(' ').filter(|_| line.starts_with('#'))
    });
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, '-' | '_' | ' ');
    titles
        .map(|title| {
            title.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
        })
        .collect()
}

#[test]
fn every_link_has_a_target() {
    let mut all = pages("docs");
    all.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned),
    );
    let mut count = 0;
    for page in &all {
        for link in links(&text(page)) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                page.clone()
            } else {
                let folder = Path::new(page).parent().unwrap();
                let path = root().join(folder).join(file);
                let found = path
                    .canonicalize()
                    .unwrap_or_else(|_| panic!("{page}: the file of link {link} does not exist"));
                // Files outside the book are not published with it.
                let is_of_book = page.starts_with("docs/");
                assert!(
                    !is_of_book || found.starts_with(root().join("docs")),
                    "{page}: link {link} leads out of the book"
                );
                found.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
            };
            if !anchor.is_empty() {
                assert!(
                    anchors(&text(&target)).contains(anchor),
                    "{page}: the heading of link {link} does not exist"
                );
            }
            count += 1;
        }
    }
    assert!(count > 100, "only {count} links were found");
}

#[test]
fn every_page_is_listed_once_in_the_book() {
    let book = std::fs::read_to_string(root().join("book.toml")).unwrap();
    assert!(book.contains("src = \"docs\""));
    let listed = links(&text("docs/SUMMARY.md"));
    let places: BTreeSet<String> = listed.iter().map(|link| format!("docs/{link}")).collect();
    assert_eq!(places.len(), listed.len(), "a page is listed twice");
    let mut pages = pages("docs");
    pages.remove("docs/SUMMARY.md");
    assert_eq!(places, pages);
}

/// A comment before a command block that no test runs gives the reason, or names the test of a similar block. The files
/// named there must exist. The commands in `running.md`, `tour.md` and the README have their own tests.
#[test]
fn command_blocks_in_the_docs_are_tested_or_give_a_reason_for_not_being_tested() {
    let mut marked = 0;
    for page in pages("docs") {
        let text = text(&page);
        let lines: Vec<&str> = text.lines().collect();
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| **line == "```sh") {
            let comment = at.checked_sub(1).map_or("", |before| lines[before]);
            let is_marked =
                comment.starts_with("<!-- not run: ") || comment.starts_with("<!-- run by tests/");
            let is_typed = ["docs/running.md", "docs/tour.md"].contains(&&*page);
            assert!(
                is_marked || is_typed,
                "{page}, line {}: the command block has no comment that starts with `not run` or `run by`",
                at + 1
            );
            marked += usize::from(is_marked);
            let words = comment.split([' ', ',', ':']).filter(|word| word.ends_with(".rs"));
            for word in words.filter(|word| word.contains('/')) {
                assert!(
                    root().join(word).exists(),
                    "{page}: the file {word} in {comment} does not exist"
                );
            }
        }
    }
    assert!(marked > 10, "only {marked} marked command blocks were found");
}

/// `ctl` refuses an option that is also set in the environment, and some pages export variables. The commands of each
/// page must work after the commands of any other page.
#[test]
fn commands_in_the_docs_set_no_option_that_a_page_exports_as_a_variable() {
    let mut all = pages("docs");
    all.insert("README.md".to_owned());
    let texts: Vec<String> = all.iter().map(|page| text(page)).collect();
    let commands = || {
        let blocks = texts.iter().flat_map(|text| text.split("```sh\n").skip(1));
        blocks.filter_map(|rest| rest.split("```").next()).flat_map(str::lines)
    };
    let words =
        commands().filter(|line| line.starts_with("export ")).flat_map(str::split_whitespace);
    let variables = words.filter_map(|word| word.split_once('=')?.0.strip_prefix("ETCDCTL_"));
    let exported: BTreeSet<String> =
        variables.map(|name| format!("--{}", name.to_lowercase().replace('_', "-"))).collect();
    assert!(exported.contains("--endpoints") && exported.contains("--user"), "{exported:?}");
    for line in commands().filter(|line| line.contains("quorate ctl ")) {
        let mut words = line.split([' ', '=']);
        assert!(!words.any(|word| exported.contains(word)), "{line}");
    }
}

/// Every figure of the README's comparison table is a cell, or a part of a cell, of the page about performance.
#[test]
fn figures_in_the_readme_occur_on_the_page_about_performance() {
    let readme = text("README.md");
    let measured = text("docs/performance.md");
    let (_, section) = readme.split_once("\n## Comparison with etcd\n").unwrap();
    let rows = section.trim().lines().take_while(|line| line.starts_with('|')).skip(2);
    let cells: Vec<&str> = rows.flat_map(|row| row.split('|').skip(2)).map(str::trim).collect();
    let figures: Vec<&str> = cells.into_iter().filter(|cell| !cell.is_empty()).collect();
    assert_eq!(figures.len(), 12, "{figures:?}");
    for figure in figures {
        let found =
            ["| ", "to "].iter().any(|start| measured.contains(&format!("{start}{figure} |")));
        assert!(found, "{figure} is not in docs/performance.md");
    }
}

/// The downgrade in the longer tour is tested, and the migration page must have the same commands.
#[test]
fn the_tour_and_the_migration_page_have_the_same_downgrade_commands() {
    let block = |page: &str| {
        let text = text(page);
        let blocks = text.split("```sh\n").filter_map(|rest| rest.split("```").next());
        blocks
            .filter(|block| block.starts_with("quorate ctl downgrade enable"))
            .last()
            .unwrap()
            .to_owned()
    };
    assert_eq!(block("docs/tour.md"), block("docs/migration.md"));
}

/// The list of differences names a flag as absent only if the flag does not exist.
#[test]
fn flags_listed_as_absent_do_not_exist() {
    let flags = text("docs/flags.md");
    let differences = text("docs/decisions/0007-differences-from-etcd.md");
    let denials = differences.lines().filter(|line| line.contains("no such flag"));
    let known = denials
        .flat_map(|line| line.split('`'))
        .filter(|word| word.starts_with("--") && flags.contains(&format!("| `{word}` |")));
    assert_eq!(known.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(flags.contains("| `--grpc-keepalive-min-time` |"));
}

/// The flags and commands that the pages about migration, operations and compatibility mention exist.
#[test]
fn flags_and_commands_in_the_pages_exist() {
    let flags = std::fs::read_to_string(root().join("docs/flags.md")).unwrap();
    let tools = ["ctl", "utl"].map(|tool| text(&format!("docs/{tool}.md"))).concat();
    for page in ["migration", "operations", "compatibility"] {
        let text = text(&format!("docs/{page}.md"));
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        for word in
            text.split(|c| !is_part(c)).filter(|word| word.starts_with("--") && word.len() > 3)
        {
            let known = flags.contains(&format!("`{word}`")) || tools.contains(&format!("`{word}"));
            // These flags belong to `cargo xtask` or to the server itself.
            let of_others = ["--long", "--seconds", "--seeds", "--version"].contains(&word);
            assert!(known || of_others, "{page}: unknown flag {word}");
        }
        for line in text.lines() {
            for (tool, rest) in ["quorate ctl ", "quorate utl "]
                .iter()
                .filter_map(|tool| line.split_once(tool).map(|(_, rest)| (tool.trim_end(), rest)))
            {
                let words = rest.split([' ', '`']);
                let name = words.clone().find(|word| !word.starts_with('-')).unwrap();
                assert!(
                    tools.contains(&format!("`{tool} {name}")),
                    "{page}: unknown command in {line}"
                );
            }
        }
    }
}
