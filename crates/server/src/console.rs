//! The web console of a member. It is a client of the cluster like any other: it connects to the member's own client
//! URLs, and every call carries the token of the user who is logged in.
//!
//! # Not here
//!
//! The console itself (`console`), its listeners (`listeners`, `serving`), and the checks of its URLs (`config`).

use std::time::Duration;

use quorate_config::{Config, Transport as Flags, Url};
use quorate_console::{Cluster, Console, Exposure, Settings, StartError, Timeouts, Transport};

/// The time limits of the console's connections to the members.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);
const KEEPALIVE_TIME: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(6);

/// Starts the console, if the flags enable it.
pub(crate) fn open(config: &Config) -> Result<Option<Console>, StartError> {
    let urls = &config.listen_console_urls;
    if urls.is_empty() {
        return Ok(None);
    }
    let client = &config.security.client;
    let exposure = Exposure {
        is_loopback: urls.iter().all(Url::is_loopback),
        is_secured: urls.iter().all(|url| url.scheme().is_tls()),
        // Without TLS, a listener cannot verify client certificates, so every URL must use TLS.
        verifies_clients: client.verifies_clients() && urls.iter().all(|url| url.scheme().is_tls()),
    };
    let hosts = urls.iter().map(Url::host).filter(|host| !host.is_empty());
    let listed = config.host_whitelist.iter().filter(|host| *host != "*");
    let settings = Settings {
        cluster: Cluster {
            endpoints: endpoints(config),
            transport: transport(client, &config.security.peer),
            timeouts: Timeouts {
                dial_timeout: DIAL_TIMEOUT,
                keepalive_time: KEEPALIVE_TIME,
                keepalive_timeout: KEEPALIVE_TIMEOUT,
            },
        },
        allows_writes: config.console_allow_writes,
        member: Some(config.name.clone()),
        allows_plaintext_login: false,
        exposure,
        allowed_hosts: hosts.map(str::to_owned).chain(listed.cloned()).collect(),
    };
    quorate_console::open(settings).map(Some)
}

/// Returns the member's client URLs. The advertised URLs come first, because the member's certificate is valid for
/// their hosts. Without TLS, only the URLs of this member's own listeners are used, so that no password leaves the
/// machine in plaintext.
fn endpoints(config: &Config) -> Vec<String> {
    let advertised = config.advertise_client_urls.iter().filter(|url| url.scheme().is_tls());
    let mut endpoints: Vec<String> = Vec::new();
    for url in advertised.chain(&config.listen_client_urls) {
        let is_plain = !url.scheme().is_tls() && !url.scheme().is_unix();
        let endpoint = match url.host() {
            "" | "0.0.0.0" if is_plain => format!("http://127.0.0.1:{}", url.port()),
            "::" if is_plain => format!("http://[::1]:{}", url.port()),
            "" | "0.0.0.0" | "::" => continue,
            _ => url.as_str().to_owned(),
        };
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    endpoints
}

/// Returns the TLS settings for connections to the members. The trusted CAs come from the client flags or, if these
/// flags name none, from the peer flags. This member's certificate is used if members require one.
fn transport(client: &Flags, peer: &Flags) -> Transport {
    let authorities = [&client.trusted_ca_file, &peer.trusted_ca_file];
    let cacert = authorities.into_iter().find(|path| !path.is_empty()).cloned().unwrap_or_default();
    let (cert, key) = match (client.verifies_clients(), client.client_cert_file.as_str()) {
        (false, _) => (String::new(), String::new()),
        (true, "") => (client.cert_file.clone(), client.key_file.clone()),
        (true, own) => (own.to_owned(), client.client_key_file.clone()),
    };
    Transport {
        cacert,
        cert,
        key,
        // With `--auto-tls`, each member has a certificate that only the member itself trusts, so the console accepts
        // any certificate.
        trusts_all: client.auto_tls && client.is_empty(),
        ..Transport::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn the_console_does_not_connect_to_unspecified_addresses() {
        let config = Config {
            advertise_client_urls: vec![url("https://m1.example:2379")],
            listen_client_urls: vec![url("https://0.0.0.0:2379"), url("http://127.0.0.1:2380")],
            ..Config::default()
        };
        assert_eq!(endpoints(&config), ["https://m1.example:2379", "http://127.0.0.1:2380"]);
    }

    #[test]
    fn without_tls_the_console_connects_only_to_the_members_own_listeners() {
        let config = Config {
            advertise_client_urls: vec![url("http://m1.example:2379")],
            listen_client_urls: vec![url("http://0.0.0.0:2379"), url("http://[::]:2380")],
            ..Config::default()
        };
        assert_eq!(endpoints(&config), ["http://127.0.0.1:2379", "http://[::1]:2380"]);
    }

    #[test]
    fn the_console_presents_a_certificate_only_if_members_ask_for_one() {
        let pair = Flags {
            cert_file: "/cert".to_owned(),
            key_file: "/key".to_owned(),
            ..Flags::default()
        };
        let peer = Flags { trusted_ca_file: "/peers".to_owned(), ..Flags::default() };
        let open = transport(&pair, &peer);
        assert_eq!((&*open.cert, &*open.cacert), ("", "/peers"));
        let verifying = Flags { trusted_ca_file: "/clients".to_owned(), ..pair };
        let named = transport(&verifying, &peer);
        assert_eq!((&*named.cert, &*named.key, &*named.cacert), ("/cert", "/key", "/clients"));
    }
}
