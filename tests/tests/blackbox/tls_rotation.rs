//! Replacement of certificates, keys, CAs and revocation lists while a server runs.

use std::path::Path;
use std::time::{Duration, SystemTime};

use quorate_tests::pki::{Leaf, replace};
use quorate_tests::{
    Client, Kind, Options, Server, Watch, eventually, on_both_servers, on_quorate, put,
    suite_authority, watch_prefix, within,
};

use super::tls::{Files, ctl, tools};

on_both_servers! {
    alone:
    a_revoked_client_stays_connected_and_cannot_reconnect,
}

on_quorate! {
    alone:
    a_ca_is_replaced_while_connections_are_open,
    a_broken_file_leaves_the_previous_contents_in_force_and_is_logged_once,
    expiring_certificates_cause_a_warning,
    an_expired_revocation_list_is_logged_and_stays_in_force,
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A connection with an open watch.
struct Held {
    client: Client,
    watch: Watch,
    seen: usize,
}

impl Held {
    async fn open(server: &Server) -> Self {
        let client = server.client();
        let mut watch = Watch::open(&client);
        watch.create(watch_prefix("k")).await;
        Self { client, watch, seen: 0 }
    }

    /// Writes over the connection, and waits for the event on the stream that has been open since the start.
    async fn still_serves(&mut self) {
        let key = format!("k{}", self.seen);
        self.client.write(&key, "v").await;
        loop {
            let response = within("the event", self.watch.next()).await;
            assert!(!response.canceled, "{response:?}");
            self.seen += response.events.len();
            if response
                .events
                .iter()
                .any(|event| event.kv.as_ref().unwrap().key() == key.as_bytes())
            {
                return;
            }
        }
    }
}

/// Returns whether a new client is accepted.
async fn is_let_in(server: &Server) -> bool {
    let asked = within("an answer", async { server.client().put(put("other", "v")).await });
    asked.await.is_ok()
}

async fn a_revoked_client_stays_connected_and_cannot_reconnect(kind: Kind) {
    let files = Files::new();
    let list = files.path("list");
    replace(&list, &files.authority.revoke(&[99]));
    let crl = format!("--client-crl-file={}", list.display());
    let server = Options::new(kind).guarded().flag(crl).start().await;
    let mut held = Held::open(&server).await;
    assert!(is_let_in(&server).await);
    // Only the serial numbers in the list matter, not the issuer of the list.
    replace(&list, &files.authority.revoke(&[99, Leaf::new("").serial]));
    assert!(!is_let_in(&server).await);
    held.still_serves().await;
    replace(&list, &files.authority.revoke(&[99]));
    assert!(is_let_in(&server).await);
    held.still_serves().await;
}

async fn a_ca_is_replaced_while_connections_are_open(kind: Kind) {
    let server = Options::new(kind).guarded().start().await;
    let dir = server.guard_dir();
    let others = Files::new();
    let old = std::fs::read(dir.join("ca")).unwrap();
    let new = others.authority.pem().into_bytes();
    let mut held = Held::open(&server).await;
    let trust = |authorities: &[&[u8]]| replace(&dir.join("ca"), &authorities.concat());
    let steps: [(&str, &dyn Fn()); 4] = [
        ("trust both authorities", &|| trust(&[&old, &new])),
        ("replace the server's certificate", &|| {
            others.authority.sign(&Leaf::new("server")).write(&dir, "server");
        }),
        ("replace the client's certificate", &|| {
            others.authority.sign(&Leaf::new("")).write(&dir, "client");
        }),
        ("trust only the new authority", &|| trust(&[&new])),
    ];
    for (step, take) in steps {
        take();
        assert!(is_let_in(&server).await, "{step}");
        held.still_serves().await;
    }
    // A client whose certificate was signed by the old CA is refused.
    trust(&[&old]);
    assert!(!is_let_in(&server).await);
    held.still_serves().await;
}

/// Returns the number of log lines that contain a text, and have this path in the field `of`.
fn times_logged(server: &Server, text: &str, of: &str, path: &Path) -> usize {
    let of_file = format!("\"{of}\":\"{}", path.display());
    let is_such = |line: &&str| {
        let rest = line.split_once(&of_file).map(|(_, rest)| rest);
        line.contains(text) && rest.is_some_and(|rest| rest.starts_with([':', '"']))
    };
    server.log().lines().filter(is_such).count()
}

async fn a_broken_file_leaves_the_previous_contents_in_force_and_is_logged_once(kind: Kind) {
    let files = Files::new();
    let list = files.path("list");
    replace(&list, &files.authority.revoke(&[99]));
    let crl = format!("--client-crl-file={}", list.display());
    let server = files.closed(kind).flag(crl).start().await;
    let Some(tool) = tools().pop() else { return };
    let [ca, cert, key] = files.shown("client");
    // The tool uses a copy of the CA file, because the server's file changes.
    std::fs::copy(files.path("ca"), files.path("tool-ca")).unwrap();
    let ca = ca.replace("/ca", "/tool-ca");
    let check = || {
        let put = ctl(tool, &server.url(), &[&ca, &cert, &key, "put", "k", "v"]);
        assert_eq!(put.success(), "OK\n");
    };
    check();
    let mut repaired = 0;
    for name in ["server", "server.key", "ca", "list"] {
        let path = files.path(name);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        (0..3).for_each(|_| check());
        let logged = || times_logged(&server, "TLS files are invalid", "error", &path);
        eventually("the invalid file is logged", async || (logged() > 0).then_some(())).await;
        assert_eq!(logged(), 1, "{name}: {}", server.log());
        replace(&path, &whole);
        check();
        assert_eq!(logged(), 1, "{name}");
        repaired += 1;
        let valid_again = || server.log().matches("are valid again").count();
        eventually("the repair is logged", async || (valid_again() >= repaired).then_some(()))
            .await;
        assert_eq!(valid_again(), repaired, "{name}");
    }
    let log = server.log();
    assert!(!log.contains("PRIVATE KEY") && !log.contains("rejected connection"), "{log}");
}

async fn an_expired_revocation_list_is_logged_and_stays_in_force(kind: Kind) {
    let files = Files::new();
    let list = files.path("list");
    let past = SystemTime::now() - DAY;
    let own = Leaf::new("").serial;
    replace(&list, &files.authority.revoke_until(&[99], past));
    let crl = format!("--client-crl-file={}", list.display());
    let server = Options::new(kind).guarded().flag(crl).start().await;
    let warned = || times_logged(&server, "is outdated", "path", &list);
    eventually("a warning", async || (warned() == 1).then_some(())).await;
    let series = "quorate_revocation_list_next_update_timestamp_seconds{file=\"client-crl-file\"}";
    let expiry = Duration::from_secs_f64(server.metric(series).unwrap());
    let expiry = SystemTime::UNIX_EPOCH + expiry;
    assert!(past.duration_since(expiry).unwrap() < Duration::from_secs(1), "{expiry:?}");
    assert!(is_let_in(&server).await);
    replace(&list, &files.authority.revoke_until(&[99, own], past));
    assert!(!is_let_in(&server).await);
}

async fn expiring_certificates_cause_a_warning(kind: Kind) {
    let server = Options::new(kind).guarded().start().await;
    let dir = server.guard_dir();
    let path = dir.join("server");
    let metric = |flag: &str| {
        let name = format!("quorate_certificate_expiration_timestamp_seconds{{file=\"{flag}\"}}");
        let secs = Duration::from_secs_f64(server.metric(&name)?);
        Some(SystemTime::UNIX_EPOCH + secs)
    };
    let warned = || times_logged(&server, "a certificate expires soon", "path", &path);
    let soon = SystemTime::now() + DAY * 10;
    for flag in ["cert-file", "trusted-ca-file", "peer-cert-file", "peer-trusted-ca-file"] {
        eventually("the expiry time is shown", async || {
            metric(flag).filter(|expiry| *expiry > soon)
        })
        .await;
    }
    assert_eq!((metric("peer-client-cert-file"), warned()), (None, 0));
    suite_authority().sign(&Leaf { until: soon, ..Leaf::new("server") }).write(&dir, "server");
    // The certificate is used for two flags, and each of them causes a warning.
    eventually("both warnings are logged", async || (warned() == 2).then_some(())).await;
    let log = server.log();
    for said in ["\"flag\":\"cert-file\"", "\"flag\":\"peer-cert-file\"", "\"days-left\":9"] {
        assert!(log.contains(said), "{log}");
    }
    let expiry = metric("cert-file").unwrap();
    assert!(soon.duration_since(expiry).unwrap() < Duration::from_secs(1), "{expiry:?}");
    suite_authority().sign(&Leaf::new("server")).write(&dir, "server");
    eventually("the new expiry time is shown", async || {
        metric("cert-file").filter(|expiry| *expiry > soon)
    })
    .await;
    assert_eq!(warned(), 2);
}
