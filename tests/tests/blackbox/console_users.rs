//! Access to the console: logins, permissions, expired tokens, TLS, and the console that a member serves.

use quorate_api::etcdserverpb as pb;
use quorate_tests::pki::{Leaf, replace};
use quorate_tests::{
    Client, Console, ConsolePage, Kind, Options, Port, Server, Tunnel, eventually,
    eventually_within, on_both_servers, on_quorate, suite_authority,
};
use serde_json::{Value, json};
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::console::{answer, base64, code};

on_both_servers! {
    alone:
    users_see_and_do_only_what_their_roles_permit,
    an_expired_token_requires_a_new_login,
    a_deleted_user_can_no_longer_read_the_overview,
    one_user_cannot_open_all_available_streams,
    aborted_logins_delay_the_next_login,
    a_session_shows_the_endpoints_only_after_a_login,
    streams_end_when_authentication_changes_or_their_user_is_deleted,
    streams_end_when_their_user_loses_a_permission,
    a_snapshot_download_ends_when_its_user_is_no_administrator,
    the_certificate_of_the_console_does_not_replace_a_login,
}

on_quorate! {
    alone:
    a_console_on_all_addresses_requires_tls_and_authentication,
    a_console_started_with_credentials_is_refused,
    a_login_that_sends_the_password_in_plaintext_requires_a_flag,
    a_member_serves_its_own_console,
    a_member_serves_the_console_with_its_certificate,
    a_member_refuses_a_console_that_would_receive_passwords_in_plaintext,
}

/// Creates the users root (password `p`) and ann (password `q`, with permission to read and write the prefix `a/`), and
/// enables authentication.
async fn add_users(client: &Client) {
    for (name, password) in [("root", "p"), ("ann", "q")] {
        let user = pb::AuthUserAddRequest {
            name: name.into(),
            password: password.into(),
            ..Default::default()
        };
        client.user_add(user).await.unwrap();
        // The root role may already exist.
        client.role_add(pb::AuthRoleAddRequest { name: name.into() }).await.ok();
        let role = pb::AuthUserGrantRoleRequest { user: name.into(), role: name.into() };
        client.user_grant_role(role).await.unwrap();
    }
    let perm = quorate_api::authpb::Permission {
        perm_type: quorate_api::authpb::permission::Type::Readwrite as i32,
        key: "a/".into(),
        range_end: "a0".into(),
    };
    let perm = pb::AuthRoleGrantPermissionRequest { name: "ann".into(), perm: Some(perm) };
    client.role_grant_permission(perm).await.unwrap();
    client.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
}

async fn with_users(kind: Kind, flags: &[&str]) -> Server {
    let options = Options::new(kind).unguarded().flag("--bcrypt-cost=4");
    let server = flags.iter().fold(options, |options, flag| options.flag(*flag)).start().await;
    add_users(&server.client()).await;
    server
}

fn log_in(page: &ConsolePage, user: &str, password: &str) -> ConsolePage {
    let body = json!({ "user": user, "password": password }).to_string();
    page.with_token(answer(&page.call("login", &body))["token"].as_str().unwrap())
}

