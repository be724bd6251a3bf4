//! One server process: started, asked, stopped, killed, started again.
//!
//! A server is ready when its log says `ready to serve client requests`. It is killed when the
//! [`Server`] is dropped, and when that happens because the test failed, the end of its log is shown.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::guard::{Guard, is_guarded_suite};
use crate::pki::Credentials;
use crate::ports::Port;
use crate::proxy::Proxy;
use crate::tunnel::Visitor;
use crate::{Client, DEADLINE, Kind, Response, http};

const READY: &str = "ready to serve client requests";
const PAUSE: Duration = Duration::from_millis(5);
/// Starts on other ports, when somebody else was faster.
const ATTEMPTS: usize = 5;
/// Heartbeat interval and election timeout of a member that is alone.
const QUICK: (u32, u32) = (10, 100);
/// Lines of a log that are shown when a test fails.
const LOG_LINES: usize = 40;

/// How to start a server.
#[derive(Clone, Debug)]
pub struct Options {
    kind: Kind,
    name: Option<String>,
    flags: Vec<String>,
    environment: Vec<(String, String)>,
    wrapper: Vec<String>,
    data: Option<PathBuf>,
    /// Heartbeat interval and election timeout in milliseconds; etcd's defaults when nothing.
    timing: Option<(u32, u32)>,
    addresses: bool,
    cluster: Option<String>,
    existing: bool,
    advertised_peer_port: Option<u16>,
    client_scheme: &'static str,
    peer_scheme: &'static str,
    guarded: bool,
}

impl Options {
    /// A single member with etcd's defaults, save for elections that take a tenth of the time.
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
        }
    }

    /// Turns authentication on and asks clients and peers for certificates; clients of this server have them, and ask
    /// as root.
    #[must_use]
    pub const fn guarded(mut self) -> Self {
        self.guarded = true;
        self
    }

    /// Does not, whatever the run is about: the test looks after that itself.
    #[must_use]
    pub const fn unguarded(mut self) -> Self {
        self.guarded = false;
        self
    }

    /// Serves clients with TLS; flags say how.
    #[must_use]
    pub const fn secured(mut self) -> Self {
        self.client_scheme = "https";
        self.unguarded()
    }

    /// Talks to peers with TLS; flags say how.
    #[must_use]
    pub const fn secured_peers(mut self) -> Self {
        self.peer_scheme = "https";
        self.unguarded()
    }

    /// Gives the member a name other than etcd's default.
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

    /// Sets an environment variable. Nothing else named `ETCD_` is handed on.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server through another program, which must end as that server: `nsenter ...`.
    #[must_use]
    pub fn wrapper(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Uses a data directory that is there already, and stays.
    #[must_use]
    pub fn data(mut self, folder: &Path) -> Self {
        self.data = Some(folder.to_owned());
        self
    }

    /// Gives the server elections that take longer, unless the test has a wish of its own: where there
    /// are others, a heartbeat may be late.
    #[must_use]
    pub(crate) fn patient(self) -> Self {
        if self.timing == Some(QUICK) { self.timing(50, 500) } else { self }
    }

    /// Leaves election and heartbeat times at their defaults.
    #[must_use]
    pub const fn default_timing(mut self) -> Self {
        self.timing = None;
        self
    }

    /// Sets heartbeat interval and election timeout, in milliseconds.
    #[must_use]
    pub const fn timing(mut self, heartbeat: u32, election: u32) -> Self {
        self.timing = Some((heartbeat, election));
        self
    }

    /// Makes it another program.
    #[must_use]
    pub const fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    /// Gives the server no listen addresses: the flags or a file say them.
    #[must_use]
    pub const fn no_addresses(mut self) -> Self {
        self.addresses = false;
        self
    }

    /// Whether the options are about this process alone.
    pub(crate) const fn is_about_one_process(&self) -> bool {
        self.data.is_some() || !self.addresses
    }

    /// Starts one process; the error is a server that ended instead of serving.
    pub(crate) async fn try_start_process(self) -> Result<Server, Exit> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut server = self.clone().prepare();
            match server.try_start_again().await {
                Ok(()) => return Ok(server),
                Err(exit) if exit.lost_a_port() => last = Some(exit),
                Err(exit) => return Err(exit),
            }
        }
        Err(last.unwrap())
    }

    /// A server with a directory and ports, whose process has yet to be launched.
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

