//! A cluster with many keys and watchers. No page may make the members or the console send responses whose size depends
//! on the number of keys.
//!
//! The long form (`QUORATE_LONG=1`) uses a million keys and 10,000 watchers. It prints the time until each page is
//! shown, the sizes of the responses, and the CPU time that an open page costs on each member and on the console. The
//! times are not checked, because they depend on the machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate_tests::{
    Client, Cluster, ClusterOptions, Console, ConsolePage, Kind, Options, Watch, is_long, notice,
    put_op, run_cluster, txn, watch_key, watch_prefix,
};
use serde_json::{Value, json};

use super::driver::Browser;
use super::{check_log, visit};

mod no_page_makes_members_send_all_keys {
    use super::*;

    #[test]
    fn quorate() {
        run_cluster(Kind::Quorate, check);
    }
}

/// Maximum size of a response, and of all responses that a member sends for one page.
const BYTES_MAX: u64 = 1 << 20;

/// The number of puts in a transaction that creates keys.
const BATCH: u64 = 100;

/// The number of namespaces over which the keys are distributed.
const NAMESPACES: u64 = 100;

/// A page: its address, and a condition that holds once its content is shown.
type Shown = (&'static str, &'static str);

const PAGES: [Shown; 7] = [
    ("keys", "named('[role=treeitem]', 'ns/')"),
    ("keys?prefix=/ns/", "named('[role=treeitem]', 'ns000/')"),
    ("keys?view=list", "named('[role=treeitem]', 'pod0000000')"),
    ("keys/sizes", "named('main table a', '/ns/')"),
    ("keys/watch", "textOf(document.body).includes('Watching since revision')"),
    ("leases", "all('main#content h1').length && !named('main *', 'Loading')"),
    ("problems", "all('main#content h1').length && !named('main *', 'Loading')"),
];

fn key(number: u64) -> String {
    format!("/ns/ns{:03}/pod{number:07}", number % NAMESPACES)
}

async fn check(kind: Kind) {
    let Some(browser) = Browser::start() else { return };
    let (keys, watchers) = if is_long() { (1_000_000, 10_000) } else { (20_000, 300) };
    let options = ClusterOptions::new(kind, 3);
    let options = (0..3).fold(options, |options, at| options.member(at, Options::unguarded));
    let cluster = options.start().await;
    let members = cluster.members();
    let clients: Vec<Client> = members.iter().map(|at| cluster.client(*at)).collect();
    fill(&clients, keys).await;
    let ports = members.iter().map(|at| cluster.server(*at).port()).collect();
    let _load = Load::start(ports, watchers);
    let idle = cost(&cluster, None).await;
    let endpoints: Vec<_> =
        cluster.members().into_iter().map(|at| cluster.server(at).url()).collect();
    let console = Console::start(&endpoints.join(","), &[]);
    let sent = Sent::of(&cluster);
    visit(&browser, &console, "cluster");
    let all_members = "['m0', 'm1', 'm2'].every((it) => textOf(document.body).includes(it))";
    let took = browser.run_async(&format!("{UNTIL} until(() => {all_members}, 0);"));
    sent.check(&cluster, "the first page");
    notice(&format!("{keys} keys, {watchers} watchers: the first page is shown after {took} ms"));
    browser.picture("scale-cluster");
    report_cost("the cluster page", &idle, &cost(&cluster, Some(&console)).await);
    let calls = browser.run(
        "return performance.getEntriesByType('resource').filter((it) => it.name.includes('/api/')) \
         .map((it) => `${it.name.split('/v1/')[1]} from ${Math.round(it.startTime)} to \
         ${Math.round(it.responseEnd)} ms`).join(', ');",
    );
    notice(&format!("{keys} keys: the calls of the first page are {calls}"));
    for (page, shown) in PAGES {
        let sent = Sent::of(&cluster);
        let took = browser.run_async(&format!(
            "{UNTIL} const start = performance.now(); location.hash = '#/{page}'; \
             const name = '{page}'.split('?')[0]; \
             until(() => document.querySelector('main').dataset.page === name && ({shown}), start);"
        ));
        sent.check(&cluster, page);
        notice(&format!("{keys} keys: {page} is shown after {took} ms"));
        browser.picture(&format!("scale-{}", page.replace(['/', '?', '='], "-")));
        if page == "keys/sizes" {
            report_cost(page, &idle, &cost(&cluster, Some(&console)).await);
        }
    }
    let responses = browser.run(
        "return performance.getEntriesByType('resource').map((it) => [it.name, it.decodedBodySize]);",
    );
    let responses = responses.as_array().unwrap();
    assert!(responses.iter().any(|it| it[0].as_str().unwrap().contains("/api/v1/keys/tree")));
    for response in responses {
        assert!(response[1].as_u64().unwrap() < BYTES_MAX, "{response}");
    }
    let largest = responses.iter().max_by_key(|it| it[1].as_u64()).unwrap();
    notice(&format!("{keys} keys: the largest response of the console is {largest}"));
    check_log(&browser);
    check_calls(&cluster, &console.page(), keys);
}

