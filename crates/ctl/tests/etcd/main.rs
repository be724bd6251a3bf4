//! Compares the tool with the real `etcdctl`. Both tools run the same command lines, each on its own real server, and
//! must print the same output and exit with the same code.
//!
//! `ETCD_BIN_DIR` names a folder with `etcd` and `etcdctl` 3.5 or later. If it is not set, nothing is compared. Only
//! output that all these releases have in common is compared with etcdctl. Where the output of 3.5 and 3.7 differs, the
//! tests in `formats` and `access` expect the output of 3.7, which is part of the tests.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

mod access;
mod formats;

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_ctl::Terminal;

/// Output of a tool and its exit code.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: u8,
    output: String,
    errors: String,
}

struct Server {
    process: Child,
    endpoint: String,
    dir: tempfile::TempDir,
    /// Names specific to this server, with the placeholders that replace them in a comparison.
    names: Vec<(String, String)>,
}

impl Server {
    fn start(bin: &Path) -> Self {
        let (endpoint, peer) = (free_address(), free_address());
        let dir = tempfile::tempdir().unwrap();
        let (client_url, listened) = (format!("http://{endpoint}"), format!("http://{peer}"));
        // Ids are derived from this URL, so they are the same in all clusters. No process connects to it.
        let peer_url = "http://127.0.0.1:1";
        let process = Command::new(bin.join("etcd"))
            .arg("--data-dir")
            .arg(dir.path().join("data"))
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &listened, "--initial-advertise-peer-urls", peer_url])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let names = vec![(endpoint.clone(), "ENDPOINT".to_owned())];
        let mut server = Self { process, endpoint, dir, names };
        server.read_names();
        server
    }

    /// Waits until the server answers, and then reads its ids.
    fn read_names(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let members = loop {
            let outcome = self.ours(&["member", "list", "-w", "json"], "");
            if outcome.code == 0 {
                break outcome.output;
            }
            assert!(
                Instant::now() < deadline,
                "the server did not start in time: {}",
                outcome.errors
            );
        };
        let members: serde_json::Value = serde_json::from_str(&members).unwrap();
        let cluster = members["header"]["cluster_id"].as_u64().unwrap();
        let member = members["header"]["member_id"].as_u64().unwrap();
        for (id, name) in [(cluster, "CLUSTER"), (member, "MEMBER")] {
            self.names.push((id.to_string(), name.to_owned()));
            self.names.push((format!("{id:x}"), name.to_owned()));
        }
        self.names.push((self.dir.path().display().to_string(), "DIR".to_owned()));
    }

    fn ours(&self, line: &[&str], input: &str) -> Outcome {
        self.ours_with(line, input, &[])
    }

    fn ours_with(&self, line: &[&str], input: &str, env: &[(&str, &str)]) -> Outcome {
        let line: Vec<_> = line.iter().map(|word| self.replace_placeholders(word)).collect();
        let line: Vec<_> = line.iter().map(String::as_str).collect();
        let (output, errors) = (Sink::default(), Sink::default());
        let input = Cursor::new(self.replace_placeholders(input).into_bytes());
        let env = [&[("ETCDCTL_ENDPOINTS", &*self.endpoint)], env].concat();
        let code = run(&line, &env, Box::new(input), &output, &errors);
        Outcome { code, output: output.text(), errors: errors.text() }
    }

    fn real(&self, bin: &Path, line: &[&str], input: &str) -> Outcome {
        self.real_with(bin, line, input, &[])
    }

    fn real_with(&self, bin: &Path, line: &[&str], input: &str, env: &[(&str, &str)]) -> Outcome {
        let mut process = Command::new(bin.join("etcdctl"))
            .args(line.iter().map(|word| self.replace_placeholders(word)))
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .env("ETCDCTL_ENDPOINTS", &self.endpoint)
            .envs(env.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        process
            .stdin
            .take()
            .unwrap()
            .write_all(self.replace_placeholders(input).as_bytes())
            .unwrap();
        let done = process.wait_with_output().unwrap();
        Outcome {
            code: u8::try_from(done.status.code().unwrap()).unwrap(),
            output: text(done.stdout),
            errors: text(done.stderr),
        }
    }

    /// Replaces placeholders with this server's names.
    fn replace_placeholders(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (name, placeholder)| {
            text.replace(&format!("<{placeholder}>"), name)
        })
    }

    /// Replaces this server's names with placeholders. Removes the client's log lines from the errors, and the error of
    /// `stty`, which etcdctl runs before it prompts for a password.
    fn plain(&self, outcome: Outcome) -> Outcome {
        let plain = |text: String| {
            self.names
                .iter()
                .fold(text, |text, (name, placeholder)| text.replace(name, placeholder))
        };
        let lines = outcome
            .errors
            .lines()
            .filter(|line| !line.starts_with('{') && !line.starts_with("stty: "));
        let errors = lines.map(|line| format!("{line}\n")).collect();
        Outcome { output: plain(outcome.output), errors: plain(errors), ..outcome }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error is ignored, because the process may have exited already.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn text(&self) -> String {
        text(self.0.lock().unwrap().clone())
    }
}

