//! Tests with members embedded in this program: the values that the host receives from them, the resources that remain
//! under the host's control, and the release of all resources when the members end.
#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../examples/embedded.rs"]
#[expect(dead_code, reason = "`main` is used only by the example")]
mod example;

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb::PutRequest;
use quorate_api::etcdserverpb::kv_client::KvClient;
use quorate_server::{End, Member, NotReady, StartError};
use tonic::transport::Endpoint;
use tracing_core::field::{Field, Visit};
use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Dispatch, Event, Metadata, Subscriber, dispatcher};

/// Ensures that the tests run one at a time, because they inspect resources of the whole process.
static TURN: Mutex<()> = Mutex::new(());

const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns two free ports, for clients and for peers.
fn ports() -> [u16; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

fn flags(name: &str, folder: &Path, [client, peer]: [u16; 2]) -> Vec<String> {
    let url = |port| format!("http://127.0.0.1:{port}");
    vec![
        format!("--name={name}"),
        format!("--data-dir={}", folder.join(name).display()),
        format!("--listen-client-urls={}", url(client)),
        format!("--advertise-client-urls={}", url(client)),
        format!("--listen-peer-urls={}", url(peer)),
        format!("--initial-advertise-peer-urls={}", url(peer)),
        format!("--initial-cluster={name}={}", url(peer)),
    ]
}

fn put(port: u16, key: &'static str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let mut client = KvClient::new(endpoint.connect().await.unwrap());
        client.put(PutRequest { key: key.into(), ..PutRequest::default() }).await.unwrap();
    });
}

/// The tests in this file. The test runner starts a thread for each test, and the thread waits for its turn.
const TESTS: [&str; 4] = [
    "the_example_of_an_embedded_member_runs_twice",
    "two_members_in_one_process_are_independent",
    "a_dropped_member_leaves_no_threads_or_open_files",
    "a_failed_start_returns_the_reason_and_does_not_affect_the_host",
];

/// Returns the number of this process's threads, excluding the test runner's threads, and of its open files.
fn thread_and_file_counts() -> (usize, usize) {
    let is_of_runner = |name: &str| TESTS.iter().any(|test| test.starts_with(name));
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter(|task| {
        // A thread may have ended since the directory was read.
        let name = std::fs::read_to_string(task.as_ref().unwrap().path().join("comm"));
        name.is_ok_and(|name| !is_of_runner(name.trim_end()))
    });
    (threads.count(), std::fs::read_dir("/proc/self/fd").unwrap().count())
}

/// Waits until the numbers of threads and open files of this process are at most `before`. Threads that resolve names
/// may end late.
fn settle(before: (usize, usize)) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let (threads, files) = thread_and_file_counts();
        if threads <= before.0 && files <= before.1 {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "threads and open files: {:?} now, {before:?} before the test",
            thread_and_file_counts()
        );
        std::thread::yield_now();
    }
}

/// The messages in one member's log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut Message(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}

    fn current_span(&self) -> Current {
        Current::none()
    }
}

impl Lines {
    fn start(&self, flags: Vec<String>) -> Result<Member, StartError> {
        dispatcher::with_default(&Dispatch::new(self.clone()), || Member::start(flags))
    }

    fn tell(&self, text: &str) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.contains(text))
    }
}

#[test]
fn the_example_of_an_embedded_member_runs_twice() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    example::run(&data).unwrap();
    // The member's files are closed, so another member can open them.
    example::run(&data).unwrap();
}

#[test]
fn two_members_in_one_process_are_independent() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let (one_ports, other_ports) = (ports(), ports());
    let (one_lines, other_lines) = (Lines::default(), Lines::default());
    let one = one_lines.start(flags("one", folder.path(), one_ports)).unwrap();
    let other = other_lines.start(flags("other", folder.path(), other_ports)).unwrap();
    one.wait_ready(TIMEOUT).unwrap();
    other.wait_ready(TIMEOUT).unwrap();
    assert_ne!((one.id(), one.cluster_id()), (other.id(), other.cluster_id()));
    let before = other.revision();
    put(one_ports[0], "a");
    assert_eq!((one.revision(), other.revision()), (before + 1, before));
    let puts = |member: &Member| {
        let metrics = member.metrics();
        let line = metrics.lines().find(|line| line.starts_with("etcd_mvcc_put_total "));
        line.map(str::to_owned)
    };
    assert_eq!(puts(&one).unwrap(), "etcd_mvcc_put_total 1");
    assert_eq!(puts(&other).unwrap(), "etcd_mvcc_put_total 0");
    // Lines from any thread of a member reach the member's own subscriber, and not the other member's.
    let own = |member: &Member| format!("{:x}", member.id());
    for (lines, member, stranger) in [(&one_lines, &one, &other), (&other_lines, &other, &one)] {
        assert!(lines.tell(&format!("{} became leader", own(member))));
        assert!(lines.tell("ready to serve client requests"));
        assert!(!lines.tell(&own(stranger)));
    }
    assert_eq!(one.stop(), End::Stopped);
    put(other_ports[0], "b");
    assert_eq!(other.revision(), before + 1);
    assert_eq!(other.end(), None);
}

#[test]
fn a_dropped_member_leaves_no_threads_or_open_files() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let ports = ports();
    let start = || Lines::default().start(flags("dropped", folder.path(), ports)).unwrap();
    // The first member creates the resources that the process keeps.
    drop(start());
    let before = thread_and_file_counts();
    for _ in 0..3 {
        let member = start();
        member.wait_ready(TIMEOUT).unwrap();
        put(ports[0], "a");
        assert!(thread_and_file_counts() > before);
        drop(member);
        settle(before);
    }
    // A member that is still waiting for its cluster can be stopped like any other.
    let mut alone = flags("waits", folder.path(), ports);
    let last = alone.len() - 1;
    alone[last].push_str(",absent=http://127.0.0.1:1");
    let member = Lines::default().start(alone).unwrap();
    assert_eq!(member.wait_ready(Duration::ZERO), Err(NotReady::Yet));
    assert_eq!(member.leader(), None);
    drop(member);
    settle(before);
}

#[test]
fn a_failed_start_returns_the_reason_and_does_not_affect_the_host() {
    let _turn = TURN.lock();
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().port();
    let refused = |more: &[&str], ports: [u16; 2]| {
        let mut all = flags("refused", folder.path(), ports);
        all.extend(more.iter().map(|flag| (*flag).to_owned()));
        Lines::default().start(all).unwrap_err().to_string()
    };
    let ports = ports();
    for (more, expected) in [
        (&["--nonsense"][..], "flag provided but not defined: -nonsense"),
        (&["--snapshot-count=many"], "invalid value \"many\" for flag -snapshot-count"),
        (&["--heartbeat-interval=100", "--election-timeout=200"], "-election-timeout"),
        (&["--log-level=debug"], "an embedded member has no log of its own"),
        (&["--log-outputs=/tmp/nowhere"], "an embedded member has no log of its own"),
        (&["--config-file=/does/not/exist"], "no such file"),
    ] {
        let text = refused(more, ports);
        assert!(text.contains(expected), "{more:?}: {text}");
    }
    let before = thread_and_file_counts();
    let text = refused(&[], [taken, ports[1]]);
    assert!(text.contains("bind: address already in use"), "{text}");
    settle(before);
}
