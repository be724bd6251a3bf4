//! The life of a member from start to stop.
//!
//! The member starts from the bottom up: files, core threads, connection runtimes, the listeners for peers and for
//! metrics, background duties. Clients are served only after the member has published its name to the cluster. The
//! member stops in the reverse order, and each thread passes on its remaining work before it ends: streams end, requests
//! finish, the last hard state is written, and the last batch is committed. The supervisor decides when to stop.
//!
//! # Not here
//!
//! The creation of the parts (`assembly`, `serving`) and their work. This file owns the parts and shuts them down.

use std::sync::Arc;
use std::time::Duration;

use quorate_config::Config;
use quorate_core::bootstrap::Refusal;
use quorate_member::fatal::{End, Fatal};
use quorate_member::{TimedDisk, housekeeping, log_limits, versions};
use quorate_net::descriptors::{self, Budget, ReservedListeners};
use quorate_node::LogFault;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::{Disk, RealDisk};
use quorate_storage::{lost_log, rebuild};
use quorate_telemetry::log;

use crate::assembly::{Core, core_count, duties};
use crate::engine_start_error::EngineStartError;
use crate::listeners::{BindError, Listeners};
use crate::observing::{Observing, ObservingError};
use crate::restored::Proof;
use crate::security::{Security, SecurityError, warn_of_open_peers};
use crate::serving::{Serving, endpoints, serve_metrics, serve_peers};
use crate::supervisor::{Stop, Supervisor};
use crate::watchdog::Watchdog;
use crate::{bootstrap, console, damage, expiry, metrics, scrape, start_line, tokens};

/// How long a removed member keeps running before it stops.
const REMOVAL_PAUSE: Duration = Duration::from_secs(1);

/// Number of runtimes other than the client runtimes: the peer runtime, and the runtime that controls start and stop.
const RUNTIMES_BESIDE_CORES: usize = 2;

/// Why a member stopped.
pub(crate) enum Ended {
    /// The supervisor stopped the member.
    Stopped(Stop),
    Fault(Fatal),
    LogFault {
        fault: LogFault,
        member_id: u64,
    },
    Removed,
    /// The member's state must be rebuilt. The rebuild takes place when the member starts again.
    Rebuild(String),
    /// A thread failed because the backend file is damaged. The state must be rebuilt.
    Damaged(Fatal),
}

impl Ended {
    fn new(end: End, core: &Core) -> Self {
        let may_rebuild = core.handles.info.limits().rebuilds_itself;
        match end {
            End::Fault(fatal) if may_rebuild && damage::is_of_state(&*fatal.error) => {
                Self::Damaged(fatal)
            }
            End::Fault(fatal) => Self::Fault(fatal),
            End::LogFault(fault) => Self::LogFault { fault, member_id: core.handles.info.id() },
            End::Removed => Self::Removed,
            End::Rebuild(reason) => Self::Rebuild(reason),
        }
    }
}