impl Sink {
    fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.text().contains(text) {
            assert!(
                Instant::now() < deadline,
                "{text:?} did not appear in the output {:?}",
                self.text()
            );
            std::thread::yield_now();
        }
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the output as text. If it is not valid text, each byte becomes one character.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| error.into_bytes().into_iter().map(char::from).collect())
}

fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn bin_dir() -> Option<PathBuf> {
    let dir = std::env::var_os("ETCD_BIN_DIR").map(PathBuf::from);
    if dir.is_none() {
        let required = std::env::var("QUORATE_REQUIRE").unwrap_or_default();
        assert!(!required.contains("etcd"), "ETCD_BIN_DIR is required but not set");
        println!("skipped: ETCD_BIN_DIR (the folder with etcd and etcdctl) is not set");
    }
    dir
}

/// Two servers in the same state, one for each tool, and the differences found so far.
struct Pair {
    bin: PathBuf,
    theirs: Server,
    ours: Server,
    differences: Vec<String>,
}

impl Pair {
    fn start(bin: PathBuf) -> Self {
        let (theirs, ours) = (Server::start(&bin), Server::start(&bin));
        Self { bin, theirs, ours, differences: Vec::new() }
    }

    /// Runs the line with each tool on its own server and compares the results.
    fn check(&mut self, line: &[&str], input: &str) {
        self.check_with(line, input, &[]);
    }

    /// Compares the tools like [`Self::check`], with additional environment variables.
    fn check_with(&mut self, line: &[&str], input: &str, env: &[(&str, &str)]) {
        let expected = self.theirs.plain(self.theirs.real_with(&self.bin, line, input, env));
        let actual = self.ours.plain(self.ours.ours_with(line, input, env));
        if actual != expected {
            let difference = format!("{line:?} {input:?}\n  {actual:?}\n  {expected:?}");
            self.differences.push(difference);
        }
    }

    fn check_no_differences(self) {
        assert!(self.differences.is_empty(), "{}", self.differences.join("\n"));
    }
}

