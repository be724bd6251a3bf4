//! Runs Debian's command-line tools and other programs until they exit.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{DEADLINE, Kind, Server, missing};

/// Result of a program that has exited.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns the standard output of a program that succeeded. Panics if it failed.
    #[must_use]
    #[track_caller]
    pub fn success(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout
    }
}

/// The program used as `etcdctl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Debian's `etcdctl`.
    Etcdctl,
    /// `quorate ctl`.
    QuorateCtl,
}

/// A command-line tool that connects to a server.
#[derive(Clone, Debug)]
pub struct Ctl {
    tool: Tool,
    endpoints: String,
    user: Option<String>,
}

impl Ctl {
    /// Returns the tool, if it is installed.
    #[must_use]
    pub fn of(tool: Tool, server: &Server) -> Option<Self> {
        let present = match tool {
            Tool::Etcdctl => has_etcd_tools(),
            Tool::QuorateCtl => Kind::Quorate.is_present(),
        };
        let endpoints = format!("127.0.0.1:{}", server.front_port());
        present.then(|| Self { tool, endpoints, user: server.user_of_tools() })
    }

    /// Adds endpoints, which the tool may use if the first one does not answer.
    #[must_use]
    pub fn and<'a>(mut self, others: impl IntoIterator<Item = &'a Server>) -> Self {
        for server in others {
            self.endpoints.push_str(&format!(",127.0.0.1:{}", server.front_port()));
        }
        self
    }

    /// Inserts another endpoint before the others.
    #[must_use]
    pub fn after(mut self, endpoint: &str) -> Self {
        self.endpoints = format!("{endpoint},{}", self.endpoints);
        self
    }

    /// Returns the kind of the tool.
    #[must_use]
    pub const fn tool(&self) -> Tool {
        self.tool
    }

    /// Returns a command that is ready to start.
    #[must_use]
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = match self.tool {
            Tool::Etcdctl => Command::new(Kind::etcd_program("etcdctl").unwrap()),
            Tool::QuorateCtl => {
                let mut command = Command::new(Kind::Quorate.program());
                command.arg("ctl");
                command
            }
        };
        command.arg(format!("--endpoints={}", self.endpoints)).args(args);
        command.envs(self.user.iter().map(|user| ("ETCDCTL_USER", user)));
        command
    }

    /// Runs the tool.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> Finished {
        run_to_end(self.command(args), "")
    }

    /// Runs the tool with the given standard input.
    #[must_use]
    pub fn run_with_input(&self, args: &[&str], input: &str) -> Finished {
        run_to_end(self.command(args), input)
    }
}

/// Returns whether `etcdctl` and `etcdutl` are installed.
#[must_use]
pub fn has_etcd_tools() -> bool {
    let present = ["etcdctl", "etcdutl"].into_iter().all(|name| Kind::etcd_program(name).is_some());
    if !present {
        missing(
            "etcd",
            "tests that use etcdctl and etcdutl (these tools are missing: set ETCD_BIN_DIR)",
        );
    }
    present
}

/// The program used as `etcdutl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Utl {
    /// Debian's `etcdutl`.
    Etcdutl,
    /// `quorate utl`.
    Quorate,
}

impl Utl {
    /// Runs the tool.
    #[must_use]
    pub fn run(self, args: &[&str]) -> Finished {
        match self {
            Self::Etcdutl => etcdutl(args),
            Self::Quorate => {
                let mut command = Command::new(Kind::Quorate.program());
                command.arg("utl").args(args);
                run_to_end(command, "")
            }
        }
    }
}

/// Runs `etcdutl`.
#[must_use]
pub fn etcdutl(args: &[&str]) -> Finished {
    let mut command = Command::new(Kind::etcd_program("etcdutl").unwrap());
    command.args(args);
    run_to_end(command, "")
}

/// Runs a program until it exits. Fails at the deadline.
#[must_use]
pub fn run_to_end(mut command: Command, input: &str) -> Finished {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A program may exit without reading its input.
    drop(stdin.write_all(input.as_bytes()));
    drop(stdin);
    let pid = child.id();
    let waiter = std::thread::spawn(move || child.wait_with_output().unwrap());
    let start = Instant::now();
    while !waiter.is_finished() {
        if start.elapsed() > DEADLINE {
            drop(Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status());
            let output = waiter.join().unwrap();
            panic!("{command:?} did not exit: {output:?}");
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