/// A server that ended by itself.
#[derive(Debug)]
pub struct Exit {
    /// How; nothing when it was still running at the deadline, neither serving nor ending.
    pub status: Option<ExitStatus>,
    /// What it said, from this start on.
    pub log: String,
}

impl Exit {
    /// True when somebody else was faster to take a port.
    #[must_use]
    pub fn lost_a_port(&self) -> bool {
        self.log.contains("address already in use")
    }
}

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}\n{}", tail(&self.log)),
            None => write!(f, "neither serves nor ends\n{}", tail(&self.log)),
        }
    }
}

/// A server process with its directory.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    options: Options,
    home: TempDir,
    data: PathBuf,
    log: PathBuf,
    /// Where in the log the present process begins.
    log_start: usize,
    client_port: Port,
    peer_port: Port,
    /// What lets nobody in but this test.
    guard: Option<Guard>,
    /// The other members, which live as long.
    company: Vec<Self>,
    /// What clients come by.
    front: Option<Proxy>,
}

impl Server {
    /// Starts a server with the default options.
    pub async fn start(kind: Kind) -> Self {
        Options::new(kind).start().await
    }

    /// Starts the process anew on the same directory and ports, and waits until it serves.
    pub async fn start_again(&mut self) {
        if let Err(exit) = self.try_start_again().await {
            panic!("the server does not start again: {exit}");
        }
    }

    /// The same, for a server that may refuse.
    pub async fn try_start_again(&mut self) -> Result<(), Exit> {
        self.launch();
        self.ready().await
    }