/// Command lines to compare. Each command line sees the state that the previous ones left on the servers.
const LINES: &[&[&str]] = &[
    &["put", "a", "1"],
    &["put", "a", "2", "--prev-kv"],
    &["put", "a", "3", "--prev-kv", "-w", "json"],
    &["put", "a", "4", "-w", "fields", "--prev-kv"],
    &["put", "ab", "x<y>&\"z"],
    &["put", "b", "", "-w", "json"],
    &["put", "k\n\u{1}é", "line\nline\t\u{7f}"],
    &["put", "--", "-dash", "--value"],
    &["put", "a"],
    &["put"],
    &["put", "a", "b", "--ignore-value"],
    &["put", "a", "--ignore-value"],
    &["put", "nothing", "--ignore-value"],
    &["put", "a", "b", "--lease", "xyz"],
    &["put", "a", "b", "--lease", "7fff"],
    &["put", "", "value"],
    &["get", "a"],
    &["get", "a", "-w", "json"],
    &["get", "a", "-w", "fields"],
    &["get", "a", "-w", "table"],
    &["get", "a", "-w", "nonsense"],
    &["get", "", "--prefix"],
    &["get", "", "--prefix", "--keys-only"],
    &["get", "", "--prefix", "-w", "fields"],
    &["get", "", "--prefix", "-w", "json"],
    &["get", "", "--prefix", "--hex"],
    &["get", "a", "--prefix", "--print-value-only"],
    &["get", "a", "--prefix", "--print-value-only", "-w", "json"],
    &["get", "a", "b"],
    &["get", "a", "--from-key", "--limit", "1", "-w", "json"],
    &["get", "a", "--prefix", "--order=DESCEND"],
    &["get", "a", "--prefix", "--sort-by", "version", "--order", "descend"],
    &["get", "a", "--prefix", "--order=sideways"],
    &["get", "a", "--prefix", "--sort-by=size"],
    &["get", "a", "--rev", "2"],
    &["get", "a", "--rev", "999"],
    &["get", "a", "--prefix", "--count-only", "-w", "fields"],
    &["get", "a", "--prefix", "--count-only"],
    &["get", "a", "--consistency=s"],
    &["get", "a", "--consistency=x"],
    &["get", "a", "--prefix", "--from-key"],
    &["get", "a", "b", "--prefix"],
    &["get", "missing"],
    &["get", "missing", "-w", "json"],
    &["get"],
    &["del", "b"],
    &["del", "b"],
    &["del", "ab", "--prev-kv", "-w", "json"],
    &["del", "k", "l", "--range", "--prev-kv"],
    &["del", "zz", "--prefix", "-w", "fields"],
    &["del", "a", "b", "c"],
    &["del"],
    &["lease", "list"],
    &["lease", "list", "-w", "json"],
    &["lease", "grant"],
    &["lease", "grant", "x"],
    &["lease", "revoke", "123"],
    &["lease", "revoke", "xyz"],
    &["lease", "timetolive", "123"],
    &["lease", "timetolive", "123", "-w", "json"],
    &["lease", "timetolive", "123", "--keys", "-w", "fields"],
    &["lease", "keep-alive", "--once", "123"],
    &["lease", "keep-alive", "123"],
    &["lease", "keep-alive"],
    &["member", "list"],
    &["mem", "li"],
    &["member", "list", "-w", "json"],
    &["member", "remove", "123"],
    &["member", "remove", "xyz"],
    &["member", "remove"],
    &["member", "add"],
    &["member", "add", "x"],
    &["member", "add", "x", "http://y"],
    &["member", "add", "x", "--peer-urls=127.0.0.1:2380"],
    &["member", "add", "x", "--peer-urls=y:2380"],
    &["member", "add", "x", "--peer-urls=http://y"],
    &["member", "add", "x", "--peer-urls=http://127.0.0.1:1,http://y:1/p"],
    &["member", "add", "x", "--peer-urls=http://[::1", "--learner"],
    &["member", "update", "123", "--peer-urls=http:// y:1"],
    &["member", "update", "123", "--peer-urls=y"],
    &["--cacert=/nonexistent", "get", "a"],
    &["--cert=/nonexistent", "get", "a"],
    &["--cert=/nonexistent", "--key=/nonexistent", "get", "a"],
    &["member", "update", "123"],
    &["member", "promote", "123"],
    &["alarm", "list"],
    &["alarm", "list", "-w", "json"],
    &["alarm", "disarm", "x"],
    &["compaction", "5"],
    &["compaction", "5"],
    &["compaction", "999"],
    &["compaction", "x"],
    &["compaction"],
    &["get", "a", "--rev", "2"],
    &["watch"],
    &["watch", "a", "b", "--prefix"],
    &["watch", "a", "--rev", "2"],
    &["move-leader", "123"],
    &["move-leader"],
];

#[test]
fn output_matches_etcdctl() {
    let Some(bin) = bin_dir() else { return };
    let mut pair = Pair::start(bin);
    for line in LINES {
        pair.check(line, "");
    }
    pair.check(&["put", "stdin"], "from\nstandard input\n");
    pair.check(&["get", "stdin"], "");
    pair.check_no_differences();
}

#[test]
fn transactions_are_parsed_and_printed_as_in_etcdctl() {
    let Some(bin) = bin_dir() else { return };
    let mut pair = Pair::start(bin);
    for input in [
        "\nput a 1\nput b \"two words\"\n\n\n",
        "mod(\"a\") > \"0\"\n\nget a\nput a \"new\\tvalue\" --prev-kv\ndel b --prev-kv\n\nput c d\n\n",
        "val(\"a\") = \"other\"\nver(\"b\") < \"1\"\n\nput a x\n\nget a --keys-only\nget --prefix a\n\n",
        "create(\"a\") != \"7\"\nmod(\"a\") < \"999\"\n\n\n\n",
        "mod(\"a\")\n\n\n\n",
        "mod(\"a\") > \"x\"\n\n\n\n",
        "size(\"a\") > \"1\"\n\n\n\n",
        "\nput\n\n\n",
        "\nfrob a\n\n\n",
        "\nput a b\n\n",
        "\nput a b",
        "\nput a 1\nput a 2\n\n\n",
    ] {
        pair.check(&["txn"], input);
    }
    pair.check(&["txn", "-i"], "\nget a\n\n\n");
    pair.check(&["txn", "-w", "fields"], "\nget a\nput c d\n\n\n");
    pair.check(&["txn", "argument"], "");
    pair.check_no_differences();
}

