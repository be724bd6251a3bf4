//! Names into addresses, while a member comes to life; tests bring names of their own.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

use quorate_peer::Dialer;

use quorate_dns::{Resolver, Service, no_such_host};

/// What a look-up comes to.
pub(super) type Lookup<'a, T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send + 'a>>;

/// Who knows names.
pub(super) trait Names: Send + Sync {
    /// The addresses of a host, the preferred one first; at least one.
    fn addresses<'a>(&'a self, host: &'a str) -> Lookup<'a, Vec<IpAddr>>;

    /// The SRV records of a name, the preferred one first; at least one.
    fn services<'a>(&'a self, name: &'a str) -> Lookup<'a, Vec<Service>>;
}

/// The world outside this host, as a member that comes to life needs it.
#[derive(Clone, Copy)]
pub(super) struct Outside<'a> {
    pub(super) names: &'a dyn Names,
    /// The way to members that already run.
    pub(super) dialer: &'a Dialer,
}

/// The system's names: hosts file and DNS, as the C library is configured.
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
