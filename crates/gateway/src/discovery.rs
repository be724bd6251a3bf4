//! Members that SRV records of DNS name, for the gateway and for the proxy of gRPC.

use std::io;

use quorate_cli::gotext;
use quorate_dns::{Resolver, Service};
use quorate_telemetry::log;
use quorate_tls::{Allowed, Connector, ConnectorSettings, Protocols, SetupError, Trust};
use thiserror::Error;

use crate::dial::{address, connect};

/// Where to look, and whom to believe.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// The domain; none finds nobody.
    pub domain: String,
    /// The service's own name, behind etcd's.
    pub service: String,
    /// Whether members without TLS are taken, and those with it without a look at their certificates.
    pub is_insecure_accepted: bool,
    /// A file of authorities; the system's, where it is empty.
    pub authorities: String,
}

/// A member that was found.
#[derive(Clone, Debug)]
pub struct Discovered {
    /// Where it is.
    pub service: Service,
    /// Whether it speaks TLS.
    pub is_secured: bool,
}

impl Discovered {
    /// Its address with a scheme.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.is_secured { "https" } else { "http" };
        format!("{scheme}://{}", address(&self.service))
    }
}

/// Why nobody was found; the texts are etcd's.
#[derive(Debug, Error)]
pub enum DiscoveryError {
    /// Neither kind of record was.
    #[error("dns lookup errors: {0} and {1}")]
    Lookup(String, String),
    /// The file of authorities is of no use.
    #[error(transparent)]
    Authorities(#[from] SetupError),
}

impl Discovery {
    /// Asks for the records of members with TLS and without. Unless the latter are accepted, only those are taken whose
    /// certificate is good for the domain.
    ///
    /// # Errors
    ///
    /// See [`DiscoveryError`].
    pub async fn find(&self) -> Result<Vec<Discovered>, DiscoveryError> {
        let Self { domain, service, .. } = self;
        if domain.is_empty() {
            return Ok(Vec::new());
        }
        let resolver = Resolver::of_system();
        let dash = if service.is_empty() { "" } else { "-" };
        let lookup = async |kind: &str, is_secured| {
            let name = format!("_{kind}{dash}{service}._tcp.{domain}");
            let records = resolver.services(&name).await;
            let records = records
                .map_err(|error| format!("lookup {name}: {}", gotext::reason(&error)))?
                .into_iter();
            Ok::<Vec<_>, String>(
                records.map(|service| Discovered { service, is_secured }).collect(),
            )
        };
        let (secured, plain) =
            tokio::join!(lookup("etcd-client-ssl", true), lookup("etcd-client", false));
        let (secured, plain) = match (secured, plain) {
            (Err(secured), Err(plain)) => return Err(DiscoveryError::Lookup(secured, plain)),
            (secured, plain) => (secured.unwrap_or_default(), plain.unwrap_or_default()),
        };
        let shown = shown(secured.iter().chain(&plain));
        log::info!("discovered cluster from SRV", "srv-server" = domain, "endpoints" = shown);
        if self.is_insecure_accepted {
            return Ok([secured, plain].concat());
        }
        self.validated(secured).await
    }

    async fn validated(&self, secured: Vec<Discovered>) -> Result<Vec<Discovered>, DiscoveryError> {
        let domain = &self.domain;
        let connector = Connector::new(ConnectorSettings {
            pair: None,
            protocols: Protocols::default(),
            trust: Some(match self.authorities.as_str() {
                "" => Trust::System,
                path => Trust::File(path.into()),
            }),
            allowed: Allowed::All,
            http2: false,
            server_name: Some(domain.clone()),
        })?;
        let mut valid = Vec::new();
        for found in secured {
            match shake_hands(&connector, &found.service).await {
                Ok(()) => valid.push(found),
                Err(error) => log::warn!(
                    "failed to validate discovered endpoints",
                    "srv-server" = domain,
                    "endpoints" = vec![address(&found.service)],
                    "error" = error.to_string()
                ),
            }
        }
        let shown = shown(&valid);
        log::info!(
            "using validated discovered SRV endpoints",
            "srv-server" = domain,
            "endpoints" = shown
        );
        Ok(valid)
    }
}

fn shown<'a>(found: impl IntoIterator<Item = &'a Discovered>) -> Vec<String> {
    found.into_iter().map(|found| address(&found.service)).collect()
}

async fn shake_hands(connector: &Connector, service: &Service) -> io::Result<()> {
    let stream = connect(&address(service)).await?;
    let shaken = connector.connect(Some(&service.target), stream).await;
    shaken.map(drop).map_err(io::Error::other)
}
