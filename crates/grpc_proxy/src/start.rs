//! Starts the proxy: sets up TLS for clients, binds the listener, connects to members, starts the background tasks, and
//! accepts connections, in this order.

use std::io;
use std::sync::Arc;

use quorate_api::deep_txn;
use quorate_cli::stop;
use quorate_gotext::quote::go_reason;
use quorate_grpc::methods::{self, OF_ETCD, Service};
use quorate_net::descriptors::{self, ReservedListeners};
use quorate_net::listen::Services as Listened;
use quorate_net::listen::{ConnectionLimits, ConnectionTimeouts, Listener, Reuse, Security};
use quorate_net::runtime::{Runtimes, Threads};
use quorate_tcp_gateway::{Discovered, DiscoveryError};
use quorate_telemetry::metrics::{GrpcService, ProxyMetrics};
use quorate_telemetry::{init_system, log};
use quorate_tls::Acceptor;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::authority;
use crate::cluster::Cluster;
use crate::http::Pages;
use crate::kv::Kv;
use crate::lease::Leases;
use crate::leasing::Leasing;
use crate::line::Options;
use crate::namespace::Namespace;
use crate::router::{Router, Services};
use crate::security::{SecurityError, acceptor, targets};
use crate::target::TargetError;
use crate::upstream::Upstream;
use crate::watch::Hub;

/// The reason why the proxy cannot start.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("listen tcp {address}: bind: {}", go_reason(source))]
    Listen { address: String, source: io::Error },
    #[error("cannot parse {0:?}")]
    MetricsAddress(String),
    #[error("failed to start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("cannot divide the file descriptors between files and connections: {0}")]
    Descriptors(#[from] descriptors::TooFew),
}

/// Runs the proxy until the process ends.
pub(crate) fn run(options: &Options) -> Result<(), StartError> {
    let acceptor = acceptor(options)?;
    let listener = listen(&options.listen_addr, acceptor.as_ref())?;
    log::info!("listening for gRPC proxy client requests", "address" = options.listen_addr);
    descriptors::raise_limit();
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let metrics_address = metrics_address(&options.metrics_addr)?;
    let reserved = ReservedListeners { peers: false, metrics: metrics_address.is_some() };
    let budget = descriptors::divide(count, reserved)?;
    let threads = Threads { name: "proxy", count, stack_bytes: deep_txn::STACK_BYTES };
    let runtimes = Runtimes::start(threads, |_| std::future::pending());
    let runtimes = Arc::new(runtimes.map_err(StartError::Thread)?);
    let discovered = {
        let here = tokio::runtime::Builder::new_current_thread().enable_all().build();
        here.map_err(StartError::Thread)?.block_on(options.discovery.find())?
    };
    let endpoints = match discovered.as_slice() {
        [] => options.endpoints.clone(),
        found => found.iter().map(Discovered::url).collect(),
    };
    let upstream = Upstream::new(
        &endpoints,
        targets(options, !discovered.is_empty())?,
        options.dial_keep_alive,
        options.limits,
        runtimes.first().clone(),
    )?;
    let metrics = Arc::new(ProxyMetrics::new(&counted_methods()));
    let services = services(options, upstream, metrics);
    runtimes.first().block_on(services.kv.recover_order(methods::named("/etcdserverpb.KV/Range")));
    begin_duties(options, &services, runtimes.first());
    let (leasing, runtime) = (services.leasing.clone(), runtimes.first().clone());
    let leave = move || {
        if let Some(leasing) = leasing {
            // Otherwise, other proxies would wait for the keys of this proxy until the proxy's lease expires.
            runtime.block_on(leasing.release_all());
        }
        log::flush();
    };
    stop::on_signal(leave).map_err(StartError::Thread)?;
    let limits = ConnectionLimits {
        max_concurrent_streams: options.streams_max,
        timeouts: ConnectionTimeouts::FOR_CLIENTS,
        permits: budget.clients,
        per_address: None,
        keepalive: options.keep_alive,
        ping_floor: Some(options.ping_floor),
    };
    let (_stop, stopping) = watch::channel(false);
    let (alive, mut gone) = mpsc::channel::<()>(1);
    let pages = Pages::new(Arc::clone(&services));
    let listened = Listened {
        grpc: Some(Router::new(Arc::clone(&services))),
        http: Some(pages_for_clients(options, &pages)),
    };
    listener.spawn(&runtimes, listened, &limits, &stopping, &alive);
    if let Some((address, is_secured)) = metrics_address {
        let listener = listen(&address, acceptor.as_ref().filter(|_| is_secured))?;
        log::info!("gRPC proxy listening for metrics", "address" = options.metrics_addr);
        let listened = Listened { grpc: None::<Router>, http: Some(pages) };
        // Client connections do not delay probes.
        let limits = ConnectionLimits { permits: budget.metrics, ..limits };
        listener.spawn(&runtimes, listened, &limits, &stopping, &alive);
        log::info!("gRPC proxy server metrics URL serving");
    }
    log::info!("started gRPC proxy", "address" = options.listen_addr);
    init_system::notify_ready();
    drop(alive);
    // Blocks while the listeners accept connections, because each of them holds a sender of this channel.
    gone.blocking_recv();
    Ok(())
}

