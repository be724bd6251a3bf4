//! Starts a console, either standalone (`quorate console`) or as a service for the listeners of a member.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use quorate_cli::flags::{Flag, Kind, Matches};
use quorate_client::failure::Failure;
use quorate_net::listen::{
    AddressLimit, ConnectionKind, ConnectionLimits, ConnectionPermits, ConnectionTimeouts,
    Listener, Reuse, Security, Services,
};
use quorate_net::runtime::{Runtimes, Threads};
use quorate_tls::{
    Acceptor, AcceptorSettings, Allowed, ClientCheck, Pair, Protocols, SetupError, Trust,
};
use tokio::sync::{mpsc, watch};

use crate::access::{Access, Exposure};
use crate::checks::Hosts;
use crate::clients::Users;
use crate::cluster::{Caller, Cluster};
use crate::refusal::Kind as RefusalKind;
use crate::secret::Secret;
use crate::service::{Console, NoHttp2, QUEUE_CALLS_MAX};
use crate::settings::Settings;
use crate::worker;

/// Maximum number of connections to a standalone console, in total and from one address.
const CONNECTIONS_MAX: u64 = 128;
const ADDRESS_CONNECTIONS_MAX: u32 = 96;

/// Stack size of the thread that serves connections, in bytes.
const STACK_BYTES: usize = 1 << 20;

/// The flags of `quorate console`.
pub const FLAGS: &[Flag] = &[
    Flag::bool(
        "allow-plaintext-login",
        "Allow logins even if the endpoints do not use TLS; passwords are then sent over the network in plaintext",
    ),
    Flag::bool(
        "allow-writes",
        "Allow the page to change the cluster; otherwise the console is read-only",
    ),
    Flag {
        name: "allowed-hosts",
        short: None,
        kind: Kind::List,
        default: "",
        usage: "Additional host names under which browsers may open the console, such as the name of a proxy",
    },
    Flag::text("cert-file", "", "Certificate of the console, for https"),
    Flag::text("key-file", "", "Private key of the console's certificate"),
    Flag::text("listen", "127.0.0.1:2383", "Address on which the console listens"),
    Flag::text(
        "trusted-ca-file",
        "",
        "CA certificates; browsers must present a client certificate that one of these CAs has signed",
    ),
];

/// The values of [`FLAGS`].
#[derive(Clone, Debug, Default)]
pub struct ListenFlags {
    allows_plaintext_login: bool,
    allows_writes: bool,
    allowed_hosts: Vec<String>,
    pair: Option<Pair>,
    listen: String,
    trusted_ca_file: String,
}

impl ListenFlags {
    /// Parses the flags.
    pub fn of(matches: &Matches) -> Result<Self, Failure> {
        let (cert, key) = (matches.text("cert-file"), matches.text("key-file"));
        if cert.is_empty() != key.is_empty() {
            return Err(Failure::bad_args("--cert-file and --key-file must be given together"));
        }
        let trusted_ca_file = matches.text("trusted-ca-file").to_owned();
        if cert.is_empty() && !trusted_ca_file.is_empty() {
            return Err(Failure::bad_args("--trusted-ca-file needs --cert-file and --key-file"));
        }
        let hosts = matches.list("allowed-hosts").into_iter().filter(|host| !host.is_empty());
        Ok(Self {
            allows_plaintext_login: matches.bool("allow-plaintext-login"),
            allows_writes: matches.bool("allow-writes"),
            allowed_hosts: hosts.collect(),
            pair: (!cert.is_empty()).then(|| Pair::new(cert, key)),
            listen: matches.text("listen").to_owned(),
            trusted_ca_file,
        })
    }
}

