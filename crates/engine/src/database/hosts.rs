//! The hosts of the database, and the order in which a connection tries them.
//!
//! The database accepts writes at one of its hosts, which may change in a failover. A connection tries the host first
//! that accepted the last connection, so after a failover only few connections wait for the time limit of a former
//! primary that no longer responds. With `load_balance_hosts=random`, connections begin with the hosts in turn.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts};

/// The configuration of the connections to each host.
#[derive(Debug)]
pub(super) struct Hosts {
    /// At least one configuration. Each contains one host.
    configs: Vec<Config>,
    takes_turns: bool,
    /// The index of the host that the next connection tries first, not reduced to the number of hosts.
    first: AtomicUsize,
}

impl Hosts {
    /// Divides the configuration of several hosts.
    pub(super) fn of(config: &Config) -> Self {
        let ports = config.get_ports();
        let configs = config.get_hosts().iter().enumerate().map(|(at, host)| {
            let mut one = without_hosts(config);
            match host {
                Host::Tcp(name) => one.host(name),
                Host::Unix(path) => one.host_path(path),
            };
            config.get_hostaddrs().get(at).map(|&address| one.hostaddr(address));
            ports.get(at).or(ports.first()).map(|&port| one.port(port));
            one
        });
        let takes_turns = config.get_load_balance_hosts() == LoadBalanceHosts::Random;
        Self { configs: configs.collect(), takes_turns, first: AtomicUsize::new(0) }
    }

    /// Returns the hosts in the order in which a new connection tries them.
    pub(super) fn in_order(&self) -> impl Iterator<Item = (usize, &Config)> {
        let first = match self.takes_turns {
            true => self.first.fetch_add(1, Ordering::Relaxed),
            false => self.first.load(Ordering::Relaxed),
        };
        let count = self.configs.len();
        (0..count).map(move |step| {
            let at = first.wrapping_add(step) % count;
            (at, &self.configs[at])
        })
    }

    /// Notes that a host has accepted a connection.
    pub(super) fn accepted(&self, at: usize) {
        if !self.takes_turns {
            self.first.store(at, Ordering::Relaxed);
        }
    }
}

/// Returns the time limit for a connection to one host, including the resolution of its name, authentication, and the
/// check that it accepts writes. The client library limits only the connection to each address of the host. The limit
/// leaves time for three addresses of which the first two do not respond.
pub(super) fn time_max(config: &Config) -> Duration {
    config
        .get_connect_timeout()
        .map_or(super::STATEMENT_TIME_MAX, |timeout| timeout.saturating_mul(3))
}

/// Copies everything except the hosts, their addresses and their ports.
fn without_hosts(config: &Config) -> Config {
    let mut copy = Config::new();
    copy.ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .keepalives(config.get_keepalives())
        .keepalives_idle(config.get_keepalives_idle())
        .target_session_attrs(config.get_target_session_attrs())
        .channel_binding(config.get_channel_binding())
        .load_balance_hosts(config.get_load_balance_hosts());
    config.get_user().map(|user| copy.user(user));
    config.get_password().map(|password| copy.password(password));
    config.get_dbname().map(|name| copy.dbname(name));
    config.get_options().map(|options| copy.options(options));
    config.get_application_name().map(|name| copy.application_name(name));
    config.get_connect_timeout().map(|&timeout| copy.connect_timeout(timeout));
    config.get_tcp_user_timeout().map(|&timeout| copy.tcp_user_timeout(timeout));
    config.get_keepalives_interval().map(|interval| copy.keepalives_interval(interval));
    config.get_keepalives_retries().map(|retries| copy.keepalives_retries(retries));
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &str = "dbname=d&options=-c%20x%3D1&application_name=q&sslmode=require&sslnegotiation=direct\
         &connect_timeout=3&tcp_user_timeout=4&keepalives=0&keepalives_idle=5&keepalives_interval=6\
         &keepalives_retries=7&target_session_attrs=read-write&channel_binding=require";

    fn parsed(hosts: &str, more: &str) -> Config {
        format!("postgres://u:p@{hosts}/?{SETTINGS}{more}").parse().unwrap()
    }

    fn order(hosts: &Hosts) -> Vec<usize> {
        hosts.in_order().map(|(at, _)| at).collect()
    }

    #[test]
    fn each_host_has_all_settings() {
        let both = Hosts::of(&parsed("h1:1,h2:2", ""));
        let configs: Vec<Config> = both.in_order().map(|(_, config)| config.clone()).collect();
        assert!(configs == [parsed("h1:1", ""), parsed("h2:2", "")]);
        assert_eq!(time_max(&configs[0]), Duration::from_secs(9));
        let one_port = Hosts::of(&parsed("h1:7,h2:7", "&hostaddr=127.0.0.1,127.0.0.2"));
        let second = parsed("h2:7", "&hostaddr=127.0.0.2");
        assert!(one_port.in_order().nth(1).is_some_and(|(_, config)| *config == second));
    }

    #[test]
    fn a_connection_begins_with_the_host_that_accepted_the_last_one() {
        let hosts = Hosts::of(&parsed("h1:1,h2:2,h3:3", ""));
        assert_eq!(order(&hosts), [0, 1, 2]);
        hosts.accepted(1);
        assert_eq!(order(&hosts), [1, 2, 0]);
        assert_eq!(order(&hosts), [1, 2, 0]);
    }

    #[test]
    fn connections_begin_with_the_hosts_in_turn_if_the_load_is_balanced() {
        let hosts = Hosts::of(&parsed("h1:1,h2:2", "&load_balance_hosts=random"));
        assert_eq!(order(&hosts), [0, 1]);
        hosts.accepted(0);
        assert_eq!(order(&hosts), [1, 0]);
    }
}
