//! `/debug/pprof/`: its availability, and the functions that the profile of a busy member contains.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flate2::read::GzDecoder;
use quorate_api::etcdserverpb::RangeRequest;
use quorate_protobuf::{Fields, Value, take_varint};
use quorate_tests::pki::Leaf;
use quorate_tests::{
    Client, Kind, Options, Proxy, Response, Server, Watch, eventually, get, key, on_both_servers,
    on_quorate, request, watch_key,
};

use super::tls::Files;
use super::tls_hostile::ask;

on_both_servers! {
    alone:
    a_cpu_profile_names_the_functions_of_a_busy_member,
    only_one_profile_is_taken_at_a_time,
    the_heap_profile_names_the_functions_that_allocated_memory,
    a_heap_profile_with_seconds_contains_the_difference,
    profiles_are_served_only_with_the_flag,
    profiles_are_served_at_log_level_debug,
    profiles_require_the_certificate_of_the_listener,
}

on_quorate! {
    alone:
    a_profile_is_aborted_when_its_client_disconnects,
    threads_are_listed_by_name,
    the_symbol_page_resolves_function_addresses,
    a_proxy_resolves_symbols_like_a_member,
    unsupported_profiles_return_404_with_the_reason,
    calls_in_progress_are_counted_by_method,
}

async fn profiled(kind: Kind) -> Server {
    Options::new(kind).unguarded().flag("--enable-pprof").start().await
}

/// Sends a request on a thread that may block.
async fn ask_for(port: u16, path: &'static str) -> Response {
    tokio::task::spawn_blocking(move || get(port, path)).await.unwrap()
}

/// The fields of a profile that these tests use.
struct Profile {
    /// Names of the value types.
    types: Vec<String>,
    period: u64,
    /// Number of samples.
    samples: u64,
    /// Sum of each value type over all stacks, for the first four types.
    sums: [i64; 4],
    /// Value type that tools such as pprof show by default.
    shown_first: String,
    /// Names of all functions.
    functions: BTreeSet<String>,
    /// Maximum number of functions in one stack.
    deepest: usize,
}

fn fields(bytes: &[u8]) -> Vec<(u32, Value<'_>)> {
    Fields::new(bytes).map(|field| field.unwrap()).collect()
}

fn number(of: &[(u32, Value<'_>)], wanted: u32) -> u64 {
    let found = of.iter().find(|(field, _)| *field == wanted);
    found.map_or(0, |(_, value)| match value {
        Value::Varint(number) => *number,
        other => panic!("{other:?}"),
    })
}

fn parts<'a>(of: &[(u32, Value<'a>)], wanted: u32) -> Vec<&'a [u8]> {
    let found = of.iter().filter(|(field, _)| *field == wanted);
    let bytes = found.map(|(_, value)| match value {
        Value::Bytes(bytes) => *bytes,
        other => panic!("{other:?}"),
    });
    bytes.collect()
}

