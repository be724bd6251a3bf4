//! A server process in a comparison: it is started, measured, and stopped or killed.
//!
//! # Not here
//!
//! Requests to the server (`service`), and the choice of a member of a cluster (`cluster`).

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use super::service::{Service, Tools};
use crate::workspace::{output, target};

/// A backend quota large enough for every case, in bytes.
const QUOTA_BYTES: &str = "8589934592";
/// The timeout for a server to become healthy, and to stop.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The range of ports for servers.
const PORTS: Range<u16> = 20_000..30_000;
const PORTS_COUNT: u16 = PORTS.end - PORTS.start;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// One of the two compared programs.
#[derive(Clone, Debug)]
pub(super) struct Side {
    /// The name of this side in the table.
    pub(super) name: String,
    /// The name of the directory for the servers' data.
    folder: &'static str,
    program: PathBuf,
}

/// The programs of a comparison.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    /// The reference etcd, then our program.
    pub(super) sides: [Side; 2],
    /// The programs that generate load and send requests. Both sides use the same programs.
    tools: Tools,
}

impl Programs {
    /// Creates the programs for a comparison of etcd with our program, or of etcd with itself if `ours` is `None`.
    pub(super) fn new(etcd: PathBuf, ours: Option<PathBuf>, tools: Tools) -> Result<Self, String> {
        let version = output(Command::new(&etcd).arg("--version"))?;
        let line = version.lines().next().unwrap_or_default();
        let name = format!("etcd {}", line.rsplit(' ').next().unwrap_or_default());
        let (second, program) = match ours {
            Some(program) => ("quorate".to_owned(), program),
            None => ("etcd again".to_owned(), etcd.clone()),
        };
        let sides = [
            Side { name, folder: "etcd", program: etcd },
            Side { name: second, folder: "ours", program },
        ];
        Ok(Self { sides, tools })
    }
}

/// A server process with its own data directory.
#[derive(Debug)]
pub(super) struct Server {
    program: PathBuf,
    tools: Tools,
    data_dir: PathBuf,
    name: String,
    client: String,
    peer: String,
    /// The value of `--initial-cluster`: all members of the server's cluster.
    initial_cluster: String,
    /// The certificates' directory and the plaintext address of the health endpoint, if the server requires client
    /// certificates.
    secured: Option<(PathBuf, String)>,
    /// Whether authentication is enabled.
    is_guarded: bool,
    process: Option<Child>,
}

impl Server {
    /// Starts a single member on a new data directory.
    pub(super) fn start(side: &Side, programs: &Programs) -> Result<Self, String> {
        let mut server = Self::founders(side, programs, 1)?.remove(0);
        server.run()?;
        Ok(server)
    }

    /// Prepares the members of a new cluster without starting them.
    pub(super) fn founders(
        side: &Side,
        programs: &Programs,
        count: usize,
    ) -> Result<Vec<Self>, String> {
        let new = |number| Self::new(side, programs, format!("m{number}"));
        let mut servers = (1..=count).map(new).collect::<Result<Vec<_>, _>>()?;
        let members: Vec<_> = servers
            .iter()
            .map(|server| format!("{}=http://{}", server.name, server.peer))
            .collect();
        for server in &mut servers {
            server.initial_cluster = members.join(",");
        }
        Ok(servers)
    }

    fn new(side: &Side, programs: &Programs, name: String) -> Result<Self, String> {
        let own = format!("compare.{}", std::process::id());
        let data_dir = target()?.join(own).join(side.folder).join(&name);
        drop(std::fs::remove_dir_all(&data_dir));
        std::fs::create_dir_all(&data_dir)
            .map_err(|error| format!("{}: {error}", data_dir.display()))?;
        Ok(Self {
            program: side.program.clone(),
            tools: programs.tools.clone(),
            data_dir,
            name,
            client: free_address()?,
            peer: free_address()?,
            initial_cluster: String::new(),
            secured: None,
            is_guarded: false,
            process: None,
        })
    }

    /// Makes the server require client certificates, and use TLS to other members, once it is started again.
    pub(super) fn secure(&mut self) -> Result<(), String> {
        let folder =
            self.tools.certificates.clone().ok_or("no certificates have been generated")?;
        self.secured = Some((folder, free_address()?));
        self.initial_cluster = self.initial_cluster.replace("=http://", "=https://");
        Ok(())
    }

    /// Returns the TLS flags for the process.
    fn security(&self) -> Vec<OsString> {
        let Some((folder, health)) = &self.secured else { return Vec::new() };
        let flags = [
            ("--cert-file", "server"),
            ("--key-file", "server.key"),
            ("--trusted-ca-file", "ca"),
            ("--peer-cert-file", "server"),
            ("--peer-key-file", "server.key"),
            ("--peer-trusted-ca-file", "ca"),
        ];
        let files = flags.iter().flat_map(|(flag, name)| [flag.into(), folder.join(name).into()]);
        let health = format!("--listen-metrics-urls=http://{health}").into();
        files.chain(["--client-cert-auth".into(), health]).collect()
    }

    /// Records that authentication is enabled.
    pub(super) fn guard(&mut self) {
        self.is_guarded = true;
    }

    /// Starts the process, and returns how long it took to become healthy.
    pub(super) fn run(&mut self) -> Result<Duration, String> {
        let start = Instant::now();
        self.spawn()?;
        self.wait_until_it_serves()?;
        Ok(start.elapsed())
    }

