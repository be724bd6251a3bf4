//! Assembly: a member put together from its files, its threads and its listeners, and taken apart again.
//!
//! The order of starting is bottom up: files, core threads, connection runtimes, then the member's own
//! duties; clients are answered only once the member has told the cluster its name. The order of stopping
//! is the reverse, and each thread hands what it still holds to the next before it ends: streams are ended, requests
//! finished, the last hard state is written, the last batch is committed. Signals are heard from the beginning.
//!
//! # Not here
//!
//! What any of the parts does. This file owns them and shuts them down.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use quorate_api::deep_txn;
use quorate_core::{Pace, Purger};
use quorate_edge::{Access, Endpoints, HttpService, MemberProbe, PeerService, Router, Surface};
use quorate_node::LogFault;
use quorate_state::members::{Member, Members};
use quorate_state::units::MemberId;
use quorate_storage::data_dir::DataDir;
use quorate_storage::disk::{Disk, RealDisk};
use quorate_storage::lost_log;
use tokio::sync::{mpsc, watch};

use crate::bootstrap::{self, Booted};
use crate::expiry;
use crate::listeners::{BindError, ClientListeners, Listeners, tell};
use crate::meters;
use quorate_config::{Config, Gate, ProcessSurroundings};
use quorate_member::access::Provider;
use quorate_member::corruption;
use quorate_member::fatal::{End, Fatal, FaultReports};
use quorate_member::housekeeping;
use quorate_member::{Entrance, Handles, Identity, Limits, Running, Start, log_limits};
use quorate_net::descriptors;
use quorate_net::listen::{AddressLimit, ConnectionLimits, Listener, Patience, Places, Services};
use quorate_peer::Dialer;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;

use crate::remedy;
use crate::scrape;
use crate::security::{Security, SecurityError};
use crate::signals::{self, StopSignal, StopSignals};
use crate::systemd;
use crate::tokens;
use crate::transport;
use quorate_member::versions;
use quorate_net::runtime::{Runtimes, Threads};

/// How long requests may wait for the applier to catch up.
const APPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// Applying an entry for longer is worth a warning, when the flags do not say.
const SLOW_APPLY: Duration = Duration::from_millis(100);

/// Between a member's removal and its end.
const REMOVAL_PAUSE: Duration = Duration::from_secs(1);

/// Runtimes beside those for clients: the peers', and the control of start and stop.
const RUNTIMES_BESIDE_CORES: usize = 2;

/// Shutdown says what it waits for when it has waited this long.
const WAIT_TOLD: Duration = Duration::from_millis(300);

/// Runs a server with these arguments (the program's name first) until it is told to stop.
#[must_use]
pub fn main(arguments: &[String]) -> ExitCode {
    let config = match quorate_config::parse(arguments, &ProcessSurroundings)
        .and_then(|parsed| parsed.open_log(arguments))
    {
        Ok(config) => config,
        Err(exit) => return to_exit_code(exit.report()),
    };
    if let Err(error) = signals::ignore_user_signals() {
        log::warn!("failed to ignore user signals", "error" = error.to_string());
    }
    descriptors::raise_limit();
    let outcome = run(&config, arguments);
    let code = match outcome {
        Ok(Ended::Signal(signal)) => {
            log::info!("closed etcd server", "name" = config.name, "data-dir" = config.data_dir);
            signal.end_process()
        }
        Ok(Ended::Removed) => 0,
        Ok(Ended::Fault(fatal)) => {
            log::fatal!(
                "the member has failed and stops",
                "task" = fatal.task,
                "error" = log::error_chain(&*fatal.error),
                "what-to-do" = remedy::after_fault(&*fatal.error)
            );
            1
        }
        Ok(Ended::LogFault { fault, member_id }) => {
            log::fatal!(
                "the member cannot take part in its cluster any more and stops",
                "error" = fault.to_string(),
                "what-to-do" = remedy::after_log_fault(&fault, member_id, &config.data_dir)
            );
            1
        }
        Err(StartError::Descriptors(error)) => {
            log::fatal!(
                "file descriptor limit of etcd process is too low; please set higher",
                "limit" = error.limit,
                "recommended-limit" = error.needed,
                "error" = error.to_string()
            );
            1
        }
        Err(error) => {
            log::fatal!("discovery failed", "error" = log::error_chain(&error));
            1
        }
    };
    log::flush();
    to_exit_code(code)
}

fn to_exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

/// Why a member stopped.
enum Ended {
    Signal(StopSignal),
    Fault(Fatal),
    LogFault { fault: LogFault, member_id: u64 },
    Removed,
}

