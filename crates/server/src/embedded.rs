//! A member embedded in another program.
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
//! Clients connect to the embedded member, as to any member, at `--listen-client-urls`. It is configured only with a
//! server's flags, because the environment of the process belongs to the host.
//!
//! # Guarantees
//!
//! * **The member ends with its handle.** Calling [`Member::stop`] or dropping the handle stops the member gracefully
//!   and waits for its threads to end. After that, its files are closed and its ports are free.
//! * **Its log lines go to the host.** Each line is a `tracing` event for the subscriber of the thread that started the
//!   member, even if that subscriber is local to the thread. Without a subscriber, the lines go to standard error.
//! * **Two members in one program share only the process's resources**: its memory, its descriptor limit, and its CPU
//!   and heap profiles.
//! * **The process belongs to the host.** The member handles no signals, raises no limits, does not notify the init
//!   system, and does not end the process after a fault. Flags that configure log output are refused.
//!
//! # Not here
//!
//! Access to the member other than over the network. Stopping the threads after a fault ([`End::Failed`]): nothing more
//! may be written at that point, so the host program should exit.

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

use crate::engine_start_error::EngineStartError;
use crate::remedy;
use crate::server::{self, Ended};
use crate::supervisor::{Host, Progress, Supervisor};

/// Why a member did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The flags are invalid. Contains the error that a server prints.
    #[error("{0}")]
    Flags(String),
    /// The member was removed from its cluster. Its directory is no longer usable.
    #[error("the member has been permanently removed from the cluster")]
    Removed,
    /// The member failed to start. Contains the reason.
    #[error("{0}")]
    Start(String),
}

/// Why a member has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The host stopped the member.
    Stopped,
    /// The member was removed from its cluster. Its directory is no longer usable.
    Removed,
    /// The member's state is bad. When the member is started again, it fetches its state from another member
    /// (`--rebuild-corrupt-member`).
    MustStartAgain(String),
    /// The member or its machine has failed.
    Failed {
        /// The error that ended the member.
        error: String,
        /// The advice for the operator.
        remedy: String,
    },
}

/// Why a member is not ready to serve clients.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReady {
    /// The member is still waiting for its cluster.
    #[error("the member is not ready to serve clients yet")]
    Yet,
    /// The member has ended.
    #[error("the member has ended: {0:?}")]
    Ended(End),
}

/// The parts of a member's state that are visible outside its threads.
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

/// A member embedded in this program. Dropping it stops the member. The module documentation lists the guarantees.
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

/// An empty environment, so that only flags configure the member.
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
    /// Starts a member with a server's flags, such as `--name=a`. Returns once its threads are running. By then its
    /// files are open, and a member that joins a cluster has received the member list, which may take a long time.
    ///
    /// # Errors
    ///
    /// The flags are invalid, or the member failed to start. In both cases, no thread of the member is running.
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
                Some(Ok(end)) => {
                    break Err(StartError::Start(format!("the member has ended: {end:?}")));
                }
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

    /// Waits until the member serves clients. By then it has joined its cluster and published its name and URLs.
    ///
    /// # Errors
    ///
    /// The member does not serve clients before the timeout, or it has ended.
    pub fn wait_ready(&self, timeout: Duration) -> Result<(), NotReady> {
        let deadline = Instant::now() + timeout;
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

    /// Returns the member's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.handles.info.id()
    }

    /// Returns the id of the member's cluster.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.handles.info.cluster_id()
    }

    /// Returns the id of the leader that this member follows, if it knows one.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        let leader = self.handles.info.member_status().leader();
        (leader != quorate_raft::NONE).then_some(leader)
    }

    /// Returns the newest revision of the keyspace that this member has applied.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.handles.reader.current_revision()
    }

    /// Returns the index of the newest log entry that this member has applied.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.handles.info.member_status().applied().get()
    }

    /// Returns all metrics of the member in the text format of `/metrics`.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.render()
    }

    /// Returns the reason why the member has ended, if it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.shared.known.lock().end.as_ref().and_then(|end| end.as_ref().ok().cloned())
    }

    /// Waits until the member ends because it was removed or failed.
    #[must_use]
    pub fn wait(mut self) -> End {
        self.finish()
    }

    /// Stops the member as a signal stops a server: transfers the leadership, finishes requests and closes the files.
    #[must_use = "the member may have ended earlier, for another reason"]
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
            remedy: "report this error, with the log lines before it".to_owned(),
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
    // A panic is already logged, and the member's result is stored elsewhere.
    drop(thread.join());
}

/// Builds the configuration of a member from flags only.
fn configure(arguments: &[String]) -> Result<Config, StartError> {
    let parsed = quorate_config::parse(arguments, &NoEnvironment).map_err(|exit| {
        let error = exit.lines.iter().rev().find_map(|line| line.line.text_of("error"));
        StartError::Flags(error.unwrap_or(exit.stdout + &exit.stderr).trim().to_owned())
    })?;
    if parsed.config.log != log::Settings::default() {
        let text = "an embedded member has no log of its own: its log lines go to the program's \
                    subscriber; remove the log flags";
        return Err(StartError::Flags(text.to_owned()));
    }
    for pending in &parsed.lines {
        pending.line.emit();
    }
    Ok(parsed.config)
}

/// Runs the member. Called on a thread of its own.
fn live(config: &Config, arguments: &[String], shared: &Arc<Shared>, stop: oneshot::Receiver<()>) {
    let listening = Arc::clone(shared);
    let progress = move |progress| {
        listening.note(|known| match progress {
            Progress::Started(handles, metrics) => known.started = Some((handles, metrics)),
            Progress::Ready => known.is_ready = true,
        });
    };
    let mut supervisor = Supervisor::Host(Host { stop, progress: Box::new(progress) });
    let ended = match config.engine.get() {
        Some(_) => Err(EngineStartError::Embedded.into()),
        None => server::run(config, arguments, &mut supervisor),
    };
    let end = match ended {
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
    // Releases the handles. A caller that is still waiting for the member to start receives the reason why it ended.
    shared.note(|known| {
        known.started = None;
        known.end = Some(end);
    });
}
