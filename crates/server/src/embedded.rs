//! A member within another program.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let member = quorate_server::Member::start(["--data-dir=/var/lib/host/etcd"])?;
//! member.wait_ready(Duration::from_secs(10))?;
//! println!("{} serves at revision {}", member.id(), member.revision());
//! let _end = member.stop();
//! # Ok(())
//! # }
//! ```
//!
//! Clients reach it as they reach any member, at `--listen-client-urls`. It is configured by a server's flags, and by
//! nothing else: a host's environment is its own.
//!
//! # Guarantees
//!
//! * **It ends with its handle.** [`Member::stop`], and dropping it, stops the member in order and waits for its threads: then
//!   its files are closed and its ports free.
//! * **What it says goes to the host**: each line is an event of `tracing` for the subscriber of the thread that started the
//!   member, be it that thread's alone. Where there is none, lines go to standard error.
//! * **Two members share nothing but the process**: its memory, its limit of descriptors, its profiles of CPU and heap.
//! * **The process stays the host's**: no signal is handled, no limit raised, no init system told, and no fault of the member
//!   ends it. Flags that are about the log are refused.
//!
//! # Not here
//!
//! A way to the member that is not the network's. And an end of all threads where the machine has failed ([`End::Failed`]): as
//! nothing more is to be written then, they are left as they are, and the host does best to end, too.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quorate_config::{Config, Surroundings};
use quorate_member::Handles;
use quorate_telemetry::metrics::Metrics;
use quorate_telemetry::{log, threads};
use tokio::sync::oneshot;

use crate::remedy;
use crate::server::{self, Ended};
use crate::supervisor::{Host, Progress, Supervisor};

/// Why there is no member.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The flags are wrong; what a server would say of them.
    #[error("{0}")]
    Flags(String),
    /// It has been removed from its cluster: its directory is of no use any more.
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    /// It could not be put together, with the reason.
    #[error("{0}")]
    Start(String),
}

/// Why a member has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was told to.
    Stopped,
    /// It has been removed from its cluster: its directory is of no use any more.
    Removed,
    /// Its state is bad and is to be fetched anew (`--rebuild-corrupt-member`), which its next start does.
    MustStartAgain(String),
    /// It, or the machine below it, has failed: how, and what to do.
    Failed {
        /// What has happened.
        error: String,
        /// What to do.
        remedy: String,
    },
}

/// A member that does not answer clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// Not yet: it waits for its cluster.
    #[error("the member is not ready to serve clients yet")]
    Yet,
    /// It has ended.
    #[error("the member has ended: {0:?}")]
    Ended(End),
}

/// What is known of a member from outside of its threads.
#[derive(Default)]
struct Known {
    started: Option<(Arc<Handles>, Arc<Metrics>)>,
    is_ready: bool,
    end: Option<Result<End, StartError>>,
}

#[derive(Default)]
struct Shared {
    known: Mutex<Known>,
    changed: Condvar,
}

impl Shared {
    fn note(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.lock());
        self.changed.notify_all();
    }
}

/// A member of this program's own. Dropping it stops it; see the module.
pub struct Member {
    handles: Arc<Handles>,
    metrics: Arc<Metrics>,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = format!("{:x}", self.id());
        f.debug_struct("Member").field("id", &id).finish_non_exhaustive()
    }
}

/// A world without an environment.
struct NoEnvironment;

impl Surroundings for NoEnvironment {
    fn environment(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn default_host(&self) -> Result<String, String> {
        quorate_config::ProcessSurroundings.default_host()
    }
}

impl Member {
    /// Starts a member with a server's flags, such as `--name=a`. Returns when its threads are at work: files are read
    /// by then, and the cluster that it joins has told it who its members are, for which it may have to wait.
    ///
    /// # Errors
    ///
    /// The flags are wrong, or the member cannot be put together. Nothing of it runs then.
    pub fn start(flags: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, StartError> {
        let mut arguments = vec!["quorate".to_owned()];
        arguments.extend(flags.into_iter().map(Into::into));
        let config = configure(&arguments)?;
        let shared = Arc::new(Shared::default());
        let (stop, stopping) = oneshot::channel();
        let run = {
            let shared = Arc::clone(&shared);
            move || live(&config, &arguments, &shared, stopping)
        };
        let thread = threads::spawn(std::thread::Builder::new().name("member".to_owned()), run);
        let thread = thread.map_err(|error| StartError::Start(error.to_string()))?;
        let mut known = shared.known.lock();
        let started = loop {
            if let Some(started) = known.started.clone() {
                break Ok(started);
            }
            match known.end.take() {
                None => shared.changed.wait(&mut known),
                Some(Err(error)) => break Err(error),
                Some(Ok(End::Removed)) => break Err(StartError::Removed),
                Some(Ok(end)) => break Err(StartError::Start(format!("it has ended: {end:?}"))),
            }
        };
        drop(known);
        match started {
            Ok((handles, metrics)) => {
                Ok(Self { handles, metrics, shared, stop: Some(stop), thread: Some(thread) })
            }
            Err(error) => {
                join(thread);
                Err(error)
            }
        }
    }

    /// Waits until the member answers clients: it has found its cluster, and has told it of itself.
    ///
    /// # Errors
    ///
    /// It does not yet, after so long, or has ended.
    pub fn wait_ready(&self, patience: Duration) -> Result<(), NotReady> {
        let deadline = Instant::now() + patience;
        let mut known = self.shared.known.lock();
        loop {
            if let Some(Ok(end)) = &known.end {
                return Err(NotReady::Ended(end.clone()));
            }
            if known.is_ready {
                return Ok(());
            }
            if self.shared.changed.wait_until(&mut known, deadline).timed_out() {
                return Err(NotReady::Yet);
            }
        }
    }

    /// The member's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.handles.profile.id()
    }