impl Ended {
    fn new(end: End, core: &Core) -> Self {
        match end {
            End::Fault(fatal) => Self::Fault(fatal),
            End::LogFault(fault) => Self::LogFault { fault, member_id: core.handles.profile.id() },
            End::Removed => Self::Removed,
        }
    }
}

/// Why a member did not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
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
    #[error("failed to install signal handlers: {0}")]
    Signals(#[source] std::io::Error),
}

fn run(config: &Config, arguments: &[String]) -> Result<Ended, StartError> {
    let mut stop_signals = StopSignals::install().map_err(StartError::Signals)?;
    config.check_start()?;
    let budget = descriptors::divide(core_count() + RUNTIMES_BESIDE_CORES)?;
    let provider = tokens::provider(config)?;
    let retention = config.auto_compaction().unwrap_or_default();
    let security = Security::prepare(config)?;
    let listeners = Listeners::bind(config, &security)?;
    let metrics = Arc::new(meters::made_for(config));
    let watch = expiry::Watch::over(&security, config);
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    log_start(config);
    log_limits(config);
    let booted = match bootstrap::boot(config, &disk, &security.dialer) {
        // The end that this member has come to already: no failure that a supervisor should answer by
        // another start.
        Err(bootstrap::BootError::Removed) => {
            log_removal();
            return Ok(Ended::Removed);
        }
        booted => booted?,
    };
    metrics.set_member_id(&format!("{:x}", booted.identity.member_id));
    let core = Core::start(config, booted, provider, &disk, (&metrics, security.dialer))
        .map_err(StartError::Thread)?;
    stop_signals.take_over();
    let handles = Arc::clone(&core.handles);
    scrape::plug_in(&metrics, &handles, &budget);
    // Peers are served first: without them there is no leader to tell our name to.
    let Listeners { peer, for_clients } = listeners;
    let serving_peers = serve_peers(peer, config, &core, &budget.peers);

    let runtimes = core.runtimes.first().clone();
    for duty in duties(config, &core, retention, (watch, &metrics)) {
        runtimes.spawn(duty);
    }
    let published = {
        let handles = Arc::clone(&handles);
        let client_urls: Vec<String> =
            config.advertise_client_urls.iter().map(|url| url.as_str().to_owned()).collect();
        runtimes.spawn(async move {
            housekeeping::publish(&handles, client_urls).await;
            versions::settle_versions(&handles).await;
        })
    };
    let control = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::Thread)?;
    let faults = core.faults.clone();
    let early_end = control.block_on(async {
        tokio::select! {
            // A fault leaves its mark, whatever else has come.
            biased;
            end = faults.first() => Some(Ended::new(end, &core)),
            signal = stop_signals.wait() => Some(Ended::Signal(signal)),
            _ = published => None,
        }
    });
    if let Some(ended) = early_end {
        return Ok(wind_up(ended, config, &control, None, core));
    }
    log::info!("ready to serve client requests");
    systemd::notify_ready();
    let serving = for_clients.serve(config, &core, arguments, &metrics, &budget.clients);
    let ended = control.block_on(async {
        tokio::select! {
            biased;
            end = faults.first() => Ended::new(end, &core),
            signal = stop_signals.wait() => Ended::Signal(signal),
        }
    });
    let ended = wind_up(ended, config, &control, Some(serving), core);
    drop(serving_peers);
    Ok(ended)
}

fn log_removal() {
    log::warn!("server error", "error" = bootstrap::BootError::Removed.to_string());
    log::warn!("data-dir used by this member must be removed");
}

/// Stops in order, unless this machine has failed: then nothing more is to be written.
fn wind_up(
    ended: Ended,
    config: &Config,
    control: &tokio::runtime::Runtime,
    serving: Option<Serving>,
    core: Core,
) -> Ended {
    match &ended {
        Ended::Fault(_) => return ended,
        Ended::LogFault { .. } => {
            // Whoever keeps a copy of the directory keeps all that this member has applied.
            return stop(ended, core);
        }
        Ended::Removed => {
            log_removal();
            // The others may still want to hear that this member has the entry that removed it.
            std::thread::sleep(REMOVAL_PAUSE);
        }
        Ended::Signal(_) => {
            log::info!("closing etcd server", "name" = config.name, "data-dir" = config.data_dir);
        }
    }
    if let Some(serving) = serving {
        core.handles.streams.stop();
        control.block_on(serving.finish(config.request_timeout()));
    }
    if matches!(ended, Ended::Signal(_)) {
        control.block_on(core.handles.administrator.hand_over());
    }
    stop(ended, core)
}

