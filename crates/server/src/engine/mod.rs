//! A server whose data is in a PostgreSQL database (`--engine`), from start to stop.
//!
//! The server has no files. It offers clients the same services as a raft member, with the engine as the data store
//! ([`data_store`]). Any number of servers can run on one database. One of them, the sequencer, decides the order of
//! writes; the others forward writes to it over the peer port ([`forward`]).
//!
//! # Not here
//!
//! The engine (the crate `engine`), which also decides which server is the sequencer (`engine::role`), the services
//! (`edge`), and the start of a raft member (`server`).

mod data_store;
mod duties;
mod forward;
mod forward_service;
mod frames;
mod row_permit;

use std::sync::Arc;
use std::time::Duration;

use quorate_api::deep_txn;
use quorate_config::Config;
use quorate_engine::{DatabaseUrl, Engine, EngineOptions, Secret, ServerIdentity};
use quorate_member::RequestIds;
use quorate_net::runtime::{Runtimes, Threads};
use quorate_requests::access::{AccessControl, Provider};
use quorate_requests::{HashPermits, ServerHandles, ServerInfo, StreamEnds};
use quorate_state::members::member_id;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Metrics;
use tokio::sync::watch;

use self::data_store::{EngineProgress, EngineStore};
use self::forward::PeerForward;
use self::forward_service::ForwardService;
use self::row_permit::RowBounds;
use crate::assembly::{core_count, limits};
use crate::bootstrap::state_options;
use crate::engine_start_error::EngineStartError;
use crate::listeners::Listeners;
use crate::observing::Observing;
use crate::security::{Security, warn_of_open_peers};
use crate::server::{Ended, StartError, connection_budget, control_runtime};
use crate::serving::{endpoints, serve_metrics, serve_peer_port};
use crate::supervisor::{Stop, Supervisor};
use crate::{console, expiry, metrics, tokens};

/// Maximum time that a stopping server waits for the database.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// The running parts of a server.
struct Running {
    engine: Engine,
    /// The secret by which this server recognises the other servers.
    secret: Secret,
    forward: Arc<PeerForward>,
    handles: ServerHandles,
    /// The runtimes of the client connections.
    runtimes: Arc<Runtimes>,
    /// The runtime of the engine's tasks and of the peer port.
    engine_runtimes: Arc<Runtimes>,
}

/// Runs a server until it is stopped. The debug pages show `arguments`.
pub(crate) fn run(
    config: &Config,
    url: &str,
    arguments: &[String],
    supervisor: &mut Supervisor,
) -> Result<Ended, StartError> {
    config.check_start()?;
    let database =
        DatabaseUrl::parse(url, |name| std::env::var(name).ok()).map_err(EngineStartError::from)?;
    let budget = connection_budget(config)?;
    let provider = tokens::provider(config)?;
    let security = Security::prepare(config)?;
    let listeners = Listeners::bind(config, &security)?;
    let metrics = Arc::new(metrics::for_config(config));
    let expiry = expiry::Watch::over(&security, config);
    warn_of_open_peers(config);
    let observing = Observing::start(config, &metrics)?;
    let console = console::open(config)?;
    log::info!(
        "starting a server on a database",
        "name" = config.name,
        "database" = format!("{database:?}"),
        "quorate-version" = env!("CARGO_PKG_VERSION")
    );
    let control = control_runtime()?;
    supervisor.take_over();
    let starting = start(config, database, provider, (&metrics, security.dialer));
    let running = control.block_on(async {
        tokio::select! {
            biased;
            stop = supervisor.wait_for_stop() => Err(stop),
            running = starting => Ok(running),
        }
    });
    let running = match running {
        Ok(running) => running?,
        Err(stop) => return Ok(Ended::Stopped(stop)),
    };
    metrics.set_member_id(&format!("{:x}", running.engine.server_id()));
    let sources = (&running.engine, &running.forward, &running.handles);
    duties::register_callbacks(&metrics, sources, &budget);
    let Listeners { peer, metrics: for_scrapers, for_clients } = listeners;
    let forwarded = ForwardService::new(running.engine.clone(), running.secret.clone());
    let peer_port = (forwarded, &running.engine_runtimes);
    let serving_peers = serve_peer_port(peer, config, peer_port, &budget.peers);
    let served = (&running.handles, &running.runtimes);
    let endpoints = endpoints(config, &running.handles, arguments);
    let scraped = serve_metrics(for_scrapers, config, served, &endpoints, &budget.metrics);
    let tasks = running.runtimes.first().clone();
    for duty in duties::all(config, &running.engine, &running.handles, (expiry, &metrics)) {
        tasks.spawn(duty);
    }
    if let Some(stop) = wait_until_led(&control, supervisor, &running.engine) {
        drop((serving_peers, scraped));
        stop_engine(&control, &running.engine);
        return Ok(Ended::Stopped(stop));
    }
    log::info!("ready to serve client requests");
    let services = (observing.observers(), console);
    let serving = for_clients.serve(config, served, &endpoints, services, &budget.clients);
    supervisor.note_ready();
    let stop = control.block_on(supervisor.wait_for_stop());
    log::info!("closing etcd server", "name" = config.name);
    running.handles.streams.stop();
    control.block_on(serving.finish(config.request_timeout()));
    // This server serves the other servers, probes and scrapers until the requests of its own clients have ended.
    drop((serving_peers, scraped));
    stop_engine(&control, &running.engine);
    observing.finish();
    Ok(Ended::Stopped(stop))
}