#[test]
fn usage_errors_match_etcdctl() {
    let Some(bin) = bin_dir() else { return };
    let Pair { bin, theirs, ours, .. } = Pair::start(bin);
    // The usage text that follows differs between releases, so only the first line is compared.
    for line in [
        &["frobnicate"][..],
        &["get", "--frob"],
        &["get", "-z"],
        &["get", "a", "--limit", "x"],
        &["get", "a", "--prefix=maybe"],
        &["get", "--limit"],
        &["--dial-timeout", "5", "get", "a"],
        &["-w"],
    ] {
        let first = |outcome: Outcome| {
            (outcome.code, outcome.errors.lines().next().unwrap_or_default().to_owned())
        };
        assert_eq!(first(ours.ours(line, "")), first(theirs.real(&bin, line, "")), "{line:?}");
    }
}

#[test]
fn leases_are_granted_renewed_and_revoked() {
    let Some(bin) = bin_dir() else { return };
    let mut pair = Pair::start(bin);
    // The servers choose the ids, so the comparison replaces each with a placeholder.
    let granted = [
        pair.theirs.real(&pair.bin, &["lease", "grant", "600"], ""),
        pair.ours.ours(&["lease", "grant", "600"], ""),
    ];
    for (server, outcome) in [&mut pair.theirs, &mut pair.ours].into_iter().zip(granted) {
        let id = outcome.output.split(' ').nth(1).unwrap().to_owned();
        assert_eq!(outcome.output, format!("lease {id} granted with TTL(600s)\n"));
        let decimal = i64::from_str_radix(&id, 16).unwrap().to_string();
        server.names.push((id, "LEASE".to_owned()));
        server.names.push((decimal, "LEASE".to_owned()));
    }
    for line in [
        &["put", "k", "v", "--lease", "<LEASE>"][..],
        &["get", "k", "-w", "json"],
        &["get", "k", "-w", "fields", "--hex"],
        &["lease", "list"],
        &["lease", "list", "-w", "json"],
        &["lease", "keep-alive", "--once", "<LEASE>"],
        &["lease", "keep-alive", "--once", "<LEASE>", "-w", "json"],
        &["lease", "revoke", "<LEASE>"],
        &["lease", "timetolive", "<LEASE>", "--keys"],
        &["get", "k"],
    ] {
        pair.check(line, "");
    }
    pair.check_no_differences();
}

#[test]
fn etcd_tools_accept_saved_snapshots() {
    let Some(bin) = bin_dir() else { return };
    let server = Server::start(&bin);
    assert_eq!(server.ours(&["put", "k", "v"], "").code, 0);
    let outcome = server.plain(server.ours(&["snapshot", "save", "<DIR>/snap.db"], ""));
    assert_eq!(
        (outcome.code, outcome.output.lines().next()),
        (0, Some("Snapshot saved at DIR/snap.db"))
    );
    assert!(!server.dir.path().join("snap.db.part").exists());
    let status = server.real(&bin, &["snapshot", "status", "<DIR>/snap.db"], "");
    assert_eq!(status.code, 0, "{}", status.errors);
    // The command must fail, because the directory does not exist.
    let outcome = server.ours(&["snapshot", "save", "<DIR>/no/snap.db"], "");
    assert_eq!(outcome.code, 5);
    assert!(outcome.errors.contains("Error: could not open"), "{}", outcome.errors);
}

#[test]
fn health_and_status_are_printed_for_each_endpoint() {
    let Some(bin) = bin_dir() else { return };
    let server = Server::start(&bin);
    let plain = |line: &[&str]| server.plain(server.ours(line, ""));
    let healthy = plain(&["endpoint", "health"]);
    assert!(
        healthy.output.starts_with("ENDPOINT is healthy: successfully committed proposal: took = ")
    );
    let status = plain(&["endpoint", "status"]).output;
    assert!(status.starts_with("ENDPOINT, MEMBER, "), "{status}");
    let hash = plain(&["endpoint", "hashkv", "--cluster", "-w", "json"]).output;
    assert!(
        hash.starts_with("[{\"Endpoint\":\"http://ENDPOINT\",\"HashKV\":{\"header\":"),
        "{hash}"
    );
    let defrag = plain(&["defrag"]).output;
    assert!(defrag.starts_with("Finished defragmenting etcd member[ENDPOINT]. took "), "{defrag}");

    let gone = free_address();
    let endpoints = format!("--endpoints={gone}");
    let timeout = "--command-timeout=300ms";
    let both = ["endpoint", "health", &endpoints, timeout];
    let outcome = run_with_env(&both, &[]);
    assert_eq!(outcome.code, 1);
    let (warning, rest) = outcome.errors.split_once('\n').unwrap();
    assert!(warning.contains("connect: connection refused"), "{warning}");
    let unhealthy = "is unhealthy: failed to commit proposal: context deadline exceeded";
    assert_eq!(rest, format!("{gone} {unhealthy}\nError: unhealthy cluster\n"));
}

