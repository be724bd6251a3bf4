//! Modifies the system calls of a running process with `strace`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::Syncs;
use crate::skipped;

/// A running `strace` that is attached to a process and detaches when it is dropped.
#[derive(Debug)]
pub struct Strace {
    tracer: Child,
}

impl Strace {
    /// Returns whether `strace` is installed and may attach to other processes.
    #[must_use]
    pub fn is_present() -> bool {
        let Ok(mut sleeper) = Command::new("sleep").arg("60").spawn() else { return false };
        let present = Self::try_attach(sleeper.id(), Syncs::Fail).is_some();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        if !present {
            skipped(
                "tests with failing syncs of etcd (strace is missing or may not attach to processes)",
            );
        }
        present
    }

    /// Changes how syncs of a process behave from now on.
    #[must_use]
    pub fn attach(pid: u32, syncs: Syncs) -> Self {
        Self::try_attach(pid, syncs).expect("strace was able to attach before")
    }

    fn try_attach(pid: u32, syncs: Syncs) -> Option<Self> {
        let what = match syncs {
            Syncs::Work => return None,
            Syncs::Fail => "error=EIO".to_owned(),
            Syncs::Take(longer) => format!("delay_enter={}", longer.as_micros()),
        };
        let mut tracer = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-p", &pid.to_string()])
            .args(["-e", "trace=fsync,fdatasync"])
            .args(["-e", &format!("inject=fsync,fdatasync:{what}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut said = BufReader::new(tracer.stderr.take()?);
        let mut line = String::new();
        said.read_line(&mut line).ok()?;
        // `strace` keeps reporting every thread, and would block if its output pipe were not read.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        if line.contains("attached") {
            return Some(Self { tracer });
        }
        drop(tracer.wait());
        None
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        // This signal makes `strace` detach. `strace` may already have exited together with the
        // process.
        let pid = self.tracer.id().to_string();
        drop(Command::new("kill").args(["-s", "TERM", &pid]).stderr(Stdio::null()).status());
        drop(self.tracer.wait());
    }
}
