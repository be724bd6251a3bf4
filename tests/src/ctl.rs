//! Debian's command-line tools, and programs that run to their end.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{DEADLINE, Kind, Server, notice};

/// What a program left behind.
#[derive(Debug)]
pub struct Finished {
    /// Exit status; nothing when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// The standard output of a program that ended well.
    #[must_use]
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }
}

/// `etcdctl` and `etcdutl`, pointed at a server.
#[derive(Clone, Debug)]
pub struct Ctl {
    endpoint: String,
}

impl Ctl {
    /// The tools, when they are here.
    #[must_use]
    pub fn of(server: &Server) -> Option<Self> {
        if Kind::etcd_program("etcdctl").is_none() {
            notice("no etcdctl (ETCD_BIN_DIR): its tests are skipped");
            return None;
        }
        Some(Self { endpoint: format!("127.0.0.1:{}", server.port()) })
    }

    /// A command, ready to start.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(Kind::etcd_program("etcdctl").unwrap());
        command.arg(format!("--endpoints={}", self.endpoint)).args(args);
        command
    }

    /// Runs `etcdctl`.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Finished {
        run_to_end(self.command(args), "")
    }

    /// Runs `etcdctl` with something to read.
    #[must_use]
    pub fn run_with_input(&self, args: &[&str], input: &str) -> Finished {
        run_to_end(self.command(args), input)
    }

    /// Runs `etcdutl`.
    #[must_use]
    pub fn utl(args: &[&str]) -> Finished {
        let mut command = Command::new(Kind::etcd_program("etcdutl").unwrap());
        command.args(args);
        run_to_end(command, "")
    }
}

/// Runs a program until it ends, and fails when it does not.
#[must_use]
pub fn run_to_end(mut command: Command, input: &str) -> Finished {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program that ends without reading is fine.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    let pid = child.id();
    let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
    let start = Instant::now();
    while !waiter.is_finished() {
        if start.elapsed() > DEADLINE {
            drop(Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status());
            let output = waiter.join().unwrap();
            panic!("{command:?} does not end: {output:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = waiter.join().unwrap();
    Finished {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