/// Returns the values of a repeated field, packed or not.
fn numbers(of: &[(u32, Value<'_>)], wanted: u32) -> Vec<u64> {
    let mut all = Vec::new();
    for (_, value) in of.iter().filter(|(field, _)| *field == wanted) {
        match value {
            Value::Varint(number) => all.push(*number),
            Value::Bytes(bytes) => {
                let mut bytes = *bytes;
                while !bytes.is_empty() {
                    all.push(take_varint(&mut bytes).unwrap());
                }
            }
            other => panic!("{other:?}"),
        }
    }
    all
}

impl Profile {
    fn read(gzipped: &[u8]) -> Self {
        let mut message = Vec::new();
        GzDecoder::new(gzipped).read_to_end(&mut message).unwrap();
        let top = fields(&message);
        let texts = parts(&top, 6);
        let text = |number: u64| {
            let index = usize::try_from(number).unwrap();
            String::from_utf8(texts[index].to_vec()).unwrap()
        };
        let rows: Vec<_> = parts(&top, 2).into_iter().map(fields).collect();
        let types = parts(&top, 1).into_iter().map(|of| text(number(&fields(of), 1)));
        let functions = parts(&top, 5).into_iter().map(|of| text(number(&fields(of), 2)));
        let named: BTreeSet<u64> = parts(&top, 4)
            .into_iter()
            .map(fields)
            .filter(|location| !parts(location, 4).is_empty())
            .map(|location| number(&location, 1))
            .collect();
        let names_of = |row: &Vec<_>| {
            numbers(row, 1).iter().filter(|location| named.contains(*location)).count()
        };
        Self {
            types: types.collect(),
            period: number(&top, 12),
            samples: rows.iter().map(|row| numbers(row, 2)[0]).sum(),
            sums: std::array::from_fn(|index| {
                let values = rows.iter().filter_map(|row| numbers(row, 2).get(index).copied());
                values.map(u64::cast_signed).sum()
            }),
            shown_first: text(number(&top, 14)),
            functions: functions.collect(),
            deepest: rows.iter().map(names_of).max().unwrap_or_default(),
        }
    }

    fn names(&self, part: &str) -> bool {
        self.functions.iter().any(|function| function.contains(part))
    }
}

/// A load that writes and reads until it is dropped.
struct Load {
    is_done: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
}

impl Load {
    fn on(client: &Client) -> Self {
        let (is_done, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        for number in 0..8 {
            let (client, is_done, answers) = (client.clone(), is_done.clone(), answers.clone());
            tokio::spawn(async move {
                while !is_done.load(Ordering::Relaxed) {
                    client.write(format!("key-{number}"), "value").await;
                    client.read("key-0").await;
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { is_done, answers }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
    }
}

async fn a_cpu_profile_names_the_functions_of_a_busy_member(kind: Kind) {
    /// Minimum number of samples in a profile. The number corresponds to using a twentieth of a core for one second.
    const SAMPLES_MIN: u64 = 5;
    let server = profiled(kind).await;
    let client = server.client();
    let load = Load::on(&client);
    // The names of functions that execute a write contain these parts.
    let parts: &[&str] = match kind {
        Kind::Quorate => &["quorate_", "tokio::", "::poll"],
        Kind::Etcd => &["etcdserver", "grpc", "runtime."],
    };
    let seen = eventually("a profile of the load", async || {
        let before = load.answers.load(Ordering::Relaxed);
        let answer = ask_for(server.port(), "/debug/pprof/profile?seconds=1").await;
        assert_eq!((answer.status, answer.header("x-go-pprof")), (200, None), "{}", answer.text());
        assert!(
            load.answers.load(Ordering::Relaxed) > before,
            "requests are answered during the profile"
        );
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        let name = answer.header("content-disposition");
        assert_eq!(name, Some("attachment; filename=\"profile\""));
        let profile = Profile::read(&answer.body);
        let is_telling =
            profile.samples >= SAMPLES_MIN && parts.iter().all(|part| profile.names(part));
        is_telling.then_some(profile)
    });
    let profile = seen.await;
    assert_eq!(profile.types, ["samples", "cpu"]);
    assert_eq!(profile.period, 10_000_000);
    assert!(profile.deepest > 5, "{:?}", profile.functions);
}

async fn the_heap_profile_names_the_functions_that_allocated_memory(kind: Kind) {
    let server = profiled(kind).await;
    let client = server.client();
    // Both servers keep the keys in memory.
    for number in 0..200 {
        client.write(format!("{number:0>2000}"), vec![b'v'; 100_000]).await;
    }
    for (page, first) in [("heap", ""), ("allocs", "alloc_space")] {
        let answer = server.get(&format!("/debug/pprof/{page}"));
        assert_eq!((answer.status, answer.header("x-go-pprof")), (200, None), "{}", answer.text());
        let name = format!("attachment; filename=\"{page}\"");
        assert_eq!(answer.header("content-disposition"), Some(name.as_str()));
        let profile = Profile::read(&answer.body);
        assert_eq!(profile.types, ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]);
        assert_eq!((profile.period, profile.shown_first.as_str()), (512 << 10, first));
        let [objects, bytes, in_use, in_use_bytes] = profile.sums;
        assert!(bytes > 20_000_000, "all values were received: {bytes}");
        assert!((1..bytes).contains(&in_use_bytes) && (1..objects).contains(&in_use));
        let part = match kind {
            Kind::Quorate => "quorate_",
            Kind::Etcd => "etcdserver",
        };
        assert!(profile.names(part), "{:?}", profile.functions);
    }
    let text = server.get("/debug/pprof/heap?debug=1&gc=1").text();
    let head = text.lines().next().unwrap();
    assert!(head.starts_with("heap profile: ") && head.contains("] @ heap/"), "{head}");
}

async fn a_heap_profile_with_seconds_contains_the_difference(kind: Kind) {
    let server = profiled(kind).await;
    let load = Load::on(&server.client());
    let answer = ask_for(server.port(), "/debug/pprof/allocs?seconds=2").await;
    let name = answer.header("content-disposition");
    assert_eq!((answer.status, name), (200, Some("attachment; filename=\"allocs-delta\"")));
    assert!(Profile::read(&answer.body).sums[1] > 0, "{}", load.answers.load(Ordering::Relaxed));
    for (query, text) in [
        ("seconds=1&debug=1", "seconds and debug params are incompatible\n"),
        ("seconds=0", "invalid value for \"seconds\" - must be a positive integer\n"),
        ("seconds=soon", "invalid value for \"seconds\" - must be a positive integer\n"),
    ] {
        let refused = server.get(&format!("/debug/pprof/heap?{query}"));
        assert_eq!((refused.status, refused.text().as_str()), (400, text), "{query}");
    }
}

/// Starts a profile, which takes some time.
fn begin(server: &Server) -> TcpStream {
    let port = server.port();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = "GET /debug/pprof/profile?seconds=60 HTTP/1.1";
    stream.write_all(format!("{head}\r\nHost: 127.0.0.1:{port}\r\n\r\n").as_bytes()).unwrap();
    stream
}

const IN_USE: &str = "Could not enable CPU profiling: cpu profiling already in use\n";

/// Returns the refusal of a second profile. If the second request arrived first, the first request was refused and is
/// sent again.
async fn is_refused(server: &Server, first: &mut TcpStream) -> Response {
    eventually("a refusal", async || {
        let answer = ask_for(server.port(), "/debug/pprof/profile?seconds=1").await;
        if answer.status == 200 {
            *first = begin(server);
            return None;
        }
        Some(answer)
    })
    .await
}

async fn only_one_profile_is_taken_at_a_time(kind: Kind) {
    let server = profiled(kind).await;
    let mut first = begin(&server);
    let refused = is_refused(&server, &mut first).await;
    assert_eq!((refused.status, refused.text().as_str()), (500, IN_USE));
    assert_eq!(refused.header("x-go-pprof"), Some("1"));
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(server.get("/health").status, 200);
}

async fn a_profile_is_aborted_when_its_client_disconnects(kind: Kind) {
    let server = profiled(kind).await;
    let mut first = begin(&server);
    is_refused(&server, &mut first).await;
    drop(first);
    eventually("the first profile ends", async || {
        let answer = ask_for(server.port(), "/debug/pprof/profile?seconds=1").await;
        (answer.status == 200).then_some(())
    })
    .await;
    let too_long = server.get("/debug/pprof/profile?seconds=601");
    assert_eq!(too_long.status, 400, "{}", too_long.text());
}

async fn profiles_are_served_only_with_the_flag(kind: Kind) {
    let without = Options::new(kind).unguarded().start().await;
    for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/cmdline"] {
        assert_eq!(without.get(path).status, 404, "{path}");
    }
    // The port is reserved for a server that never starts.
    let other = Options::new(kind).prepare().port();
    let server = Options::new(kind)
        .unguarded()
        .flag("--enable-pprof")
        .flag(format!("--listen-metrics-urls=http://127.0.0.1:{other}"))
        .start()
        .await;
    server.wait_for_log("pprof is enabled").await;
    assert_eq!(get(other, "/debug/pprof/").status, 404);
    let index = server.get("/debug/pprof/");
    assert_eq!(index.header("content-type"), Some("text/html; charset=utf-8"));
    for page in ["profile", "heap", "allocs", "symbol", "cmdline", "threadcreate", "goroutine"] {
        let answer = request(server.port(), "GET", &format!("/debug/pprof/{page}?seconds=1"), "");
        assert_eq!(answer.status, 200, "{page}: {}", answer.text());
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{page}");
        let is_listed = page == "symbol" || index.text().contains(page);
        assert!(is_listed, "{page}: {}", index.text());
    }
    let words = server.get("/debug/pprof/cmdline").text();
    assert!(words.split('\0').any(|word| word == "--enable-pprof"), "{words:?}");
    let symbols = request(server.port(), "POST", "/debug/pprof/symbol", "");
    assert_eq!((symbols.status, symbols.text().as_str()), (200, "num_symbols: 1\n"));
    let unknown = server.get("/debug/pprof/nothing");
    assert_eq!((unknown.status, unknown.text().as_str()), (404, "Unknown profile\n"));
    assert_eq!(server.get("/debug/pprof").status / 100, 3);
}

async fn profiles_are_served_at_log_level_debug(kind: Kind) {
    let server = Options::new(kind).unguarded().flag("--log-level=debug").start().await;
    assert_eq!(server.get("/debug/pprof/cmdline").status, 200);
}

async fn profiles_require_the_certificate_of_the_listener(kind: Kind) {
    const QUESTION: &str =
        "GET /debug/pprof/cmdline HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n";
    let files = Files::new();
    let server = files.closed(kind).flag("--enable-pprof").start().await;
    let someone = files.authority.sign(&Leaf::new("someone"));
    let answer = ask(server.port(), &files, Some(&someone), QUESTION).await.unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let turned_away = match ask(server.port(), &files, None, QUESTION).await {
        Ok(answer) => answer.is_empty(),
        Err(_) => true,
    };
    assert!(turned_away, "a client without a certificate was accepted");
}

async fn threads_are_listed_by_name(kind: Kind) {
    let server = profiled(kind).await;
    for page in ["/debug/pprof/threadcreate?debug=1", "/debug/pprof/goroutine?debug=2"] {
        let text = server.get(page).text();
        let names: BTreeSet<&str> =
            text.lines().filter_map(|line| line.split('\t').nth(1)).collect();
        for name in ["conn-0", "raft", "apply", "backend"] {
            assert!(names.contains(name), "{page}: {text}");
        }
        assert!(text.contains("sleeping"), "{text}");
    }
    let profile = Profile::read(&server.get("/debug/pprof/threadcreate").body);
    assert!(profile.names("conn-0") && profile.samples >= 5, "{:?}", profile.functions);
}

/// Returns evenly spaced addresses in the code of a running program, in the format of a pprof request for names. Some
/// of the addresses belong to functions.
fn code_addresses(pid: u32) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let program = Kind::Quorate.program().display().to_string();
    let code = maps.lines().find(|line| line.contains("r-xp") && line.ends_with(&program)).unwrap();
    let (start, end) = code.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
    let hex = |text| u64::from_str_radix(text, 16).unwrap();
    let (start, end) = (hex(start), hex(end));
    let step = usize::try_from((end - start) / 100).unwrap();
    let words: Vec<String> =
        (start..end).step_by(step).map(|address| format!("{address:#x}")).collect();
    words.join("+")
}

/// Requests the names of functions in both supported ways.
fn check_names_of_functions(port: u16, addresses: &str) {
    let by_post = request(port, "POST", "/debug/pprof/symbol", addresses).text();
    let by_get = request(port, "GET", &format!("/debug/pprof/symbol?{addresses}"), "").text();
    assert_eq!(by_post, by_get);
    assert!(by_post.starts_with("num_symbols: 1\n0x"), "{by_post}");
    assert!(by_post.lines().any(|line| line.contains("quorate_")), "{by_post}");
}

async fn the_symbol_page_resolves_function_addresses(kind: Kind) {
    let server = profiled(kind).await;
    check_names_of_functions(server.port(), &code_addresses(server.pid()));
}

async fn a_proxy_resolves_symbols_like_a_member(kind: Kind) {
    let server = Server::start(kind).await;
    let proxy = Proxy::start(kind, &[server.port()], &["--enable-pprof"]).await;
    check_names_of_functions(proxy.port(), &code_addresses(proxy.pid()));
}

async fn unsupported_profiles_return_404_with_the_reason(kind: Kind) {
    let server = profiled(kind).await;
    for page in ["block", "mutex", "trace"] {
        let answer = server.get(&format!("/debug/pprof/{page}"));
        assert_eq!(answer.status, 404, "{page}");
        assert!(answer.text().starts_with(&format!("no {page} profile: ")), "{}", answer.text());
        assert_eq!(answer.header("x-go-pprof"), Some("1"));
    }
}

/// The page of calls in progress helps to find out why a member does not answer.
async fn calls_in_progress_are_counted_by_method(kind: Kind) {
    let server = profiled(kind).await;
    let client = server.client();
    client.write("k", "v").await;
    let mut watch = Watch::open(&client);
    watch.create(watch_key("k")).await;
    let row = async |method: &str| {
        let page = ask_for(server.port(), "/debug/requests").await;
        assert_eq!(page.status, 200);
        let page = page.text();
        let found = page.lines().find(|line| line.contains(&format!("{method}</td>")));
        found.map(|line| line.replace(|c: char| !c.is_ascii_digit() && c != '/', " "))
    };
    let numbers = |row: Option<String>| -> Vec<u64> {
        let row = row.unwrap();
        row.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    assert_eq!(numbers(row("etcdserverpb.Watch/Watch").await), [1, 0, 0]);
    let puts = numbers(row("etcdserverpb.KV/Put").await);
    assert_eq!((puts[0], puts[2]), (0, 0), "{puts:?}");
    let missing = RangeRequest { revision: 1_000, ..key("k") };
    client.range(missing).await.unwrap_err();
    let ranges = numbers(row("etcdserverpb.KV/Range").await);
    assert_eq!((ranges[0], ranges[2]), (0, 1), "{ranges:?}");
    drop(watch);
    eventually("the watch has ended", async || {
        let numbers = numbers(row("etcdserverpb.Watch/Watch").await);
        (numbers[..2] == [0, 1]).then_some(())
    })
    .await;
    let vars = ask_for(server.port(), "/debug/vars").await;
    let vars: serde_json::Value = serde_json::from_slice(&vars.body).unwrap();
    assert_eq!(vars["quorate.queues"]["quorate_reads_waiting"], 0);
}
