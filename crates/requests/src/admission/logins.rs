//! The bound on logins in progress, in total and by source.
//!
//! Clients without credentials must be able to log in, and checking a password is slow. Logins therefore have a bound
//! of their own, which other calls cannot use up. Once half of this bound is in use, new logins are refused from a
//! source that uses a sixteenth of it. The user name of a login is irrelevant, so failed logins under a user's name do
//! not prevent the user from logging in from another address.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use parking_lot::Mutex;

use crate::bound::{Bound, Full};

/// Divisor for the share of the bound that one source may use once half of the bound is in use.
const SHARE: u64 = 16;

/// The source of a login: an IPv4 address, or a 64-bit IPv6 network, which is usually assigned to one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoginSource(Option<IpAddr>);

impl LoginSource {
    /// Returns the source for the remote address of a connection.
    #[must_use]
    pub fn of(remote: Option<SocketAddr>) -> Self {
        const HOST_BITS: u32 = 64;
        Self(remote.map(|remote| match remote.ip().to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> HOST_BITS << HOST_BITS).into()),
            address @ IpAddr::V4(_) => address,
        }))
    }
}

/// Displays an address, a network such as `2001:db8::/64`, or an empty string if the source is unknown, as it is for a
/// Unix socket.
impl fmt::Display for LoginSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(IpAddr::V4(address)) => write!(f, "{address}"),
            Some(IpAddr::V6(network)) => write!(f, "{network}/64"),
            None => Ok(()),
        }
    }
}

/// The bound on logins, and the number of logins in progress for each source.
#[derive(Debug)]
pub struct Logins {
    count: Bound,
    by_source: Mutex<BTreeMap<LoginSource, u64>>,
}

impl Logins {
    pub(super) fn new(count_max: u64) -> Self {
        Self { count: Bound::new(count_max), by_source: Mutex::default() }
    }

    /// Returns the number of logins in progress.
    pub fn used(&self) -> u64 {
        self.count.used()
    }

    /// Returns the number of refused logins.
    pub fn refused(&self) -> u64 {
        self.count.refused()
    }

    pub(super) fn begin(&self, source: LoginSource) -> Result<(), Full> {
        let mut by_source = self.by_source.lock();
        let held = by_source.get(&source).copied().unwrap_or_default();
        if self.count.used() >= self.count.max() / 2 && held >= self.count.max() / SHARE {
            return Err(self.count.refuse());
        }
        self.count.count(1)?;
        by_source.insert(source, held + 1);
        Ok(())
    }

    pub(super) fn end(&self, source: LoginSource) {
        let mut by_source = self.by_source.lock();
        self.count.give_back(1);
        let held = by_source
            .get_mut(&source)
            .expect("the source of a login is counted until the login ends");
        *held -= 1;
        if *held == 0 {
            by_source.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> LoginSource {
        LoginSource::of(Some(text.parse().unwrap()))
    }

    #[test]
    fn a_source_with_many_logins_does_not_block_others() {
        let logins = Logins::new(64);
        let (greedy, modest) = (source("192.0.2.1:1"), source("192.0.2.2:1"));
        while logins.begin(greedy).is_ok() {}
        assert_eq!((logins.used(), logins.refused()), (32, 1));
        for _ in 0..4 {
            logins.begin(modest).unwrap();
        }
        assert_eq!(
            logins.begin(modest),
            Err(Full),
            "a source may have at most a sixteenth of the logins"
        );
        (0..32).for_each(|_| logins.end(greedy));
        logins.begin(modest).unwrap();
        (0..5).for_each(|_| logins.end(modest));
        assert_eq!(logins.used(), 0);
        assert!(logins.by_source.lock().is_empty());
    }

    #[test]
    fn hosts_in_the_same_ipv6_network_count_as_one_source() {
        assert_eq!(source("[2001:db8::1]:1"), source("[2001:db8::ffff:2]:9"));
        assert_ne!(source("[2001:db8::1]:1"), source("[2001:db8:0:1::1]:1"));
        assert_eq!(source("[::ffff:192.0.2.1]:1"), source("192.0.2.1:7"));
        assert_ne!(source("192.0.2.1:1"), source("192.0.2.2:1"));
    }
}
