//! Finds endpoints through DNS SRV records (`--discovery-srv`), as `etcdctl` does.
//!
//! `_etcd-client-ssl._tcp.DOMAIN` lists members with TLS, and `_etcd-client._tcp.DOMAIN` lists members without TLS.
//! Either record may be missing. DNS is not trustworthy. With `--insecure-discovery=false`, the client therefore
//! connects only with TLS, and accepts only servers whose certificate is valid for the domain itself (see `security`),
//! regardless of which hosts the records name.

use quorate_cli::gotext;
use quorate_dns::Resolver;

use crate::failure::Failure;
use crate::flags::Matches;

/// A function that returns the DNS resolver. It is called only if the command needs DNS.
pub(crate) type Servers = Box<dyn Fn() -> Resolver>;

/// The discovery flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discovery {
    domain: String,
    /// Service name that distinguishes several clusters in one domain; empty if there is only one.
    service: String,
    is_insecure_accepted: bool,
}

/// Endpoints found by discovery.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) endpoints: Vec<String>,
    /// Endpoints without TLS that were found but are not allowed.
    pub(crate) ignored: Vec<String>,
}

impl Discovery {
    /// Reads the discovery flags. Returns `None` if discovery is not requested.
    pub(crate) fn of(matches: &Matches) -> Option<Self> {
        let domain = matches.text("discovery-srv").to_owned();
        (!domain.is_empty()).then(|| Self {
            domain,
            service: matches.text("discovery-srv-name").to_owned(),
            is_insecure_accepted: matches.bool("insecure-discovery"),
        })
    }

    /// Returns the domain, if server certificates must be valid for the domain instead of the host name.
    pub(crate) fn name_in_certificates(&self) -> Option<String> {
        (!self.is_insecure_accepted).then(|| self.domain.clone())
    }

    /// Queries DNS for the endpoints.
    pub(crate) async fn endpoints(&self, resolver: &Resolver) -> Result<Found, Failure> {
        let (secured, plain) = tokio::join!(
            self.endpoints_of(resolver, "https", "etcd-client-ssl"),
            self.endpoints_of(resolver, "http", "etcd-client"),
        );
        let (secured, plain) = match (secured, plain) {
            (Err(secured), Err(plain)) => {
                return Err(Failure::error(format!("dns lookup errors: {secured} and {plain}")));
            }
            (secured, plain) => (secured.unwrap_or_default(), plain.unwrap_or_default()),
        };
        Ok(match self.is_insecure_accepted {
            true => Found { endpoints: [secured, plain].concat(), ignored: Vec::new() },
            false => Found { endpoints: secured, ignored: plain },
        })
    }

    async fn endpoints_of(
        &self,
        resolver: &Resolver,
        scheme: &str,
        service: &str,
    ) -> Result<Vec<String>, String> {
        let dash = if self.service.is_empty() { "" } else { "-" };
        let name = format!("_{service}{dash}{}._tcp.{}", self.service, self.domain);
        let records = resolver.services(&name).await;
        let records =
            records.map_err(|error| format!("lookup {name}: {}", gotext::reason(&error)))?;
        let endpoint = |record: quorate_dns::Service| match record.target.contains(':') {
            true => format!("{scheme}://[{}]:{}", record.target, record.port),
            false => format!("{scheme}://{}:{}", record.target, record.port),
        };
        Ok(records.into_iter().map(endpoint).collect())
    }
}

#[cfg(test)]
mod tests;