/// Calls `done` with the milliseconds since `start` once a condition holds.
const UNTIL: &str = "\
const until = (isShown, start) => { \
  const end = () => done(Math.round(performance.now() - start)); \
  if (isShown()) { end(); return; } \
  const observer = new MutationObserver(() => { \
    if (isShown()) { observer.disconnect(); end(); } \
  }); \
  observer.observe(document, { subtree: true, childList: true, characterData: true, attributes: true }); \
};";

/// Makes the page's API calls that return parts of large lists, and prints how long each takes.
fn check_calls(cluster: &Cluster, page: &ConsolePage, keys: u64) {
    let call = |name: &str, body: Value| -> Value {
        let (sent, start) = (Sent::of(cluster), Instant::now());
        let response = page.call(name, &body.to_string());
        let took = start.elapsed();
        sent.check(cluster, name);
        assert_eq!(response.status, 200, "{}", response.text());
        assert!((response.body.len() as u64) < BYTES_MAX, "{name}: {}", response.body.len());
        notice(&format!("{keys} keys: {name} {body}: {} bytes, {took:?}", response.body.len()));
        serde_json::from_slice(&response.body).unwrap()
    };
    call("overview", json!({}));
    let level = call("keys/tree", json!({ "prefix": base64("/ns/"), "limit": 200 }));
    assert_eq!(level["entries"].as_array().unwrap().len() as u64, NAMESPACES);
    let count = &level["entries"][0]["count"];
    assert_eq!(count.as_u64().unwrap(), keys / NAMESPACES, "{count}");
    let revision = level["revision"].as_u64().unwrap();
    let earlier = json!({ "prefix": base64("/ns/"), "limit": 200, "revision": revision - 5 });
    assert_eq!(call("keys/tree", earlier)["entries"].as_array().unwrap().len() as u64, NAMESPACES);
    let mut cursor = Value::Null;
    for _ in 0..3 {
        let body = json!({ "prefix": base64("/ns/"), "limit": 500, "cursor": cursor });
        let list = call("keys/list", body);
        assert_eq!(list["entries"].as_array().unwrap().len(), 500);
        assert_eq!(list["count"].as_u64().unwrap(), keys);
        cursor = list["next"].clone();
    }
    call("leases/list", json!({}));
}

