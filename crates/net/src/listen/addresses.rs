//! A limit on connections per address. Connections beyond the limit are closed immediately.
//!
//! An IPv6 address counts as its /64 network, the smallest network that a host usually receives. Connections over a
//! Unix socket come from this machine and are not counted.
//!
//! # Bound
//!
//! An address is remembered only while it has connections, so there are at most as many entries as
//! connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quorate_telemetry::log;
use quorate_telemetry::metrics::Counter;

/// Minimum time between two log lines about closed connections.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The limit per address, shared by all listeners that apply it.
#[derive(Debug)]
pub struct AddressLimit {
    most: u32,
    /// Counts the connections closed because of the limit.
    refused: Arc<Counter>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: HashMap<IpAddr, u32>,
    logged_at: Option<Instant>,
}

/// A connection's permit, released when dropped.
#[derive(Debug)]
pub(super) struct Held {
    limit: Arc<AddressLimit>,
    address: IpAddr,
}

impl AddressLimit {
    /// Creates a limit of `most` connections per address. `refused` counts the refused connections.
    pub fn new(most: u32, refused: Arc<Counter>) -> Self {
        Self { most, refused, state: Mutex::default() }
    }

    /// Counts another connection from this address, unless the limit is reached.
    pub(super) fn take(limit: &Arc<Self>, from: IpAddr) -> Option<Held> {
        let address = network_of(from);
        let is_due = {
            let mut state = limit.state.lock();
            let held = state.held.entry(address).or_default();
            if *held < limit.most {
                *held += 1;
                return Some(Held { limit: Arc::clone(limit), address });
            }
            let is_due =
                state.logged_at.is_none_or(|logged_at| logged_at.elapsed() >= LOG_INTERVAL);
            if is_due {
                state.logged_at = Some(Instant::now());
            }
            is_due
        };
        limit.refused.inc();
        if is_due {
            log::warn!(
                "an address has reached its connection limit; further connections from it are closed",
                "remote-addr" = from.to_string(),
                "max-connections-per-address" = limit.most,
                "connections-closed" = limit.refused.value()
            );
        }
        None
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.limit.state.lock();
        if let Some(held) = state.held.get_mut(&self.address) {
            *held -= 1;
            if *held == 0 {
                state.held.remove(&self.address);
            }
        }
    }
}

fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_per_address_and_permits_are_returned() {
        let limit = Arc::new(AddressLimit::new(2, Arc::default()));
        let take = |address: &str| AddressLimit::take(&limit, address.parse().unwrap());
        let (first, second) = (take("10.0.0.1").unwrap(), take("::ffff:10.0.0.1").unwrap());
        assert!(take("10.0.0.1").is_none());
        let other = take("10.0.0.2").unwrap();
        drop(first);
        let third = take("10.0.0.1").unwrap();
        assert!(take("10.0.0.1").is_none());
        let of_network = [take("2001:db8::1").unwrap(), take("2001:db8::ffff").unwrap()];
        assert!(take("2001:db8::2").is_none());
        let neighbour = take("2001:db8:0:1::1").unwrap();
        drop((second, third, other, of_network, neighbour));
        assert!(
            limit.state.lock().held.is_empty(),
            "an address without connections was not removed"
        );
        assert_eq!(limit.refused.value(), 3);
    }
}
