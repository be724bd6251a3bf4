//! Runs the listeners: the services of each listener, its limits, and its shutdown.
//!
//! # Not here
//!
//! Binding (`listeners`), accepting and protocol detection (`net`), the services (`edge`).

use std::sync::Arc;
use std::time::Duration;

use quorate_config::Config;
use quorate_console::{Console, NoHttp2};
use quorate_edge::{Access, Endpoints, HttpService, MemberProbe, Observers, Router, Surface};
use quorate_net::listen::{
    AddressLimit, ConnectionLimits, ConnectionPermits, ConnectionTimeouts, Http1Service, Listener,
    Services,
};
use quorate_net::runtime::Runtimes;
use quorate_peer_port::{ImagePolicy, PeerService};
use quorate_requests::ServerHandles;
use quorate_telemetry::audit::Auditor;
use quorate_telemetry::log;
use tokio::sync::{mpsc, watch};

use crate::assembly::Core;
use crate::listeners::{ClientListeners, log_listener};
use crate::transport;

/// Time after which the shutdown logs that it is still waiting for requests.
const QUIET_WAIT: Duration = Duration::from_millis(300);

/// Starts to serve the other members on the peer listeners.
pub(crate) fn serve_peers(
    listeners: Vec<Listener>,
    config: &Config,
    core: &Core,
    auditor: Option<Arc<Auditor>>,
    permits: &Arc<ConnectionPermits>,
) -> Serving {
    let images = ImagePolicy { peers_are_named: config.security.peer.allows_names_only(), auditor };
    let service = PeerService::new(&core.handles, Arc::clone(&core.known_at_start), images);
    serve_peer_port(listeners, config, (service, &core.peer_runtimes), permits)
}

/// Serves this service on the peer port.
pub(crate) fn serve_peer_port(
    listeners: Vec<Listener>,
    config: &Config,
    (service, runtimes): (impl Http1Service, &Arc<Runtimes>),
    permits: &Arc<ConnectionPermits>,
) -> Serving {
    let (serving, stopping, alive) = Serving::begin();
    let services = Services { grpc: None::<Router>, http: Some(service) };
    // As in etcd, the head must arrive within one read timeout, and an idle connection is kept for twice that time.
    let head = transport::read_timeout(config);
    let idle = head * 2;
    let timeouts = ConnectionTimeouts { idle, between: Some(idle), head };
    let limits = connection_limits(config, timeouts, permits);
    for listener in listeners {
        log::info!("serving peer traffic", "address" = listener.to_string());
        if let Err(error) = listener.set_user_timeout(transport::write_timeout(config)) {
            log::warn!(
                "failed to set the timeout of peer connections",
                "error" = error.to_string()
            );
        }
        listener.spawn(runtimes, services.clone(), &limits, &stopping, &alive);
    }
    serving
}

/// Creates the HTTP endpoints of a server. The debug pages show `arguments`.
pub(crate) fn endpoints(
    config: &Config,
    handles: &ServerHandles,
    arguments: &[String],
) -> Arc<Endpoints<MemberProbe>> {
    let endpoints = Endpoints::new(
        Arc::new(MemberProbe::new(handles)),
        Arc::clone(handles.info.metrics()),
        Access::new(config),
        quorate_config::without_secrets(arguments),
    );
    if config.enable_pprof {
        log::info!("pprof is enabled", "path" = "/debug/pprof");
    }
    Arc::new(if config.serves_profiles() { endpoints.with_profiles() } else { endpoints })
}

/// Starts to serve probes and scrapers on the metrics listeners. A server does so before it serves clients, so that its
/// state can be observed while it waits for a quorum. Client connections and `--max-connections-per-address` do not
/// limit these listeners: otherwise an orchestrator would restart a server because of its load.
pub(crate) fn serve_metrics(
    listeners: Vec<Listener>,
    config: &Config,
    (handles, runtimes): (&ServerHandles, &Arc<Runtimes>),
    endpoints: &Arc<Endpoints<MemberProbe>>,
    permits: &Arc<ConnectionPermits>,
) -> Serving {
    let (serving, stopping, alive) = Serving::begin();
    let service = HttpService::new(handles, Arc::clone(endpoints), Surface::Metrics);
    let services = Services { grpc: None::<Router>, http: Some(service) };
    let limits = connection_limits(config, ConnectionTimeouts::FOR_CLIENTS, permits);
    for listener in listeners {
        log::info!("serving metrics", "address" = listener.to_string());
        listener.spawn(runtimes, services.clone(), &limits, &stopping, &alive);
    }
    serving
}

