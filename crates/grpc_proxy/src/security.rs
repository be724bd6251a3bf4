//! Sets up TLS from the flags, for connections from clients and to members. All files are read once, when the proxy
//! starts.

use std::path::Path;

use quorate_telemetry::log;
use quorate_tls::{
    Acceptor, AcceptorSettings, Allowed, ClientCheck, Connector, ConnectorSettings, MaterialError,
    Protocols, SelfSignedError, ServerCheck, SetupError, SuiteError, Suites, Trust, find_or_make,
};
use thiserror::Error;

use crate::line::Options;
use crate::target::{Connectors, Targets};

/// The reason why TLS cannot be set up.
#[derive(Debug, Error)]
pub(crate) enum SecurityError {
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    SelfSigned(#[from] SelfSignedError),
    #[error(transparent)]
    Suites(#[from] SuiteError),
    #[error(transparent)]
    Material(#[from] MaterialError),
    #[error("cert has non empty Common Name ({name}): {path}")]
    CommonName { name: String, path: String },
}

fn trust(authorities: &str) -> Trust {
    match authorities {
        "" => Trust::System,
        path => Trust::File(path.into()),
    }
}

/// Returns the TLS acceptor for clients, or `None` for plaintext.
pub(crate) fn acceptor(options: &Options) -> Result<Option<Acceptor>, SecurityError> {
    let flags = &options.clients;
    let (pair, clients) = match &flags.pair {
        Some(pair) => {
            let clients = (!flags.authorities.is_empty()).then(|| ClientCheck {
                trust: trust(&flags.authorities),
                allowed: Allowed::All,
                revocations: (!flags.revocations.is_empty()).then(|| (&flags.revocations).into()),
                checks_origin: true,
                names_users: false,
            });
            (pair.clone(), clients)
        }
        None if flags.is_automatic => {
            let dir = Path::new(&options.data_dir).join("fixtures").join("proxy");
            let host = options.listen_addr.rsplit_once(':').map_or("", |(host, _)| host);
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let hosts: &[&str] = if bare.is_empty() { &[] } else { &[bare] };
            (find_or_make(&dir, hosts, flags.validity_years)?, None)
        }
        None => return Ok(None),
    };
    let suites = Suites::named(flags.suites.iter().map(String::as_str))?;
    suites.check_http2(flags.versions)?;
    log::info!(
        "gRPC proxy server TLS",
        "cert" = pair.cert.display().to_string(),
        "key" = pair.key.display().to_string(),
        "trusted-ca" = flags.authorities,
        "crl-file" = flags.revocations
    );
    let protocols = Protocols { versions: flags.versions, suites };
    let settings = AcceptorSettings { pair, protocols, clients, http2: true, endpoint: "client" };
    Ok(Some(Acceptor::new(settings)?))
}

/// Returns the TLS settings for connections to members.
pub(crate) fn targets(options: &Options) -> Result<Targets, SecurityError> {
    let flags = &options.members;
    if let Some(pair) = &flags.pair {
        let name = pair.common_name()?;
        if !name.is_empty() {
            // With this certificate, a member would authenticate every client of this proxy as the user named in its
            // Common Name.
            return Err(SecurityError::CommonName { name, path: pair.cert.display().to_string() });
        }
    }
    let is_asked_for =
        flags.pair.is_some() || !flags.authorities.is_empty() || flags.skips_verification;
    if flags.skips_verification {
        log::warn!(
            "--insecure-skip-tls-verify was given, this grpc proxy process skips authentication of etcd server TLS \
             certificates. This option should be enabled only for testing purposes."
        );
    }
    let connector = |http2| {
        Connector::new(ConnectorSettings {
            pair: flags.pair.clone(),
            protocols: Protocols::default(),
            check: ServerCheck::by(trust(&flags.authorities), flags.skips_verification),
            allowed: Allowed::All,
            http2,
            server_name: None,
        })
    };
    let connectors = || Ok(Connectors { grpc: connector(true)?, http1: connector(false)? });
    let connectors = match connectors() {
        Ok(connectors) => Ok(connectors),
        // If all endpoints are plaintext, no CA certificates are needed. The error is therefore reported only when an
        // endpoint uses TLS.
        Err(error @ SetupError::Material(_)) if !is_asked_for => Err(error.to_string()),
        Err(error) => return Err(error.into()),
    };
    if is_asked_for {
        log::info!("gRPC proxy client TLS", "trusted-ca" = flags.authorities);
    }
    Ok(Targets { connectors, is_asked_for })
}