/// Creates the keys.
async fn fill(clients: &[Client], keys: u64) {
    const TASKS: u64 = 12;
    let tasks = (0..TASKS).map(|task| {
        let client = clients[usize::try_from(task).unwrap() % clients.len()].clone();
        tokio::task::spawn_local(async move {
            for batch in (task..keys / BATCH).step_by(usize::try_from(TASKS).unwrap()) {
                let numbers = batch * BATCH..(batch + 1) * BATCH;
                let puts = numbers.map(|number| put_op(key(number), [b'v'; 100])).collect();
                client.txn(txn(puts)).await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

/// Watchers, and continual writes, so that the revision that a page shows is soon no longer the newest. The load has
/// its own thread, because the browser's calls block the thread of the test.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    /// Starts the load. Returns once all watchers exist.
    fn start(ports: Vec<u16>, watchers: u64) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let ends = Arc::clone(&is_over);
        let run = async move {
            let clients: Vec<Client> = ports.into_iter().map(Client::new).collect();
            watch(&clients, watchers).await;
            ready.send(()).unwrap();
            for number in 0.. {
                clients[0].write(format!("/leases/l{}", number % 10), "v").await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                if ends.load(Ordering::Relaxed) {
                    return;
                }
            }
        };
        let thread = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            tokio::task::LocalSet::new().block_on(&runtime.unwrap(), run);
        });
        is_ready.recv().unwrap();
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // The result is ignored: if a write has failed, the thread has already reported the failure.
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

/// Starts watchers of single keys, and one watcher of the written keys on each member. The streams end with the thread.
async fn watch(clients: &[Client], watchers: u64) {
    const STREAMS: u64 = 12;
    for stream in 0..STREAMS {
        let number = usize::try_from(stream).unwrap();
        let mut watch = Watch::open(&clients[number % clients.len()]);
        if number < clients.len() {
            watch.create(watch_prefix("/leases/")).await;
        }
        for number in (stream..watchers).step_by(usize::try_from(STREAMS).unwrap()) {
            watch.create(watch_key(key(number))).await;
        }
        tokio::task::spawn_local(async move { while watch.try_next().await.is_ok() {} });
    }
}

/// The bytes that each member has sent to its clients.
struct Sent(Vec<f64>);

impl Sent {
    fn of(cluster: &Cluster) -> Self {
        let of = |at| {
            let name = "etcd_network_client_grpc_sent_bytes_total";
            cluster.server(at).metric(name).unwrap()
        };
        Self(cluster.members().into_iter().map(of).collect())
    }

    /// Fails if a member has sent more bytes since `self` was measured than small responses need.
    #[track_caller]
    fn check(&self, cluster: &Cluster, what: &str) {
        for (before, after) in self.0.iter().zip(Self::of(cluster).0) {
            assert!(after - before < BYTES_MAX as f64, "{what}: {} bytes", after - before);
        }
    }
}

/// The CPU use of each process, in CPU seconds per second.
type Cost = BTreeMap<String, f64>;

/// Measures the CPU use of the members and the console for a minute. Returns nothing in the short form of the test.
async fn cost(cluster: &Cluster, console: Option<&Console>) -> Cost {
    if !is_long() {
        return Cost::new();
    }
    let members =
        cluster.members().into_iter().map(|at| (format!("m{at}"), cluster.server(at).pid()));
    let console = console.map(|console| ("console".to_owned(), console.pid()));
    let processes: Vec<(String, u32)> = members.chain(console).collect();
    let used = || processes.iter().map(|(_, pid)| cpu_secs(*pid)).collect::<Vec<_>>();
    let (before, start) = (used(), Instant::now());
    tokio::time::sleep(Duration::from_secs(60)).await;
    let secs = start.elapsed().as_secs_f64();
    let shares = before.iter().zip(used()).map(|(before, after)| (after - before) / secs);
    processes.into_iter().map(|(name, _)| name).zip(shares).collect()
}

fn report_cost(what: &str, idle: &Cost, open: &Cost) {
    for (name, share) in open {
        let more = share - idle.get(name).copied().unwrap_or_default();
        notice(&format!("{what}: {name} uses {:.2} % of a core more than before", more * 100.0));
    }
}

/// Returns the CPU time that a process has used.
fn cpu_secs(pid: u32) -> f64 {
    const TICKS_PER_SEC: f64 = 100.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    // The user time and the system time are the 14th and the 15th field, and the state is the third.
    let ticks: f64 = fields.split(' ').skip(11).take(2).map(|it| it.parse::<f64>().unwrap()).sum();
    ticks / TICKS_PER_SEC
}

/// Encodes a text as the page does.
fn base64(text: &str) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |chunk: &[u8]| -> String {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        let letter = |place: usize| match place > chunk.len() {
            true => '=',
            false => char::from(LETTERS[usize::try_from(number >> (18 - 6 * place) & 63).unwrap()]),
        };
        (0..4).map(letter).collect()
    };
    text.as_bytes().chunks(3).map(encode).collect()
}