fn run_with_env(line: &[&str], env: &[(&str, &str)]) -> Outcome {
    let (output, errors) = (Sink::default(), Sink::default());
    let code = run(line, env, Box::new(std::io::empty()), &output, &errors);
    Outcome { code, output: output.text(), errors: errors.text() }
}

fn run(
    line: &[&str],
    env: &[(&str, &str)],
    input: Box<dyn BufRead + Send>,
    output: &Sink,
    errors: &Sink,
) -> u8 {
    let args = ["etcdctl"].iter().chain(line).map(OsString::from);
    let env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let terminal =
        Terminal { input, output: Box::new(output.clone()), errors: Box::new(errors.clone()) };
    quorate_ctl::run(args, env, terminal, |_| Err("there are no files here".to_owned()))
}

#[test]
fn a_watch_runs_its_command_for_each_event() {
    let Some(bin) = bin_dir() else { return };
    let mut pair = Pair::start(bin);
    pair.check(&["put", "a", "1"], "");
    pair.check(&["put", "b", "2"], "");
    pair.check(&["del", "a"], "");
    // The history already exists, so each watch ends when its command fails on an event.
    let script = r#"test "$ETCD_WATCH_EVENT_TYPE $ETCD_WATCH_KEY $ETCD_WATCH_VALUE" = '"PUT" "a" "1"' && exit 7; exit 8"#;
    let deleted = r#"test "$ETCD_WATCH_EVENT_TYPE" = '"DELETE"' && exit 9"#;
    for line in [
        &["watch", "a", "--rev", "1", "--", "sh", "-c", script][..],
        &["watch", "--rev", "1", "a", "c", "--prev-kv", "--", "sh", "-c", "exit 3"],
        &["watch", "--prefix", "", "--rev", "4", "--prev-kv", "--", "sh", "-c", deleted],
        &["watch", "a", "--rev", "1", "-w", "fields", "--", "sh", "-c", "exit 3"],
        &["watch", "a", "--"],
    ] {
        pair.check(line, "");
    }
    pair.check_no_differences();
}

#[test]
fn interactive_watches_accept_commands_while_printing_events() {
    let Some(bin) = bin_dir() else { return };
    let server = Server::start(&bin);
    for value in ["1", "2"] {
        assert_eq!(server.ours(&["put", "a", value], "").code, 0);
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (output, errors) = (Sink::default(), Sink::default());
    let endpoint = server.endpoint.clone();
    let tool = {
        let (output, errors) = (output.clone(), errors.clone());
        std::thread::spawn(move || {
            let env = [("ETCDCTL_ENDPOINTS", &*endpoint)];
            run(&["watch", "-i"], &env, Box::new(BufReader::new(reader)), &output, &errors)
        })
    };
    writer.write_all(b"watch a --rev 1\n").unwrap();
    output.wait_for("PUT\na\n1\nPUT\na\n2\n");
    writer.write_all(b"bogus\nprogress\n").unwrap();
    output.wait_for("progress notify: 3\n");
    drop(writer);
    assert_eq!(tool.join().unwrap(), 3);
    assert_eq!(
        errors.text(),
        "Invalid command bogus (only support watch)\nError: error reading watch request line: EOF\n"
    );
}

#[test]
fn local_commands_work_without_a_server() {
    let version = run_with_env(&["version"], &[("ETCDCTL_API", "3")]);
    assert_eq!(version.output, "etcdctl version: 3.7.1\nAPI version: 3.7\n");
    assert_eq!((version.code, version.errors.as_str()), (0, ""));
    for line in [&[][..], &["lease"], &["lease", "nonsense"], &["get", "-h"], &["help", "get"]] {
        let outcome = run_with_env(line, &[]);
        assert_eq!((outcome.code, outcome.errors.as_str()), (0, ""), "{line:?}");
        assert!(outcome.output.contains("Usage:\n"), "{line:?}");
    }
    let unknown = run_with_env(&["frobnicate"], &[]);
    assert_eq!(
        (unknown.code, unknown.errors.as_str()),
        (
            1,
            "Error: unknown command \"frobnicate\" for \"etcdctl\"\nRun 'etcdctl --help' for usage.\n"
        )
    );
}
