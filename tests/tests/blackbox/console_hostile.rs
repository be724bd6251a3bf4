//! Hostile use of the console: requests from other sites, other host names, huge and malformed contents, and pages that
//! do not read their streams.

use quorate_tests::{
    Console, ConsolePage, Kind, Options, Server, bytes, eventually, eventually_within,
    on_both_servers, on_quorate, put, put_op, request_with, txn,
};
use serde_json::{Value, json};
use std::time::Duration;

use super::console::{answer, base64, code};

on_both_servers! {
    alone:
    a_huge_value_is_not_fetched,
    binary_and_very_long_keys_are_shown,
}

on_quorate! {
    alone:
    requests_from_other_sites_are_refused,
    a_rebound_host_name_is_refused,
    the_page_forbids_frames_and_foreign_code,
    malformed_requests_are_refused,
    the_number_of_events_dropped_for_a_slow_page_is_reported,
    a_stream_that_is_never_read_is_ended,
    the_console_works_behind_a_reverse_proxy,
    tokens_and_passwords_are_never_printed,
}

async fn begin(kind: Kind, flags: &[&str], console_flags: &[&str]) -> (Server, Console) {
    let options = flags.iter().fold(Options::new(kind), |options, flag| options.flag(*flag));
    let server = options.start().await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), console_flags);
    (server, console)
}

/// Returns the headers that the page sends, with these changes. An empty value removes a header.
fn headers<'a>(changes: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let usual = [("Content-Type", "application/json"), ("X-Quorate-Console", "1")];
    let mut all: Vec<_> = usual
        .into_iter()
        .filter(|(name, _)| !changes.iter().any(|(changed, _)| changed == name))
        .collect();
    all.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
    all
}

async fn requests_from_other_sites_are_refused(kind: Kind) {
    let (_server, console) = begin(kind, &[], &["--allow-writes"]).await;
    let port = console.port();
    let other_port = format!("http://127.0.0.1:{}", port - 1);
    for (changes, expected) in [
        (&[][..], ""),
        (&[("Origin", "https://evil.example")], "refused_origin"),
        (&[("Origin", "null")], "refused_origin"),
        (&[("Origin", &*other_port)], "refused_origin"),
        (&[("Sec-Fetch-Site", "cross-site")], "refused_origin"),
        (&[("Sec-Fetch-Site", "same-site")], "refused_origin"),
        (&[("X-Quorate-Console", "")], "missing_header"),
        (&[("Content-Type", "text/plain")], "missing_header"),
        (&[("Content-Type", "application/x-www-form-urlencoded")], "missing_header"),
    ] {
        for name in ["session", "overview", "keys/list", "write/auth_enable", "keys/watch"] {
            if expected.is_empty() && name != "session" {
                continue;
            }
            let path = format!("/api/v1/{name}");
            let response = request_with(port, "POST", &path, &headers(changes), b"{}");
            if expected.is_empty() {
                answer(&response);
            } else {
                assert_eq!(code(&response), expected, "{changes:?} {name}");
            }
        }
    }
    // A page from another site cannot add the console's header to a request without a preflight, and the preflight is
    // refused.
    let preflight = [("Origin", "https://evil.example"), ("Access-Control-Request-Method", "POST")];
    let response = request_with(port, "OPTIONS", "/api/v1/session", &preflight, b"");
    assert_ne!(response.status, 200);
    assert_eq!(response.header("access-control-allow-origin"), None);
    let get = request_with(port, "GET", "/api/v1/session", &headers(&[]), b"");
    assert_eq!(code(&get), "bad_request");
}

async fn a_rebound_host_name_is_refused(kind: Kind) {
    let (_server, console) = begin(kind, &[], &["--allowed-hosts=console.example.com"]).await;
    let call = |host: &str| {
        let text = format!(
            "POST /api/v1/session HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
             X-Quorate-Console: 1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        raw(console.port(), &text)
    };
    for known in ["127.0.0.1:2383", "localhost", "console.example.com:80"] {
        assert!(call(known).starts_with("HTTP/1.1 200"), "{known}");
    }
    for unknown in
        ["evil.example", "127.0.0.1.evil.example:2383", "10.1.2.3", "[::2]", "a@localhost"]
    {
        let response = call(unknown);
        assert!(response.starts_with("HTTP/1.1 403"), "{unknown}: {response}");
        assert!(response.contains("refused_host"), "{unknown}: {response}");
    }
    // The page itself is also refused, so that it cannot be loaded under a rebound name.
    let page =
        raw(console.port(), "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 403"), "{page}");
}