/// Stops the threads. What consensus has found out about the log until the last of them ended is told and marked.
fn stop(ended: Ended, core: Core) -> Ended {
    let (disk, dirs, faults) = (Arc::clone(&core.disk), core.dirs.clone(), core.faults.clone());
    let member_id = core.handles.profile.id();
    if let Ended::LogFault { fault, .. } = &ended {
        mark_if_lost(&*disk, &dirs, fault);
    }
    core.running.stop();
    match (&ended, faults.so_far()) {
        (Ended::Signal(_), Some(End::LogFault(fault))) => {
            mark_if_lost(&*disk, &dirs, &fault);
            Ended::LogFault { fault, member_id }
        }
        _ => ended,
    }
}

/// Sees to it that no later start votes from a directory whose log has lost entries.
fn mark_if_lost(disk: &dyn Disk, dirs: &DataDir, fault: &LogFault) {
    match fault {
        LogFault::LogLost(_) => {}
        LogFault::GroupLost(_) => return,
    }
    if let Err(error) = lost_log::mark(disk, dirs, &fault.to_string()) {
        let path = lost_log::path(dirs);
        log::error!(
            "failed to mark the data directory: no member may be started from it again",
            "path" = path.display().to_string(),
            "error" = error.to_string()
        );
    }
}

fn log_start(config: &Config) {
    log::info!(
        "starting an etcd server",
        "etcd-version" = quorate_release::ETCD_VERSION,
        "git-sha" = quorate_release::git_sha(),
        "quorate-version" = quorate_release::QUORATE_VERSION,
        "go-os" = quorate_release::go_os(),
        "go-arch" = quorate_release::go_arch(),
        "max-cpu-set" = core_count(),
        "name" = config.name,
        "data-dir" = config.data_dir,
        "wal-dir" = config.wal_dir,
        "heartbeat-interval" = Duration::from_millis(config.heartbeat_interval_ms),
        "election-timeout" = Duration::from_millis(config.election_timeout_ms),
        "snapshot-count" = config.snapshot_count,
        "initial-cluster" = config.initial_cluster,
        "initial-cluster-token" = config.initial_cluster_token,
        "quota-backend-bytes" = config.quota_backend_bytes,
        "feature-gates" = config.feature_gates.to_string()
    );
}

/// What the member does by itself, as tasks.
fn duties(
    config: &Config,
    core: &Core,
    retention: Option<quorate_config::Retention>,
    (watch, metrics): (expiry::Watch, &Arc<Metrics>),
) -> Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> {
    let handles = || Arc::clone(&core.handles);
    let purger = Purger {
        disk: Arc::clone(&core.disk),
        snap_dir: core.dirs.snap(),
        wal_dir: core.dirs.wal().to_path_buf(),
        snapshots_max: usize::try_from(config.max_snapshots).unwrap_or(usize::MAX),
        segments_max: usize::try_from(config.max_wals).unwrap_or(usize::MAX),
    };
    let mut duties: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = vec![
        Box::pin(housekeeping::follow_leadership(handles())),
        Box::pin(housekeeping::watch_for_leader(handles())),
        Box::pin(versions::keep_cluster_version(handles())),
        Box::pin(versions::keep_storage_version(handles())),
        Box::pin(versions::end_downgrade(handles())),
        Box::pin(housekeeping::end_leases(handles())),
        Box::pin(housekeeping::reload_keys(handles())),
        Box::pin(housekeeping::catch_up_watchers(handles(), core.faults.clone())),
        Box::pin(housekeeping::purge_files(purger, core.faults.clone())),
        Box::pin(corruption::hash_compactions(handles(), core.faults.clone())),
    ];
    if let Some(period) = config.corrupt_check_time.positive() {
        let faults = core.faults.clone();
        duties.push(Box::pin(corruption::compare_periodically(handles(), period, faults)));
    }
    if core.handles.profile.limits().compares_compactions
        && let Some(period) = config.compact_hash_check_time.positive()
    {
        duties.push(Box::pin(corruption::compare_compactions(handles(), period)));
    }
    if let Some(retention) = retention {
        duties.push(Box::pin(housekeeping::compact_automatically(handles(), retention)));
    }
    if !watch.is_empty() {
        duties.push(Box::pin(expiry::keep_watch(watch, Arc::clone(metrics))));
    }
    duties
}

/// The core threads and the runtimes of one member.
struct Core {
    handles: Arc<Handles>,
    running: Running,
    runtimes: Arc<Runtimes>,
    /// The transport's, which serves the peer listener.
    peer_runtimes: Arc<Runtimes>,
    faults: FaultReports,
    disk: Arc<dyn Disk>,
    dirs: DataDir,
    /// The members, this one among them, before the log tells of any.
    known_at_start: Arc<[Member]>,
}

