//! Name resolution during bootstrap. Tests replace the resolver.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

use quorate_peer::Dialer;

use quorate_dns::{Resolver, Service, no_such_host};

/// The result of a lookup.
pub(super) type Lookup<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// Resolves names.
pub(super) trait Names: Send + Sync {
    /// Returns the addresses of a host, at least one, in order of preference.
    fn addresses<'a>(&'a self, host: &'a str) -> Lookup<'a, Vec<IpAddr>>;

    /// Returns the SRV records of a name, at least one, in order of preference.
    fn services<'a>(&'a self, name: &'a str) -> Lookup<'a, Vec<Service>>;
}

/// The network access that bootstrap needs.
#[derive(Clone, Copy)]
pub(super) struct Outside<'a> {
    pub(super) names: &'a dyn Names,
    /// Connects to running members.
    pub(super) dialer: &'a Dialer,
}

/// The system's resolver, which uses the hosts file and DNS as configured for the C library.
#[derive(Clone, Copy, Debug)]
pub(super) struct SystemNames;

impl Names for SystemNames {
    fn addresses<'a>(&'a self, host: &'a str) -> Lookup<'a, Vec<IpAddr>> {
        Box::pin(async move {
            let found: Vec<IpAddr> =
                tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect();
            if found.is_empty() { Err(no_such_host()) } else { Ok(found) }
        })
    }

    fn services<'a>(&'a self, name: &'a str) -> Lookup<'a, Vec<Service>> {
        Box::pin(async move { Resolver::of_system().services(name).await })
    }
}
