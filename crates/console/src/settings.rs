//! The settings of a console.

use std::net::IpAddr;

use crate::access::{Exposure, Rules};
use crate::cluster::Cluster;

/// The settings of a console.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The settings of connections to the cluster.
    pub cluster: Cluster,
    /// Whether the page may change the cluster.
    pub allows_writes: bool,
    /// The name of the member that runs the console; `None` for a standalone console.
    pub member: Option<String>,
    /// Whether passwords may be sent to other machines in plaintext.
    pub allows_plaintext_login: bool,
    /// The properties of the listeners.
    pub exposure: Exposure,
    /// Additional names under which browsers may open the console.
    pub allowed_hosts: Vec<String>,
}

impl Settings {
    /// Returns the rules that follow from these settings.
    pub(crate) fn rules(&self) -> Rules {
        let allows_login = self.allows_plaintext_login || !self.cluster.sends_plaintext();
        Rules { is_private: self.is_private(), allows_login }
    }

    /// Returns whether everyone who can reach the console may use the cluster while authentication is off. A console
    /// that listens on loopback does not count as private if it has access that other users of the machine lack, or if
    /// a proxy may forward the requests of other users.
    pub(crate) fn is_private(&self) -> bool {
        let is_own = |host: &String| {
            let host = host.trim_matches(['[', ']']);
            host.eq_ignore_ascii_case("localhost")
                || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        };
        let is_protected = self.exposure.is_loopback
            && !self.cluster.lends_access()
            && self.allowed_hosts.iter().all(is_own);
        self.exposure.verifies_clients || is_protected
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::tests::cluster;
    use quorate_client::transport::Transport;

    fn settings() -> Settings {
        let exposure = Exposure { is_loopback: true, is_secured: false, verifies_clients: false };
        let cluster = cluster(Duration::from_secs(1));
        let allowed_hosts = vec!["127.0.0.1".to_owned(), "[::1]".to_owned()];
        Settings {
            cluster,
            allows_writes: false,
            member: None,
            allows_plaintext_login: false,
            exposure,
            allowed_hosts,
        }
    }

    #[test]
    fn a_loopback_console_is_private_unless_it_grants_additional_access_or_is_behind_a_proxy() {
        assert!(settings().is_private());
        let mut with_certificate = settings();
        with_certificate.cluster.transport =
            Transport { cert: "/c".into(), ..Transport::default() };
        assert!(!with_certificate.is_private());
        let mut with_socket = settings();
        with_socket.cluster.endpoints.push("unix:///run/etcd".to_owned());
        assert!(!with_socket.is_private());
        let mut behind_proxy = settings();
        behind_proxy.allowed_hosts.push("console.example.com".to_owned());
        assert!(!behind_proxy.is_private());
        behind_proxy.exposure.verifies_clients = true;
        assert!(behind_proxy.is_private());
    }

    #[test]
    fn a_plaintext_login_is_refused_unless_the_settings_allow_it() {
        let mut remote = settings();
        assert!(remote.rules().allows_login);
        remote.cluster.endpoints.push("http://192.0.2.1:2379".to_owned());
        assert!(!remote.rules().allows_login);
        remote.allows_plaintext_login = true;
        assert!(remote.rules().allows_login);
    }
}