impl Core {
    fn start(
        config: &Config,
        booted: Booted,
        provider: Provider,
        disk: &Arc<dyn Disk>,
        (metrics, dialer): (&Arc<Metrics>, Dialer),
    ) -> std::io::Result<Self> {
        let Booted { identity, dirs, wal, backend, state, node, peers: others } = booted;
        let faults = FaultReports::new();
        let entrance = Entrance::new(faults.clone());
        let snapshots = transport::SnapshotDir { disk: Arc::clone(disk), path: dirs.snap() };
        let (peer_runtimes, peers) =
            transport::start(config, &identity, entrance.reports(), snapshots, (metrics, dialer))?;
        let known_at_start = with_own(others, &identity, config);
        peers.set_members(&Members::new(known_at_start.iter().cloned(), []));
        peers.set_members(state.members());
        let start = Start {
            identity,
            limits: limits(config),
            pace: pace(config),
            heartbeat: Duration::from_millis(config.heartbeat_interval_ms),
            silence_max: silence_max(config),
            slow_apply: config.warning_apply_duration.positive().unwrap_or(SLOW_APPLY),
            disk: Arc::clone(disk),
            snap_dir: dirs.snap(),
            wal,
            backend,
            state,
            node,
            peers,
            metrics: Arc::clone(metrics),
            provider,
        };
        let running = quorate_member::start(start, entrance)?;
        let stack_bytes = deep_txn::STACK_BYTES;
        let threads = Threads { name: "conn", count: core_count(), stack_bytes };
        let runtimes = Runtimes::start(threads, |_| quorate_member::deliver_outcomes())?;
        Ok(Self {
            handles: Arc::clone(&running.handles),
            running,
            runtimes: Arc::new(runtimes),
            peer_runtimes,
            faults,
            disk: Arc::clone(disk),
            dirs,
            known_at_start,
        })
    }
}

/// One runtime for each serves clients.
fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// All members, where the others were learnt at the start.
fn with_own(mut members: Vec<Member>, identity: &Identity, config: &Config) -> Arc<[Member]> {
    if !members.is_empty() {
        let urls = config.initial_advertise_peer_urls.iter().map(ToString::to_string).collect();
        let id = MemberId(identity.member_id);
        members.push(Member { name: identity.name.clone(), ..Member::new(id, urls) });
        members.sort_by_key(|member| member.id);
    }
    members.into()
}

/// For how long consensus may feel no time pass before this member doubts that it leads still.
fn silence_max(config: &Config) -> Duration {
    const HEARTBEATS: u32 = 3;
    Duration::from_millis(config.heartbeat_interval_ms) * HEARTBEATS
}

fn limits(config: &Config) -> Limits {
    let to_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Limits {
        request_bytes_max: to_usize(config.max_request_bytes),
        txn_ops_max: to_usize(config.max_txn_ops),
        request_timeout: config.request_timeout(),
        apply_timeout: APPLY_TIMEOUT,
        progress_interval: config.watch_progress_notify_interval(),
        quota_configured: match config.quota_backend_bytes {
            0 => 2 << 30,
            given => given,
        },
        bcrypt_cost: u32::try_from(config.bcrypt_cost).unwrap_or(u32::MAX),
        election_timeout: Duration::from_millis(config.election_timeout_ms),
        checks_reconfigurations: config.strict_reconfig_check,
        held_version: config.hold_cluster_version,
        downgrade_check_interval: config.downgrade_check_time.positive(),
        slow_unary: config.warning_unary_request_duration.positive().unwrap_or_default(),
        revocations_first: config.feature_gates.is_enabled(Gate::PriorityRequest),
        renews_at_once: config.feature_gates.is_enabled(Gate::FastLeaseKeepAlive),
        compares_compactions: config.feature_gates.is_enabled(Gate::CompactHashCheck),
        unhealthy_on_defragmentation: config
            .feature_gates
            .is_enabled(Gate::StopGRPCServiceOnDefrag),
    }
}

fn pace(config: &Config) -> Pace {
    let to_usize = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Pace {
        batch_interval: config.backend_batch_interval(),
        batch_ops_max: to_usize(config.backend_batch_limit()),
        compaction_step: to_usize(config.compaction_batch_limit()),
        compaction_pause: config.compaction_sleep_interval(),
        lease_extension_millis: config.election_timeout_ms,
    }
}

