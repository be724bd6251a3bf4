//! One server process, which tests can start, query, stop, kill and restart.
//!
//! A server is ready once it logs `ready to serve client requests`. It is killed when the [`Server`] is dropped. If the
//! test has failed, the last lines of its log are printed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guard::{Guard, is_guarded_suite};
use crate::pki::Credentials;
use crate::ports::Port;
use crate::proxy::Proxy;
use crate::signal::{pause_process, resume_process, send_signal};
use crate::tunnel::Visitor;
use crate::{Client, DEADLINE, Kind, Response, eventually, http};

const READY: &str = "ready to serve client requests";
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum number of attempts to start. If another process has taken a port, the next attempt uses different ports.
const ATTEMPTS: usize = 5;
/// Heartbeat interval and election timeout of a single member, in milliseconds.
const QUICK: (u32, u32) = (10, 100);
/// Maximum number of log lines printed when a test fails.
const LOG_LINES: usize = 40;

/// Options for starting a server.
#[derive(Clone, Debug)]
pub struct Options {
    kind: Kind,
    name: Option<String>,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    wrapper: Vec<String>,
    data: Option<PathBuf>,
    /// Heartbeat interval and election timeout in milliseconds; etcd's defaults if `None`.
    timing: Option<(u32, u32)>,
    addresses: bool,
    cluster: Option<String>,
    existing: bool,
    advertised_peer_port: Option<u16>,
    client_scheme: &'static str,
    peer_scheme: &'static str,
    guarded: bool,
    /// The URL of the database that holds the data.
    database: Option<String>,
}

impl Options {
    /// Returns the options of a single member with etcd's defaults, except that its heartbeat interval and its election
    /// timeout are a tenth of etcd's.
    #[must_use]
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            name: None,
            flags: Vec::new(),
            environment: Vec::new(),
            wrapper: Vec::new(),
            data: None,
            timing: Some(QUICK),
            addresses: true,
            cluster: None,
            existing: false,
            advertised_peer_port: None,
            client_scheme: "http",
            peer_scheme: "http",
            guarded: is_guarded_suite(),
            database: None,
        }
    }

    /// Enables authentication, and requires certificates from clients and peers. This server's own clients have
    /// certificates and are logged in as root.
    #[must_use]
    pub const fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// Disables authentication and certificates in every mode of the run, because the test configures them itself.
    #[must_use]
    pub const fn unguarded(mut self) -> Self {
        self.guarded = false;
        self
    }

    /// Declares that flags make the server use TLS for clients.
    #[must_use]
    pub const fn secured(mut self) -> Self {
        self.client_scheme = "https";
        self.unguarded()
    }

    /// Declares that flags make the server use TLS for peers.
    #[must_use]
    pub const fn secured_peers(mut self) -> Self {
        self.peer_scheme = "https";
        self.unguarded()
    }

    /// Sets the name of the member instead of etcd's default name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Adds a flag, written `--name=value`.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Sets an environment variable. Other variables whose names start with `ETCD_` are not passed on.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server through another program, such as `nsenter ...`, which must replace itself with the server.
    #[must_use]
    pub fn wrapper(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Uses an existing data directory, which is not deleted.
    #[must_use]
    pub fn data(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_owned());
        self
    }

    /// Sets a longer election timeout, unless the test has set one, because heartbeats in a cluster may be late.
    #[must_use]
    pub(crate) fn patient(self) -> Self {
        if self.timing == Some(QUICK) { self.timing(50, 500) } else { self }
    }

    /// Keeps the data in the database with this URL.
    #[must_use]
    pub fn on_database(mut self, url: &str) -> Self {
        self.database = Some(url.to_owned());
        self
    }

    /// Leaves the heartbeat interval and the election timeout at their defaults.
    #[must_use]
    pub const fn default_timing(mut self) -> Self {
        self.timing = None;
        self
    }

    /// Sets the heartbeat interval and the election timeout, in milliseconds.
    #[must_use]
    pub const fn timing(mut self, heartbeat: u32, election: u32) -> Self {
        self.timing = Some((heartbeat, election));
        self
    }

    /// Runs another kind of server.
    #[must_use]
    pub const fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Passes no listen addresses to the server, because flags or a file contain them.
    #[must_use]
    pub const fn no_addresses(mut self) -> Self {
        self.addresses = false;
        self
    }

    /// Returns whether the server must run as a single process, because the test supplies its data directory or its
    /// addresses.
    pub(crate) const fn is_about_one_process(&self) -> bool {
        self.data.is_some() || !self.addresses
    }

    /// Starts one process. Returns an error if the server exits instead of serving.
    pub(crate) async fn try_start_process(self) -> Result<Server, Exit> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut server = self.clone().prepare();
            match server.try_start_again().await {
                Ok(()) => return Ok(server),
                Err(exit) if exit.found_port_taken() => last = Some(exit),
                Err(exit) => return Err(exit),
            }
        }
        Err(last.unwrap())
    }

    /// Returns a server that has a directory and ports, but whose process is not launched yet.
    #[must_use]
    pub fn prepare(self) -> Server {
        let home = TempDir::new().unwrap();
        let data = self.data.clone().unwrap_or_else(|| home.path().join("data"));
        let client_port = Port::free();
        let is_guarded = self.guarded && self.addresses;
        let guard = is_guarded.then(|| Guard::new(home.path(), client_port.number()));
        Server {
            child: None,
            log: home.path().join("log"),
            log_start: 0,
            home,
            data,
            client_port,
            peer_port: Port::free(),
            options: self,
            guard,
            company: Vec::new(),
            front: None,
        }
    }
}