    /// Starts the process and does not wait: a member of a cluster serves when a majority is there.
    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "the server runs already");
        self.log_start = std::fs::read(&self.log).unwrap_or_default().len();
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        // Owned from the first moment, so that giving up on the start ends the process.
        self.child = Some(command.spawn().unwrap());
    }

    /// Waits until the process that was launched serves clients.
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
            command.arg(format!("--data-dir={}", self.data.display()));
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
            command.arg(format!("--initial-cluster={cluster}"));
            if self.options.existing {
                command.arg("--initial-cluster-state=existing");
            }
        }
        if let Some((heartbeat, election)) = self.options.timing {
            command.arg(format!("--heartbeat-interval={heartbeat}"));
            command.arg(format!("--election-timeout={election}"));
        }
        command.args(self.guard.iter().flat_map(Guard::flags));
        command.args(&self.options.flags);
        command
    }

    /// Which server this is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.options.kind
    }

    /// True when the server is, or stands for, etcd 3.7; Debian's is older.
    #[must_use]
    pub const fn is_3_7(&self) -> bool {
        matches!(self.options.kind, Kind::Quorate)
    }

    /// The member's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.options.name.as_deref().unwrap_or("default")
    }

    /// Changes the program of the next start; the directory, the ports and the flags stay.
    pub const fn set_kind(&mut self, kind: Kind) {
        self.options.kind = kind;
    }

    /// Says with whom the next start forms a cluster, or which existing cluster it joins. A directory
    /// in use knows already, and goes by what it knows.
    pub fn set_cluster(&mut self, cluster: String, existing: bool) {
        self.options.cluster = Some(cluster);
        self.options.existing = existing;
    }

    /// Lets peers connect to another port than the one that the server listens on.
    pub const fn set_advertised_peer_port(&mut self, port: u16) {
        self.options.advertised_peer_port = Some(port);
    }

    /// Changes the flags of the next start.
    pub fn set_flags(&mut self, flags: &[&str]) {
        self.options.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Keeps the processes of other members.
    pub(crate) fn keep_company(&mut self, others: Vec<Self>) {
        self.company = others;
    }

    /// The other members, when the suite runs against clusters.
    #[must_use]
    pub fn company(&self) -> &[Self] {
        &self.company
    }

    /// A client with a connection of its own.
    #[must_use]
    pub fn client(&self) -> Client {
        match &self.guard {
            Some(guard) => guard.client(),
            None => Client::new(self.front_port()),
        }
    }

    /// Where clients come in: at the proxy's port, if there is one before this server.
    #[must_use]
    pub fn front_port(&self) -> u16 {
        self.front.as_ref().map_or_else(|| self.port(), Proxy::port)
    }

    /// Has clients come by a proxy.
    pub(crate) fn behind(mut self, proxy: Proxy) -> Self {
        self.front = Some(proxy);
        self
    }

    /// Address for clients that the server makes known, with its scheme. It is open to those of this machine where the server is
    /// guarded: see [`Self::listen_url`].
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.options.client_scheme, self.own_port())
    }

    /// Address that the server itself listens on for clients.
    #[must_use]
    pub fn listen_url(&self) -> String {
        let scheme = if self.guard.is_some() { "https" } else { self.options.client_scheme };
        format!("{scheme}://127.0.0.1:{}", self.client_port.number())
    }

    /// Logs root in anew; clients that there are already go on with the new token.
    pub async fn log_in(&self) {
        self.guard.as_ref().expect("the server is guarded").log_in().await;
    }

    /// A client without a token. Its connection has a certificate.
    #[must_use]
    pub fn stranger(&self) -> Client {
        Client::new(self.port())
    }

    /// A client of a guarded server whose connection shows other certificates than those of this test, and trusts who
    /// it is told to.
    #[must_use]
    pub fn visitor(&self, credentials: &Credentials, authority: &str) -> Visitor {
        Visitor::new(self.client_port.number(), credentials, authority)
    }

    /// Has clients of this server show what those of another member show, if they have nothing of their own.
    pub(crate) fn adopt_token(&self, other: &Self) {
        if let (Some(own), Some(other)) = (&self.guard, &other.guard) {
            own.adopt(other);
        }
    }

    /// Where the certificates of a guarded server are: `ca`, `server`, and `client` for those who ask it, each with its
    /// key beside it.
    #[must_use]
    pub fn guard_dir(&self) -> PathBuf {
        self.guard.as_ref().expect("the server is guarded").dir().to_owned()
    }

    fn peer_scheme(&self) -> &'static str {
        if self.guard.is_some() { "https" } else { self.options.peer_scheme }
    }

    /// The user that tools have to name, where one has to be, with the password: `name:password`.
    #[must_use]
    pub fn user_of_tools(&self) -> Option<String> {
        self.guard.is_some().then(crate::guard::user_of_tools)
    }

    /// Address for peers, with its scheme, as it is advertised.
    #[must_use]
    pub fn peer_url(&self) -> String {
        let port = self.options.advertised_peer_port.unwrap_or(self.peer_port.number());
        format!("{}://127.0.0.1:{port}", self.peer_scheme())
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        let gateway = self.front.as_ref().filter(|front| front.passes_everything());
        gateway.map_or_else(|| self.own_port(), Proxy::port)
    }

    /// The port for clients without what they come by.
    fn own_port(&self) -> u16 {
        self.guard.as_ref().map_or(self.client_port.number(), Guard::port)
    }

    /// The port for peers.
    #[must_use]
    pub const fn peer_port(&self) -> u16 {
        self.peer_port.number()
    }

    /// The data directory.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// A directory that lives as long as the server, for a test's own files.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.home.path()
    }

    /// The backend file.
    #[must_use]
    pub fn backend(&self) -> PathBuf {
        self.data.join("member").join("snap").join("db")
    }

    /// The segments of the write-ahead log, oldest first.
    #[must_use]
    pub fn wal_files(&self) -> Vec<PathBuf> {
        let folder = self.data.join("member").join("wal");
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|end| end == "wal")).collect();
        files.sort();
        files
    }

    /// Asks over HTTP.
    #[must_use]
    pub fn get(&self, path: &str) -> Response {
        http::get(self.port(), path)
    }

    /// One sample of `/metrics`, by name and labels as they are written there.
    #[must_use]
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// Everything the server has said.
    #[must_use]
    pub fn log(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What it has said since it was launched last.
    #[must_use]
    pub fn log_of_this_run(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let run = bytes.get(self.log_start..).unwrap_or_default();
        String::from_utf8_lossy(run).into_owned()
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).expect("the server runs")
    }

    /// A figure in bytes from the kernel's account of the process: `VmRSS`, `VmHWM`.
    #[must_use]
    pub fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// True while the process runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Ends the process without a warning.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("the server runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn end_child(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Already gone is fine.
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Sends a signal by name (`TERM`, `INT`).
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().unwrap();
        assert!(status.success(), "kill -s {name} {pid}");
    }

    /// Asks the server to stop, and waits for its end.
    pub async fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.ended().await
    }

    /// Waits until the process ends.
    pub async fn ended(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            let child = self.child.as_mut().expect("the server runs");
            if let Some(status) = child.try_wait().unwrap() {
                self.child = None;
                return status;
            }
            assert!(start.elapsed() < DEADLINE, "the server does not stop");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end_child();
        if std::thread::panicking() {
            eprintln!("--- {:?} said last:\n{}", self.options.kind, tail(&self.log()));
        }
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default().join("\n")
}