    /// The id of its cluster.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.handles.profile.cluster_id()
    }

    /// The id of the member that leads, as far as this one knows.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        let leader = self.handles.profile.standing().leader();
        (leader != quorate_raft::NONE).then_some(leader)
    }

    /// The newest revision of the keyspace that this member has applied.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.handles.reader.view().current_revision()
    }

    /// The index of the newest log entry that it has applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.handles.profile.standing().applied().get()
    }

    /// All series, as `/metrics` shows them to who asks for text.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.render()
    }

    /// Why it has ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.shared.known.lock().end.as_ref().and_then(|end| end.as_ref().ok().cloned())
    }

    /// Waits until the member ends by itself: until it is removed, or fails.
    #[must_use]
    pub fn wait(mut self) -> End {
        self.finish()
    }

    /// Stops the member, as a signal stops a server: the lead is handed over, requests are finished, files are closed.
    #[must_use = "it may have ended otherwise before"]
    pub fn stop(mut self) -> End {
        drop(self.stop.take());
        self.finish()
    }

    fn finish(&mut self) -> End {
        if let Some(thread) = self.thread.take() {
            join(thread);
        }
        self.end().unwrap_or_else(|| End::Failed {
            error: "the member's thread has panicked".to_owned(),
            remedy: "report it, with what was logged before".to_owned(),
        })
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            join(thread);
        }
    }
}

fn join(thread: JoinHandle<()>) {
    // A panic has been told; how the member ended is known otherwise.
    drop(thread.join());
}

/// The configuration of a member by flags alone.
fn configure(arguments: &[String]) -> Result<Config, StartError> {
    let parsed = quorate_config::parse(arguments, &NoEnvironment).map_err(|exit| {
        let told = exit.lines.iter().rev().find_map(|line| line.line.text_of("error"));
        StartError::Flags(told.unwrap_or(exit.stdout + &exit.stderr).trim().to_owned())
    })?;
    if parsed.config.log != log::Settings::default() {
        let text = "a member within a program has no log of its own: its lines go to the program's \
                    subscriber, and flags of the log have no effect";
        return Err(StartError::Flags(text.to_owned()));
    }
    for pending in &parsed.lines {
        pending.line.emit();
    }
    Ok(parsed.config)
}

/// The life of a member, on its own thread.
fn live(config: &Config, arguments: &[String], shared: &Arc<Shared>, stop: oneshot::Receiver<()>) {
    let listening = Arc::clone(shared);
    let progress = move |progress| {
        listening.note(|known| match progress {
            Progress::Started(handles, metrics) => known.started = Some((handles, metrics)),
            Progress::Ready => known.is_ready = true,
        });
    };
    let mut supervisor = Supervisor::Host(Host { stop, progress: Box::new(progress) });
    let end = match server::run(config, arguments, &mut supervisor) {
        Ok(Ended::Stopped(_)) => Ok(End::Stopped),
        Ok(Ended::Removed) => Ok(End::Removed),
        Ok(Ended::Rebuild(reason)) => Ok(End::MustStartAgain(reason)),
        Ok(Ended::Damaged(fatal)) => Ok(End::MustStartAgain(log::error_chain(&*fatal.error))),
        Ok(Ended::Fault(fatal)) => Ok(End::Failed {
            error: format!("{}: {}", fatal.task, log::error_chain(&*fatal.error)),
            remedy: remedy::after_fault(&*fatal.error).to_string(),
        }),
        Ok(Ended::LogFault { fault, member_id }) => Ok(End::Failed {
            error: fault.to_string(),
            remedy: remedy::after_log_fault(&fault, member_id, &config.data_dir),
        }),
        Err(error) => Err(StartError::Start(log::error_chain(&error))),
    };
    // Whoever waits for the start has what runs from here alone.
    shared.note(|known| {
        known.started = None;
        known.end = Some(end);
    });
}