/// A failed start of a server.
#[derive(Debug)]
pub struct Exit {
    /// Exit status; `None` if the server was still running at the deadline without serving.
    pub status: Option<ExitStatus>,
    /// Log since this start.
    pub log: String,
}

impl Exit {
    /// Returns whether the server failed to start because another process uses one of its ports.
    #[must_use]
    pub fn found_port_taken(&self) -> bool {
        self.log.contains("address already in use")
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}\n{}", tail(&self.log)),
            None => write!(f, "the server neither serves nor exits\n{}", tail(&self.log)),
        }
    }
}

/// A server process and its directory.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    options: Options,
    home: TempDir,
    data: PathBuf,
    log: PathBuf,
    /// Offset in the log at which the lines of the current process start.
    log_start: usize,
    client_port: Port,
    peer_port: Port,
    /// Certificates and credentials of this server, if it is guarded.
    guard: Option<Guard>,
    /// The other members of the cluster, which live as long as this server.
    company: Vec<Self>,
    /// The proxy or gateway that clients connect to.
    front: Option<Proxy>,
}

impl Server {
    /// Starts a server with the default options.
    pub async fn start(kind: Kind) -> Self {
        Options::new(kind).start().await
    }

    /// Restarts the process on the same directory and ports, and waits until it serves.
    pub async fn start_again(&mut self) {
        if let Err(exit) = self.try_start_again().await {
            panic!("the server failed to restart: {exit}");
        }
    }

    /// Restarts a server that may refuse to start.
    pub async fn try_start_again(&mut self) -> Result<(), Exit> {
        self.launch();
        self.ready().await
    }

