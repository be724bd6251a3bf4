//! Tests words as the first argument of the program: `help`, `version`, and unknown words, which are refused.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::process::{Command, Output};

fn run(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quorate")).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn help_and_version_are_accepted_as_commands() {
    for (words, flags) in [
        (&["help"][..], &["--help"][..]),
        (&["version"], &["--version"]),
        (&["help", "ctl"], &["ctl", "--help"]),
        (&["help", "gateway", "start"], &["gateway", "start", "--help"]),
    ] {
        let (by_word, by_flag) = (run(words), run(flags));
        assert!(by_word.status.success() && by_word.stderr.is_empty(), "{words:?}: {by_word:?}");
        assert_eq!(text(&by_word.stdout), text(&by_flag.stdout), "{words:?}");
    }
}

#[test]
fn an_unknown_command_is_refused_with_an_error_that_names_the_help() {
    let refused = run(&["frobnicate", "now"]);
    assert_eq!(refused.status.code(), Some(2));
    let expected =
        "Error: unknown command \"frobnicate\" for \"quorate\"\nRun 'quorate help' for usage.\n";
    assert_eq!(
        (text(&refused.stdout), text(&refused.stderr)),
        (String::new(), expected.to_owned())
    );
}

#[test]
fn the_help_of_each_tool_contains_the_tool_name_and_examples() {
    for words in
        [&["ctl"][..], &["utl"], &["bench"], &["gateway", "start"], &["grpc-proxy", "start"]]
    {
        let help = text(&run(&[words, &["--help"]].concat()).stdout);
        let line = format!("  quorate {}", words.join(" "));
        let examples = help.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("{help}"));
        assert!(examples.contains(&line) && !help.contains("\n  etcd "), "{help}");
    }
    let gateway = text(&run(&["gateway", "--help"]).stdout);
    assert!(gateway.contains("\n  quorate gateway [command]\n"), "{gateway}");
}

#[test]
fn links_named_like_etcd_programs_accept_only_the_commands_of_those_programs() {
    let folder = tempfile::tempdir().unwrap();
    let called = |name: &str, words: &[&str]| {
        let link = folder.path().join(name);
        drop(std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quorate"), &link));
        Command::new(link).args(words).output().unwrap()
    };
    let refused = called("etcd", &["help"]);
    assert!(text(&refused.stderr).contains("failed to verify flags"), "{refused:?}");
    let help = text(&called("etcd", &["gateway", "start", "--help"]).stdout);
    assert!(
        help.contains("\n  etcd gateway start [flags]\n") && !help.contains("Examples"),
        "{help}"
    );
    let help = text(&called("etcdctl", &["--help"]).stdout);
    assert!(help.contains("\n  etcdctl [command]\n") && !help.contains("Examples"), "{help}");
}
