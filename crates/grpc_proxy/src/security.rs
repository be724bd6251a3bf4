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

/// Returns the TLS settings for connections to members. Certificates of discovered members must be valid for the name
/// that was checked during the discovery. If any name in an SRV record were accepted, a forged record could name a host
/// with a valid certificate of its own.
pub(crate) fn targets(options: &Options, are_discovered: bool) -> Result<Targets, SecurityError> {
    let server_name = options.discovery.server_name().filter(|_| are_discovered);
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
            server_name: server_name.map(str::to_owned),
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

#[cfg(test)]
mod tests {
    use quorate_cli::flags::Matches;
    use tokio::net::TcpListener;

    use super::*;
    use crate::line::FLAGS;

    /// Starts a member whose certificate is valid for this name. Returns its URL and the certificate.
    async fn member(dir: &Path, name: &str) -> (String, String) {
        let pair = find_or_make(&dir.join(name), &[name], 1).unwrap();
        let certificate = std::fs::read_to_string(&pair.cert).unwrap();
        let protocols = Protocols::default();
        let settings =
            AcceptorSettings { pair, protocols, clients: None, http2: true, endpoint: "client" };
        let acceptor = Acceptor::new(settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // An error is ignored, because the client may reject the certificate.
                drop(acceptor.accept(stream, None).await);
            }
        });
        (format!("https://localhost:{port}"), certificate)
    }

    #[tokio::test]
    async fn certificates_of_discovered_members_must_be_valid_for_the_domain() {
        let dir = std::env::temp_dir().join(format!("quorate-proxy-{}", std::process::id()));
        let (of_domain, for_domain) = member(&dir, "example.org").await;
        let (of_host, for_host) = member(&dir, "localhost").await;
        let ca = dir.join("ca");
        std::fs::write(&ca, for_domain + &for_host).unwrap();
        let ca_flag = format!("--cacert={}", ca.display());
        let flags = [&*ca_flag, "--discovery-srv=example.org", "--insecure-discovery"];
        // The address of the member is checked if discovery did not check the domain, and for endpoints from flags.
        for (flags, are_discovered, valid) in [
            (&flags[..2], true, &of_domain),
            (&flags, true, &of_host),
            (&flags[..2], false, &of_host),
        ] {
            let words: Vec<_> = flags.iter().map(|flag| flag.as_bytes().to_vec()).collect();
            let options = Options::of(&Matches::parse(FLAGS, &words).unwrap()).unwrap();
            let targets = targets(&options, are_discovered).unwrap();
            for url in [&of_domain, &of_host] {
                let target = targets.target(url).unwrap();
                for connector in [&target.connector, &target.http_connector] {
                    let is_accepted = connector.connect().await.is_ok();
                    assert_eq!(is_accepted, url == valid, "{flags:?} {are_discovered} {url}");
                }
            }
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
