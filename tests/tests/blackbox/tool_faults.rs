//! The command-line tools during faults: the server stops, the output is closed, or a request is too large.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use quorate_api::etcdserverpb::{MoveLeaderRequest, RangeRequest};
use quorate_tests::{
    Cluster, Ctl, Kind, Server, Tool, eventually, pause_process, put, resume_process,
    with_both_tools,
};

with_both_tools! {
    alone:
    ctl_watch_survives_the_loss_of_each_member,
    interactive_watches_survive_the_loss_of_a_member,
    a_watch_that_resumes_after_a_compaction_is_cancelled,
}

with_both_tools! {
    a_tool_whose_output_is_closed_is_killed_by_sigpipe,
    a_request_over_the_limit_is_reported,
    the_debug_flag_prints_settings_and_connections,
}

/// A running tool and its output so far. It is killed when dropped.
pub(super) struct Running {
    process: Child,
    input: Option<ChildStdin>,
    output: Arc<Mutex<Vec<String>>>,
    errors: Arc<Mutex<Vec<String>>>,
}

impl Running {
    pub(super) fn start(ctl: &Ctl, args: &[&str]) -> Self {
        let mut command = ctl.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let output = lines_of(process.stdout.take().unwrap());
        let errors = lines_of(process.stderr.take().unwrap());
        let input = process.stdin.take();
        Self { process, input, output, errors }
    }

    pub(super) fn say(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    pub(super) fn output(&self) -> Vec<String> {
        self.output.lock().unwrap().clone()
    }

    /// Returns the error output without log lines.
    pub(super) fn errors(&self) -> Vec<String> {
        let errors = self.errors.lock().unwrap();
        errors.iter().filter(|line| !line.starts_with('{')).cloned().collect()
    }

    /// Waits until the tool has printed this number of lines, and returns them.
    pub(super) async fn prints(&mut self, count: usize) -> Vec<String> {
        let what = format!("{count} lines of output");
        eventually(&what, async || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the tool exited with {ended:?}: {:?}", self.errors());
            (self.output().len() >= count).then_some(())
        })
        .await;
        self.output()
    }

    pub(super) async fn ends(&mut self) -> ExitStatus {
        eventually("the tool exits", async || self.process.try_wait().unwrap()).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Reads lines as they arrive.
fn lines_of(pipe: impl std::io::Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let into = lines.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            into.lock().unwrap().push(line);
        }
    });
    lines
}

/// Returns the tool with the endpoints of all members of a cluster.
fn of_all(tool: Tool, cluster: &Cluster) -> Option<Ctl> {
    let ctl = Ctl::of(tool, cluster.server(0))?;
    Some(ctl.and([cluster.server(1), cluster.server(2)]))
}

async fn write(cluster: &Cluster, key: &str, value: &str) {
    // The write may be repeated, because the history shows whether it happened once or twice.
    cluster.everyone().ask("a write", async |client| client.put(put(key, value)).await).await;
}

/// Kills a follower. The leader must survive, because without a leader watches are refused and etcd's tool gives up.
async fn kill(cluster: &mut Cluster, member: usize) {
    let target = (member + 1) % cluster.len();
    if cluster.leader().await == member {
        let request = MoveLeaderRequest { target_id: cluster.id(target) };
        cluster.client(member).move_leader(request).await.unwrap();
        eventually("the member becomes leader", async || {
            (cluster.leader().await == target).then_some(())
        })
        .await;
    }
    cluster.kill(member);
}

/// Returns the expected output for the history of the keys with a prefix.
async fn history(cluster: &Cluster, prefix: &str) -> Vec<String> {
    let client = cluster.client(cluster.running()[0]);
    let last = client.revision().await;
    let mut expected = Vec::new();
    for revision in 2..=last {
        let request =
            RangeRequest { revision, min_mod_revision: revision, ..quorate_tests::prefix(prefix) };
        for record in client.range(request).await.unwrap().kvs {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            expected.extend(["PUT".to_owned(), text(record.key()), text(record.value())]);
        }
    }
    expected
}

async fn ctl_watch_survives_the_loss_of_each_member(kind: Kind, tool: Tool) {
    let mut cluster = Cluster::start(kind, 3).await;
    let Some(ctl) = of_all(tool, &cluster) else { return };
    let mut watch = Running::start(&ctl, &["watch", "k", "--prefix", "--rev=2"]);
    write(&cluster, "k0", "before").await;
    watch.prints(3).await;
    for member in cluster.members() {
        kill(&mut cluster, member).await;
        for number in 0..3 {
            write(&cluster, &format!("k{member}"), &format!("without {member}: {number}")).await;
        }
        let expected = history(&cluster, "k").await;
        assert_eq!(watch.prints(expected.len()).await, expected);
        cluster.restart(member).await;
        cluster.settle().await;
    }
    assert!(watch.errors().is_empty(), "{:?}", watch.errors());
}

