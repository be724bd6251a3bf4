//! Checks the commands and flags mentioned in the README and the CHANGELOG, and statements of other documents.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

/// Flags of other programs, and placeholders, in the README.
const OF_OTHERS: [&str; 4] = ["--release", "--long", "--nocapture", "--test-threads"];

fn document(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(name)).unwrap()
}

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quorate")).args(words).output().unwrap()
}

/// Returns the help text of a program.
fn help(words: &[&str]) -> String {
    let output = run(&[words, &["--help"]].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the flags in `text`, without values.
fn flags(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let words = text.split(|c: char| !is_part(c));
    // Words that end with a hyphen are table rules, or just `--`.
    let named = words.filter(|word| word.starts_with("--") && !word.ends_with('-'));
    named.map(str::to_owned).collect()
}

/// Returns the commands listed in a help text, which are the first words of lines indented by two spaces.
fn commands(text: &str) -> BTreeSet<String> {
    let listed = text.lines().filter_map(|line| line.strip_prefix("  "));
    // The usage and the examples are left out.
    let described =
        listed.filter(|line| !line.contains("[command]") && !line.starts_with("quorate "));
    let names = described.filter_map(|line| line.split(' ').next());
    names
        .filter(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn flags_in_the_readme_exist() {
    let mut known = flags(&help(&[]));
    known.extend(flags(&String::from_utf8(run(&["ctl", "options"]).stdout).unwrap()));
    known.extend(flags(&help(&["bench"])));
    known.extend(flags(&help(&["grpc-proxy", "start"])));
    known.extend(flags(&help(&["ctl", "user", "add"])));
    known.extend(flags(&help(&["ctl", "snapshot", "save"])));
    known.extend(flags(&help(&["ctl", "diff"])));
    known.extend(flags(&help(&["utl", "snapshot", "restore"])));
    known.extend(flags(&help(&["utl", "recover"])));
    known.extend(OF_OTHERS.map(str::to_owned));
    // This flag is refused with an error that names it, as docs/running.md says.
    let refused = run(&["--enable-v2"]);
    assert!(
        String::from_utf8(refused.stderr).unwrap().contains("--enable-v2: not a flag of etcd 3.7")
    );
    let named = flags(&document("README.md"));
    assert!(named.contains("--hold-cluster-version"), "{named:?}");
    let unknown: Vec<&String> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn commands_in_the_readme_exist() {
    let readme = document("README.md");
    let tools = [
        ("ctl", commands(&help(&["ctl"]))),
        ("utl", commands(&help(&["utl"]))),
        ("bench", commands(&help(&["bench"]))),
    ];
    let mut seen = 0;
    for line in readme.split("```").skip(1).step_by(2).flat_map(str::lines) {
        let line = line.split('#').next().unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        for (at, word) in words.iter().enumerate() {
            let Some((_, known)) = tools.iter().find(|(tool, _)| tool == word) else { continue };
            let command = words[at + 1];
            assert!(known.contains(command), "{line}: the command is not one of {known:?}");
            seen += 1;
        }
    }
    assert!(seen >= 8, "only {seen} commands were found");
}

#[test]
fn the_readme_lists_exactly_the_missing_commands() {
    let readme = document("README.md");
    let known = commands(&help(&["ctl"]));
    for command in ["auth", "user", "role", "lock", "elect", "check", "make-mirror", "completion"] {
        let said = readme.contains(&format!("`{command}`"));
        assert_ne!(said, known.contains(command), "{command}");
    }
}

/// `SECURITY.md` must list the tokens and watches that outlive a revocation, because operators expect that a revocation
/// ends all of them. `tests/tests/blackbox/auth.rs` tests the behaviour.
#[test]
fn security_md_states_which_tokens_and_watches_outlive_a_revocation() {
    let page = document("SECURITY.md");
    let (_, section) = page.split_once("\n## Effect of a revocation\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let section = section.split_whitespace().collect::<Vec<_>>().join(" ");
    for said in ["**A JWT** cannot be revoked", "etcdserver: revision of auth store is old"] {
        assert!(section.contains(said), "{said}: {section}");
    }
    assert!(section.contains("**A running watch** continues"), "{section}");
}

#[test]
fn the_changelog_lists_every_command() {
    let changelog = document("CHANGELOG.md");
    for tool in ["ctl", "utl"] {
        let start = format!("`quorate {tool}");
        let entries = changelog.split("\n- ").filter(|entry| entry.starts_with(&start));
        let words: BTreeSet<&str> =
            entries.flat_map(|entry| entry.split([' ', ',', '.', ';', ':', '`', '\n'])).collect();
        let commands = commands(&help(&[tool]));
        assert!(commands.len() > 5, "{tool}");
        for command in commands {
            assert!(words.contains(&*command), "{tool} {command}");
        }
    }
}

/// An operator who requests another downgrade right after the last member's restart receives an error, which the page
/// must explain.
#[test]
fn migration_md_explains_a_downgrade_request_right_after_the_last_restart() {
    let page = document("docs/migration.md").replace('\n', " ");
    assert!(
        page.contains(
            "After the last restart, the leader takes a few seconds to end the downgrade."
        )
    );
    assert!(page.contains("\"cluster has a downgrade job in progress\""));
}