/// The reason why a console cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address is invalid or cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address to listen on.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Passwords would be sent in plaintext.
    #[error(
        "the console would receive passwords and tokens in plaintext on {0}; use --listen \
         127.0.0.1:2383, or set a certificate with --cert-file and --key-file"
    )]
    Plaintext(SocketAddr),
    /// Everyone who can reach the listener could use the cluster.
    #[error("{0}")]
    Open(String),
    /// A certificate is invalid.
    #[error(transparent)]
    Tls(#[from] SetupError),
    /// The settings of connections to the cluster are invalid.
    #[error("{0}")]
    Cluster(String),
    /// The system provides no random numbers.
    #[error("cannot obtain random numbers for the console's secret: {0}")]
    Random(#[source] getrandom::Error),
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

/// Starts the thread of a console, and returns its service.
pub fn open(settings: Settings) -> Result<Console, StartError> {
    open_with(settings, None, true)
}

fn open_with(
    settings: Settings,
    secret: Option<Secret>,
    knows_localhost: bool,
) -> Result<Console, StartError> {
    worker::check(&settings)
        .map_err(|failure| StartError::Cluster(failure.message.unwrap_or_default()))?;
    let (jobs, receiver) = mpsc::channel(QUEUE_CALLS_MAX);
    let hosts = Hosts::new(&settings.allowed_hosts, knows_localhost);
    let users = Arc::new(Users::default());
    worker::start(settings, receiver, Arc::clone(&users)).map_err(StartError::Thread)?;
    Ok(Console::new(hosts, secret, users, jobs))
}

/// A running standalone console. Dropping it stops the console.
#[derive(Debug)]
pub struct Running {
    /// The URL of the page. Its fragment contains the secret, if the page needs one.
    pub url: String,
    stop: watch::Sender<bool>,
    _runtimes: Arc<Runtimes>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Runs a standalone console.
pub async fn serve(flags: &ListenFlags, cluster: Cluster) -> Result<Running, StartError> {
    let failed = |source| StartError::Listen { address: flags.listen.clone(), source };
    let chosen = Listener::resolve(&flags.listen).map_err(failed)?;
    let exposure = Exposure {
        is_loopback: chosen.ip().is_loopback(),
        is_secured: flags.pair.is_some(),
        verifies_clients: !flags.trusted_ca_file.is_empty(),
    };
    if !exposure.is_loopback && !exposure.is_secured {
        return Err(StartError::Plaintext(chosen));
    }
    let settings = Settings {
        cluster,
        allows_writes: flags.allows_writes,
        member: None,
        allows_plaintext_login: flags.allows_plaintext_login,
        exposure,
        allowed_hosts: flags.allowed_hosts.clone(),
    };
    // Only a console on loopback can require the secret, because its user is the person who started it and sees the
    // printed address with the secret.
    let needs_secret = exposure.is_loopback && !settings.is_private();
    let secret = needs_secret.then(Secret::new).transpose().map_err(StartError::Random)?;
    check_exposure(&settings, secret.is_some()).await?;
    let security = security_of(flags)?;
    let Bound { address, listeners, knows_localhost } = bind(chosen, &flags.listen)?;
    let fragment = secret.as_ref().map_or_else(String::new, |it| format!("#s={}", it.text()));
    let console = open_with(settings, secret, knows_localhost)?;
    let threads = Threads { name: "web", count: 1, stack_bytes: STACK_BYTES };
    let runtimes = Runtimes::start(threads, |_| std::future::pending::<()>());
    let runtimes = Arc::new(runtimes.map_err(StartError::Thread)?);
    let limits = ConnectionLimits {
        max_concurrent_streams: None,
        timeouts: ConnectionTimeouts::FOR_CLIENTS,
        permits: Arc::new(ConnectionPermits::new(ConnectionKind::Client, CONNECTIONS_MAX)),
        per_address: Some(Arc::new(AddressLimit::new(ADDRESS_CONNECTIONS_MAX, Arc::default()))),
        keepalive: None,
        ping_floor: Some(Duration::from_secs(5)),
    };
    let (stop, stopping) = watch::channel(false);
    let (alive, _) = mpsc::channel(1);
    let services = Services { grpc: None::<NoHttp2>, http: Some(console) };
    for listener in listeners {
        let listener = listener.secured(security.clone());
        listener.spawn(&runtimes, services.clone(), &limits, &stopping, &alive);
    }
    let scheme = if exposure.is_secured { "https" } else { "http" };
    let url = format!("{scheme}://{address}/{fragment}");
    Ok(Running { url, stop, _runtimes: runtimes })
}

/// The listeners of a console.
struct Bound {
    /// The address of the first listener.
    address: SocketAddr,
    listeners: Vec<Listener>,
    /// Whether this console listens on every address to which `localhost` resolves.
    knows_localhost: bool,
}

/// Binds an address. On loopback, the same port of the other address family is bound as well if it is available,
/// because browsers resolve `localhost` to both addresses, and another process could otherwise serve a page under the same
/// name.
fn bind(chosen: SocketAddr, asked: &str) -> Result<Bound, StartError> {
    let failed = |address: String| move |source| StartError::Listen { address, source };
    let first = Listener::bind(chosen, Reuse::default()).map_err(failed(asked.to_owned()))?;
    let address = first.address().unwrap_or(chosen);
    let mut bound = Bound { address, listeners: vec![first], knows_localhost: true };
    let other: IpAddr = match address.ip() {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Ipv4Addr::LOCALHOST.into(),
        _ => return Ok(bound),
    };
    let other = SocketAddr::new(other, address.port());
    match Listener::bind(other, Reuse::default()) {
        Ok(listener) => bound.listeners.push(listener),
        Err(source) if source.kind() == io::ErrorKind::AddrInUse => {
            if asked.starts_with("localhost:") {
                return Err(failed(other.to_string())(source));
            }
            bound.knows_localhost = false;
        }
        // Binding most likely failed because the machine does not have this address. No other process can then listen
        // on it.
        Err(_) => {}
    }
    Ok(bound)
}

/// Refuses a listener through which anyone could use a cluster whose authentication is disabled. If the cluster does
/// not respond yet, the console starts and checks each request instead.
async fn check_exposure(settings: &Settings, has_secret: bool) -> Result<(), StartError> {
    let cluster = &settings.cluster;
    let client = cluster.connect(cluster.endpoints.clone());
    let client =
        client.map_err(|failure| StartError::Cluster(failure.message.unwrap_or_default()))?;
    let anonymous = Caller { client: client.for_user(cluster.token_of(None)), is_logged_in: false };
    let access = Access::new(settings.rules(), Arc::default());
    match access.admit(false, has_secret, &anonymous).await {
        Err(refused) if refused.kind == RefusalKind::AuthenticationOff => {
            Err(StartError::Open(refused.text()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn security_of(flags: &ListenFlags) -> Result<Security, StartError> {
    let Some(pair) = &flags.pair else { return Ok(Security::Plain) };
    let clients = (!flags.trusted_ca_file.is_empty()).then(|| ClientCheck {
        trust: Trust::File((&flags.trusted_ca_file).into()),
        allowed: Allowed::All,
        revocations: None,
        checks_origin: false,
        names_users: false,
    });
    let settings = AcceptorSettings {
        pair: pair.clone(),
        protocols: Protocols::default(),
        clients,
        http2: false,
        endpoint: "console",
    };
    Ok(Security::Tls(Acceptor::new(settings)?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn a_loopback_console_listens_on_every_address_of_localhost() {
        let bound = bind(ANY_PORT, "localhost:0").unwrap();
        assert!(bound.knows_localhost);
        let has_other = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        assert_eq!(bound.listeners.len(), if has_other { 2 } else { 1 });
        for listener in &bound.listeners {
            assert_eq!(listener.address().unwrap().port(), bound.address.port());
        }
    }

    #[test]
    fn a_console_shares_localhost_if_another_process_listens_on_one_of_its_addresses() {
        let Ok(other) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else { return };
        let port = other.local_addr().unwrap().port();
        let address = SocketAddr::new(ANY_PORT.ip(), port);
        let Ok(bound) = bind(address, &address.to_string()) else { return };
        assert!(!bound.knows_localhost);
        drop(bound);
        let refused = bind(address, &format!("localhost:{port}")).err().unwrap();
        assert!(refused.to_string().contains(&format!("[::1]:{port}")), "{refused}");
    }
}