/// Waits until the keyspace has a sequencer, as a member waits for a leader before it serves clients. Returns the
/// reason for the stop if the server must stop before that.
fn wait_until_led(
    control: &tokio::runtime::Runtime,
    supervisor: &mut Supervisor,
    engine: &Engine,
) -> Option<Stop> {
    control.block_on(async {
        tokio::select! {
            biased;
            stop = supervisor.wait_for_stop() => Some(stop),
            () = engine.wait_sequencer() => None,
        }
    })
}

/// Stops the engine. If this server is the sequencer, the engine gives up the role. Waits at most [`STOP_TIME_MAX`] for
/// the database.
fn stop_engine(control: &tokio::runtime::Runtime, engine: &Engine) {
    let stopping = async { tokio::time::timeout(STOP_TIME_MAX, engine.stop()).await };
    if control.block_on(stopping).is_err() {
        log::warn!("the database did not answer while the server was stopping");
    }
}

/// Starts the threads and the engine.
async fn start(
    config: &Config,
    database: DatabaseUrl,
    provider: Provider,
    (metrics, dialer): (&Arc<Metrics>, quorate_peer::Dialer),
) -> Result<Running, StartError> {
    let stack_bytes = deep_txn::STACK_BYTES;
    let threads = |name, count| {
        let threads = Threads { name, count, stack_bytes };
        Runtimes::start(threads, |_| std::future::pending()).map_err(StartError::Thread)
    };
    let (runtimes, engine_runtimes) = (threads("conn", core_count())?, threads("engine", 1)?);
    let peer_urls: Vec<String> =
        config.initial_advertise_peer_urls.iter().map(ToString::to_string).collect();
    let id = member_id(&peer_urls, &format!("{}{}", config.name, machine()), None).0;
    let secret = Secret::generate().map_err(EngineStartError::from)?;
    let ids = RequestIds::start(id).map_err(EngineStartError::Random)?;
    let options = EngineOptions {
        database,
        server: ServerIdentity {
            id,
            name: config.name.clone(),
            address: peer_urls.first().cloned().unwrap_or_default(),
            secret: secret.clone(),
            client_urls: config.advertise_client_urls.iter().map(ToString::to_string).collect(),
        },
        state: state_options(config),
        new_cluster_id: ids.next(),
        metrics: Arc::clone(metrics),
        load_bytes_max: EngineOptions::LOAD_BYTES_MAX,
    };
    let forward = Arc::new(PeerForward::new(dialer));
    let starting = Engine::start(options, Arc::clone(&forward) as _);
    let engine = engine_runtimes.first().spawn(starting).await;
    let engine = engine.map_err(|error| StartError::Thread(std::io::Error::other(error)))?;
    let engine = engine.map_err(EngineStartError::from)?;
    let published = engine.published();
    let info = Arc::new(ServerInfo::new(
        (engine.cluster_id(), id),
        limits(config),
        published.facts.clone(),
        Arc::new(EngineProgress(engine.clone())),
        Arc::clone(metrics),
    ));
    let (auth, leases) = (published.auth.clone(), published.leases.clone());
    let access_control = Arc::new(AccessControl::new(Arc::clone(&info), auth, leases, provider));
    let store = EngineStore {
        engine: engine.clone(),
        rows: RowBounds::new(Arc::clone(&info.admission().lists)),
        info: Arc::clone(&info),
        access_control: Arc::clone(&access_control),
        ids,
        hashes: HashPermits::default(),
        serving: watch::Sender::new(true),
    };
    let streams = Arc::new(StreamEnds::default());
    let handles = ServerHandles::new(info, access_control, Arc::new(store), streams);
    let (runtimes, engine_runtimes) = (Arc::new(runtimes), Arc::new(engine_runtimes));
    Ok(Running { engine, secret, forward, handles, runtimes, engine_runtimes })
}

/// Returns a text that differs between machines, for computing the id of the server. The name and the peer URL are not
/// sufficient, because servers in containers often have the same name and the same default peer URL. After a restart of
/// the process, the text and therefore the id are the same, so that a restarted sequencer regains its role immediately.
fn machine() -> String {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default()
    };
    format!("{}{}", read("hostname"), read("random/boot_id"))
}
