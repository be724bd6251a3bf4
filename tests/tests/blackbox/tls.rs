//! TLS: accepted clients and certificates, and changes to certificate files.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use quorate_tests::pki::{Authority, Leaf};
use quorate_tests::{
    DEADLINE, Finished, Kind, Options, Server, Tool, eventually, has_etcd_tools, on_both_servers,
    on_quorate, run_to_end, within,
};
use tempfile::TempDir;

on_both_servers! {
    alone:
    both_tools_support_tls,
    clients_without_a_certificate_are_refused,
    a_server_certificate_can_be_replaced_while_the_server_runs,
    one_address_serves_with_and_without_tls,
    a_self_signed_certificate_is_generated,
    members_connect_to_peers_with_tls,
    unix_sockets_serve_with_and_without_tls,
}

on_quorate! {
    alone:
    etcd_and_quorate_members_connect_with_tls,
    certificates_generated_by_etcd_are_reused,
}

/// A CA and the files that it signed.
pub(crate) struct Files {
    dir: TempDir,
    pub(crate) authority: Authority,
}

impl Files {
    pub(crate) fn new() -> Self {
        let files = Self { dir: TempDir::new().unwrap(), authority: Authority::new() };
        std::fs::write(files.path("ca"), files.authority.pem()).unwrap();
        files.write("server", &Leaf::new("server"));
        files.write("client", &Leaf::new("someone"));
        files
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Writes a certificate and its key as `name` and `name.key`.
    pub(crate) fn write(&self, name: &str, leaf: &Leaf) {
        self.authority.sign(leaf).write(self.dir.path(), name);
    }

    pub(crate) fn server(&self, kind: Kind) -> Options {
        Options::new(kind)
            .secured()
            .flag(format!("--cert-file={}", self.text("server")))
            .flag(format!("--key-file={}", self.text("server.key")))
    }

    /// Returns the options of a server that requires certificates from clients.
    pub(crate) fn closed(&self, kind: Kind) -> Options {
        let ca = format!("--trusted-ca-file={}", self.text("ca"));
        self.server(kind).flag("--client-cert-auth").flag(ca)
    }

    /// Returns a tool's options for a client certificate.
    pub(crate) fn shown(&self, name: &str) -> [String; 3] {
        let [ca, cert, key] = [self.text("ca"), self.text(name), self.text(&format!("{name}.key"))];
        [format!("--cacert={ca}"), format!("--cert={cert}"), format!("--key={key}")]
    }

    /// Adds flags that require certificates from peers.
    pub(crate) fn peers(&self, options: Options) -> Options {
        self.peer_flags().into_iter().fold(options.secured_peers(), Options::flag)
    }

    /// Returns the flags that require certificates from peers.
    pub(crate) fn peer_flags(&self) -> [String; 4] {
        [
            format!("--peer-cert-file={}", self.text("server")),
            format!("--peer-key-file={}", self.text("server.key")),
            format!("--peer-trusted-ca-file={}", self.text("ca")),
            "--peer-client-cert-auth".to_owned(),
        ]
    }
}

/// Runs a tool against an endpoint.
pub(crate) fn ctl(tool: Tool, endpoint: &str, args: &[&str]) -> Finished {
    let mut command = match tool {
        Tool::Etcdctl => Command::new(Kind::etcd_program("etcdctl").unwrap()),
        Tool::QuorateCtl => {
            let mut command = Command::new(Kind::Quorate.program());
            command.arg("ctl");
            command
        }
    };
    command.arg(format!("--endpoints={endpoint}")).args(args);
    run_to_end(command, "")
}

pub(crate) fn tools() -> Vec<Tool> {
    let mut tools = Vec::new();
    tools.extend(Kind::Quorate.is_present().then_some(Tool::QuorateCtl));
    tools.extend(has_etcd_tools().then_some(Tool::Etcdctl));
    tools
}

async fn both_tools_support_tls(kind: Kind) {
    let files = Files::new();
    let server = files.server(kind).start().await;
    let ca = format!("--cacert={}", files.text("ca"));
    for tool in tools() {
        assert_eq!(ctl(tool, &server.url(), &[&ca, "put", "k", "v"]).success(), "OK\n");
        assert_eq!(ctl(tool, &server.url(), &[&ca, "get", "k"]).success(), "k\nv\n");
        let trusting = ["--insecure-skip-tls-verify", "--insecure-transport=false", "get", "k"];
        assert_eq!(ctl(tool, &server.url(), &trusting).success(), "k\nv\n");
        let bare = server.url().replace("https://", "");
        assert_eq!(ctl(tool, &bare, &[&ca, "get", "k"]).success(), "k\nv\n");
        for (endpoint, args) in [
            // The cases are: no TLS, an unknown CA, and a host that the certificate does not name.
            (server.url().replace("https", "http"), &["get", "k"][..]),
            (server.url(), &["--insecure-transport=false", "get", "k"]),
            (server.url().replace("127.0.0.1", "127.0.0.2"), &[&ca, "get", "k"]),
        ] {
            let timing = ["--command-timeout=1s", "--dial-timeout=1s"];
            let args = [&timing[..], args].concat();
            assert_ne!(ctl(tool, &endpoint, &args).code, Some(0), "{tool:?} {endpoint}");
        }
    }
}

async fn clients_without_a_certificate_are_refused(kind: Kind) {
    let files = Files::new();
    let ca = files.text("ca");
    let options = files.server(kind).flag("--client-cert-auth");
    let server = options.flag(format!("--trusted-ca-file={ca}")).start().await;
    let strangers = Files::new();
    let ca = format!("--cacert={ca}");
    let pair = |files: &Files| {
        [format!("--cert={}", files.text("client")), format!("--key={}", files.text("client.key"))]
    };
    for tool in tools() {
        let [cert, key] = pair(&files);
        let put = [&*ca, &cert, &key, "put", "k", "v"];
        assert_eq!(ctl(tool, &server.url(), &put).success(), "OK\n");
        let [cert, key] = pair(&strangers);
        let short = "--command-timeout=1s";
        for args in [&[&*ca, short, "get", "k"][..], &[&*ca, short, &cert, &key, "get", "k"]] {
            assert_ne!(ctl(tool, &server.url(), args).code, Some(0), "{tool:?}");
        }
    }
    let said = eventually("a log line about the refused connection", async || {
        let log = server.log();
        log.contains("rejected connection").then_some(log)
    });
    assert!(said.await.contains("ready to serve client requests"));
}

async fn a_server_certificate_can_be_replaced_while_the_server_runs(kind: Kind) {
    let (files, others) = (Files::new(), Files::new());
    let server = files.server(kind).start().await;
    let Some(tool) = tools().pop() else { return };
    let get = |files: &Files| {
        let ca = format!("--cacert={}", files.text("ca"));
        ctl(tool, &server.url(), &[&ca, "--command-timeout=1s", "get", "k"]).code
    };
    assert_eq!((get(&files), get(&others).map(|code| code != 0)), (Some(0), Some(true)));
    for name in ["server", "server.key"] {
        std::fs::copy(others.path(name), files.path(name)).unwrap();
    }
    assert_eq!((get(&files).map(|code| code != 0), get(&others)), (Some(true), Some(0)));
}

async fn one_address_serves_with_and_without_tls(kind: Kind) {
    let files = Files::new();
    let probe = files.server(kind).prepare();
    let port = probe.port();
    let both = format!("--listen-client-urls=http://127.0.0.1:{port},https://127.0.0.1:{port}");
    let mut server = probe;
    let cert = format!("--cert-file={}", files.text("server"));
    let key = format!("--key-file={}", files.text("server.key"));
    server.set_flags(&[&cert, &key, &both]);
    server.start_again().await;
    let ca = format!("--cacert={}", files.text("ca"));
    for tool in tools() {
        assert_eq!(ctl(tool, &server.url(), &[&ca, "put", "k", "v"]).success(), "OK\n");
        let plain = server.url().replace("https", "http");
        assert_eq!(ctl(tool, &plain, &["get", "k"]).success(), "k\nv\n");
    }
    assert_eq!(server.get("/health").status, 200);
}

async fn a_self_signed_certificate_is_generated(kind: Kind) {
    let mut server = Options::new(kind).secured().flag("--auto-tls").start().await;
    let made = server.data().join("fixtures/client/cert.pem");
    let before = std::fs::read(&made).unwrap();
    let ca = format!("--cacert={}", made.display());
    for tool in tools() {
        assert_eq!(ctl(tool, &server.url(), &[&ca, "put", "k", "v"]).success(), "OK\n");
    }
    server.stop().await;
    server.start_again().await;
    assert_eq!(std::fs::read(&made).unwrap(), before);
}

/// Starts three members, and writes through the first and the last of them.
async fn three(files: &Files, kinds: [Kind; 3]) {
    let mut servers: Vec<Server> = ["a", "b", "c"]
        .into_iter()
        .zip(kinds)
        .map(|(name, kind)| files.peers(Options::new(kind).name(name).timing(50, 500)).prepare())
        .collect();
    let words: Vec<String> =
        servers.iter().map(|server| format!("{}={}", server.name(), server.peer_url())).collect();
    for server in &mut servers {
        server.set_cluster(words.join(","), false);
        server.launch();
    }
    for server in &mut servers {
        within("the member serves", server.ready()).await.unwrap();
    }
    for (number, server) in servers.iter().enumerate() {
        let (key, client) = (format!("k{number}"), server.client());
        client.put(quorate_tests::put(&key, "v")).await.unwrap();
    }
    for server in &servers {
        let found = server.client().range(quorate_tests::from_key("k")).await.unwrap();
        assert_eq!(found.count, 3);
    }
    // A peer without a certificate is refused, and so is a peer without TLS.
    for server in &servers {
        drop(TcpStream::connect(("127.0.0.1", server.peer_port())).unwrap());
    }
}

async fn members_connect_to_peers_with_tls(kind: Kind) {
    three(&Files::new(), [kind; 3]).await;
}

async fn etcd_and_quorate_members_connect_with_tls(_: Kind) {
    if Kind::Etcd.is_present() {
        three(&Files::new(), [Kind::Quorate, Kind::Etcd, Kind::Quorate]).await;
        three(&Files::new(), [Kind::Etcd, Kind::Quorate, Kind::Etcd]).await;
    }
}

async fn certificates_generated_by_etcd_are_reused(kind: Kind) {
    if !Kind::Etcd.is_present() {
        return;
    }
    let options = Options::new(Kind::Etcd).secured().secured_peers();
    let mut server = options.flag("--auto-tls").flag("--peer-auto-tls").start().await;
    server.stop().await;
    let made = |name: &str| server.data().join("fixtures").join(name).join("cert.pem");
    let read = |path: &Path| std::fs::read(path).unwrap();
    let paths = [made("client"), made("peer")];
    let before = paths.each_ref().map(|path| read(path));
    server.set_kind(kind);
    server.start_again().await;
    assert_eq!(paths.each_ref().map(|path| read(path)), before);
    let ca = format!("--cacert={}", paths[0].display());
    for tool in tools() {
        assert_eq!(ctl(tool, &server.url(), &[&ca, "put", "k", "v"]).success(), "OK\n");
    }
}

async fn unix_sockets_serve_with_and_without_tls(kind: Kind) {
    let files = Files::new();
    let mut server = files.server(kind).prepare();
    let (plain, secured) = (files.text("plain.sock"), files.text("localhost:1"));
    let urls = format!("--listen-client-urls=unix://{plain},unixs://{secured}");
    let cert = format!("--cert-file={}", files.text("server"));
    let key = format!("--key-file={}", files.text("server.key"));
    server.set_flags(&[&cert, &key, &urls, "--enable-grpc-gateway=false"]);
    // The socket file of an earlier process does not prevent the start.
    drop(std::os::unix::net::UnixListener::bind(files.path("plain.sock")).unwrap());
    server.start_again().await;
    let ca = format!("--cacert={}", files.text("ca"));
    for tool in tools() {
        let plain = format!("unix://{plain}");
        assert_eq!(ctl(tool, &plain, &["put", "k", "v"]).success(), "OK\n");
        let secured = format!("unixs://{secured}");
        assert_eq!(ctl(tool, &secured, &[&ca, "get", "k"]).success(), "k\nv\n");
    }
    server.stop().await;
    assert!(!files.path("plain.sock").exists(), "within {DEADLINE:?}");
}