async fn interactive_watches_survive_the_loss_of_a_member(kind: Kind, tool: Tool) {
    let mut cluster = Cluster::start(kind, 3).await;
    let Some(ctl) = of_all(tool, &cluster) else { return };
    let mut watch = Running::start(&ctl, &["watch", "-i"]);
    watch.say("watch a --rev=2");
    watch.say("watch b --rev=2");
    write(&cluster, "a", "1").await;
    write(&cluster, "b", "1").await;
    watch.prints(6).await;
    for member in [0, 1] {
        kill(&mut cluster, member).await;
        write(&cluster, "a", "again").await;
        write(&cluster, "b", "again").await;
        let expected = [history(&cluster, "a").await, history(&cluster, "b").await];
        let printed = watch.prints(expected.concat().len()).await;
        // The order of events is defined only within each watch. The output of one event is never interrupted by
        // another.
        let of = |key: &str| -> Vec<String> {
            printed.chunks(3).filter(|event| event[1] == key).flatten().cloned().collect()
        };
        assert_eq!([of("a"), of("b")], expected);
        cluster.restart(member).await;
        cluster.settle().await;
    }
    let before = watch.output().len();
    watch.say("progress");
    let printed = watch.prints(before + 1).await;
    let revision = cluster.client(0).revision().await;
    assert_eq!(printed[before], format!("progress notify: {revision}"));
}

async fn a_watch_that_resumes_after_a_compaction_is_cancelled(kind: Kind, tool: Tool) {
    let mut server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let mut watch = Running::start(&ctl, &["watch", "k", "--rev=2"]);
    server.client().write("k", "1").await;
    watch.prints(3).await;
    pause_process(watch.process.id()).await;
    server.kill();
    server.start_again().await;
    server.client().write("k", "2").await;
    let revision = server.client().write("k", "3").await;
    server.client().compact_to(revision).await;
    resume_process(watch.process.id());
    let ended = watch.ends().await;
    assert_eq!(ended.code(), Some(5), "{:?}", watch.errors());
    assert_eq!(watch.output().len(), 3, "{:?}", watch.output());
    let expected = [
        "watch was canceled (etcdserver: mvcc: required revision has been compacted)",
        "Error: watch is canceled by the server",
    ];
    eventually("the watch prints the cancellation", async || {
        (watch.errors() == expected).then_some(())
    })
    .await;
}

async fn a_tool_whose_output_is_closed_is_killed_by_sigpipe(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    // The output is larger than a pipe's buffer, so the tool is still writing when the reader closes the pipe.
    for number in 0..20 {
        server.client().write(format!("k{number}"), "v".repeat(100_000)).await;
    }
    let mut command = ctl.command(&["get", "k", "--prefix"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut first = [0; 3];
    process.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"k0\n");
    let ended = process.wait_with_output().unwrap();
    // The tool is killed by SIGPIPE, like any tool in a pipe.
    assert_eq!((ended.status.signal(), ended.status.code()), (Some(13), None));
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}

async fn a_request_over_the_limit_is_reported(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let over = |len: usize, limit: usize| {
        format!(
            "Error: rpc error: code = ResourceExhausted desc = \
             trying to send message larger than max ({len} vs. {limit})"
        )
    };
    let failed = ctl.run_with_input(&["put", "k"], &"v".repeat(3 << 20));
    assert_eq!(failed.code, Some(1));
    assert!(failed.stderr.contains(&over((3 << 20) + 8, 2 << 20)), "{}", failed.stderr);
    if tool == Tool::QuorateCtl {
        // Debian's tool does not have this flag.
        let failed = ctl.run(&["put", "k", "0123456789", "--max-request-bytes=10"]);
        assert!(failed.stderr.contains(&over(15, 10)), "{}", failed.stderr);
    }
}

async fn the_debug_flag_prints_settings_and_connections(kind: Kind, tool: Tool) {
    let server = Server::start(kind).await;
    let Some(ctl) = Ctl::of(tool, &server) else { return };
    let ended = ctl.run(&["get", "k", "--debug", "--command-timeout=90s"]);
    assert_eq!((ended.code, &*ended.stdout), (Some(0), ""));
    let address = format!("127.0.0.1:{}", server.front_port());
    for line in [
        "ETCDCTL_COMMAND_TIMEOUT=1m30s",
        "ETCDCTL_DEBUG=true",
        "ETCDCTL_DIAL_TIMEOUT=2s",
        &format!("ETCDCTL_ENDPOINTS=[{address}]"),
        "ETCDCTL_WRITE_OUT=simple",
    ] {
        assert!(ended.stderr.lines().any(|shown| shown == line), "{line}: {}", ended.stderr);
    }
    let mut log = ended.stderr.lines().filter(|line| !line.starts_with("ETCDCTL_"));
    assert!(log.any(|line| line.contains(&address)), "{}", ended.stderr);
}