async fn users_see_and_do_only_what_their_roles_permit(kind: Kind) {
    let server = with_users(kind, &[]).await;
    let endpoint = format!("127.0.0.1:{}", server.port());
    let console = Console::start(&endpoint, &["--allow-writes"]);
    let page = console.page();
    assert_eq!(answer(&page.call("session", ""))["authentication"], "on");
    for name in ["overview", "keys/list", "keys/prefixes", "whoami", "auth/list", "write/compact"] {
        assert_eq!(code(&page.call(name, "{}")), "login_required", "{name}");
    }
    let wrong = page.call("login", r#"{"user":"ann","password":"wrong"}"#);
    assert_eq!(code(&wrong), "login_failed");
    let ann = log_in(&page, "ann", "q");
    let who = answer(&ann.call("whoami", r#"{"user":"ann"}"#));
    assert_eq!(who["is_root"], false);
    assert_eq!(who["permissions"][0]["key"], base64("a/"), "{who}");
    let put = |key: &str| {
        json!({ "key": base64(key), "value": base64("v"), "if_mod_revision": 0 }).to_string()
    };
    answer(&ann.call("write/put", &put("a/k")));
    assert_eq!(code(&ann.call("write/put", &put("b"))), "permission_denied");
    let list = |prefix: &str| json!({ "prefix": base64(prefix) }).to_string();
    assert_eq!(answer(&ann.call("keys/list", &list("a/")))["count"], 1);
    let denied = ann.call("keys/list", &list(""));
    let error: Value = serde_json::from_slice(&denied.body).unwrap();
    assert_eq!(error["error"]["message"], "etcdserver: permission denied");
    assert_eq!(error["error"]["grpc"], "PermissionDenied");
    for (name, body) in [
        ("auth/list", "{}"),
        ("write/defragment", r#"{"member":"1"}"#),
        ("write/user_add", r#"{"name":"eve","password":"x"}"#),
        ("write/auth_disable", "{}"),
    ] {
        let refused = code(&ann.call(name, body));
        assert!(["permission_denied", "not_found"].contains(&&*refused), "{name}: {refused}");
    }
    let line = ann.lines("keys/watch", &list("b")).last().unwrap();
    assert!(line.contains("permission_denied"), "{line}");
    assert_eq!(answer(&ann.call("overview", ""))["members"].as_array().unwrap().len(), 1);
    let root = log_in(&page, "root", "p");
    assert_eq!(answer(&root.call("auth/list", ""))["enabled"], true);
}

async fn an_expired_token_requires_a_new_login(kind: Kind) {
    let server = with_users(kind, &["--auth-token-ttl=1"]).await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), &[]);
    let page = console.page();
    let ann = log_in(&page, "ann", "q");
    let list = json!({ "prefix": base64("a/") }).to_string();
    answer(&ann.call("keys/list", &list));
    // Each use of a simple token renews the token, so the next use must be late enough for the token to expire.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let refused = eventually("the token has expired", async || {
        let response = ann.call("keys/list", &list);
        tokio::time::sleep(Duration::from_millis(2000)).await;
        (response.status != 200).then_some(response)
    })
    .await;
    assert_eq!((refused.status, &*code(&refused)), (401, "token_expired"));
    assert_eq!(code(&page.with_token("invented").call("overview", "")), "token_expired");
    answer(&log_in(&page, "ann", "q").call("keys/list", &list));
}

async fn a_deleted_user_can_no_longer_read_the_overview(kind: Kind) {
    let server = with_users(kind, &[]).await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), &[]);
    let page = console.page();
    let (root, ann) = (log_in(&page, "root", "p"), log_in(&page, "ann", "q"));
    answer(&root.call("overview", ""));
    answer(&ann.call("overview", ""));
    let client = server.client().log_in("root", "p").await.unwrap();
    client.user_delete(pb::AuthUserDeleteRequest { name: "ann".into() }).await.unwrap();
    // The console continues to collect figures for root. Ann's token is checked again after a few seconds.
    eventually_within(Duration::from_secs(30), "ann is refused", async || {
        answer(&root.call("overview", ""));
        let refused = ann.call("overview", "");
        (refused.status == 401).then_some(())
    })
    .await;
}

