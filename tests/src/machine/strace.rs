//! Tampering with the system calls of a process that runs, by `strace`.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::Syncs;
use crate::skipped;

/// An `strace` that is attached to a process. It lets go when this is dropped.
#[derive(Debug)]
pub struct Strace {
    tracer: Child,
}

impl Strace {
    /// True when there is one that may attach itself to other processes.
    #[must_use]
    pub fn is_present() -> bool {
        let Ok(mut sleeper) = Command::new("sleep").arg("60").spawn() else { return false };
        let present = Self::try_attach(sleeper.id(), Syncs::Fail).is_some();
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        if !present {
            skipped("no strace that may attach itself: failing syncs of etcd");
        }
        present
    }

    /// Tampers with the syncs of a process from now on.
    #[must_use]
    pub fn attach(pid: u32, syncs: Syncs) -> Self {
        Self::try_attach(pid, syncs).expect("strace could attach itself before")
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
        // It goes on to say so of every thread; a pipe that nobody reads would stop it.
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
        // Ended like this it lets go of the process; it may be gone already, with the process.
        let pid = self.tracer.id().to_string();
        drop(Command::new("kill").args(["-s", "TERM", &pid]).stderr(Stdio::null()).status());
        drop(self.tracer.wait());
    }
}