fn serve_peers(
    listeners: Vec<Listener>,
    config: &Config,
    core: &Core,
    places: &Arc<Places>,
) -> Serving {
    let (serving, stopping, alive) = Serving::begin();
    let service = PeerService::new(&core.handles, Arc::clone(&core.known_at_start));
    let services = Services { grpc: None::<Router>, http: Some(service) };
    // As etcd: a head within the patience of one read, and between two requests little more.
    let head = transport::read_timeout(config);
    let limits = connection_limits(config, Patience { idle: head * 2, head }, places);
    for listener in listeners {
        log::info!("serving peer traffic", "address" = listener.to_string());
        if let Err(error) = listener.give_up_after(transport::write_timeout(config)) {
            log::warn!("failed to limit the patience with peers", "error" = error.to_string());
        }
        listener.spawn(&core.peer_runtimes, services.clone(), &limits, &stopping, &alive);
    }
    serving
}

impl ClientListeners {
    fn serve(
        self,
        config: &Config,
        core: &Core,
        arguments: &[String],
        metrics: &Arc<Metrics>,
        places: &Arc<Places>,
    ) -> Serving {
        let (serving, stopping, alive) = Serving::begin();
        let endpoints = Arc::new(Endpoints::new(
            Arc::new(MemberProbe::new(&core.handles)),
            Arc::clone(metrics),
            Access::new(config),
            quorate_config::without_secrets(arguments),
        ));
        let grpc = Router::new(&core.handles);
        let http = |surface| {
            let service = HttpService::new(Arc::clone(&endpoints), surface);
            match surface {
                Surface::Client if config.enable_grpc_gateway => {
                    service.with_gateway(&core.handles, &grpc)
                }
                Surface::Client | Surface::Metrics => service,
            }
        };
        let most = config.max_connections_per_address;
        let per_address = (most > 0).then(|| Arc::new(AddressLimit::new(most)));
        let limits = connection_limits(config, Patience::WITH_CLIENTS, places);
        let limits = ConnectionLimits { per_address, ..limits };
        let both = Services {
            grpc: Some(grpc.clone()),
            http: config.serves_http_with_grpc().then(|| http(Surface::Client)),
        };
        let http_only = |surface| Services { grpc: None::<Router>, http: Some(http(surface)) };
        for listener in self.client {
            tell(&listener, if config.serves_http_with_grpc() { "grpc+http" } else { "grpc" });
            listener.spawn(&core.runtimes, both.clone(), &limits, &stopping, &alive);
        }
        for listener in self.client_http {
            tell(&listener, "http");
            let services = http_only(Surface::Client);
            listener.spawn(&core.runtimes, services, &limits, &stopping, &alive);
        }
        for listener in self.metrics {
            let services = http_only(Surface::Metrics);
            listener.spawn(&core.runtimes, services, &limits, &stopping, &alive);
        }
        serving
    }
}

fn connection_limits(
    config: &Config,
    patience: Patience,
    places: &Arc<Places>,
) -> ConnectionLimits {
    let keepalive =
        config.grpc_keepalive_interval.positive().zip(config.grpc_keepalive_timeout.positive());
    let streams = config.max_concurrent_streams;
    ConnectionLimits {
        max_concurrent_streams: (streams != u32::MAX).then_some(streams),
        patience,
        places: Arc::clone(places),
        per_address: None,
        keepalive,
    }
}

/// Listeners at work.
struct Serving {
    stop: watch::Sender<bool>,
    /// Yields when the last connection is gone.
    all_gone: mpsc::Receiver<()>,
}

impl Serving {
    /// With what each listener is told to stop, and tells that it has.
    fn begin() -> (Self, watch::Receiver<bool>, mpsc::Sender<()>) {
        let (stop, stopping) = watch::channel(false);
        let (alive, all_gone) = mpsc::channel(1);
        (Self { stop, all_gone }, stopping, alive)
    }

    /// Stops accepting and waits for the requests in progress, for so long.
    async fn finish(mut self, patience: Duration) {
        self.stop.send_replace(true);
        if tokio::time::timeout(WAIT_TOLD, self.all_gone.recv()).await.is_ok() {
            return;
        }
        log::info!(
            "waiting for clients: their requests in progress are finished, their connections closed",
            "connections" = self.all_gone.sender_strong_count(),
            "at-most" = patience
        );
        let rest = patience.saturating_sub(WAIT_TOLD);
        if tokio::time::timeout(rest, self.all_gone.recv()).await.is_err() {
            // They are cut with the runtimes.
            log::warn!(
                "cutting connections whose requests are not finished",
                "connections" = self.all_gone.sender_strong_count()
            );
        }
    }
}
