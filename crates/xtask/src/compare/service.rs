//! A service under comparison, as clients see it: load is put on it, and questions are asked.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::workspace::output;

/// What makes the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generator {
    /// `quorate bench`.
    Bench,
    /// An ordinary client: the example `tonic_load` of the tests.
    Tonic,
}

/// Name and password of the user who asks where authentication is on. The servers live for the comparison alone.
pub(super) const USER: &str = "someone:a password";

/// The name alone.
pub(super) fn user_name() -> &'static str {
    USER.split(':').next().unwrap_or(USER)
}

/// The programs on the side of the clients.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// Our own program: `bench` makes load, `ctl` asks questions.
    pub(super) quorate: PathBuf,
    /// Built where a case wants it.
    pub(super) tonic_load: Option<PathBuf>,
    /// A folder of certificates, made where a case wants them.
    pub(super) certificates: Option<PathBuf>,
}

/// Where clients go, and the processes whose cost is measured.
#[derive(Clone, Debug)]
pub(super) struct Service {
    tools: Tools,
    /// Separated by commas.
    endpoints: String,
    pids: Vec<u32>,
    /// Where the certificates are that the server asks for, if it does.
    certificates: Option<PathBuf>,
    /// Whether the server asks who wants something.
    is_guarded: bool,
}

impl Service {
    /// What is reached at `endpoint`, at the cost of the process `pid`.
    pub(super) fn new(tools: Tools, endpoint: &str, pid: Option<u32>) -> Self {
        let pids = pid.into_iter().collect();
        Self { tools, endpoints: endpoint.to_owned(), pids, certificates: None, is_guarded: false }
    }

    /// The same with certificates.
    pub(super) fn secured(self, certificates: Option<PathBuf>) -> Self {
        Self { certificates, ..self }
    }

    /// The same as the user, if the server asks who wants something.
    pub(super) fn for_user(self, is_guarded: bool) -> Self {
        Self { is_guarded, ..self }
    }

    /// What a program of ours is told of both.
    fn security(&self) -> Vec<OsString> {
        let user = if self.is_guarded { &["--user", USER][..] } else { &[] };
        let user = user.iter().map(OsString::from);
        let Some(folder) = &self.certificates else { return user.collect() };
        let flags = [("--cacert", "ca"), ("--cert", "client"), ("--key", "client.key")];
        let files = flags.iter().flat_map(|(flag, name)| [flag.into(), folder.join(name).into()]);
        user.chain(files).collect()
    }

    /// Both together.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.endpoints = format!("{},{}", self.endpoints, other.endpoints);
        self.pids.extend(other.pids);
        self
    }

    /// The same at the cost of other processes.
    pub(super) fn at_the_cost_of(self, pids: Vec<u32>) -> Self {
        Self { pids, ..self }
    }

    /// Runs a benchmark and returns its report.
    pub(super) fn bench(&self, args: &[&str]) -> Result<Value, String> {
        self.load(Generator::Bench, args)
    }

    /// Has a generator make load and returns its report.
    pub(super) fn load(&self, by: Generator, args: &[&str]) -> Result<Value, String> {
        let output = self.load_command(by, args)?.output().map_err(|error| error.to_string())?;
        // A report that tells of failures comes with a failure's exit code.
        serde_json::from_slice(&output.stdout).map_err(|error| {
            let complaint = String::from_utf8_lossy(&output.stderr);
            format!("{by:?} {}: {error}: {}", args.join(" "), complaint.trim())
        })
    }

    /// Begins a benchmark, to be ended by [`Background::finish`].
    pub(super) fn bench_in_background(&self, args: &[&str]) -> Result<Background, String> {
        let mut command = self.load_command(Generator::Bench, args)?;
        let process = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        Ok(Background { process })
    }

    fn load_command(&self, by: Generator, args: &[&str]) -> Result<Command, String> {
        let mut command = match (by, &self.tools.tonic_load) {
            (Generator::Bench, _) => {
                let mut command = Command::new(&self.tools.quorate);
                command.arg("bench");
                command
            }
            (Generator::Tonic, Some(program)) => Command::new(program),
            (Generator::Tonic, None) => return Err("tonic_load has not been built".to_owned()),
        };
        command.args(args).args(["--endpoints", &self.endpoints, "--json"]).args(self.security());
        for pid in &self.pids {
            command.arg("--pid").arg(pid.to_string());
        }
        Ok(command)
    }

    /// Runs a command of the client and returns what it printed.
    pub(super) fn ctl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.tools.quorate);
        command.arg("ctl").args(args).args(self.security());
        output(command.args(["--endpoints", &self.endpoints, "--command-timeout", "600s"]))
    }

    /// The status that the (first) server gives of itself.
    pub(super) fn status(&self) -> Result<Value, String> {
        let text = self.ctl(&["endpoint", "status", "-w", "json"])?;
        let status: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(status[0]["Status"].clone())
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

impl Drop for Background {
    fn drop(&mut self) {
        // It has ended, unless something else failed and nobody wants its report.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A report without errors; figures of failed operations mean nothing.
pub(super) fn checked(report: Value) -> Result<Value, String> {
    let errors = number(&report, "/errors");
    if errors == 0.0 {
        return Ok(report);
    }
    Err(format!("{errors} operations failed: {}", report["error_texts"]))
}

/// A number in a report, 0 if there is none.
pub(super) fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_default()
}
