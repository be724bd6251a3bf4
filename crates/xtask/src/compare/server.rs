//! A server under comparison: started, asked, measured, stopped.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::workspace::{output, target};

/// Room enough for every case.
const QUOTA_BYTES: &str = "8589934592";
/// How long a server may take to serve or to stop.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(5);

/// The two servers' programs; ours is also the tool for both.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub(super) etcd: PathBuf,
    pub(super) quorate: PathBuf,
    pub(super) etcd_version: String,
}

impl Programs {
    pub(super) fn new(etcd: PathBuf, quorate: PathBuf) -> Result<Self, String> {
        let version = output(Command::new(&etcd).arg("--version"))?;
        let line = version.lines().next().unwrap_or_default();
        let etcd_version = line.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(Self { etcd, quorate, etcd_version })
    }
}

/// A running server with a data directory of its own.
#[derive(Debug)]
pub(super) struct Server {
    program: PathBuf,
    tool: PathBuf,
    data_dir: PathBuf,
    client: String,
    peer: String,
    process: Option<Child>,
}

impl Server {
    /// Starts `program` on a new data directory named after it.
    pub(super) fn start(program: &Path, programs: &Programs) -> Result<Self, String> {
        let name = program.file_name().unwrap_or_default();
        let own = format!("compare.{}", std::process::id());
        let data_dir = target()?.join(own).join(name);
        drop(std::fs::remove_dir_all(&data_dir));
        std::fs::create_dir_all(&data_dir)
            .map_err(|error| format!("{}: {error}", data_dir.display()))?;
        let mut server = Self {
            program: program.to_owned(),
            tool: programs.quorate.clone(),
            data_dir,
            client: free_address()?,
            peer: free_address()?,
            process: None,
        };
        server.run()?;
        Ok(server)
    }

    /// Starts the process and returns how long it took to serve.
    pub(super) fn run(&mut self) -> Result<Duration, String> {
        let (client, peer) = (format!("http://{}", self.client), format!("http://{}", self.peer));
        let start = Instant::now();
        let mut command = Command::new(&self.program);
        // What the environment says to tests or to other servers is not meant for these.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        let process = command
            .arg("--data-dir")
            .arg(self.data_dir.join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .args(["--quota-backend-bytes", QUOTA_BYTES, "--log-level", "error"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("{}: {error}", self.program.display()))?;
        let process = self.process.insert(process);
        while !serves(&self.client) {
            let name = self.program.display();
            if let Ok(Some(status)) = process.try_wait() {
                return Err(format!("{name} ended before it served: {status}"));
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("{name} does not serve after {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(start.elapsed())
    }

    /// Asks the process to stop and waits until it has.
    pub(super) fn stop(&mut self) -> Result<(), String> {
        let Some(mut process) = self.process.take() else { return Ok(()) };
        output(Command::new("kill").arg(process.id().to_string()))?;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if process.try_wait().map_err(|error| error.to_string())?.is_some() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
        // It will not end by itself.
        drop(process.kill());
        drop(process.wait());
        Err(format!("{} did not stop", self.program.display()))
    }

    /// Runs a benchmark against the server and returns its report.
    pub(super) fn bench(&self, args: &[&str]) -> Result<Value, String> {
        let text = output(&mut self.bench_command(args))?;
        serde_json::from_str(&text).map_err(|error| format!("bench {}: {error}", args.join(" ")))
    }

    /// Begins a benchmark, to be ended by [`Background::finish`].
    pub(super) fn bench_in_background(&self, args: &[&str]) -> Result<Background, String> {
        let mut command = self.bench_command(args);
        let process = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        Ok(Background { process })
    }

    fn bench_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.tool);
        command.arg("bench").args(args).args(["--endpoints", &self.client, "--json"]);
        if let Some(process) = &self.process {
            command.arg("--pid").arg(process.id().to_string());
        }
        command
    }

    /// Runs a command of the client and returns what it printed.
    pub(super) fn ctl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.tool);
        command.arg("ctl").args(args);
        output(command.args(["--endpoints", &self.client, "--command-timeout", "600s"]))
    }

    /// The status that the server gives of itself.
    pub(super) fn status(&self) -> Result<Value, String> {
        let text = self.ctl(&["endpoint", "status", "-w", "json"])?;
        let status: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(status[0]["Status"].clone())
    }

    /// Resident memory now, in bytes.
    pub(super) fn resident_bytes(&self) -> Result<f64, String> {
        let pid = self.process.as_ref().map_or(0, Child::id);
        let path = format!("/proc/{pid}/status");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok());
        kib.map(|kib| kib * 1024.0).ok_or(format!("{path} has no VmRSS"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The comparison is over or has failed already; nothing is lost by what fails here.
        drop(self.stop());
        drop(std::fs::remove_dir_all(&self.data_dir));
        if let Some(own) = self.data_dir.parent() {
            drop(std::fs::remove_dir(own));
        }
    }
}

/// A benchmark that runs until it is told to end.
#[derive(Debug)]
pub(super) struct Background {
    process: Child,
}

impl Background {
    /// Interrupts the benchmark and returns its report.
    pub(super) fn finish(mut self) -> Result<Value, String> {
        output(Command::new("kill").args(["-INT", &self.process.id().to_string()]))?;
        let mut text = String::new();
        if let Some(mut pipe) = self.process.stdout.take() {
            pipe.read_to_string(&mut text).map_err(|error| error.to_string())?;
        }
        self.process.wait().map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("bench in the background: {error}"))
    }
}

/// A number in a report, 0 if there is none.
pub(super) fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_default()
}

fn free_address() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.to_string()).map_err(|error| error.to_string())
}

/// Whether the server says that it is healthy.
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
