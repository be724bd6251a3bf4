//! Checks that the pages in the repository are the same as the pages that the program prints.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::path::Path;
use std::process::Command;

/// The variable that makes the test write the pages instead of comparing them.
const UPDATE: &str = "QUORATE_UPDATE_DOCS";

const PAGES: [(&str, &[&str]); 9] = [
    ("packaging/man/quorate.1", &["server"]),
    ("packaging/man/quorate-ctl.1", &["ctl"]),
    ("packaging/man/quorate-utl.1", &["utl"]),
    ("packaging/man/quorate-bench.1", &["bench"]),
    ("docs/flags.md", &["server", "--markdown"]),
    ("docs/ctl.md", &["ctl", "--markdown"]),
    ("docs/utl.md", &["utl", "--markdown"]),
    ("docs/bench.md", &["bench", "--markdown"]),
    ("docs/metrics.md", &["metrics", "--markdown"]),
];

fn run(words: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    command.arg("manual").args(words).output().unwrap()
}

#[test]
fn the_committed_pages_equal_the_generated_pages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, words) in PAGES {
        let printed = run(words);
        assert!(printed.status.success(), "{words:?}");
        let page = String::from_utf8(printed.stdout).unwrap();
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(root.join(name), &page).unwrap();
        }
        let written = std::fs::read_to_string(root.join(name)).unwrap_or_default();
        assert!(written == page, "{name} is out of date: run this test with {UPDATE}=1");
    }
}

/// Without `--markdown`, the page is in the format of `man`.
#[test]
fn manual_pages_are_printed_as_man_pages_without_the_markdown_flag() {
    for name in ["server", "ctl", "utl", "bench", "metrics"] {
        let page = String::from_utf8(run(&[name]).stdout).unwrap();
        assert!(page.contains("\n.TH \"QUORATE"), "{name}: {page:.200}");
    }
    let page = String::from_utf8(run(&["metrics"]).stdout).unwrap();
    assert!(page.contains("etcd_server_has_leader"), "{page:.200}");
}

#[test]
fn an_unknown_page_prints_the_usage() {
    for words in [&["gateway"][..], &["bench", "--html"], &["ctl", "--html"], &["server", "ctl"]] {
        let refused = run(words);
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
        assert!(refused.stdout.is_empty());
        assert!(refused.stderr.starts_with(b"Usage: quorate manual "), "{words:?}");
    }
}
