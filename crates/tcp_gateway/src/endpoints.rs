//! Finds the members to which connections are forwarded, from the flags or through discovery (`discovery`).

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use quorate_cli::flags::Matches;
use quorate_cli::gotext;
use quorate_config::split_host_port;
use quorate_dns::Service;
use thiserror::Error;
use tokio::net::lookup_host;

use crate::discovery::{Discovery, DiscoveryError};

/// The settings from the flags.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) listen_addr: String,
    endpoints: Vec<String>,
    discovery: Discovery,
}

impl Wanted {
    pub(crate) fn of(matches: &Matches) -> Self {
        let text = |name| matches.text(name).to_owned();
        Self {
            listen_addr: text("listen-addr"),
            endpoints: matches.list("endpoints"),
            discovery: Discovery {
                domain: text("discovery-srv"),
                service: text("discovery-srv-name"),
                is_insecure_accepted: matches.bool("insecure-discovery"),
                authorities: text("trusted-ca-file"),
            },
        }
    }
}

/// The reason why there is no member to forward connections to. The texts are etcd's.
#[derive(Debug, Error)]
pub(crate) enum EndpointError {
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    #[error("error parsing endpoint {}", gotext::quote(.0.as_bytes()))]
    Endpoint(String),
    #[error("failed to validate listen address: {0}")]
    Listen(String),
    #[error("failed to resolve listen host: {0}")]
    ListenHost(String),
    #[error("failed to resolve endpoint host: {0}")]
    Host(String),
    #[error(
        "SRV or endpoint ({host}:{port}->{address}:{port}) should not resolve to the gateway listen addr ({listen})"
    )]
    Own { host: String, port: u16, address: IpAddr, listen: String },
    #[error("no endpoints found")]
    None,
}

/// Finds the members to forward connections to. Returns at least one member.
pub(crate) async fn find(wanted: &Wanted) -> Result<Vec<Service>, EndpointError> {
    let discovered = wanted.discovery.find().await?;
    if !discovered.is_empty() {
        return Ok(discovered.into_iter().map(|found| found.service).collect());
    }
    let named = wanted.endpoints.iter().map(|endpoint| named(endpoint));
    let named = named.collect::<Result<Vec<_>, _>>()?;
    if named.is_empty() { Err(EndpointError::None) } else { Ok(named) }
}

/// Parses an endpoint, with or without a scheme.
fn named(endpoint: &str) -> Result<Service, EndpointError> {
    let rest = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let parts = split_host_port(authority);
    let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let (host, port) = parts.ok_or_else(|| EndpointError::Endpoint(authority.to_owned()))?;
    Ok(Service { priority: 0, weight: 0, target: host.to_owned(), port })
}

/// Refuses a configuration in which the gateway would forward connections to itself.
pub(crate) async fn refuse_own(listen: &str, services: &[Service]) -> Result<(), EndpointError> {
    let parts = split_host_port(listen).ok_or_else(|| EndpointError::Listen(listen.to_owned()))?;
    let resolve = async |host: &str| -> io::Result<BTreeSet<IpAddr>> {
        Ok(lookup_host((host, 0)).await?.map(|found| found.ip()).collect())
    };
    let (host, port) = parts;
    let own = match host {
        // An empty host means all addresses of this machine. A loop through one of these addresses is not detected.
        "" => BTreeSet::new(),
        _ => resolve(host).await.map_err(|_| EndpointError::ListenHost(host.to_owned()))?,
    };
    for service in services {
        let host = &service.target;
        let found = resolve(host).await.map_err(|_| EndpointError::Host(host.clone()))?;
        if service.port.to_string() != port {
            continue;
        }
        let is_own = |address: &&IpAddr| own.contains(*address);
        if let Some(address) = found.iter().find(is_own) {
            return Err(EndpointError::Own {
                host: host.clone(),
                port: service.port,
                address: *address,
                listen: listen.to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(target: &str, port: u16) -> Service {
        Service { priority: 0, weight: 0, target: target.to_owned(), port }
    }

    #[test]
    fn endpoints_are_accepted_with_and_without_a_scheme() {
        for (text, host, port) in [
            ("127.0.0.1:2379", "127.0.0.1", 2379),
            ("http://a.example:1", "a.example", 1),
            ("https://[::1]:2379/path", "::1", 2379),
        ] {
            assert_eq!(named(text).unwrap(), service(host, port), "{text}");
        }
        for text in ["", "a", "a:", "a:b", "a:70000", "http://"] {
            let error = named(text).expect_err(text).to_string();
            assert!(error.starts_with("error parsing endpoint \""), "{error}");
        }
    }

    #[tokio::test]
    async fn a_gateway_that_forwards_to_itself_is_refused() {
        let refused = |listen: &'static str, target: &'static str, port| async move {
            refuse_own(listen, &[service(target, port)]).await.err().map(|error| error.to_string())
        };
        let own = "SRV or endpoint (127.0.0.1:2379->127.0.0.1:2379) should not resolve to the gateway listen addr \
                   (127.0.0.1:2379)";
        assert_eq!(refused("127.0.0.1:2379", "127.0.0.1", 2379).await.as_deref(), Some(own));
        assert_eq!(refused("127.0.0.1:2379", "127.0.0.1", 2380).await, None);
        let listen = refused("2379", "127.0.0.1", 2380).await;
        assert_eq!(listen.as_deref(), Some("failed to validate listen address: 2379"));
    }
}