/// Returns the services of a proxy with these options.
pub(crate) fn services(
    options: &Options,
    upstream: Arc<Upstream>,
    metrics: Arc<ProxyMetrics>,
) -> Arc<Services> {
    let namespace = Namespace::new(&options.namespace);
    let both = || (Arc::clone(&upstream), Arc::clone(&metrics));
    let ((of_kv, m_kv), (of_watch, m_watch), (of_leases, m_leases)) = (both(), both(), both());
    let leasing = (!options.leasing_prefix.is_empty()).then(|| {
        let prefix = &options.leasing_prefix;
        let (upstream, metrics) = both();
        Arc::new(Leasing::new(upstream, metrics, namespace.clone(), prefix))
    });
    let latest = leasing.as_ref().map(|leasing| Arc::clone(leasing.latest()));
    let cluster = Cluster::new(
        Arc::clone(&upstream),
        namespace.clone(),
        options.advertise_url.clone(),
        options.registration.clone(),
    );
    Arc::new(Services {
        kv: Kv::new(of_kv, m_kv, namespace.clone(), options.keeps_order, leasing.clone()),
        watch: Arc::new(Hub::new(of_watch, m_watch, namespace.clone(), latest)),
        leases: Arc::new(Leases::new(of_leases, m_leases)),
        cluster: Arc::new(cluster),
        leasing,
        logs_messages: options.logs_messages,
        namespace,
        upstream,
        metrics,
    })
}

/// Returns the pages on the client listener.
fn pages_for_clients(options: &Options, pages: &Pages) -> Pages {
    if !options.enables_pprof {
        return pages.clone();
    }
    quorate_profiler::sample_heap();
    log::info!("gRPC proxy enabled pprof", "path" = "/debug/pprof");
    pages.clone().with_profiles()
}

/// The methods whose calls are counted in the metrics.
pub(crate) fn counted_methods() -> Vec<GrpcService> {
    let counted = |service: &Service| GrpcService { name: service.name, methods: service.labels() };
    OF_ETCD.iter().map(counted).collect()
}

/// Starts the background tasks.
fn begin_duties(options: &Options, services: &Arc<Services>, runtime: &Handle) {
    let cluster = || Arc::clone(&services.cluster);
    runtime.spawn(cluster().stay_registered(Arc::clone(&services.leases)));
    runtime.spawn(cluster().poll_proxies());
    if let Some(leasing) = &services.leasing {
        runtime.spawn(Arc::clone(leasing).run_sessions());
    }
    runtime.spawn(authority::poll_authentication(
        Arc::clone(&services.upstream),
        services.kv.clone(),
        services.leasing.clone(),
    ));
    if !options.sync_interval.is_zero() {
        runtime.spawn(cluster().sync_endpoints(options.sync_interval));
    }
}

/// Parses the URL of the additional metrics listener. Returns its address and whether it uses TLS.
fn metrics_address(url: &str) -> Result<Option<(String, bool)>, StartError> {
    if url.is_empty() {
        return Ok(None);
    }
    let refused = || StartError::MetricsAddress(url.to_owned());
    let (scheme, rest) = url.split_once("://").ok_or_else(refused)?;
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.is_empty() || !matches!(scheme, "http" | "https") {
        return Err(refused());
    }
    Ok(Some((authority.to_owned(), scheme == "https")))
}

fn listen(address: &str, acceptor: Option<&Acceptor>) -> Result<Listener, StartError> {
    let failed = |source| StartError::Listen { address: address.to_owned(), source };
    let listener = Listener::resolve(address)
        .and_then(|address| Listener::bind(address, Reuse::default()))
        .map_err(failed)?;
    Ok(match acceptor {
        None => listener,
        Some(acceptor) => listener.secured(Security::Tls(acceptor.clone())),
    })
}
