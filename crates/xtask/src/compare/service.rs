//! A service in a comparison, as seen by clients: the endpoints for load and requests, and the processes whose cost is
//! measured.

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::workspace::output;

/// A load generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generator {
    /// `quorate bench`.
    Bench,
    /// An ordinary client: the `tonic_load` example of the tests package.
    Tonic,
}

/// Name and password of the user, for servers with authentication. The password is no secret, because the servers exist
/// only during the comparison.
pub(super) const USER: &str = "someone:a password";

/// Returns the user name.
pub(super) fn user_name() -> &'static str {
    USER.split(':').next().unwrap_or(USER)
}

/// The programs on the client side.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// Our own program. `bench` generates load, and `ctl` sends requests.
    pub(super) quorate: PathBuf,
    /// The tonic load generator, built only if a case needs it.
    pub(super) tonic_load: Option<PathBuf>,
    /// The directory with certificates, created only if a case needs them.
    pub(super) certificates: Option<PathBuf>,
}

/// The endpoints for clients, and the processes whose cost is measured.
#[derive(Clone, Debug)]
pub(super) struct Service {
    tools: Tools,
    /// The endpoints, separated by commas.
    endpoints: String,
    pids: Vec<u32>,
    /// The directory of the certificates, if the server requires them.
    certificates: Option<PathBuf>,
    /// Whether authentication is enabled.
    is_guarded: bool,
}

impl Service {
    /// Creates a service at `endpoint` that measures the cost of process `pid`.
    pub(super) fn new(tools: Tools, endpoint: &str, pid: Option<u32>) -> Self {
        let pids = pid.into_iter().collect();
        Self { tools, endpoints: endpoint.to_owned(), pids, certificates: None, is_guarded: false }
    }

    /// Sets the directory of the client certificates.
    pub(super) fn secured(self, certificates: Option<PathBuf>) -> Self {
        Self { certificates, ..self }
    }

    /// Makes requests carry the user's credentials, if authentication is enabled.
    pub(super) fn for_user(self, is_guarded: bool) -> Self {
        Self { is_guarded, ..self }
    }

    /// Returns the security flags for our programs.
    fn security(&self) -> Vec<OsString> {
        let user = if self.is_guarded { &["--user", USER][..] } else { &[] };
        let user = user.iter().map(OsString::from);
        let Some(folder) = &self.certificates else { return user.collect() };
        let flags = [("--cacert", "ca"), ("--cert", "client"), ("--key", "client.key")];
        let files = flags.iter().flat_map(|(flag, name)| [flag.into(), folder.join(name).into()]);
        user.chain(files).collect()
    }

    /// Combines the endpoints and processes of two services.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.endpoints = format!("{},{}", self.endpoints, other.endpoints);
        self.pids.extend(other.pids);
        self
    }

    /// Replaces the processes whose cost is measured.
    pub(super) fn at_the_cost_of(self, pids: Vec<u32>) -> Self {
        Self { pids, ..self }
    }

    /// Runs a benchmark and returns its report.
    pub(super) fn bench(&self, args: &[&str]) -> Result<Value, String> {
        self.load(Generator::Bench, args)
    }

    /// Runs a load generator, and returns its report.
    pub(super) fn load(&self, by: Generator, args: &[&str]) -> Result<Value, String> {
        let output = self.load_command(by, args)?.output().map_err(|error| error.to_string())?;
        // If operations failed, the exit code is not zero, but there is a report.
        serde_json::from_slice(&output.stdout).map_err(|error| {
            let complaint = String::from_utf8_lossy(&output.stderr);
            format!("{by:?} {}: {error}: {}", args.join(" "), complaint.trim())
        })
    }

    /// Starts a benchmark in the background, to be ended by [`Background::finish`].
    pub(super) fn bench_in_background(&self, args: &[&str]) -> Result<Background, String> {
        let mut command = self.load_command(Generator::Bench, args)?;
        let process = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        Ok(Background { process })
    }

    fn load_command(&self, by: Generator, args: &[&str]) -> Result<Command, String> {
        let mut command = match (by, &self.tools.tonic_load) {
            (Generator::Bench, _) => self.client("bench"),
            (Generator::Tonic, Some(program)) => Command::new(program),
            (Generator::Tonic, None) => return Err("tonic_load has not been built".to_owned()),
        };
        command.args(args).args(["--endpoints", &self.endpoints, "--json"]).args(self.security());
        for pid in &self.pids {
            command.arg("--pid").arg(pid.to_string());
        }
        Ok(command)
    }

    /// Returns a command of our program. An instrumented program records nothing, because the profile is for servers.
    fn client(&self, tool: &str) -> Command {
        let mut command = Command::new(&self.tools.quorate);
        command.arg(tool).env("LLVM_PROFILE_FILE", "/dev/null");
        command
    }

    /// Runs a command of the client and returns its output.
    pub(super) fn ctl(&self, args: &[&str]) -> Result<String, String> {
        let mut command = self.client("ctl");
        command.args(args).args(self.security());
        output(command.args(["--endpoints", &self.endpoints, "--command-timeout", "600s"]))
    }

    /// Returns the status of the first server.
    pub(super) fn status(&self) -> Result<Value, String> {
        let text = self.ctl(&["endpoint", "status", "-w", "json"])?;
        let status: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        Ok(status[0]["Status"].clone())
    }
}

/// A benchmark that runs until it is interrupted.
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
        serde_json::from_str(&text).map_err(|error| {
            format!("cannot parse the report of the background benchmark: {error}")
        })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // If an error occurred, the process is still running. Otherwise it has exited already, and killing it has no
        // effect.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Refuses a report with errors, because the figures of failed operations mean nothing.
pub(super) fn checked(report: Value) -> Result<Value, String> {
    let errors = number(&report, "/errors");
    if errors == 0.0 {
        return Ok(report);
    }
    Err(format!("{errors} operations failed: {}", report["error_texts"]))
}

/// Returns a number in a report; 0 if the number is missing.
pub(super) fn number(report: &Value, pointer: &str) -> f64 {
    report.pointer(pointer).and_then(Value::as_f64).unwrap_or_default()
}