    /// Starts the process without waiting until it serves, because a member of a cluster serves only once there is a
    /// majority.
    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "the server is already running");
        self.log_start = std::fs::read(&self.log).unwrap_or_default().len();
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // The process is owned from its start, so that it is killed if the start is aborted.
        self.child = Some(command.spawn().unwrap());
    }

    /// Waits until the launched process serves clients.
    pub async fn ready(&mut self) -> Result<(), Exit> {
        let start = Instant::now();
        loop {
            let child = self.child.as_mut().expect("the server was launched");
            let ended = child.try_wait().unwrap();
            let said = self.log_of_this_run();
            if said.contains(READY) && ended.is_none() {
                if let Some(guard) = &self.guard {
                    guard.log_in().await;
                }
                if let Some(front) = &mut self.front {
                    front.ready().await;
                }
                return Ok(());
            }
            if ended.is_some() || start.elapsed() > DEADLINE {
                self.end_child();
                return Err(Exit { status: ended, log: said });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn command(&self) -> Command {
        let program = self.options.kind.program();
        let mut command = match self.options.wrapper.split_first() {
            Some((wrapper, words)) => {
                let mut command = Command::new(wrapper);
                command.args(words).arg(program);
                command
            }
            None => Command::new(program),
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.home.path());
        if self.options.addresses {
            if self.options.database.is_none() {
                command.arg(format!("--data-dir={}", self.data.display()));
            }
            let peer = self.peer_url();
            command.arg(format!("--listen-client-urls={}", self.listen_url()));
            command.arg(format!("--advertise-client-urls={}", self.url()));
            let (scheme, port) = (self.peer_scheme(), self.peer_port.number());
            command.arg(format!("--listen-peer-urls={scheme}://127.0.0.1:{port}"));
            command.arg(format!("--initial-advertise-peer-urls={peer}"));
            if let Some(name) = &self.options.name {
                command.arg(format!("--name={name}"));
            }
            let alone = || format!("{}={peer}", self.name());
            let cluster = self.options.cluster.clone().unwrap_or_else(alone);
            if self.options.database.is_none() {
                command.arg(format!("--initial-cluster={cluster}"));
            }
            if self.options.existing {
                command.arg("--initial-cluster-state=existing");
            }
        }
        if let Some((heartbeat, election)) = self.options.timing {
            command.arg(format!("--heartbeat-interval={heartbeat}"));
            command.arg(format!("--election-timeout={election}"));
        }
        command.args(self.options.database.iter().map(|url| format!("--engine={url}")));
        command.args(self.guard.iter().flat_map(Guard::flags));
        command.args(&self.options.flags);
        command
    }

    /// Returns the kind of the server.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.options.kind
    }

    /// Returns whether the server implements etcd 3.7. Debian's etcd is older.
    #[must_use]
    pub const fn is_3_7(&self) -> bool {
        matches!(self.options.kind, Kind::Quorate)
    }

    /// Returns the member's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.options.name.as_deref().unwrap_or("default")
    }

    /// Sets the program for the next start. The directory, the ports and the flags stay the same.
    pub const fn set_kind(&mut self, kind: Kind) {
        self.options.kind = kind;
    }

    /// Sets the cluster that the server forms or joins at its next start. A directory in use already contains this
    /// information, which takes precedence.
    pub fn set_cluster(&mut self, cluster: String, existing: bool) {
        self.options.cluster = Some(cluster);
        self.options.existing = existing;
    }

    /// Advertises a peer port that differs from the one on which the server listens.
    pub const fn set_advertised_peer_port(&mut self, port: u16) {
        self.options.advertised_peer_port = Some(port);
    }

    /// Replaces the flags for the next start.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.options.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Takes ownership of the processes of other members.
    pub(crate) fn keep_company(&mut self, others: Vec<Self>) {
        self.company = others;
    }

    /// Returns the other members, if the suite runs against clusters.
    #[must_use]
    pub fn company(&self) -> &[Self] {
        &self.company
    }

    /// Returns a client with its own connection.
    #[must_use]
    pub fn client(&self) -> Client {
        match &self.guard {
            Some(guard) => guard.client(),
            None => Client::new(self.front_port()),
        }
    }

    /// Returns the port for clients. If there is a proxy in front of this server, this is the proxy's port.
    #[must_use]
    pub fn front_port(&self) -> u16 {
        self.front.as_ref().map_or_else(|| self.port(), Proxy::port)
    }

    /// Makes clients connect through a proxy.
    pub(crate) fn behind(mut self, proxy: Proxy) -> Self {
        self.front = Some(proxy);
        self
    }

    /// Returns the client URL that the server advertises. If the server is guarded, clients on this machine can connect
    /// to this URL without a certificate; see [`Self::listen_url`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.options.client_scheme, self.own_port())
    }

    /// Returns the client URL on which the server itself listens.
    #[must_use]
    pub fn listen_url(&self) -> String {
        let scheme = if self.guard.is_some() { "https" } else { self.options.client_scheme };
        format!("{scheme}://127.0.0.1:{}", self.client_port.number())
    }

    /// Logs root in again. Existing clients use the new token from then on.
    pub async fn log_in(&self) {
        self.guard.as_ref().expect("the server is guarded").log_in().await;
    }

    /// Returns a client that has no token, and whose connection presents a certificate.
    #[must_use]
    pub fn client_without_token(&self) -> Client {
        Client::new(self.port())
    }

    /// Returns a client of a guarded server whose connection presents the given certificate instead of this test's
    /// certificate, and trusts the given CA.
    #[must_use]
    pub fn visitor(&self, credentials: &Credentials, authority: &str) -> Visitor {
        Visitor::new(self.client_port.number(), credentials, authority)
    }

    /// Gives this server's clients, which have no token, the token of another member's clients.
    pub(crate) fn adopt_token(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.guard, &other.guard) {
            own.adopt(other);
        }
    }

    /// Returns the folder with the certificates of a guarded server: `ca`, `server`, and `client` for its clients, each
    /// with its key.
    #[must_use]
    pub fn guard_dir(&self) -> PathBuf {
        self.guard.as_ref().expect("the server is guarded").dir().to_owned()
    }

    fn peer_scheme(&self) -> &'static str {
        if self.guard.is_some() { "https" } else { self.options.peer_scheme }
    }

    /// Returns the user and password for command-line tools as `name:password`, if the server requires them.
    #[must_use]
    pub fn user_of_tools(&self) -> Option<String> {
        self.guard.is_some().then(crate::guard::user_of_tools)
    }

    /// Returns the advertised URL for peers.
    #[must_use]
    pub fn peer_url(&self) -> String {
        let port = self.options.advertised_peer_port.unwrap_or(self.peer_port.number());
        format!("{}://127.0.0.1:{port}", self.peer_scheme())
    }

    /// Returns the port for clients: the port of the gateway, if a gateway is in front of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        let gateway = self.front.as_ref().filter(|front| front.passes_everything());
        gateway.map_or_else(|| self.own_port(), Proxy::port)
    }

    /// Returns the server's own port for clients, ignoring the proxy.
    fn own_port(&self) -> u16 {
        self.guard.as_ref().map_or(self.client_port.number(), Guard::port)
    }

    /// Returns the port for peers.
    #[must_use]
    pub const fn peer_port(&self) -> u16 {
        self.peer_port.number()
    }

    /// Returns the data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Returns a directory for a test's own files, which is deleted when the server is dropped.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.home.path()
    }

    /// Returns the backend file.
    #[must_use]
    pub fn backend(&self) -> PathBuf {
        self.data.join("member").join("snap").join("db")
    }

    /// Returns the segments of the write-ahead log, oldest first.
    #[must_use]
    pub fn wal_files(&self) -> Vec<PathBuf> {
        let folder = self.data.join("member").join("wal");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|end| end == "wal")).collect();
        files.sort();
        files
    }

    /// Sends an HTTP request.
    #[must_use]
    pub fn get(&self, path: &str) -> Response {
        http::get(self.port(), path)
    }

    /// Returns one sample of `/metrics`, given its name and labels as written there.
    #[must_use]
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// Returns the whole log of the server.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits until the log of the last launch contains a text. A server writes log lines on a thread of its own, so a
    /// line may be written after the response that it belongs to.
    pub async fn wait_for_log(&self, text: &str) {
        eventually(&format!("the log contains {text:?}"), async || {
            self.log_of_this_run().contains(text).then_some(())
        })
        .await;
    }

    /// Returns the log since the last launch.
    #[must_use]
    pub fn log_of_this_run(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let run = bytes.get(self.log_start..).unwrap_or_default();
        String::from_utf8_lossy(run).into_owned()
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).expect("the server is running")
    }

    /// Returns one of the kernel's figures about the process's memory (`VmRSS`, `VmHWM`), in bytes.
    #[must_use]
    pub fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Returns whether the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the server is running");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn end_child(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The process may already have exited.
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Sends a signal by name (`TERM`, `INT`).
    pub fn signal(&self, name: &str) {
        send_signal(self.pid(), name);
    }

    /// Pauses the process, and waits until none of its threads runs.
    pub async fn pause(&self) {
        pause_process(self.pid()).await;
    }

    /// Resumes the paused process.
    pub fn resume(&self) {
        resume_process(self.pid());
    }

    /// Stops the server and waits until it exits.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.ended().await
    }

    /// Waits until the process exits.
    pub async fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            let child = self.child.as_mut().expect("the server is running");
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                return status;
            }
            assert!(start.elapsed() < DEADLINE, "the server did not stop within {DEADLINE:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_child();
        if std::thread::panicking() {
            eprintln!("--- last log lines of {:?}:\n{}", self.options.kind, tail(&self.log()));
        }
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n")
}