impl ClientListeners {
    /// Starts to serve clients on the client listeners.
    pub(crate) fn serve(
        self,
        config: &Config,
        (handles, runtimes): (&ServerHandles, &Arc<Runtimes>),
        endpoints: &Arc<Endpoints<MemberProbe>>,
        (observers, console): (Option<Observers>, Option<Console>),
        permits: &Arc<ConnectionPermits>,
    ) -> Serving {
        let (serving, stopping, alive) = Serving::begin();
        let grpc = Router::new(handles, observers);
        let service = HttpService::new(handles, Arc::clone(endpoints), Surface::Client);
        let http =
            if config.enable_grpc_gateway { service.with_gateway(handles, &grpc) } else { service };
        let most = config.max_connections_per_address;
        let refused = &handles.info.metrics().server.connections_over_address_limit;
        let per_address =
            (most > 0).then(|| Arc::new(AddressLimit::new(most, Arc::clone(refused))));
        let limits = connection_limits(config, ConnectionTimeouts::FOR_CLIENTS, permits);
        let limits = ConnectionLimits { per_address, ..limits };
        let both = Services {
            grpc: Some(grpc),
            http: config.serves_http_with_grpc().then(|| http.clone()),
        };
        for listener in self.client {
            log_listener(
                &listener,
                if config.serves_http_with_grpc() { "grpc+http" } else { "grpc" },
            );
            listener.spawn(runtimes, both.clone(), &limits, &stopping, &alive);
        }
        for listener in self.client_http {
            log_listener(&listener, "http");
            let services = Services { grpc: None::<Router>, http: Some(http.clone()) };
            listener.spawn(runtimes, services, &limits, &stopping, &alive);
        }
        for listener in self.console {
            log::info!("serving the web console", "address" = listener.to_string());
            let services = Services { grpc: None::<NoHttp2>, http: console.clone() };
            listener.spawn(runtimes, services, &limits, &stopping, &alive);
        }
        serving
    }
}

fn connection_limits(
    config: &Config,
    timeouts: ConnectionTimeouts,
    permits: &Arc<ConnectionPermits>,
) -> ConnectionLimits {
    let keepalive =
        config.grpc_keepalive_interval.positive().zip(config.grpc_keepalive_timeout.positive());
    let streams = config.max_concurrent_streams;
    ConnectionLimits {
        max_concurrent_streams: (streams != u32::MAX).then_some(streams),
        timeouts,
        permits: Arc::clone(permits),
        per_address: None,
        keepalive,
        ping_floor: Some(config.grpc_keepalive_min_time()),
    }
}

/// The running listeners for peers, for clients, or for probes and scrapers.
pub(crate) struct Serving {
    stop: watch::Sender<bool>,
    /// Closed when the last connection ends.
    ended: mpsc::Receiver<()>,
}

impl Serving {
    /// Returns the handle, the stop signal for the listeners, and a sender. The listeners hold clones of the sender
    /// until their connections have ended.
    fn begin() -> (Self, watch::Receiver<bool>, mpsc::Sender<()>) {
        let (stop, stopping) = watch::channel(false);
        let (alive, ended) = mpsc::channel(1);
        (Self { stop, ended }, stopping, alive)
    }

    /// Stops accepting connections, and waits up to `timeout` for the requests in progress.
    pub(crate) async fn finish(mut self, timeout: Duration) {
        self.stop.send_replace(true);
        if tokio::time::timeout(QUIET_WAIT, self.ended.recv()).await.is_ok() {
            return;
        }
        log::info!(
            "waiting for client requests in progress; connections that are still open after the timeout are closed",
            "connections" = self.ended.sender_strong_count(),
            "at-most" = timeout
        );
        let rest = timeout.saturating_sub(QUIET_WAIT);
        if tokio::time::timeout(rest, self.ended.recv()).await.is_err() {
            // The remaining connections are closed when the runtimes end.
            log::warn!(
                "closing connections with unfinished requests",
                "connections" = self.ended.sender_strong_count()
            );
        }
    }
}
