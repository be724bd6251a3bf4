//! The page about running it: what it tells people to type is typed.
//!
//! Its blocks are one session of a shell, in their order, in an empty folder; a block with a comment before it says why it is
//! not of that session, and the file that the comment names is there. Ports are others than on the page.

use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_tests::{Kind, Options, skipped};

/// What the page has for ports.
const PORTS: [&str; 6] = ["12379", "12380", "22379", "22380", "32379", "32380"];

/// Longest that the session may take; it ends with everything that it has started.
const LIMIT_SECS: &str = "100";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The blocks of commands, each with the comment before it.
fn blocks(page: &str) -> Vec<(Option<&str>, String)> {
    let mut found = Vec::new();
    let mut before = None;
    let mut block: Option<String> = None;
    for line in page.lines() {
        match &mut block {
            Some(text) if line == "```" => {
                found.push((before.take(), std::mem::take(text)));
                block = None;
            }
            Some(text) => {
                text.push_str(line);
                text.push('\n');
            }
            None if line.starts_with("```") => {
                assert_eq!(line, "```sh", "a block of something else");
                block = Some(String::new());
            }
            None if line.starts_with("<!-- ") => before = Some(line),
            None => before = None,
        }
    }
    found
}

#[test]
fn what_is_not_typed_is_marked() {
    let page = std::fs::read_to_string(root().join("docs/running.md")).unwrap();
    let blocks = blocks(&page);
    assert!(blocks.iter().filter(|(comment, _)| comment.is_none()).count() >= 5);
    for comment in blocks.iter().filter_map(|(comment, _)| *comment) {
        assert!(comment.starts_with("<!-- not run: ") || comment.starts_with("<!-- run by tests/"));
        for word in comment.split([' ', ',']).filter(|word| word.ends_with(".rs")) {
            assert!(root().join(word).exists(), "{comment}");
        }
    }
    for line in page.lines() {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            assert!(root().join("docs").join(file).exists(), "{link}");
            let anchors = page.lines().filter_map(|line| line.strip_prefix("## ")).map(|title| {
                let kept = title.to_lowercase().replace(' ', "-");
                kept.replace([',', '\''], "")
            });
            assert!(
                anchor.is_empty() || anchors.into_iter().any(|found| found == anchor),
                "{link}"
            );
        }
    }
}

async fn what_the_page_says_works(kind: Kind) {
    let openssl = Command::new("openssl").arg("version").output();
    let is_new = openssl.is_ok_and(|said| !said.stdout.starts_with(b"OpenSSL 1."));
    if !is_new {
        return skipped("no openssl 3 here: the page about running it is not tried");
    }
    let page = std::fs::read_to_string(root().join("docs/running.md")).unwrap();
    let blocks = blocks(&page);
    let typed = blocks.iter().filter(|(comment, _)| comment.is_none());
    let mut script: String = typed.map(|(_, text)| text.as_str()).collect();
    let members: Vec<_> = (0..3).map(|_| Options::new(kind).unguarded().prepare()).collect();
    let free = members.iter().flat_map(|member| [member.port(), member.peer_port()]);
    for (port, free) in PORTS.iter().zip(free) {
        assert!(script.contains(port));
        script = script.replace(port, &free.to_string());
    }
    // Whatever happens, nobody is left behind.
    let script =
        format!("set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n{script}");
    let folder = members[0].scratch();
    std::fs::create_dir(folder.join("bin")).unwrap();
    std::os::unix::fs::symlink(kind.program(), folder.join("bin/quorate")).unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LIMIT_SECS, "bash", "-c", &script]).current_dir(folder);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", folder.join("bin").display()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD") {
            command.env_remove(name);
        }
    }
    // A busy machine may take longer than people like to wait.
    command.envs([("ETCDCTL_DIAL_TIMEOUT", "30s"), ("ETCDCTL_COMMAND_TIMEOUT", "30s")]);
    let said = command.output().unwrap();
    let [stdout, stderr] = [&said.stdout, &said.stderr].map(|said| String::from_utf8_lossy(said));
    let log =
        |name| std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
    assert!(said.status.success(), "{stdout}\n{stderr}\n{}", ["a", "b", "c"].map(log).concat());
    assert!(stdout.ends_with("app/greeting\nhello, whoever you are\n"), "{stdout}");
    assert!(stderr.contains("permission denied"), "{stderr}");
}

#[test]
fn the_page_about_running_it_works() {
    quorate_tests::run_cluster(Kind::Quorate, what_the_page_says_works);
}
