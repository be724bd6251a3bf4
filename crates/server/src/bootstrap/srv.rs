//! Finds the initial members of a cluster in SRV records (`--discovery-srv`).
//!
//! `_etcd-server-ssl._tcp.DOMAIN` lists peers that use TLS, and `_etcd-server._tcp.DOMAIN` lists peers that do not. The
//! record that resolves to one of this member's advertised peer URLs belongs to this member. The names of the other
//! members are numbers until they publish their own names.

use std::fmt::Write;
use std::net::IpAddr;

use super::names::Names;
use quorate_config::{Config, InitialMembers, Url, UrlError};
use quorate_gotext::quote::{go_quote, go_reason};
use quorate_telemetry::log;

/// Why the SRV records do not define a cluster for this member. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SrvError {
    #[error("error setting up initial cluster: {0}")]
    Records(String),
    #[error(
        "error setting up initial cluster: cannot find local etcd member {} in SRV records",
        go_quote(.0)
    )]
    NotLocal(String),
    #[error("error setting up initial cluster: {0}")]
    Url(#[from] UrlError),
}

/// Looks up the initial members.
pub(super) async fn initial_members(
    config: &Config,
    names: &dyn Names,
) -> Result<InitialMembers, SrvError> {
    let mut members = Vec::new();
    let mut reasons = Vec::new();
    for (scheme, service) in [("https", "etcd-server-ssl"), ("http", "etcd-server")] {
        let mut service = service.to_owned();
        if !config.discovery_srv_name.is_empty() {
            write!(service, "-{}", config.discovery_srv_name)
                .expect("writing to a string cannot fail");
        }
        match members_of_service(config, names, scheme, &service).await {
            Ok(found) => members.extend(found),
            Err(reason) => {
                reasons.push(format!("error querying DNS SRV records for _{service} {reason}"));
            }
        }
    }
    if !reasons.is_empty() {
        log::warn!("failed to resolve during SRV discovery", "error" = reasons.join("\n"));
    }
    if members.is_empty() && !reasons.is_empty() {
        return Err(SrvError::Records(reasons.join("\n")));
    }
    for member in &members {
        log::info!("got bootstrap from DNS for etcd-server", "node" = member);
    }
    let members = InitialMembers::parse(&members.join(","))?;
    if members.urls_of(&config.name).is_none() {
        return Err(SrvError::NotLocal(config.name.clone()));
    }
    Ok(members)
}

/// Returns the members of one SRV service, as `name=url`.
async fn members_of_service(
    config: &Config,
    names: &dyn Names,
    scheme: &str,
    service: &str,
) -> Result<Vec<String>, String> {
    let mut own = Vec::new();
    for url in config.initial_advertise_peer_urls.iter().filter(|url| !url.scheme().is_unix()) {
        own.push((url, addresses(names, url.host()).await?));
    }
    let name = format!("_{service}._tcp.{}", config.discovery_srv);
    let records = names
        .services(&name)
        .await
        .map_err(|error| format!("lookup {name}: {}", go_reason(&error)))?;
    let mut members = Vec::new();
    let mut reason = None;
    let mut numbered = 0..;
    for record in records {
        let found = match addresses(names, &record.target).await {
            Ok(found) => found,
            Err(failure) => {
                reason = Some(failure);
                continue;
            }
        };
        let port = record.port.to_string();
        let is_own = |(url, addresses): &&(&Url, Vec<IpAddr>)| {
            url.port() == port && addresses.iter().any(|address| found.contains(address))
        };
        let own_url = own.iter().find(is_own).map(|(url, _)| *url);
        let host = match record.target.contains(':') {
            true => format!("[{}]:{port}", record.target),
            false => format!("{}:{port}", record.target),
        };
        match own_url {
            Some(url) if url.scheme().name() != scheme => {
                reason = Some(format!(
                    "bootstrap at {scheme}://{host} from DNS for {service} has scheme mismatch with \
                     expected peer {url}"
                ));
            }
            Some(_) => members.push(format!("{}={scheme}://{host}", config.name)),
            None => {
                let number: u32 = numbered.next().unwrap_or_default();
                members.push(format!("{number}={scheme}://{host}"));
            }
        }
    }
    match reason {
        Some(reason) if members.is_empty() => Err(reason),
        _ => Ok(members),
    }
}

async fn addresses(names: &dyn Names, host: &str) -> Result<Vec<IpAddr>, String> {
    if let Ok(ip) = host.parse() {
        return Ok(vec![ip]);
    }
    let found = names.addresses(host).await;
    found.map_err(|error| format!("lookup {host}: {}", go_reason(&error)))
}