/// Sends the text of a request unchanged, and returns the response.
fn raw(port: u16, text: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).unwrap();
    String::from_utf8_lossy(&response).into_owned()
}

async fn the_page_forbids_frames_and_foreign_code(kind: Kind) {
    let (_server, console) = begin(kind, &[], &[]).await;
    for path in ["/", "/index.html", "/nothing", "/api/v1/session"] {
        let response = quorate_tests::get(console.port(), path);
        let policy = response.header("content-security-policy").unwrap();
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(rule), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(response.header("x-frame-options"), Some("DENY"), "{path}");
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(response.header("set-cookie"), None);
    }
    let frame = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Dest", "iframe")];
    assert_eq!(request_with(console.port(), "GET", "/", &frame, b"").status, 403);
    let page = quorate_tests::get(console.port(), "/").text();
    for forbidden in ["http://", "https://", "style=", "onclick=", "<style"] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    let first = quorate_tests::get(console.port(), "/");
    let tag = first.header("etag").unwrap();
    let again = request_with(console.port(), "GET", "/", &[("If-None-Match", tag)], b"");
    assert_eq!(again.status, 304);
}

async fn malformed_requests_are_refused(kind: Kind) {
    let (_server, console) = begin(kind, &[], &["--allow-writes"]).await;
    let page = console.page();
    for (name, body, expected) in [
        ("keys/list", "[]", "bad_request"),
        ("keys/list", "{", "bad_request"),
        ("keys/list", r#"{"prefix":"%"}"#, "bad_request"),
        ("keys/list", r#"{"limit":501}"#, "bad_request"),
        ("keys/list", r#"{"limit":0}"#, "bad_request"),
        ("keys/list", r#"{"cursor":"x"}"#, "bad_request"),
        ("keys/tree", r#"{"separator":""}"#, "bad_request"),
        ("keys/get", "{}", "bad_request"),
        ("keys/get", r#"{"key":"YQ==","revision":-1}"#, "bad_request"),
        ("keys/history", r#"{"key":"YQ==","before":1}"#, "bad_request"),
        ("keys/prefixes", r#"{"depth":0}"#, "bad_request"),
        ("leases/get", r#"{"id":"xyz"}"#, "bad_request"),
        ("write/alarm_disarm", r#"{"member":"1","name":"x"}"#, "bad_request"),
        ("write/nothing", "{}", "not_found"),
        ("nothing", "{}", "not_found"),
        ("keys/get", r#"{"key":"YQ=="}"#, "not_found"),
        ("snapshot_progress", r#"{"id":"x"}"#, "not_found"),
    ] {
        assert_eq!(code(&page.call(name, body)), expected, "{name} {body}");
    }
    let deep = "[".repeat(1_000_000);
    assert_eq!(code(&page.call("keys/list", &deep)), "bad_request");
    let large = format!("{{\"prefix\":\"{}\"}}", "A".repeat(3 << 20));
    assert_eq!(code(&page.call("keys/list", &large)), "too_large");
    assert_eq!(quorate_tests::get(console.port(), "/download/0000").status, 404);
    assert_eq!(quorate_tests::get(console.port(), "/../Cargo.toml").status, 404);
    assert_eq!(request_with(console.port(), "PUT", "/", &[], b"").status, 405);
    // The console still works.
    answer(&page.call("session", "{}"));
}

async fn a_huge_value_is_not_fetched(kind: Kind) {
    const LEN: usize = 100 << 20;
    let flags = ["--max-request-bytes=110000000", "--quota-backend-bytes=2000000000"];
    let (server, console) = begin(kind, &flags, &[]).await;
    let page = console.page();
    let client = server.client();
    let kv = &mut client.kv().max_encoding_message_size(usize::MAX);
    kv.put(put("huge", bytes(vec![b'x'; LEN]))).await.unwrap();
    client.write("large", "y".repeat(1_200_000)).await;
    let before = memory_kib(console.pid());
    let shown = answer(&page.call("keys/get", &json!({ "key": base64("huge") }).to_string()));
    assert_eq!((&shown["too_large"], &shown["value"]), (&json!(true), &Value::Null), "{shown}");
    let size = shown["size"].as_u64().unwrap();
    assert!(size.abs_diff(LEN as u64) < 1000, "{size}");
    let shown = answer(&page.call("keys/get", &json!({ "key": base64("large") }).to_string()));
    assert_eq!((&shown["truncated"], &shown["size"]), (&json!(true), &json!(1_200_000)));
    let list = answer(&page.call("keys/list", "{}"));
    assert_eq!(list["count"], 2);
    let history = answer(&page.call("keys/history", &json!({ "key": base64("huge") }).to_string()));
    assert_eq!(history["entries"][0]["too_large"], true, "{history}");
    // If an event is too large for the console, the watch reports a dropped event and continues.
    let body = json!({ "prefix": "", "start_revision": 1 }).to_string();
    let (watcher, writer) = (page.clone(), client.clone());
    let lines = tokio::task::spawn_blocking(move || {
        let mut lines = watcher.lines("keys/watch", &body);
        let dropped = lines.find(|line| line.contains("dropped")).unwrap();
        (dropped, lines)
    });
    let (dropped, mut lines) = lines.await.unwrap();
    assert!(dropped.contains("larger than max"), "{dropped}");
    let writing = tokio::task::spawn_local(async move {
        loop {
            writer.write("small", "v").await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let found = tokio::task::spawn_blocking(move || lines.find(|line| line.contains("events")));
    assert!(found.await.unwrap().is_some());
    writing.abort();
    let after = memory_kib(console.pid());
    assert!(after < before + (64 << 10), "the console uses {after} KiB instead of {before} KiB");
}

/// Returns the resident memory of a process.
fn memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn binary_and_very_long_keys_are_shown(kind: Kind) {
    let (server, console) = begin(kind, &[], &[]).await;
    let page = console.page();
    let client = server.client();
    let odd: [&[u8]; 4] = [b"\0", b"\xff\xfe\xfd", b"<script>alert(1)</script>", b"a/\xff/b"];
    for key in odd {
        client.write(key, key).await;
    }
    let long = vec![b'k'; 10_000];
    client.write(&long, "v").await;
    let list = answer(&page.call("keys/list", "{}"));
    assert_eq!(list["count"], 5);
    for key in odd {
        let shown = answer(&page.call("keys/get", &json!({ "key": base64(key) }).to_string()));
        assert_eq!(shown["value"], base64(key));
    }
    let tree = answer(&page.call("keys/tree", &json!({ "prefix": base64("a/") }).to_string()));
    assert_eq!(tree["entries"][0]["prefix"], base64(b"a/\xff/"));
    let entries = list["entries"].as_array().unwrap();
    let cut = entries.iter().find(|entry| entry["key_truncated"] == true).unwrap();
    assert_eq!(cut["key_size"], 10_000);
    // A separator may be invalid UTF-8, too.
    let body = json!({ "separator": base64(b"\xff") }).to_string();
    answer(&page.call("keys/tree", &body));
}

async fn the_number_of_events_dropped_for_a_slow_page_is_reported(kind: Kind) {
    let (server, console) = begin(kind, &[], &[]).await;
    let page = console.page();
    let client = server.client();
    let body = json!({ "prefix": "", "value_bytes": 4096 }).to_string();
    let watcher = page.clone();
    let opened = tokio::task::spawn_blocking(move || {
        let mut lines = watcher.lines("keys/watch", &body);
        lines.next().unwrap();
        lines
    });
    let mut lines = opened.await.unwrap();
    let value = "v".repeat(4096);
    let before = memory_kib(console.pid());
    // Large transactions write the events quickly. The console ends a stream that is not read for 30 seconds.
    for _ in 0..60 {
        let puts = (0..100).map(|number| put_op(format!("k{number}"), &value)).collect();
        client.txn(txn(puts)).await.unwrap();
    }
    let after = memory_kib(console.pid());
    assert!(after < before + (48 << 10), "the console uses {after} KiB instead of {before} KiB");
    let (mut seen, mut dropped) = (0, 0);
    let counting = tokio::task::spawn_blocking(move || {
        while seen + dropped < 6_000 {
            let line: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
            seen += line["events"].as_array().map_or(0, Vec::len) as u64;
            dropped += line["count"].as_u64().unwrap_or_default();
        }
        (seen, dropped)
    });
    let (seen, dropped) = counting.await.unwrap();
    assert!(dropped > 0 && seen > 0, "{seen} events were seen, {dropped} were dropped");
    assert_eq!(seen + dropped, 6_000);
}

async fn a_stream_that_is_never_read_is_ended(kind: Kind) {
    let (server, console) = begin(kind, &[], &[]).await;
    let client = server.client();
    let body = json!({ "prefix": "", "value_bytes": 4096 }).to_string();
    let unread = console.page().begin("keys/watch", &body);
    let value = "v".repeat(4096);
    // The kernel buffers some megabytes for the client. Once these buffers are full, the stream makes no progress.
    let ended = eventually_within(Duration::from_secs(90), "the stream is ended", async || {
        for number in 0..100 {
            client.write(format!("k{number}"), &value).await;
        }
        (!is_connected(&unread)).then_some(())
    });
    ended.await;
    // The console still answers other requests.
    answer(&console.page().call("session", "{}"));
}

/// Returns whether the peer still has this connection open.
fn is_connected(stream: &std::net::TcpStream) -> bool {
    let own = stream.local_addr().unwrap().port();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    // The third column is the remote address. The fourth column is the state, in which 01 means an established
    // connection.
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(2);
        columns.next().is_some_and(|remote| remote.ends_with(&format!(":{own:04X}")))
            && columns.next() == Some("01")
    })
}

async fn the_console_works_behind_a_reverse_proxy(kind: Kind) {
    // A proxy terminates TLS, forwards the host name, and adds its own headers.
    let (_server, console) = begin(kind, &[], &["--allowed-hosts=console.example.com"]).await;
    let call = |extra: &str| {
        let text = format!(
            "POST /api/v1/session HTTP/1.1\r\nHost: console.example.com\r\n\
             Origin: https://console.example.com\r\nContent-Type: application/json\r\n\
             X-Quorate-Console: 1\r\nX-Forwarded-For: 10.0.0.1\r\nVia: 1.1 proxy\r\n\
             Authorization: Basic dXNlcjpwYXNz\r\n{extra}Connection: close\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        raw(console.port(), &text)
    };
    assert!(call("").starts_with("HTTP/1.1 200"));
    // The headers that the proxy adds have no effect.
    let forwarded = call("X-Forwarded-Host: 127.0.0.1\r\nForwarded: host=localhost\r\n");
    assert!(forwarded.starts_with("HTTP/1.1 200"));
    let other = raw(
        console.port(),
        "GET / HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: console.example.com\r\nConnection: close\r\n\r\n",
    );
    assert!(other.starts_with("HTTP/1.1 403"), "{other}");
    // Authentication is off, and a proxy may forward the requests of other users, so the page needs the secret that the
    // console has printed.
    let stranger = ConsolePage::at(console.port());
    assert_eq!(code(&stranger.call("keys/list", "{}")), "authentication_off");
    assert_eq!(console.page().call("keys/list", "{}").status, 200);
}

async fn tokens_and_passwords_are_never_printed(kind: Kind) {
    let (server, console) = begin(kind, &[], &[]).await;
    let page = console.page();
    let with_token = page.with_token("SECRET-TOKEN");
    let login = page.call("login", r#"{"user":"ann","password":"SECRET-PASSWORD"}"#);
    let mut texts = vec![login.text()];
    for name in ["overview", "keys/list", "nothing", "whoami"] {
        texts.push(with_token.call(name, "{}").text());
    }
    let headers = headers(&[("X-Quorate-Token", "SECRET-TOKEN\u{e9}")]);
    let odd = request_with(console.port(), "POST", "/api/v1/overview", &headers, b"{}");
    texts.push(odd.text());
    eventually("the member is ready", async || server.log().contains("ready").then_some(())).await;
    texts.push(server.log());
    for text in texts {
        assert!(!text.contains("SECRET"), "{text}");
    }
}
