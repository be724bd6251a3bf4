//! Runs the commands of the README, of the longer tour (`tour.md`) and of `running.md` as they are printed there.
//!
//! The blocks of a page form one shell session, in their order, in an empty folder, and the tour continues the README's
//! session. A block that follows a comment is not run: the comment gives the reason, and the test checks that any file
//! named in the comment exists. The ports of `running.md` are replaced with free ones. The README and the tour run in a
//! separate network namespace, in which their ports are free.

use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_tests::{Cluster, Kind, Options, skipped};

/// Ports used on the page.
const PORTS: [&str; 6] = ["12379", "12380", "22379", "22380", "32379", "32380"];

/// Timeout of the session, in seconds. When it is reached, all processes that the session has started are ended.
const LIMIT_SECS: &str = "100";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the blocks of commands, each with the comment before it.
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
                assert_eq!(line, "```sh", "the block is not a shell block");
                block = Some(String::new());
            }
            None if line.starts_with("<!-- ") => before = Some(line),
            None => before = None,
        }
    }
    found
}

#[test]
fn code_blocks_that_tests_do_not_run_are_marked() {
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
            let linked = match file {
                "" => page.clone(),
                file => std::fs::read_to_string(root().join("docs").join(file)).expect(link),
            };
            let anchors = linked.lines().filter_map(|line| line.strip_prefix("## ")).map(|title| {
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

/// The reader's first terminal in the README. It runs a member, and restarts the member when the tour asks for it.
const FIRST_TERMINAL: &str = r#"
set -u
member() { quorate "$@" >>"$log" 2>&1 & pid=$!; }
member
for version in 3.6 3.5; do
    until curl -s localhost:2379/version | grep -q "cluster\":\"$version"; do sleep 0.1; done
    kill $pid; wait $pid
    member --hold-cluster-version=$version
done
wait
"#;

/// Converts the README and the tour to a script, which starts the first terminal and then runs the blocks.
fn script_of_the_tour(page: &str) -> String {
    let blocks = blocks(page);
    let typed = blocks.iter().filter(|(comment, _)| comment.is_none());
    let typed: String = typed.map(|(_, text)| text.as_str()).collect();
    let total = "--total 100000";
    assert!(typed.contains(total));
    let typed = typed.replace(total, "--total 2000").replace("/tmp/", "$PWD/");
    format!(
        "set -eu\nip link set lo up\nexport log=$PWD/first.log\n\
         (setsid bash -c \"$FIRST_TERMINAL\" &)\n\
         export ETCDCTL_ENDPOINTS=127.0.0.1:2379\n\
         until quorate ctl endpoint health 2>/dev/null; do sleep 0.1; done\n{typed}"
    )
}

/// The reader has exported the endpoints, as `running.md` instructs. The exported variable must not make any command of
/// the README or the tour fail.
#[test]
fn the_commands_in_the_readme_and_the_tour_work_in_order() {
    let isolated = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--net", "--pid", "--fork", "--kill-child", program]);
        command.args(arguments);
        command
    };
    if !isolated("ip", &["link", "set", "lo", "up"]).output().is_ok_and(|ran| ran.status.success())
    {
        return skipped(
            "tests of the commands in the README and the tour (no network namespaces can be created)",
        );
    }
    let page = ["README.md", "docs/tour.md"]
        .map(|page| std::fs::read_to_string(root().join(page)).unwrap())
        .concat();
    let options = Options::new(Kind::Quorate).unguarded().prepare();
    let folder = options.scratch();
    std::fs::create_dir(folder.join("bin")).unwrap();
    std::os::unix::fs::symlink(Kind::Quorate.program(), folder.join("bin/quorate")).unwrap();
    let script = script_of_the_tour(&page);
    let mut command = isolated("timeout", &["--kill-after=10", LIMIT_SECS, "bash", "-c", &script]);
    let path = std::env::var("PATH").unwrap();
    command.current_dir(folder).env("PATH", format!("{}:{path}", folder.join("bin").display()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD") {
            command.env_remove(name);
        }
    }
    command.env("FIRST_TERMINAL", FIRST_TERMINAL);
    command.env("ETCDCTL_COMMAND_TIMEOUT", "30s").stdin(std::process::Stdio::null());
    let said = command.output().unwrap();
    let [stdout, stderr] = [&said.stdout, &said.stderr].map(|said| String::from_utf8_lossy(said));
    let log = std::fs::read_to_string(folder.join("first.log")).unwrap_or_default();
    assert!(said.status.success(), "{stdout}\n{stderr}\n{log}");
    for text in [
        // The watch prints the puts made while it runs.
        "PUT\ngreeting\nhello again\n",
        "Downgrade enable success, cluster version 3.7",
        "Downgrade enable success, cluster version 3.6",
    ] {
        assert!(stdout.contains(text), "{text:?}:\n{stdout}\n{stderr}");
    }
    // The keys of the load were deleted, so only two keys are compared. The last command prints ten records of the
    // history, eight of which belong to the load.
    assert!(stdout.contains(" 0 differ, 2 are the same\n"), "{stdout}");
    assert_eq!(stdout.lines().filter(|line| line.contains("\"bench/")).count(), 8, "{stdout}");
}

/// Runs the block of the section "Read-only trial" against three members.
async fn the_trial_works(kind: Kind) {
    let page = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = page.split_once("## Read-only trial").unwrap();
    let mut script = blocks(section).remove(0).1;
    let mut cluster = Cluster::start(kind, 3).await;
    let folder = cluster.scratch().join("trial");
    std::fs::create_dir(&folder).unwrap();
    cluster.stop(2).await;
    let (data, copy) = (cluster.server(2).data(), folder.join("copy-of-the-data-directory"));
    assert!(Command::new("cp").arg("-r").args([data, &copy]).status().unwrap().success());
    cluster.restart(2).await;
    for member in 0..3 {
        let printed = format!("etcd-{}:2379", member + 1);
        assert!(script.contains(&printed), "{script}");
        script = script.replace(&printed, &format!("127.0.0.1:{}", cluster.server(member).port()));
    }
    // Without a terminal, `top` prints reports until it is stopped.
    script =
        script.replace("ctl top ", "ctl top --once ").replace("--duration 10s", "--duration 1s");
    let finished = run(&format!("set -eu\n{script}"), kind, &folder);
    assert!(finished.status.success(), "{finished:?}");
    let stdout = String::from_utf8_lossy(&finished.stdout);
    assert!(stdout.contains("it matches the content"), "{stdout}");
}

#[test]
fn the_commands_of_the_read_only_trial_work_on_three_members() {
    quorate_tests::run_cluster(Kind::Quorate, the_trial_works);
}

/// Runs a script in a folder, in which `quorate` is the program under test.
fn run(script: &str, kind: Kind, folder: &Path) -> std::process::Output {
    std::fs::create_dir(folder.join("bin")).unwrap();
    std::os::unix::fs::symlink(kind.program(), folder.join("bin/quorate")).unwrap();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LIMIT_SECS, "bash", "-c", script]).current_dir(folder);
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", folder.join("bin").display()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD") {
            command.env_remove(name);
        }
    }
    // A busy machine may take longer than the timeouts on the page.
    command.envs([("ETCDCTL_DIAL_TIMEOUT", "30s"), ("ETCDCTL_COMMAND_TIMEOUT", "30s")]);
    command.output().unwrap()
}

async fn the_page_works(kind: Kind) {
    let openssl = Command::new("openssl").arg("version").output();
    let is_new = openssl.is_ok_and(|said| !said.stdout.starts_with(b"OpenSSL 1."));
    if !is_new {
        return skipped("tests of the commands in running.md (openssl 3 is not installed)");
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
    // When the script exits, whether or not it succeeded, it kills all of its processes.
    let script =
        format!("set -eu\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n{script}");
    let folder = members[0].scratch();
    let said = run(&script, kind, folder);
    let [stdout, stderr] = [&said.stdout, &said.stderr].map(|said| String::from_utf8_lossy(said));
    let log =
        |name| std::fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
    assert!(said.status.success(), "{stdout}\n{stderr}\n{}", ["a", "b", "c"].map(log).concat());
    assert!(stdout.ends_with("app/greeting\nhello, app\n"), "{stdout}");
    assert!(stderr.contains("permission denied"), "{stderr}");
}

#[test]
fn the_commands_in_running_md_work() {
    quorate_tests::run_cluster(Kind::Quorate, the_page_works);
}
