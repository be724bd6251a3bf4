//! The pages of `docs/` are a book: each has its place in it, every link leads somewhere, and commands say whether anybody
//! types them.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All pages below a folder, as paths from the root.
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

/// A page with what it takes in.
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

/// The lines of a page that are not of a block.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_block = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        !is_block && !is_fence
    })
}

/// The links of a page, without those to other hosts.
fn links(text: &str) -> Vec<String> {
    let targets = prose(text).flat_map(|line| line.split("](").skip(1));
    let targets = targets.filter_map(|rest| rest.split(')').next().map(str::to_owned));
    targets.filter(|target| !target.contains("://")).collect()
}

/// What leads to the headings of a page.
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
fn every_link_leads_somewhere() {
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
                let found = path.canonicalize().unwrap_or_else(|_| panic!("{page}: {link}"));
                // What is beside the book is not in it.
                let is_of_book = page.starts_with("docs/");
                assert!(!is_of_book || found.starts_with(root().join("docs")), "{page}: {link}");
                found.strip_prefix(root()).unwrap().to_str().unwrap().to_owned()
            };
            if !anchor.is_empty() {
                assert!(anchors(&text(&target)).contains(anchor), "{page}: {link}");
            }
            count += 1;
        }
    }
    assert!(count > 100, "only {count} links were found");
}

#[test]
fn every_page_has_one_place_in_the_book() {
    let book = std::fs::read_to_string(root().join("book.toml")).unwrap();
    assert!(book.contains("src = \"docs\""));
    let listed = links(&text("docs/SUMMARY.md"));
    let places: BTreeSet<String> = listed.iter().map(|link| format!("docs/{link}")).collect();
    assert_eq!(places.len(), listed.len(), "a page is listed twice");
    let mut pages = pages("docs");
    pages.remove("docs/SUMMARY.md");
    assert_eq!(places, pages);
}

/// A block that nobody types says so in the comment before it, with the reason, or who does the like; the files that it
/// names are there. The commands of `running.md` and of the README are run by tests of their own.
#[test]
fn blocks_of_commands_are_typed_or_say_that_they_are_not() {
    let mut marked = 0;
    for page in pages("docs") {
        let text = text(&page);
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| **line == "```sh") {
            let comment = at.checked_sub(1).map_or("", |before| lines[before]);
            let is_marked =
                comment.starts_with("<!-- not run: ") || comment.starts_with("<!-- run by tests/");
            let is_typed = page == "docs/running.md";
            assert!(is_marked || is_typed, "{page}, line {}: {line}", at + 1);
            marked += usize::from(is_marked);
            let words = comment.split([' ', ',', ':']).filter(|word| word.ends_with(".rs"));
            for word in words.filter(|word| word.contains('/')) {
                assert!(root().join(word).exists(), "{page}: {comment}");
            }
        }
    }
    assert!(marked > 10, "only {marked} blocks were found");
}

/// `ctl` refuses an option that is also set in the environment, and pages export variables: what stands on one page has to work
/// after what stands on another.
#[test]
fn no_command_of_a_page_has_an_option_that_a_page_exports() {
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

/// The README's downgrade is run by a test; the page about migration has the same.
#[test]
fn the_downgrade_is_the_same_on_every_page() {
    let block = |page: &str| {
        let text = text(page);
        let blocks = text.split("```sh\n").filter_map(|rest| rest.split("```").next());
        blocks
            .filter(|block| block.starts_with("quorate ctl downgrade enable"))
            .last()
            .unwrap()
            .to_owned()
    };
    assert_eq!(block("README.md"), block("docs/migration.md"));
}

/// Flags and commands that the pages tell people to type are there.
#[test]
fn what_the_pages_name_is_there() {
    let flags = std::fs::read_to_string(root().join("docs/flags.md")).unwrap();
    let tools = ["ctl", "utl"].map(|tool| text(&format!("docs/{tool}.md"))).concat();
    for page in ["migration", "operations", "compatibility"] {
        let text = text(&format!("docs/{page}.md"));
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
        for word in
            text.split(|c| !is_part(c)).filter(|word| word.starts_with("--") && word.len() > 3)
        {
            let known = flags.contains(&format!("`{word}`")) || tools.contains(&format!("`{word}"));
            // Of the chores, and of the program itself.
            let of_others = ["--long", "--seconds", "--seeds", "--version"].contains(&word);
            assert!(known || of_others, "{page}: {word}");
        }
        for line in text.lines() {
            for (tool, rest) in ["quorate ctl ", "quorate utl "]
                .iter()
                .filter_map(|tool| line.split_once(tool).map(|(_, rest)| (tool.trim_end(), rest)))
            {
                let words = rest.split([' ', '`']);
                let name = words.clone().find(|word| !word.starts_with('-')).unwrap();
                assert!(tools.contains(&format!("`{tool} {name}")), "{page}: {line}");
            }
        }
    }
}