    /// Starts the process.
    pub(super) fn spawn(&mut self) -> Result<(), String> {
        let scheme = if self.secured.is_some() { "https" } else { "http" };
        let (client, peer) =
            (format!("{scheme}://{}", self.client), format!("{scheme}://{}", self.peer));
        let mut command = Command::new(&self.program);
        // Environment variables for tests or other servers must not reach these servers.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        let process = command
            .args(["--name", &self.name, "--data-dir"])
            .arg(self.data_dir.join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &self.initial_cluster])
            .args(["--quota-backend-bytes", QUOTA_BYTES, "--log-level", "error"])
            .args(self.security())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        self.process = Some(process);
        Ok(())
    }

    /// Waits until the health endpoint reports success.
    pub(super) fn wait_until_it_serves(&mut self) -> Result<(), String> {
        let (start, name) = (Instant::now(), self.program.display());
        let process = self.process.as_mut().ok_or("the server process is not running")?;
        let health = self.secured.as_ref().map_or(&self.client, |(_, health)| health);
        while !serves(health) {
            if let Ok(Some(status)) = process.try_wait() {
                return Err(format!("{name} exited before it was healthy: {status}"));
            }
            if start.elapsed() > TIMEOUT {
                return Err(format!(
                    "{name} did not become healthy within {} s",
                    TIMEOUT.as_secs()
                ));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns whether a process listens on the client address.
    pub(super) fn listens(&self) -> bool {
        TcpStream::connect(&self.client).is_ok()
    }

    /// Kills the process.
    pub(super) fn kill(&mut self) -> Result<(), String> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        process.kill().and_then(|()| process.wait()).map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Asks the process to stop, and waits until it has exited.
    pub(super) fn stop(&mut self) -> Result<(), String> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        stop(&mut process).map_err(|why| format!("{}: {why}", self.program.display()))
    }

    /// Returns the process id, if the process is running.
    pub(super) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Returns a service that sends requests to this server and measures the cost of this server only.
    pub(super) fn service(&self) -> Service {
        let certificates = self.secured.as_ref().map(|(folder, _)| folder.clone());
        let service = Service::new(self.tools.clone(), &self.client, self.pid());
        service.secured(certificates).for_user(self.is_guarded)
    }

    /// Returns the current resident memory in bytes.
    pub(super) fn resident_bytes(&self) -> Result<f64, String> {
        let pid = self.pid().unwrap_or_default();
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib * 1024.0).ok_or(format!("{path} has no valid VmRSS line"))
    }
}

/// A `grpc-proxy` process, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct Proxy {
    tools: Tools,
    address: String,
    process: Child,
}

impl Proxy {
    /// Starts the `grpc-proxy` of the server's program in front of the server, and waits until the proxy answers.
    pub(super) fn before(server: &Server) -> Result<Self, String> {
        let address = free_address()?;
        let process = Command::new(&server.program)
            .args(["grpc-proxy", "start", "--endpoints", &server.client])
            .args(["--listen-addr", &address, "--advertise-client-url", &address])
            .current_dir(&server.data_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", server.program.display()))?;
        let proxy = Self { tools: server.tools.clone(), address, process };
        let start = Instant::now();
        while proxy.service().ctl(&["get", "a"]).is_err() {
            if start.elapsed() > TIMEOUT {
                return Err(format!("the proxy did not respond within {} s", TIMEOUT.as_secs()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(proxy)
    }

    /// Returns a service that sends requests through the proxy and measures the cost of the proxy.
    pub(super) fn service(&self) -> Service {
        Service::new(self.tools.clone(), &self.address, Some(self.process.id()))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // A failed stop does no harm, because the measurement has already ended.
        drop(stop(&mut self.process));
    }
}

/// Asks a process to stop, and waits until it has exited.
fn stop(process: &mut Child) -> Result<(), String> {
    output(Command::new("kill").arg(process.id().to_string()))?;
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        if process.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Ok(());
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    drop(process.kill());
    drop(process.wait());
    Err("the process did not exit in time".to_owned())
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failed stop does no harm, because the comparison has already ended.
        drop(self.stop());
        drop(std::fs::remove_dir_all(&self.data_dir));
        for folder in self.data_dir.ancestors().skip(1).take(2) {
            drop(std::fs::remove_dir(folder));
        }
    }
}

/// Returns an unused address whose port is outside the range for outgoing connections, so that the port is still free
/// when a killed server restarts.
fn free_address() -> Result<String, String> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = u16::try_from(std::process::id() % u32::from(PORTS_COUNT));
    let first = first.expect("the remainder fits in 16 bits");
    for _ in PORTS {
        let offset = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS_COUNT;
        let address = format!("127.0.0.1:{}", PORTS.start + offset);
        if TcpListener::bind(&address).is_ok() {
            return Ok(address);
        }
    }
    Err("no port is free".to_owned())
}

/// Returns whether the health endpoint at `address` reports success.
fn serves(address: &str) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        let host = format!("Host: {address}\r\nConnection: close\r\n\r\n");
        socket.write_all(format!("GET /health HTTP/1.1\r\n{host}").as_bytes())?;
        let mut reply = String::new();
        socket.read_to_string(&mut reply)?;
        Ok(reply)
    };
    ask().is_ok_and(|reply| reply.contains("\"health\":\"true\""))
}
