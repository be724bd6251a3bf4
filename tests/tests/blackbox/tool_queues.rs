//! The `lock` and `elect` commands of the command-line tools, which join the same queues as all other clients.

use std::io::{BufRead as _, BufReader, Lines};
use std::process::{Child, ChildStdout, Stdio};

use quorate_tests::{Ctl, Kind, Server, Tool, eventually, send_signal, with_both_tools};

with_both_tools! {
    a_lock_held_by_ctl_passes_to_the_next_waiter_after_a_signal,
    ctl_lock_fails_when_its_lease_is_revoked,
    ctl_lock_runs_no_command_after_its_key_was_deleted,
    ctl_lock_and_elect_report_invalid_arguments,
    ctl_elect_elects_candidates_in_turn,
}

/// A running tool, killed when dropped.
struct Working {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Working {
    fn start(ctl: &Ctl, args: &[&str]) -> Self {
        let mut command = ctl.command(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn next(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn interrupt(&self) {
        send_signal(self.child.id(), "INT");
    }

    /// Returns the exit code, and standard error without log lines.
    fn end(mut self) -> (Option<i32>, String) {
        let errors = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let output = errors.map(Result::unwrap).filter(|line| !line.starts_with('{'));
        let output = output.collect::<Vec<_>>().join("\n");
        (self.child.wait().unwrap().code(), output)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Waits until a queue has this number of entries.
async fn places(ctl: &Ctl, queue: &str, count: usize) {
    eventually("the queue has the expected number of entries", async || {
        let keys = ctl.run(&["get", queue, "--prefix", "--keys-only", "-w", "json"]).success();
        let keys: serde_json::Value = serde_json::from_str(&keys).unwrap();
        (keys["kvs"].as_array().map_or(0, Vec::len) == count).then_some(())
    })
    .await;
}

async fn a_lock_held_by_ctl_passes_to_the_next_waiter_after_a_signal(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let mut first = Working::start(&ctl, &["lock", "l"]);
    let key = first.next();
    assert!(key.starts_with("l/") && i64::from_str_radix(&key[2..], 16).is_ok(), "{key}");
    assert_eq!(first.next(), "");
    let script = "echo $ETCD_LOCK_KEY $ETCD_LOCK_REV; exit 7";
    let mut second = Working::start(&ctl, &["lock", "l", "--", "sh", "-c", script]);
    places(&ctl, "l/", 2).await;
    // A cancelled `lock` leaves no entry in the queue.
    let third = Working::start(&ctl, &["lock", "l"]);
    places(&ctl, "l/", 3).await;
    third.interrupt();
    assert_eq!(third.end(), (Some(1), "Error: context canceled".to_owned()));
    places(&ctl, "l/", 2).await;
    first.interrupt();
    assert_eq!(first.end(), (Some(0), String::new()));
    let output = second.next();
    let (own, revision) = output.split_once(' ').unwrap();
    assert!(own.starts_with("l/") && own != key, "{output}");
    // There have been five writes: three entries were created and two deleted.
    assert_eq!(revision, "6");
    assert_eq!(second.end(), (Some(7), "Error: exit status 7".to_owned()));
    places(&ctl, "l/", 0).await;
}

async fn ctl_lock_fails_when_its_lease_is_revoked(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let mut holder = Working::start(&ctl, &["lock", "l", "--ttl=3"]);
    let lease = holder.next()[2..].to_owned();
    drop(ctl.run(&["lease", "revoke", &lease]).success());
    assert_eq!(holder.end(), (Some(1), "Error: session expired".to_owned()));
}

async fn ctl_lock_runs_no_command_after_its_key_was_deleted(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let mut holder = Working::start(&ctl, &["lock", "l"]);
    drop(holder.next());
    let marker = server.scratch().join("marker");
    let touch = format!("touch {}", marker.display());
    let waiter = Working::start(&ctl, &["lock", "l", "--", "sh", "-c", &touch]);
    places(&ctl, "l/", 2).await;
    drop(ctl.run(&["del", "l/", "--prefix"]).success());
    assert_eq!(waiter.end(), (Some(1), "Error: mutex: session is expired".to_owned()));
    assert!(!marker.exists(), "the command ran although the waiter did not hold the lock");
}

async fn ctl_lock_and_elect_report_invalid_arguments(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    for (args, code, text) in [
        (&["lock"][..], 128, "Error: lock takes a lock name argument and an optional command to"),
        (&["lock", "l", "no-such-program"], 1, "Error: exec: \"no-such-program\": executable file"),
        (&["elect", "e"], 128, "Error: no proposal argument but -l not set"),
        (&["elect", "e", "p", "-l"], 128, "Error: proposal given but -l is set"),
        (&["elect"], 128, "Error: elect takes one election name argument and an optional"),
    ] {
        let ended = ctl.run(args);
        assert_eq!(ended.code, Some(code), "{args:?}: {ended:?}");
        assert!(ended.stderr.lines().any(|line| line.starts_with(text)), "{args:?}: {ended:?}");
    }
    // The lock is released even if the command could not be started.
    places(&ctl, "l/", 0).await;
}

async fn ctl_elect_elects_candidates_in_turn(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let mut listener = Working::start(&ctl, &["elect", "e", "-l"]);
    let mut one = Working::start(&ctl, &["elect", "e", "one"]);
    let first = one.next();
    assert!(first.starts_with("e/"), "{first}");
    assert_eq!(one.next(), "one");
    assert_eq!([listener.next(), listener.next()], [first.clone(), "one".to_owned()]);
    let mut two = Working::start(&ctl, &["elect", "e", "two"]);
    places(&ctl, "e/", 2).await;
    // A leader may proclaim another value.
    drop(ctl.run(&["put", &first, "more", "--ignore-lease"]).success());
    assert_eq!([listener.next(), listener.next()], [first, "more".to_owned()]);
    one.interrupt();
    assert_eq!(one.end(), (Some(0), String::new()));
    let second = two.next();
    assert_eq!(two.next(), "two");
    assert_eq!([listener.next(), listener.next()], [second, "two".to_owned()]);
    listener.interrupt();
    assert_eq!(listener.end(), (Some(0), String::new()));
    two.interrupt();
    assert_eq!(two.end(), (Some(0), String::new()));
    places(&ctl, "e/", 0).await;
}
