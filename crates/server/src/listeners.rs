//! The listeners of a member: URLs that share an address, and their TLS settings.
//!
//! An address may be configured with and without TLS. The first bytes of each connection then determine whether the
//! connection uses TLS.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;

use quorate_config::{Config, Transport, Url};
use quorate_gotext::quote::go_reason;
use quorate_net::listen::{Listener, Reuse, Security as Wire};
use quorate_telemetry::log;
use quorate_tls::Acceptor;

use crate::security::Security;

/// Why a listener cannot be bound.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("listen tcp {address}: bind: {}", go_reason(source))]
    Tcp { address: String, source: std::io::Error },
    #[error("listen unix {path}: bind: {}", go_reason(source))]
    Unix { path: String, source: std::io::Error },
}

/// All listeners. They are bound before anything else, so that a port that is already in use is reported first.
pub(crate) struct Listeners {
    pub(crate) peer: Vec<Listener>,
    /// The listeners for probes and scrapers.
    pub(crate) metrics: Vec<Listener>,
    pub(crate) for_clients: ClientListeners,
}

/// The listeners for clients.
pub(crate) struct ClientListeners {
    pub(crate) client: Vec<Listener>,
    pub(crate) client_http: Vec<Listener>,
    pub(crate) console: Vec<Listener>,
}

impl Listeners {
    pub(crate) fn bind(config: &Config, security: &Security) -> Result<Self, BindError> {
        let reuse = Reuse { port: config.socket_reuse_port };
        let flags = &config.security;
        for url in &config.listen_peer_urls {
            warn_of_unused_by_peers(url, &flags.peer);
        }
        for url in config.listen_client_urls.iter().chain(&config.listen_client_http_urls) {
            warn_of_unused_by_clients(url, &flags.client);
        }
        Ok(Self {
            peer: bind_all(&config.listen_peer_urls, reuse, security.peer.as_ref())?,
            metrics: bind_all(&config.listen_metrics_urls, reuse, security.metrics.as_ref())?,
            for_clients: ClientListeners {
                client: bind_all(&config.listen_client_urls, reuse, security.client.as_ref())?,
                client_http: bind_all(
                    &config.listen_client_http_urls,
                    reuse,
                    security.client.as_ref(),
                )?,
                console: bind_console(
                    &config.listen_console_urls,
                    reuse,
                    security.console.as_ref(),
                )?,
            },
        })
    }
}

fn warn_of_unused_by_peers(url: &Url, flags: &Transport) {
    if !url.scheme().is_tls() && !flags.is_empty() {
        log::warn!(
            "scheme is HTTP while key and cert files are present; ignoring key and cert files",
            "peer-url" = url.as_str()
        );
    }
    if !url.scheme().is_tls() && flags.client_cert_auth {
        log::warn!(
            "scheme is HTTP while --peer-client-cert-auth is enabled; ignoring client cert auth for this URL",
            "peer-url" = url.as_str()
        );
    }
}

fn warn_of_unused_by_clients(url: &Url, flags: &Transport) {
    if !url.scheme().is_tls() && !flags.is_empty() {
        log::warn!(
            "scheme is http or unix while key and cert files are present; ignoring key and cert files",
            "client-url" = url.as_str()
        );
    }
    if !url.scheme().is_tls() && flags.client_cert_auth {
        log::warn!(
            "scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL",
            "client-url" = url.as_str()
        );
    }
}

/// Binds each address once, even if several URLs share it.
fn bind_all(
    urls: &[Url],
    reuse: Reuse,
    acceptor: Option<&Acceptor>,
) -> Result<Vec<Listener>, BindError> {
    let place = |url: &Url| url.socket_path().unwrap_or_else(|| url.authority().to_owned());
    let mut listeners = Vec::new();
    for (index, url) in urls.iter().enumerate() {
        let is_same = |other: &&Url| {
            place(other) == place(url) && other.scheme().is_unix() == url.scheme().is_unix()
        };
        if urls[..index].iter().any(|other| is_same(&other)) {
            continue;
        }
        let of_place = || urls.iter().filter(is_same);
        let is_plain = of_place().any(|url| !url.scheme().is_tls());
        let is_secured = of_place().any(|url| url.scheme().is_tls());
        let acceptor =
            || acceptor.cloned().expect("a TLS URL without a certificate was refused earlier");
        let security = match (is_plain, is_secured) {
            (_, false) => Wire::Plain,
            (true, true) => Wire::Both(acceptor()),
            (false, true) => Wire::Tls(acceptor()),
        };
        listeners.push(bind(url, reuse)?.secured(security));
    }
    Ok(listeners)
}

/// Binds the URLs of the console. Browsers resolve `localhost` to both address families, so both are bound.
fn bind_console(
    urls: &[Url],
    reuse: Reuse,
    acceptor: Option<&Acceptor>,
) -> Result<Vec<Listener>, BindError> {
    let mut listeners = bind_all(urls, reuse, acceptor)?;
    for url in urls.iter().filter(|url| url.host() == "localhost") {
        let Ok(port) = url.port().parse() else { continue };
        let address = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
        if listeners.iter().any(|listener| listener.address() == Some(address)) {
            continue;
        }
        let security = match acceptor {
            Some(acceptor) if url.scheme().is_tls() => Wire::Tls(acceptor.clone()),
            Some(_) | None => Wire::Plain,
        };
        match Listener::bind(address, reuse) {
            Ok(listener) => listeners.push(listener.secured(security)),
            Err(source) if source.kind() == std::io::ErrorKind::AddrInUse => {
                return Err(BindError::Tcp { address: address.to_string(), source });
            }
            // The machine has no IPv6 loopback address, so the console is served over IPv4 only.
            Err(_) => {}
        }
    }
    Ok(listeners)
}

fn bind(url: &Url, reuse: Reuse) -> Result<Listener, BindError> {
    if let Some(path) = url.socket_path() {
        return Listener::bind_file(Path::new(&path))
            .map_err(|source| BindError::Unix { path, source });
    }
    let failed = |source| BindError::Tcp { address: url.authority().to_owned(), source };
    Listener::resolve(url.authority())
        .and_then(|address| Listener::bind(address, reuse))
        .map_err(failed)
}

/// Logs whether a client listener uses TLS, in etcd's words.
pub(crate) fn log_listener(listener: &Listener, traffic: &str) {
    let address = listener.to_string();
    if listener.is_plain() {
        log::info!(
            "serving client traffic insecurely; this is strongly discouraged!",
            "traffic" = traffic,
            "address" = address
        );
    }
    if listener.is_secured() {
        log::info!("serving client traffic securely", "traffic" = traffic, "address" = address);
    }
}