async fn one_user_cannot_open_all_available_streams(kind: Kind) {
    let server = with_users(kind, &[]).await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), &[]);
    let page = console.page();
    let (root, ann) = (log_in(&page, "root", "p"), log_in(&page, "ann", "q"));
    let mut held = Vec::new();
    let refused = loop {
        let mut lines = root.lines("keys/watch", "{}");
        let first = lines.next().unwrap();
        if !first.contains("created") {
            break first;
        }
        held.push(lines);
        assert!(held.len() < 100, "one user opened 100 streams without being refused");
    };
    assert!(refused.contains(r#""code":"busy""#), "{refused}");
    let body = json!({ "prefix": base64("a/") }).to_string();
    let first = ann.lines("keys/watch", &body).next().unwrap();
    assert!(first.contains("created"), "{first}");
    drop(held);
    eventually("the slots are free again", async || {
        root.lines("keys/watch", "{}").next().unwrap().contains("created").then_some(())
    })
    .await;
}

async fn aborted_logins_delay_the_next_login(kind: Kind) {
    let server = with_users(kind, &[]).await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), &[]);
    let page = console.page();
    let begun = Instant::now();
    for number in 0..6 {
        // The client disconnects as soon as the member has received the login, before the answer arrives.
        let body = json!({ "user": "ann", "password": "wrong" }).to_string();
        let broken_off = page.begin("login", &body);
        eventually("the member has received the login", async || {
            (logins(&server) > number).then_some(())
        })
        .await;
        drop(broken_off);
    }
    assert!(begun.elapsed() >= Duration::from_millis(2_500), "{:?}", begun.elapsed());
    log_in(&page, "ann", "q");
}