/// Why a member did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    Descriptors(#[from] descriptors::TooFew),
    #[error(transparent)]
    Config(#[from] quorate_config::StartRefusal),
    #[error(transparent)]
    Tokens(#[from] tokens::TokenFault),
    #[error(transparent)]
    Boot(#[from] bootstrap::BootError),
    #[error("failed to start a thread: {0}")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Observing(#[from] ObservingError),
    #[error(transparent)]
    Console(#[from] quorate_console::StartError),
    #[error(transparent)]
    Engine(#[from] EngineStartError),
}

/// Runs a member, whose data is in files, until it ends. The debug pages show `arguments`.
pub(crate) fn run(
    config: &Config,
    arguments: &[String],
    supervisor: &mut Supervisor,
) -> Result<Ended, StartError> {
    config.check_start()?;
    let budget = connection_budget(config)?;
    let provider = tokens::provider(config)?;
    let retention = config.auto_compaction().unwrap_or_default();
    let security = Security::prepare(config)?;
    let listeners = Listeners::bind(config, &security)?;
    let metrics = Arc::new(metrics::for_config(config));
    let watch = expiry::Watch::over(&security, config);
    let (disk, times) = TimedDisk::over(RealDisk);
    start_line::log(config, &*disk);
    log_limits(config);
    warn_of_open_peers(config);
    // The observers are started first, so that errors in their configuration are reported before files are created.
    let observing = Observing::start(config, &metrics)?;
    let console = console::open(config)?;
    let booted = match bootstrap::boot(config, &disk, &security.dialer) {
        // The member was removed earlier. This is not reported as an error, so that the init system does not restart
        // the member.
        Err(bootstrap::BootError::Refused(Refusal::Removed)) => {
            log_removal();
            return Ok(Ended::Removed);
        }
        booted => booted?,
    };
    let core = Core::start(config, booted, provider, (&disk, times), (&metrics, security.dialer))
        .map_err(StartError::Thread)?;
    let handles = Arc::clone(&core.handles);
    supervisor.note_started(&handles, &metrics);
    scrape::register_callbacks(&metrics, (&handles, &core.services.accounts), &budget);
    // Peers are served first, because without them there is no leader that could accept this member's name.
    let Listeners { peer, metrics: for_scrapers, for_clients } = listeners;
    let serving_peers = serve_peers(peer, config, &core, observing.auditor(), &budget.peers);
    let served = (&core.services, &core.runtimes);
    let endpoints = endpoints(config, &core.services, arguments);
    let scraped = serve_metrics(for_scrapers, config, served, &endpoints, &budget.metrics);

    let runtimes = core.runtimes.first().clone();
    for duty in duties(config, &core, retention, (watch, &metrics)) {
        runtimes.spawn(duty);
    }
    let client_urls = config.advertise_client_urls.iter().map(ToString::to_string).collect();
    let published = runtimes.spawn(introduce(Arc::clone(&handles), client_urls, core.proof()));
    let control = control_runtime()?;
    let faults = core.faults.clone();
    let early_end = control.block_on(async {
        tokio::select! {
            // Faults take precedence over all other events.
            biased;
            end = faults.first() => Some(Ended::new(end, &core)),
            stop = supervisor.wait_for_stop() => Some(Ended::Stopped(stop)),
            _ = published => None,
        }
    });
    if let Some(ended) = early_end {
        return Ok(stop_member(ended, config, &control, (None, scraped), core));
    }
    log::info!("ready to serve client requests");
    let services = (observing.observers(), console);
    let serving = for_clients.serve(config, served, &endpoints, services, &budget.clients);
    start_line::log_serving(config, handles.info.id());
    supervisor.note_ready();
    let alive = supervisor.watchdog();
    let ended = control.block_on(async {
        tokio::select! {
            biased;
            end = faults.first() => Ended::new(end, &core),
            stop = supervisor.wait_for_stop() => Ended::Stopped(stop),
            () = notify_watchdog(alive, &handles) => unreachable!("the watch never ends"),
        }
    });
    let ended = stop_member(ended, config, &control, (Some(serving), scraped), core);
    drop(serving_peers);
    observing.finish();
    Ok(ended)
}

/// Creates the runtime that controls start and stop, on the calling thread.
pub(crate) fn control_runtime() -> Result<tokio::runtime::Runtime, StartError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().map_err(StartError::Thread)
}

/// Publishes this member's name and URLs to the cluster. Then checks the state of a newly restored member, and waits a
/// short time for the cluster version to be set.
async fn introduce(handles: Arc<quorate_member::Handles>, client_urls: Vec<String>, proof: Proof) {
    housekeeping::publish(&handles, client_urls).await;
    proof.give().await;
    versions::settle_versions(&handles).await;
}

/// Notifies the init system's watchdog while consensus makes progress, if the watchdog is enabled.
async fn notify_watchdog(watchdog: Option<Watchdog>, handles: &quorate_member::Handles) {
    match watchdog {
        Some(watchdog) => {
            let member_status = handles.info.member_status();
            watchdog.keep(|limit| member_status.has_ticked_within(limit)).await;
        }
        None => std::future::pending().await,
    }
}

fn log_removal() {
    log::warn!("server error", "error" = Refusal::Removed.to_string());
    log::warn!("data-dir used by this member must be removed");
}

/// Stops the parts of the member one after another. After a failure of this machine, returns immediately, because
/// nothing more may be written.
fn stop_member(
    ended: Ended,
    config: &Config,
    control: &tokio::runtime::Runtime,
    (serving, scraped): (Option<Serving>, Serving),
    core: Core,
) -> Ended {
    match &ended {
        Ended::Fault(_) => return ended,
        Ended::Damaged(fatal) => {
            note_bad_state(&core, &fatal.error.to_string());
            return ended;
        }
        Ended::LogFault { .. } => {
            // Stopping the threads commits all applied entries, so that a copy of the directory contains them.
            return stop(ended, core);
        }
        Ended::Removed => {
            log_removal();
            // The other members may still need this member's acknowledgement of its removal, so the member pauses
            // before it stops.
            std::thread::sleep(REMOVAL_PAUSE);
        }
        Ended::Rebuild(reason) => {
            // The rebuild order is written first, so that the bad state is not used again even if a later step fails.
            note_bad_state(&core, reason);
        }
        Ended::Stopped(_) => {
            log::info!("closing etcd server", "name" = config.name, "data-dir" = config.data_dir);
        }
    }
    if let Some(serving) = serving {
        core.handles.streams.stop();
        control.block_on(serving.finish(config.request_timeout()));
    }
    // Until here, probes and scrapers were served, as in etcd.
    drop(scraped);
    if matches!(ended, Ended::Stopped(_) | Ended::Rebuild(_)) {
        control.block_on(core.handles.administrator.hand_over());
    }
    stop(ended, core)
}

/// Orders a rebuild of the state, which takes place when the member starts again.
fn note_bad_state(core: &Core, reason: &str) {
    if let Err(error) = rebuild::order(&*core.disk, &core.dirs, reason) {
        log::error!(
            "failed to record that this member's state is bad; the next check will detect it again",
            "path" = rebuild::path(&core.dirs).display().to_string(),
            "error" = error.to_string()
        );
    }
}

/// Stops the threads. If consensus detects a log fault before the last thread ends, the fault is reported instead of
/// the stop. Marks the directory if its log has lost entries.
fn stop(ended: Ended, core: Core) -> Ended {
    let (disk, dirs, faults) = (Arc::clone(&core.disk), core.dirs.clone(), core.faults.clone());
    let member_id = core.handles.info.id();
    if let Ended::LogFault { fault, .. } = &ended {
        mark_if_lost(&*disk, &dirs, fault);
    }
    core.running.stop();
    match (&ended, faults.so_far()) {
        (Ended::Stopped(_), Some(End::LogFault(fault))) => {
            mark_if_lost(&*disk, &dirs, &fault);
            Ended::LogFault { fault, member_id }
        }
        _ => ended,
    }
}

/// Divides the file descriptors of a server among its files and connections.
pub(crate) fn connection_budget(config: &Config) -> Result<Budget, descriptors::TooFew> {
    let reserved =
        ReservedListeners { peers: true, metrics: !config.listen_metrics_urls.is_empty() };
    descriptors::divide(core_count() + RUNTIMES_BESIDE_CORES, reserved)
}

/// Marks a directory whose log has lost entries, so that a member restarted on it does not vote.
fn mark_if_lost(disk: &dyn Disk, dirs: &DataDir, fault: &LogFault) {
    match fault {
        LogFault::LogLost(_) => {}
        LogFault::GroupLost(_) => return,
    }
    if let Err(error) = lost_log::mark(disk, dirs, &fault.to_string()) {
        let path = lost_log::path(dirs);
        log::error!(
            "failed to mark the log in this data directory as lost: do not start a member on this data directory again",
            "path" = path.display().to_string(),
            "error" = error.to_string()
        );
    }
}
