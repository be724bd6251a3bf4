//! Endpoints from SRV records of DNS (`--discovery-srv`), as `etcdctl` finds them.
//!
//! `_etcd-client-ssl._tcp.DOMAIN` names members that speak TLS, `_etcd-client._tcp.DOMAIN` those that do not. Either may be
//! missing. DNS is not to be trusted: who says `--insecure-discovery=false` goes to none without TLS, and takes only
//! servers whose certificate is good for the domain itself (`security`), whatever hosts the records name.

use quorate_cli::gotext;
use quorate_dns::Resolver;

use crate::failure::Failure;
use crate::flags::Matches;

/// The DNS servers that are asked; a run that asks none does not look for them.
pub(crate) type Servers = Box<dyn Fn() -> Resolver>;

/// What the flags say of discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discovery {
    domain: String,
    /// Set apart from other clusters of the domain by this; empty for nothing.
    service: String,
    is_insecure_accepted: bool,
}

/// What the records come to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) endpoints: Vec<String>,
    /// Those without TLS, where they are not wanted.
    pub(crate) ignored: Vec<String>,
}

impl Discovery {
    /// What is to be looked for, if anything is.
    pub(crate) fn of(matches: &Matches) -> Option<Self> {
        let domain = matches.text("discovery-srv").to_owned();
        (!domain.is_empty()).then(|| Self {
            domain,
            service: matches.text("discovery-srv-name").to_owned(),
            is_insecure_accepted: matches.bool("insecure-discovery"),
        })
    }

    /// The name to find in the certificates of servers, if it is not their own.
    pub(crate) fn name_in_certificates(&self) -> Option<String> {
        (!self.is_insecure_accepted).then(|| self.domain.clone())
    }

    /// Asks for the endpoints.
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