/// Returns the number of logins that a server has received.
fn logins(server: &Server) -> u64 {
    let metrics = quorate_tests::get(server.port(), "/metrics").text();
    let counts = metrics.lines().filter(|line| {
        line.starts_with("grpc_server_started_total") && line.contains("\"Authenticate\"")
    });
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

async fn a_session_shows_the_endpoints_only_after_a_login(kind: Kind) {
    let server = with_users(kind, &[]).await;
    let endpoint = format!("127.0.0.1:{}", server.port());
    let console = Console::start(&endpoint, &[]);
    let page = console.page();
    for stranger in [&page, &page.with_token("invented")] {
        let session = stranger.call("session", "");
        assert!(!session.text().contains(&endpoint), "{}", session.text());
        let session = answer(&session);
        assert_eq!(session["authentication"], "on");
        for name in ["endpoints", "version", "on_member"] {
            assert_eq!(session[name], Value::Null, "{session}");
        }
    }
    let session = answer(&log_in(&page, "ann", "q").call("session", ""));
    assert_eq!(session["endpoints"], json!([endpoint]), "{session}");
}

async fn streams_end_when_authentication_changes_or_their_user_is_deleted(kind: Kind) {
    let server = Options::new(kind).unguarded().flag("--bcrypt-cost=4").start().await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), &["--allow-writes"]);
    let page = console.page();
    let whole = || json!({ "prefix": "" }).to_string();
    let own = || json!({ "prefix": base64("a/") }).to_string();
    // Authentication is turned on while pages that are not logged in are watching keys and measuring prefixes.
    let streams = [page.lines("keys/watch", &whole()), page.lines("keys/prefixes", "{}")];
    let streams = streams.map(|mut lines| {
        lines.next().unwrap();
        lines
    });
    add_users(&server.client()).await;
    for lines in streams {
        let last = last_line(lines).await;
        assert_eq!(last["error"]["code"], "login_required", "{last}");
        let text = last["error"]["message"].as_str().unwrap();
        assert!(text.contains("authentication was turned on"), "{text}");
    }
    // A user is deleted while the user's pages are watching keys and measuring prefixes.
    let (root, ann) = (log_in(&page, "root", "p"), log_in(&page, "ann", "q"));
    let streams = [ann.lines("keys/watch", &own()), ann.lines("keys/prefixes", &own())];
    let streams = streams.map(|mut lines| {
        lines.next().unwrap();
        lines
    });
    answer(&root.call("write/user_delete", r#"{"name":"ann"}"#));
    for lines in streams {
        let last = last_line(lines).await;
        assert_eq!(last["error"]["code"], "token_expired", "{last}");
    }
    // Authentication is turned off while a page on which root is logged in is watching keys.
    let mut lines = root.lines("keys/watch", &whole());
    lines.next().unwrap();
    answer(&root.call("write/auth_disable", "{}"));
    let last = last_line(lines).await;
    assert_eq!(last["error"]["code"], "authentication_changed", "{last}");
}

async fn streams_end_when_their_user_loses_a_permission(kind: Kind) {
    let server = with_users(kind, &[]).await;
    let console = Console::start(&format!("127.0.0.1:{}", server.port()), &[]);
    let ann = log_in(&console.page(), "ann", "q");
    let own = json!({ "prefix": base64("a/") }).to_string();
    let streams = [ann.lines("keys/watch", &own), ann.lines("keys/prefixes", &own)];
    let streams = streams.map(|mut lines| {
        lines.next().unwrap();
        lines
    });
    // Ann may still read the first key of the range, but not the others.
    let root = server.client().log_in("root", "p").await.unwrap();
    let perm = quorate_api::authpb::Permission { key: "a/".into(), ..Default::default() };
    let grant = pb::AuthRoleGrantPermissionRequest { name: "ann".into(), perm: Some(perm) };
    root.role_grant_permission(grant).await.unwrap();
    let (role, key, range_end) = ("ann".into(), "a/".into(), "a0".into());
    let revoke = pb::AuthRoleRevokePermissionRequest { role, key, range_end };
    root.role_revoke_permission(revoke).await.unwrap();
    for lines in streams {
        let last = last_line(lines).await;
        assert_eq!(last["error"]["code"], "permission_denied", "{last}");
    }
}

async fn a_snapshot_download_ends_when_its_user_is_no_administrator(kind: Kind) {
    let server = with_users(kind, &[]).await;
    let root = server.client().log_in("root", "p").await.unwrap();
    let grant = pb::AuthUserGrantRoleRequest { user: "ann".into(), role: "root".into() };
    root.user_grant_role(grant).await.unwrap();
    for number in 0..40 {
        root.write(format!("k{number}"), "v".repeat(1 << 20)).await;
    }
    let endpoint = format!("127.0.0.1:{}", server.port());
    let console = Console::start(&endpoint, &["--allow-writes"]);
    let ann = log_in(&console.page(), "ann", "q");
    let begun = answer(&ann.call("write/snapshot", r#"{"member":null}"#));
    let progress = || {
        let body = json!({ "id": begun["id"] }).to_string();
        answer(&ann.call("snapshot_progress", &body))
    };
    // The browser does not read, so the download cannot be completed.
    let mut browser = TcpStream::connect(("127.0.0.1", console.port())).unwrap();
    let path = begun["path"].as_str().unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", console.port());
    browser.write_all(head.as_bytes()).unwrap();
    eventually("the download is running", async || {
        (progress()["sent_bytes"].as_u64()? > 0).then_some(())
    })
    .await;
    let revoke = pb::AuthUserRevokeRoleRequest { name: "ann".into(), role: "root".into() };
    root.user_revoke_role(revoke).await.unwrap();
    let state = eventually_within(Duration::from_secs(30), "the download ends", async || {
        let state = progress();
        (state["state"] != "running").then_some(state)
    })
    .await;
    assert_eq!(state["error"]["code"], "permission_denied", "{state}");
}

/// Waits until a stream has ended, and returns its last line.
async fn last_line(lines: impl Iterator<Item = String> + Send + 'static) -> Value {
    let last = tokio::task::spawn_blocking(move || lines.last().unwrap()).await.unwrap();
    serde_json::from_str(&last).unwrap()
}

async fn the_certificate_of_the_console_does_not_replace_a_login(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    replace(&dir.path().join("ca"), suite_authority().pem().as_bytes());
    suite_authority().sign(&Leaf::new("server")).write(dir.path(), "server");
    suite_authority().sign(&Leaf::new("root")).write(dir.path(), "root");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (ca, cert, key) = (path("ca"), path("server"), path("server.key"));
    let server = Options::new(kind)
        .secured()
        .flag("--bcrypt-cost=4")
        .flag(format!("--cert-file={cert}"))
        .flag(format!("--key-file={key}"))
        .flag(format!("--trusted-ca-file={ca}"))
        .flag("--client-cert-auth")
        .start()
        .await;
    let flags = [
        format!("--cacert={ca}"),
        format!("--cert={}", path("root")),
        format!("--key={}", path("root.key")),
        "--allow-writes".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let console = Console::start(&server.url(), &flags);
    // The console requires a secret, so that other users of the machine cannot use its certificate.
    assert!(console.secret().is_some());
    let other = ConsolePage::at(console.port());
    for name in ["overview", "keys/list", "write/user_add"] {
        assert_eq!(code(&other.call(name, "{}")), "authentication_off", "{name}");
    }
    let page = console.page();
    let certificates = eventually("the certificate is shown", async || {
        let overview = answer(&page.call("overview", ""));
        let all = overview["certificates"].as_array().unwrap();
        all.iter().find(|it| it["subject"] == "CN=server").cloned()
    })
    .await;
    assert_eq!(certificates["names"], json!(["localhost", "127.0.0.1"]), "{certificates}");
    for (name, body) in [
        ("user_add", json!({ "name": "root", "password": "p" })),
        ("role_add", json!({ "name": "root" })),
        ("user_grant", json!({ "name": "root", "role": "root" })),
        ("auth_enable", json!({})),
    ] {
        drop(page.call(&format!("write/{name}"), &body.to_string()));
    }
    assert_eq!(answer(&page.call("session", ""))["authentication"], "on");
    // With this certificate alone, the cluster would treat these calls as calls by root.
    for name in ["auth/list", "overview", "keys/list", "write/auth_disable"] {
        assert_eq!(code(&page.call(name, "{}")), "login_required", "{name}");
    }
    let root = log_in(&page, "root", "p");
    answer(&root.call("auth/list", ""));
}

async fn a_console_on_all_addresses_requires_tls_and_authentication(kind: Kind) {
    let server = Options::new(kind).unguarded().flag("--bcrypt-cost=4").start().await;
    let endpoint = format!("127.0.0.1:{}", server.port());
    let port = Port::free();
    let listen = format!("--listen=0.0.0.0:{}", port.number());
    let refused = Console::try_start(&endpoint, &[&listen]).unwrap_err();
    assert!(refused.contains("plaintext") && refused.contains("127.0.0.1"), "{refused}");
    let dir = tempfile::tempdir().unwrap();
    suite_authority().sign(&Leaf::new("console")).write(dir.path(), "console");
    let cert = format!("--cert-file={}", dir.path().join("console").display());
    let key = format!("--key-file={}", dir.path().join("console.key").display());
    let refused = Console::try_start(&endpoint, &[&listen, &cert, &key]).unwrap_err();
    assert!(refused.contains("authentication is off"), "{refused}");
    assert!(refused.contains("--trusted-ca-file"), "{refused}");
    add_users(&server.client()).await;
    let console = Console::start(&endpoint, &[&listen, &cert, &key]);
    assert!(console.url.starts_with("https://"), "{}", console.url);
}

async fn a_console_started_with_credentials_is_refused(kind: Kind) {
    let server = Server::start(kind).await;
    let endpoint = format!("127.0.0.1:{}", server.port());
    for flag in ["--user=root:p", "--auth-jwt-token=x"] {
        let refused = Console::try_start(&endpoint, &[flag]).unwrap_err();
        assert!(refused.contains("logs in on the page"), "{refused}");
        assert!(!refused.contains(":p"), "{refused}");
    }
}

async fn a_login_that_sends_the_password_in_plaintext_requires_a_flag(kind: Kind) {
    let server = with_users(kind, &[]).await;
    // The first endpoint answers, but the console would send a password to the second endpoint in plaintext.
    let endpoints = format!("127.0.0.1:{},http://192.0.2.1:2379", server.port());
    let console = Console::start(&endpoints, &[]);
    let page = console.page();
    let session = answer(&page.call("session", ""));
    assert_eq!(session["login"], json!([]), "{session}");
    assert_eq!(session["login_refused"]["code"], "plaintext_login", "{session}");
    let refused = page.call("login", r#"{"user":"ann","password":"q"}"#);
    assert_eq!(code(&refused), "plaintext_login");
    assert!(refused.text().contains("--allow-plaintext-login"), "{}", refused.text());
    assert_eq!(logins(&server), 0);
    let console = Console::start(&endpoints, &["--allow-plaintext-login"]);
    log_in(&console.page(), "ann", "q");
}

async fn a_member_serves_its_own_console(kind: Kind) {
    let port = Port::free();
    let url = format!("--listen-console-url=http://127.0.0.1:{}", port.number());
    let options = || Options::new(kind).unguarded().flag("--bcrypt-cost=4").flag(&url);
    let mut server = options().start().await;
    let page = ConsolePage::at(port.number());
    assert_eq!(quorate_tests::get(port.number(), "/").status, 200);
    let session = answer(&page.call("session", ""));
    assert_eq!((&session["on_member"], &session["writes"]), (&json!("default"), &json!(false)));
    let overview = answer(&page.call("overview", ""));
    assert_eq!(overview["members"][0]["role"], "leader", "{overview}");
    add_users(&server.client()).await;
    eventually("the member's console needs a login", async || {
        (page.call("keys/list", "{}").status == 401).then_some(())
    })
    .await;
    let root = log_in(&page, "root", "p");
    answer(&root.call("keys/list", "{}"));
    assert_eq!(code(&root.call("write/compact", r#"{"revision":1}"#)), "read_only");
    server.stop().await;
    server.set_flags(&["--bcrypt-cost=4", &url, "--console-allow-writes"]);
    server.start_again().await;
    let root = log_in(&page, "root", "p");
    answer(
        &root.call(
            "write/put",
            &json!({
                "key": base64("k"), "value": base64("v"), "if_mod_revision": 0
            })
            .to_string(),
        ),
    );
}

async fn a_member_serves_the_console_with_its_certificate(kind: Kind) {
    let dir = tempfile::tempdir().unwrap();
    replace(&dir.path().join("ca"), suite_authority().pem().as_bytes());
    suite_authority().sign(&Leaf::new("server")).write(dir.path(), "server");
    suite_authority().sign(&Leaf::new("client")).write(dir.path(), "client");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let port = Port::free();
    let url = format!("--listen-console-url=https://127.0.0.1:{}", port.number());
    let server = Options::new(kind)
        .secured()
        .flag("--bcrypt-cost=4")
        .flag(format!("--cert-file={}", path("server")))
        .flag(format!("--key-file={}", path("server.key")))
        .flag(format!("--trusted-ca-file={}", path("ca")))
        .flag(&url)
        .start()
        .await;
    // A client without TLS receives nothing.
    let plain = std::panic::catch_unwind(|| quorate_tests::get(port.number(), "/").status);
    assert!(!matches!(plain, Ok(200)), "{plain:?}");
    // The tunnel checks the certificate of the console.
    let tunnel = Tunnel::start(port.number(), dir.path());
    let page = ConsolePage::at(tunnel.port());
    assert_eq!(quorate_tests::get(tunnel.port(), "/").status, 200);
    let session = answer(&page.call("session", ""));
    let listener = &session["listener"];
    assert_eq!((&listener["tls"], &session["on_member"]), (&json!(true), &json!("default")));
    let overview = answer(&page.call("overview", ""));
    assert_eq!(overview["members"][0]["role"], "leader", "{overview}");
    let to_clients = Tunnel::start(server.port(), dir.path());
    add_users(&Client::new(to_clients.port())).await;
    eventually("the console needs a login", async || {
        (page.call("keys/list", "{}").status == 401).then_some(())
    })
    .await;
    let ann = log_in(&page, "ann", "q");
    let own = json!({ "prefix": base64("a/") }).to_string();
    assert_eq!(answer(&ann.call("keys/list", &own))["count"], 0);
    let first = ann.lines("keys/watch", &own).next().unwrap();
    assert!(first.contains("created"), "{first}");
}

async fn a_member_refuses_a_console_that_would_receive_passwords_in_plaintext(kind: Kind) {
    let port = Port::free();
    let url = format!("--listen-console-url=http://0.0.0.0:{}", port.number());
    let exit = Options::new(kind).flag(url).prepare().try_start_again().await.unwrap_err();
    assert!(exit.log.contains("plaintext"), "{exit}");
}
