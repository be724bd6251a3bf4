//! A gRPC proxy or a gateway between clients and servers, run from Quorate's or etcd's binary.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use tempfile::TempDir;

use crate::ports::Port;
use crate::signal::{pause_process, resume_process, send_signal};
use crate::{Client, Kind, Response, eventually, eventually_within, http};

/// Maximum time in which a proxy must reach a member.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// A process of `grpc-proxy start` or `gateway start`, with its own port and directory. The process is killed when this
/// value is dropped.
#[derive(Debug)]
pub struct Proxy {
    kind: Kind,
    subcommand: &'static str,
    flags: Vec<String>,
    child: Option<Child>,
    port: Port,
    home: TempDir,
}

impl Proxy {
    /// Starts a proxy for the members on these ports, and waits until it reaches one.
    pub async fn start(kind: Kind, members: &[u16], flags: &[&str]) -> Self {
        let mut proxy = Self::launch(kind, members, flags);
        proxy.ready().await;
        proxy
    }

    /// Starts a proxy without waiting until it reaches a member.
    #[must_use]
    pub fn launch(kind: Kind, members: &[u16], flags: &[&str]) -> Self {
        let port = Port::free();
        let advertised = format!("--advertise-client-url=127.0.0.1:{}", port.number());
        let flags = [&[advertised.as_str()], flags].concat();
        Self::launch_at(port, kind, "grpc-proxy", members, &flags)
    }

    /// Starts a gateway for the members on these ports, and waits until it reaches one.
    pub async fn start_gateway(kind: Kind, members: &[u16], flags: &[&str]) -> Self {
        let mut gateway = Self::launch_at(Port::free(), kind, "gateway", members, flags);
        gateway.ready().await;
        gateway
    }

    fn launch_at(
        port: Port,
        kind: Kind,
        subcommand: &'static str,
        members: &[u16],
        flags: &[&str],
    ) -> Self {
        let endpoints: Vec<String> =
            members.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut all = vec![
            format!("--endpoints={}", endpoints.join(",")),
            format!("--listen-addr=127.0.0.1:{}", port.number()),
        ];
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let home = TempDir::new().unwrap();
        let mut proxy = Self { kind, subcommand, flags: all, child: None, port, home };
        proxy.launch_again();
        proxy
    }

    /// Restarts the process.
    pub fn launch_again(&mut self) {
        assert!(self.child.is_none(), "the proxy is already running");
        let log = File::options().create(true).append(true).open(self.log_path()).unwrap();
        let mut command = Command::new(self.kind.program());
        command.args([self.subcommand, "start"]).args(&self.flags).current_dir(self.home.path());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Waits until the process reaches a member.
    pub async fn ready(&mut self) {
        let port = self.port();
        eventually_within(TIMEOUT, "the proxy reaches a member", async || {
            let child = self.child.as_mut().expect("the proxy was launched");
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "the proxy exited: {ended:?}\n{}", self.log());
            let listens = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            if !listens {
                return None;
            }
            Client::new(port).range(crate::key("\0")).await.ok()
        })
        .await;
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // The process may already have exited.
            drop(child.kill());
            drop(child.wait());
        }
    }

    /// Returns whether the process is a gateway, which forwards every byte unchanged.
    pub(crate) fn passes_everything(&self) -> bool {
        self.subcommand == "gateway"
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map(Child::id).expect("the proxy is running")
    }

    /// Sends a signal by name (`TERM`).
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

    /// Waits until the process exits.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the proxy is running");
        eventually("the proxy exits", async || child.try_wait().unwrap()).await
    }

    /// Returns the port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port.number()
    }

    /// Returns a client with its own connection.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.port())
    }

    /// Sends an HTTP request.
    #[must_use]
    pub fn get(&self, path: &str) -> Response {
        http::get(self.port(), path)
    }

    /// Returns one sample of the process's metrics.
    #[must_use]
    pub fn metric(&self, series: &str) -> Option<f64> {
        let text = self.get("/proxy/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// Returns one of the kernel's figures about the process's memory, in bytes.
    #[must_use]
    pub fn memory(&self, field: &str) -> u64 {
        let pid = self.child.as_ref().map(Child::id).expect("the proxy is running");
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    fn log_path(&self) -> PathBuf {
        self.home.path().join("log")
    }

    /// Returns the whole log of the process.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// Waits until the log contains a text.
    pub async fn wait_for_log(&self, text: &str) {
        eventually(&format!("the log contains {text:?}"), async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- log of the proxy of {:?}:\n{}", self.kind, self.log());
        }
    }
}
