//! Sets up TLS for a member's listeners and its connections to peers, as the flags specify.
//!
//! All files are read once here, so that a member with invalid files does not start. `--auto-tls` and `--peer-auto-tls`
//! create their files here.
//!
//! # Not here
//!
//! Checking the combination of flags (`config`), and TLS itself (`tls`).

use std::net::IpAddr;
use std::path::Path;

use quorate_config::{Config, FeatureGate, Security as Flags, TlsVersion, Transport, Url};
use quorate_peer::Dialer;
use quorate_telemetry::log;
use quorate_tls::{
    Acceptor, AcceptorSettings, Allowed, ClientCheck, Connector, ConnectorSettings, Pair,
    Protocols, SelfSignedError, ServerCheck, SetupError, SuiteError, Suites, Trust, Version,
    Versions, find_or_make, have_common_authority,
};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecurityError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    SelfSigned(#[from] SelfSignedError),
    #[error(transparent)]
    Suites(#[from] SuiteError),
}

/// TLS for listeners and for connections to peers.
#[derive(Debug)]
pub(crate) struct Security {
    /// TLS for the client listeners; `None` if none of them uses TLS.
    pub(crate) client: Option<Acceptor>,
    pub(crate) metrics: Option<Acceptor>,
    /// TLS for the web console; `None` if it does not use TLS.
    pub(crate) console: Option<Acceptor>,
    pub(crate) peer: Option<Acceptor>,
    pub(crate) dialer: Dialer,
}

impl Security {
    /// Reads the files that the flags name.
    pub(crate) fn prepare(config: &Config) -> Result<Self, SecurityError> {
        let flags = &config.security;
        let protocols = protocols(flags)?;
        let for_clients: Vec<&Url> =
            config.listen_client_urls.iter().chain(&config.listen_client_http_urls).collect();
        let client_pair = pair(config, &flags.client, "client", &for_clients)?;
        let peer_urls: Vec<&Url> = config.listen_peer_urls.iter().collect();
        let peer_pair = pair(config, &flags.peer, "peer", &peer_urls)?;
        let is_secured = |urls: &[&Url]| urls.iter().any(|url| url.scheme().is_tls());
        let acceptor = |pair: &Option<Pair>, clients, http2, endpoint| {
            let Some(pair) = pair.clone() else { return Ok(None) };
            let protocols = protocols.clone();
            let settings = AcceptorSettings { pair, protocols, clients, http2, endpoint };
            Acceptor::new(settings).map(Some)
        };
        let checks_origin = !flags.client.skip_client_san_verification;
        let metrics_urls: Vec<&Url> = config.listen_metrics_urls.iter().collect();
        let mut security = Self {
            client: None,
            metrics: None,
            console: None,
            peer: None,
            dialer: dialer(config, &protocols, peer_pair.as_ref())?,
        };
        if is_secured(&for_clients) {
            protocols.suites.check_http2(protocols.versions)?;
            let clients = client_check(&flags.client, false);
            security.client = acceptor(&client_pair, clients, true, "client")?;
        }
        if is_secured(&metrics_urls) {
            let clients = client_check(&flags.client, checks_origin);
            security.metrics = acceptor(&client_pair, clients, true, "client")?;
        }
        let console_urls: Vec<&Url> = config.listen_console_urls.iter().collect();
        if is_secured(&console_urls) {
            // Browsers use HTTP/1 for the console. A browser's certificate only permits the connection, and does not
            // identify a user.
            let clients = client_check(&flags.client, checks_origin)
                .map(|check| ClientCheck { names_users: false, ..check });
            security.console = acceptor(&client_pair, clients, false, "console")?;
        }
        if is_secured(&peer_urls) {
            let checks_origin = !flags.peer.skip_client_san_verification;
            // Only peers with a certificate may fetch this member's state from the peer port, even if no flag requires
            // certificates.
            let clients = client_check(&flags.peer, checks_origin)
                .map(|check| ClientCheck { names_users: true, ..check });
            security.peer = acceptor(&peer_pair, clients, false, "peer")?;
        }
        Ok(security)
    }
}

/// Warns if clients' certificates are also valid on the peer port. Also warns if `--rebuild-corrupt-member` has no
/// effect because peers need no certificate.
pub(crate) fn warn_of_open_peers(config: &Config) {
    let Flags { client, peer, .. } = &config.security;
    if config.rebuild_corrupt_member && !config.authenticates_peers() {
        log::warn!(
            "--rebuild-corrupt-member has no effect: members provide their state only to peers with \
             certificates",
            "advice" =
                "secure the peer URLs with --peer-client-cert-auth and --peer-trusted-ca-file"
        );
    }
    let both_verify = client.verifies_clients() && config.authenticates_peers();
    if !both_verify || peer.allows_names_only() {
        return;
    }
    // The files were readable at startup, and each handshake reads them again, so an error is ignored here.
    if have_common_authority(&trust(client), &trust(peer)).unwrap_or(false) {
        log::warn!(
            "a CA that signs client certificates is also trusted for peers: every client with a certificate \
             can act as a member",
            "trusted-ca-file" = client.trusted_ca_file,
            "peer-trusted-ca-file" = peer.trusted_ca_file,
            "advice" = "give peers a CA of their own, or list the names in their certificates with \
                        --peer-cert-allowed-cn or --peer-cert-allowed-hostname"
        );
    }
}

fn protocols(flags: &Flags) -> Result<Protocols, SuiteError> {
    let version = |version| match version {
        TlsVersion::Tls12 => Version::Tls12,
        TlsVersion::Tls13 => Version::Tls13,
    };
    let suites = Suites::named(flags.cipher_suites.iter().map(String::as_str))?;
    let min = version(flags.tls_min_version);
    let max = flags.tls_max_version.map_or(Version::Tls13, version);
    Ok(Protocols { versions: Versions { min, max }, suites })
}

/// Returns the configured key pair, or creates a self-signed one.
fn pair(
    config: &Config,
    flags: &Transport,
    folder: &str,
    urls: &[&Url],
) -> Result<Option<Pair>, SelfSignedError> {
    if !flags.is_empty() {
        if flags.auto_tls {
            log::warn!(&format!("ignoring {folder} auto TLS since certs given"));
        }
        return Ok(Some(Pair::new(&flags.cert_file, &flags.key_file)));
    }
    if !flags.auto_tls {
        return Ok(None);
    }
    let dir = Path::new(&config.data_dir).join("fixtures").join(folder);
    let hosts: Vec<&str> =
        urls.iter().map(|url| url.host()).filter(|host| !host.is_empty()).collect();
    let years = u32::try_from(config.security.self_signed_cert_validity).unwrap_or(u32::MAX);
    find_or_make(&dir, &hosts, years).map(Some)
}

fn trust(flags: &Transport) -> Trust {
    match flags.trusted_ca_file.as_str() {
        "" => Trust::System,
        path => Trust::File(path.into()),
    }
}

fn allowed(flags: &Transport) -> Allowed {
    match (flags.allowed_cns.as_slice(), flags.allowed_hostnames.as_slice()) {
        ([], []) => Allowed::All,
        ([], hosts) => Allowed::Hosts(hosts.to_vec()),
        (names, _) => Allowed::CommonNames(names.to_vec()),
    }
}

fn client_check(flags: &Transport, checks_origin: bool) -> Option<ClientCheck> {
    flags.verifies_clients().then(|| ClientCheck {
        trust: trust(flags),
        allowed: allowed(flags),
        revocations: (!flags.crl_file.is_empty()).then(|| flags.crl_file.clone().into()),
        checks_origin,
        names_users: flags.client_cert_auth,
    })
}

fn dialer(
    config: &Config,
    protocols: &Protocols,
    own: Option<&Pair>,
) -> Result<Dialer, SecurityError> {
    let flags = &config.security.peer;
    let pair = match flags.client_cert_file.as_str() {
        "" => own.cloned(),
        cert => Some(Pair::new(cert, &flags.client_key_file)),
    };
    let is_self_made = flags.auto_tls && flags.is_empty();
    let is_asked_for = pair.is_some() || !flags.trusted_ca_file.is_empty();
    let settings = ConnectorSettings {
        pair,
        protocols: protocols.clone(),
        // With `--peer-auto-tls`, each member has a certificate that only the member itself trusts, so any certificate
        // is accepted.
        check: ServerCheck::by(trust(flags), is_self_made),
        allowed: if is_self_made { Allowed::All } else { allowed(flags) },
        http2: false,
        server_name: srv_name(config),
    };
    let tls = match Connector::new(settings) {
        Ok(connector) => Some(connector),
        // A member that does not use TLS starts even if the system has no CA certificates. It then cannot connect to
        // `https` URLs.
        Err(_) if !is_asked_for => None,
        Err(error) => return Err(error.into()),
    };
    let wants_address = config.feature_gates.is_enabled(FeatureGate::SetMemberLocalAddr);
    let from = wants_address.then(|| local_address(config)).flatten();
    Ok(Dialer { tls, from })
}

/// Returns the domain that peers' certificates must contain if peers were found through SRV records and no CA is
/// configured.
fn srv_name(config: &Config) -> Option<String> {
    let is_found = !config.discovery_srv.is_empty();
    let is_named = is_found && config.security.peer.trusted_ca_file.is_empty();
    is_named.then(|| config.discovery_srv.clone())
}

/// Returns the first advertised IP address that is neither a loopback nor an unspecified address.
fn local_address(config: &Config) -> Option<IpAddr> {
    let found = config
        .initial_advertise_peer_urls
        .iter()
        .filter_map(|url| url.host().parse::<IpAddr>().ok())
        .find(|address| !address.is_loopback() && !address.is_unspecified());
    if found.is_none() {
        log::warn!(
            "cannot set the local address of peer connections: --initial-advertise-peer-urls contains only host \
             names, loopback addresses and unspecified addresses"
        );
    }
    found
}
