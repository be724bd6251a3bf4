//! `quorate ctl top` with clusters of Quorate and etcd: its printed output, its screen, and the state in which it
//! leaves the terminal.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use quorate_api::etcdserverpb as pb;
use quorate_api::etcdserverpb::request_op::Request;
use quorate_tests::{
    Cluster, Ctl, Kind, Options, Server, TIMEOUT, Terminal, Tool, eventually, on_both_servers, put,
};
use serde_json::Value;

use crate::tls::{self, Files};

on_both_servers! {
    alone:
    top_prints_members_requests_and_key_prefixes,
    printed_output_is_plain_text,
    a_killed_leader_is_shown_as_down_and_its_successor_as_leader,
    top_limits_its_watch_during_a_flood_of_writes,
    an_alarm_is_shown_with_the_name_of_its_member,
    a_secured_cluster_is_shown_with_credentials,
    a_user_sees_only_permitted_keys,
    the_screen_is_redrawn_when_its_size_changes,
    the_terminal_is_restored_on_every_exit,
    invalid_arguments_are_refused,
}

/// The tool's JSON output, one line per refresh. The tool is killed when the value is dropped.
struct Lines {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    fn of(mut command: Command) -> Self {
        command.args(["top", "--write-out=json", "--interval=300ms", "--dial-timeout=20s"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { process, lines }
    }

    /// Returns the next line that satisfies a condition.
    fn until(&self, what: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        let mut last = Value::Null;
        while start.elapsed() < TIMEOUT {
            let Ok(line) = self.lines.recv_timeout(TIMEOUT) else { break };
            last = serde_json::from_str(&line).unwrap();
            if is_wanted(&last) {
                return last;
            }
        }
        panic!("timed out; expected: {what}; last output: {last:#}");
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // The process may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Returns the list entry with this name.
fn named<'a>(line: &'a Value, list: &str, field: &str, name: &str) -> &'a Value {
    let entries = line[list].as_array().unwrap();
    entries.iter().find(|entry| entry[field] == name).unwrap_or(&Value::Null)
}

fn keys(line: &Value, prefix: &str) -> u64 {
    named(line, "prefixes", "name", prefix)["keys"].as_u64().unwrap_or_default()
}

fn of(server: &Server) -> Ctl {
    Ctl::of(Tool::QuorateCtl, server).unwrap()
}

async fn fill(server: &Server) {
    let client = server.client();
    for (kind, count) in [("pods", 40), ("nodes", 3)] {
        for number in 0..count {
            client
                .put(put(format!("/registry/{kind}/ns/{number}"), "x".repeat(100)))
                .await
                .unwrap();
        }
    }
    client.put(put("a\u{1b}[2Jb", "odd")).await.unwrap();
}

async fn top_prints_members_requests_and_key_prefixes(kind: Kind) {
    let server = Server::start(kind).await;
    fill(&server).await;
    let lease = pb::LeaseGrantRequest { ttl: 600, id: 7 };
    server.client().lease_grant(lease).await.unwrap();
    let lines = Lines::of(of(&server).command(&[]));
    let counted = lines.until("a count of all keys from a leader without lag", |line| {
        let member = named(line, "members", "name", server.name());
        (keys(line, "/registry/pods/"), keys(line, "/registry/nodes/")) == (40, 3)
            && named(line, "prefixes", "form", "keys")["keys"] == 1
            && (member["role"] == "leader" && member["lag"] == 0)
    });
    let member = named(&counted, "members", "name", server.name());
    assert_eq!(counted["leader"], server.name());
    assert!(counted["round_trip_note"].as_str().unwrap().contains("one member"), "{counted:#}");
    // The age of the counts grows until the keys are counted again.
    let aged = lines.until("counts with an age", |line| {
        line["prefixes_age_secs"].as_f64().is_some_and(|secs| secs > 1.0)
    });
    let note = aged["prefixes_note"].as_str().unwrap();
    assert!(note.starts_with("prefixes: 44 keys in 3, counted "), "{note}");
    assert!(member["db_bytes"].as_u64().unwrap() > 0, "{member:#}");
    let pods = named(&counted, "prefixes", "name", "/registry/pods/");
    let estimated = pods["bytes_estimated"].as_f64().unwrap();
    assert!((4_000.0..6_000.0).contains(&estimated), "{pods:#}");
    // The rates are above zero while clients write.
    let client = server.client();
    let writing = tokio::spawn(async move {
        for number in 0.. {
            client.put(put(format!("/registry/pods/ns/{}", number % 40), "y")).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    let busy = tokio::task::spawn_blocking(move || {
        let is_busy = |line: &Value| {
            let puts = &named(line, "requests", "kind", "put")["per_sec"];
            let written = &named(line, "prefixes", "name", "/registry/pods/")["puts_per_sec"];
            let fsync = &line["members"][0]["fsync_secs"]["p99"];
            [puts, written, &line["revisions_per_sec"]]
                .iter()
                .all(|rate| rate.as_f64().is_some_and(|rate| rate > 1.0))
                && fsync.as_f64().is_some_and(|secs| secs > 0.0)
                && line["leases"] == 1
        };
        lines.until("rates of writes", is_busy)
    });
    let busy = busy.await.unwrap();
    writing.abort();
    // Only etcd 3.7 measures whole requests. With older releases, the percentile field is empty, and all other fields
    // have values.
    let times = &named(&busy, "requests", "kind", "put")["secs"]["p99"];
    assert_eq!(times.is_number(), server.is_3_7(), "{busy:#}");
}

async fn printed_output_is_plain_text(kind: Kind) {
    let server = Server::start(kind).await;
    fill(&server).await;
    let printed = eventually("a count of all keys is printed", async || {
        let args = ["top", "--iterations=2", "--interval=500ms"];
        let printed = of(&server).run(&args).success();
        printed.contains(r"prefixes: 44 keys in 3").then_some(printed)
    })
    .await;
    assert!(!printed.contains(|c: char| c.is_control() && c != '\n'), "{printed:?}");
    assert_eq!(printed.matches("1 of 1 members respond").count(), 2, "{printed}");
    for heading in ["MEMBER ", "REQUESTS ", "P50/P99 OF ", "WATCHES", "PREFIX "] {
        assert!(printed.contains(heading), "{printed}");
    }
    assert!(printed.lines().all(|line| line.len() <= 120), "{printed}");
    let below = of(&server).run(&["top", "--once", "--prefix=/registry/", "--no-count"]).success();
    assert!(below.contains("keys are not counted"), "{below}");
}

async fn a_killed_leader_is_shown_as_down_and_its_successor_as_leader(kind: Kind) {
    let mut cluster = Cluster::start(kind, 3).await;
    let leader = cluster.leader().await;
    // The tool starts with the endpoint of the member that will be killed, and finds the other members itself.
    let lines = Lines::of(of(cluster.server(leader)).command(&[]));
    let name = cluster.server(leader).name().to_owned();
    let roles = |line: &Value, role: &str| {
        let members = line["members"].as_array().unwrap();
        members.iter().filter(|member| member["role"] == role).count()
    };
    let whole = lines.until("three members", |line| roles(line, "follower") == 2);
    assert_eq!(whole["leader"], *name);
    cluster.kill(leader);
    let without = lines.until("another leader", |line| {
        let own = named(line, "members", "name", &name);
        own["role"] == "down" && roles(line, "leader") == 1 && roles(line, "follower") == 1
    });
    assert_ne!(without["leader"], *name);
    let troubles = without["troubles"].as_array().unwrap();
    let expected = format!("{name} has not responded for ");
    assert!(troubles.iter().any(|trouble| trouble.as_str().unwrap().starts_with(&expected)));
    cluster.restart(leader).await;
    let again = lines.until("three members again", |line| roles(line, "follower") == 2);
    assert!(again["troubles"].as_array().unwrap().is_empty(), "{again:#}");
}

async fn top_limits_its_watch_during_a_flood_of_writes(kind: Kind) {
    let server = Server::start(kind).await;
    let lines = Lines::of(of(&server).command(&[]));
    lines.until("a report", |_| true);
    let client = server.client();
    let value = "x".repeat(8 << 10);
    let writing = tokio::spawn(async move {
        loop {
            let write = |number| {
                let put = put(format!("/flood/{number}"), &value);
                pb::RequestOp { request: Some(Request::RequestPut(put)) }
            };
            let success = (0..100).map(write).collect();
            client.txn(pb::TxnRequest { success, ..Default::default() }).await.unwrap();
        }
    });
    // Each transaction uses nearly all of the budget that the tool's watch has for one refresh.
    let flooded = tokio::task::spawn_blocking(move || {
        lines.until("a watch that is paused part of the time", |line| {
            let note = line["prefixes_note"].as_str().unwrap();
            let written = &named(line, "prefixes", "name", "/flood/")["bytes_per_sec"];
            note.contains("% of the time") && written.as_f64().is_some_and(|bytes| bytes > 1e5)
        })
    });
    flooded.await.unwrap();
    writing.abort();
}

async fn an_alarm_is_shown_with_the_name_of_its_member(kind: Kind) {
    let server = Options::new(kind).flag("--quota-backend-bytes=4194304").start().await;
    let lines = Lines::of(of(&server).command(&[]));
    let calm = lines.until("a report", |_| true);
    assert_eq!(calm["alarms"], Value::Array(Vec::new()));
    let (client, value) = (server.client(), vec![b'v'; 200_000]);
    eventually("the store is full", async || client.put(put("fill", &value)).await.err()).await;
    let expected = Value::from(vec![format!("NOSPACE of {}", server.name())]);
    lines.until("an alarm", |line| line["alarms"] == expected);
}

async fn a_secured_cluster_is_shown_with_credentials(kind: Kind) {
    let files = Files::new();
    let server = files.server(kind).start().await;
    let ca = format!("--cacert={}", files.text("ca"));
    let args = [&ca, "top", "--once", "--interval=500ms", "--write-out=json"];
    let shown = tls::ctl(Tool::QuorateCtl, &server.url(), &args).success();
    let line: Value = serde_json::from_str(&shown).unwrap();
    let member = named(&line, "members", "name", server.name());
    assert_eq!(member["role"], "leader", "{line:#}");
    // The tool reads `/metrics` over TLS, too.
    assert!(member["requests_per_sec"].is_number(), "{line:#}");
    let refused = tls::ctl(Tool::QuorateCtl, &server.url(), &args[1..]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.starts_with("Error: no endpoint responded: "), "{refused:?}");
}

async fn a_user_sees_only_permitted_keys(kind: Kind) {
    let server = Options::new(kind).flag("--bcrypt-cost=4").start().await;
    fill(&server).await;
    let ctl = of(&server);
    for line in [
        "user add root:r00t",
        "user add ann:s3cret",
        "role add pods",
        "role grant-permission pods --prefix=true read /registry/pods/",
        "user grant-role ann pods",
        "auth enable",
    ] {
        assert_eq!(ctl.run(&line.split(' ').collect::<Vec<_>>()).code, Some(0), "{line}");
    }
    let lines = Lines::of(ctl.command(&["--user=root:r00t"]));
    lines.until("the count of all pods, for root", |line| keys(line, "/registry/pods/") == 40);
    let lines = Lines::of(ctl.command(&["--user=ann:s3cret"]));
    let refused = lines.until("refused counts, for ann", |line| {
        line["prefixes_note"].as_str().unwrap().matches("permission denied").count() == 2
    });
    assert_eq!(refused["prefixes"], Value::Array(Vec::new()));
    let mut own = ctl.command(&["--user=ann:s3cret"]);
    own.args(["--prefix=/registry/pods/", "--prefix-depth=1"]);
    let lines = Lines::of(own);
    lines.until("the count of the permitted keys", |line| keys(line, "/registry/pods/ns/") == 40);
    let wrong = ctl.run(&["--user=ann:wrong", "top", "--once"]);
    assert_ne!(wrong.code, Some(0), "{wrong:?}");
}

/// Starts the tool on a terminal of this size. After the tool has exited, the exit code and the terminal modes are
/// printed.
fn terminal(server: &Server, args: &[&str], size: &str) -> Option<Terminal> {
    let place = server.scratch().join("terminal");
    let before = format!("stty {size}; tty > {}; export TERM=xterm", place.display());
    let after = "echo \"code $?\"; stty -a";
    Terminal::start_between(&of(server).command(args), &before, after)
}

fn resize(server: &Server, size: &str) {
    let place = std::fs::read_to_string(server.scratch().join("terminal")).unwrap();
    let words = size.split(' ');
    let status = Command::new("stty").arg("-F").arg(place.trim()).args(words).status().unwrap();
    assert!(status.success());
}

/// Returns the last contents of each screen line.
fn drawn(screen: &str) -> String {
    let start = screen.rfind("\x1b[2J").unwrap_or_default();
    screen[start..].to_owned()
}

async fn sees(terminal: &Terminal, text: &str) {
    eventually(&format!("{text:?} on the screen"), async || {
        drawn(&terminal.screen()).contains(text).then_some(())
    })
    .await;
}

async fn the_screen_is_redrawn_when_its_size_changes(kind: Kind) {
    let server = Server::start(kind).await;
    fill(&server).await;
    let args = ["top", "--interval=300ms"];
    let Some(mut terminal) = terminal(&server, &args, "cols 80 rows 24") else { return };
    sees(&terminal, "/registry/pods/").await;
    sees(&terminal, "\x1b[24;1H").await;
    assert!(!terminal.screen().contains("\x1b[25;1H"), "{}", terminal.screen());
    assert!(!drawn(&terminal.screen()).contains("APPLIED"));
    resize(&server, "cols 200 rows 40");
    sees(&terminal, "\x1b[40;1H").await;
    terminal.types("2");
    sees(&terminal, "APPLIED").await;
    terminal.types("5/nodes\r");
    sees(&terminal, "filter: nodes").await;
    terminal.types("h");
    sees(&terminal, "reverse the order").await;
    terminal.types("x/");
    sees(&terminal, "show only names containing: ").await;
    // While a filter is being typed, `q` is an ordinary letter.
    terminal.types("q\x1b");
    sees(&terminal, "q quit").await;
    terminal.types("q");
    let (code, screen) = terminal.ends().await;
    assert_eq!(code, Some(0), "{screen}");
    assert!(screen.contains("code 0\n"), "{screen}");
}

async fn the_terminal_is_restored_on_every_exit(kind: Kind) {
    let server = Server::start(kind).await;
    for end in ["key", "-TERM", "-HUP", "-INT"] {
        let args = ["top", "--interval=300ms"];
        let Some(mut terminal) = terminal(&server, &args, "cols 80 rows 24") else { return };
        sees(&terminal, "1 of 1 members respond").await;
        if end == "key" {
            terminal.types("\x03");
        } else {
            signal_tool_of_terminal(&server, end);
        }
        let (_, screen) = terminal.ends().await;
        let (before, after) =
            screen.rsplit_once("\x1b[?25h\x1b[?1049l").unwrap_or_else(|| panic!("{end}: {screen}"));
        assert!(before.contains("\x1b[?1049h\x1b[?25l"), "{end}: {screen}");
        assert!(after.contains("code 0\n"), "{end}: {screen}");
        let modes: Vec<_> = after.split_whitespace().collect();
        for mode in ["icanon", "isig", "echo", "icrnl", "ixon"] {
            assert!(modes.contains(&mode), "{end}: {mode} in {screen}");
        }
    }
}

/// Sends a signal to the tool on the test's terminal.
fn signal_tool_of_terminal(server: &Server, signal: &str) {
    let place = std::fs::read_to_string(server.scratch().join("terminal")).unwrap();
    let place = place.trim().trim_start_matches("/dev/");
    let listed = Command::new("ps").args(["-t", place, "-o", "pid=,args="]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let is_tool = |line: &&str| line.contains(" top ") && !line.contains("stty");
    let line = listed.lines().find(is_tool).unwrap_or_else(|| panic!("{listed}"));
    let pid = line.split_whitespace().next().unwrap();
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

async fn invalid_arguments_are_refused(kind: Kind) {
    let server = Server::start(kind).await;
    for (args, code, expected) in [
        (&["top", "x"][..], 128, "top command accepts no arguments"),
        (&["top", "--interval=1ms"], 128, "--interval must be at least 200ms"),
        (&["top", "--sort=x"], 4, "unknown sort flag \"x\""),
        (&["top", "--prefix-depth=0"], 128, "--prefix-depth must be from 1 to 32"),
        (&["top", "--separator="], 128, "--separator must not be empty"),
        (&["top", "-w", "table"], 4, "table not supported as output format"),
    ] {
        let ended = of(&server).run(args);
        assert_eq!(
            (ended.code, ended.stderr),
            (Some(code), format!("Error: {expected}\n")),
            "{args:?}"
        );
    }
    let nobody = of(&server).after("127.0.0.1:1");
    assert_eq!(nobody.run(&["top", "--once", "--interval=200ms"]).code, Some(0));
    // The abbreviation `t` stands for `txn`, not for `top`.
    assert_eq!(of(&server).run_with_input(&["t"], "\nput k v\n\n\n").code, Some(0));
}
