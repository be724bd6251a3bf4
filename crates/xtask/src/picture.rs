//! `cargo xtask picture` creates the screenshot of `quorate ctl top` for the README.
//!
//! The command starts a cluster of three members on this machine, applies the load of a Kubernetes API server, runs
//! `ctl top` in a terminal of fixed size, and writes the last screen as an SVG image with text ([`PICTURE`]). `script`
//! from util-linux provides the terminal.
//!
//! The member names, the load and the size of the terminal are fixed. The figures on the screen are measured, so each
//! run writes a different image.

mod screen;

use std::ffi::OsString;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::workspace::{output_bytes, root, status, target};
use crate::{Outcome, say};
use screen::Screen;

/// The path of the image, relative to the root of the repository.
const PICTURE: &str = "docs/top.svg";

const COLUMNS: usize = 112;
const ROWS: usize = 24;

/// The maximum time for a cluster to start and become ready.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long `ctl top` runs, in seconds. Members measure the round trips to their peers every 30 seconds, so the last
/// screen shows at least one measurement.
const WATCHED_SECS: u64 = 45;

/// The arguments of the `quorate bench` processes, one line for each.
const LOADS: [&str; 2] = [
    "kubernetes --keys 3000 --rate 300 --prefix /registry/",
    "put --keys 2000 --rate 150 --prefix /jobs/queue/",
];

const MEMBERS: [&str; 3] = ["amsterdam", "berlin", "cordoba"];

/// Processes that are killed when this value is dropped.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            // The process may have exited already.
            drop(process.kill());
            drop(process.wait());
        }
    }
}

/// Creates the image with the program given by `--binary`, or with a release build.
pub(crate) fn run(args: &[String]) -> Outcome {
    let program = match args {
        [] => built()?,
        [flag, path] if flag == "--binary" => PathBuf::from(path),
        _ => return Err("usage: cargo xtask picture [--binary PATH]".to_owned()),
    };
    let folder = target()?.join("picture");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(failed)?;
    }
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let (mut processes, endpoints) = cluster(&program, &folder)?;
    wait_for_health(&program, &endpoints)?;
    say("picture: the members are ready");
    for load in LOADS {
        let mut command = Command::new(&program);
        command.arg("bench").args(load.split(' ')).args(["--duration", "120s"]);
        processes.0.push(start(command.arg("--endpoints").arg(&endpoints))?);
    }
    std::thread::sleep(Duration::from_secs(5));
    let shown = top(&program, &endpoints)?;
    let image = Screen::of(&shown, COLUMNS, ROWS).svg("quorate ctl top");
    let path = root().join(PICTURE);
    std::fs::write(&path, image).map_err(|error| format!("{}: {error}", path.display()))?;
    say(&format!("picture: wrote {PICTURE}"));
    Ok(())
}

/// Builds the program in release mode.
fn built() -> Result<PathBuf, String> {
    status(&mut crate::workspace::cargo(&["build", "--release", "--package", "quorate"]))?;
    Ok(target()?.join("release/quorate"))
}

/// Starts the members. Returns their processes and client endpoints.
fn cluster(program: &Path, folder: &Path) -> Result<(Processes, String), String> {
    let ports = free_ports(2 * MEMBERS.len())?;
    let (clients, peers) = ports.split_at(MEMBERS.len());
    let url = |port: &u16| format!("http://127.0.0.1:{port}");
    let initial: Vec<String> =
        MEMBERS.iter().zip(peers).map(|(name, port)| format!("{name}={}", url(port))).collect();
    let mut processes = Processes(Vec::new());
    for (number, name) in MEMBERS.iter().enumerate() {
        let [client, peer] = [url(&clients[number]), url(&peers[number])];
        let mut data = OsString::from("--data-dir=");
        data.push(folder.join(name));
        let mut log = OsString::from("--log-outputs=");
        log.push(folder.join(format!("{name}.log")));
        let mut command = Command::new(program);
        command.args(["--name", name]).arg(data).arg(log);
        command.args(["--initial-cluster", &initial.join(",")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        processes.0.push(start(command.arg("--metrics=extensive"))?);
    }
    let endpoints: Vec<String> = clients.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    Ok((processes, endpoints.join(",")))
}

fn start(command: &mut Command) -> Result<Child, String> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))
}

/// Returns currently unused ports.
fn free_ports(count: usize) -> Result<Vec<u16>, String> {
    let failed = |error: std::io::Error| format!("cannot find a free port: {error}");
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<Result<_, _>>()
        .map_err(failed)?;
    listeners.iter().map(|listener| Ok(listener.local_addr().map_err(failed)?.port())).collect()
}

fn wait_for_health(program: &Path, endpoints: &str) -> Outcome {
    let begin = Instant::now();
    loop {
        let mut command = Command::new(program);
        let Err(problem) =
            output_bytes(command.args(["ctl", "endpoint", "health", "--endpoints", endpoints]))
        else {
            return Ok(());
        };
        if begin.elapsed() > START_LIMIT {
            return Err(format!("the members are not healthy: {problem}"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs `ctl top` in a terminal and returns its output. The terminal stays open until the program is killed, so that
/// the last screen is complete.
fn top(program: &Path, endpoints: &str) -> Result<Vec<u8>, String> {
    let line = format!(
        "stty cols {COLUMNS} rows {ROWS}; exec '{}' ctl top --interval 2s --endpoints {endpoints}",
        program.display()
    );
    let mut command = Command::new("timeout");
    command.args(["--preserve-status", "--signal=KILL", &format!("{WATCHED_SECS}s")]);
    command.args(["script", "--quiet", "--flush", "--command", &line, "/dev/null"]);
    command.env("SHELL", "/bin/sh").env("TERM", "xterm");
    let failed = |error: std::io::Error| format!("cannot run `timeout script`: {error}");
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = pipes.spawn().map_err(failed)?;
    // `script` ends the program when the standard input of `script` is closed, so the input stays open.
    let keyboard = process.stdin.take();
    let output = process.wait_with_output().map_err(failed)?;
    drop(keyboard);
    let shown = output.stdout;
    if shown.is_empty() {
        return Err(format!(
            "ctl top printed nothing: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(shown)
}
