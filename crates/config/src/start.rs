//! Checks of the configuration when a member starts. Any failure ends the program with exit code 1 and a fatal log
//! line.

use std::collections::BTreeSet;

use quorate_gotext::quote::go_quote;

use super::auth_token::{AuthToken, AuthTokenFault};
use super::config::Config;
use super::security::{Security, Transport};
use super::url::Url;
use super::validate::RetentionError;

/// The reason why a member with this configuration cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// There is a TLS listener, but no certificate.
    #[error("{flags} must be provided for {what} {url} with {scheme} scheme", scheme = url.scheme().name().to_uppercase())]
    NoCertificate {
        /// The flags that would set a certificate.
        flags: &'static str,
        /// The kind of URL, such as `peer url`.
        what: &'static str,
        /// The URL of the listener.
        url: Url,
    },
    /// There is a TLS listener for metrics, but no certificate.
    #[error(
        "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url"
    )]
    NoCertificateForMetrics,
    /// The console would receive passwords in plaintext.
    #[error(
        "--listen-console-url={0}: the console would receive passwords and tokens in plaintext; use a loopback address, \
         or https with --cert-file and --key-file"
    )]
    PlaintextConsole(Url),
    /// The console would listen on a Unix socket, to which browsers cannot connect.
    #[error("--listen-console-url={0}: the console needs an http or https URL")]
    ConsoleSocket(Url),
    /// Either the key or the certificate is missing.
    #[error("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]")]
    HalfPair {
        /// The value given for the key.
        key: String,
        /// The value given for the certificate.
        cert: String,
    },
    /// Either the key or the certificate for outgoing connections is missing.
    #[error(
        "ClientKeyFile and ClientCertFile must both be present or both absent: key: {key}, cert: {cert}]"
    )]
    HalfClientPair {
        /// The value given for the key.
        key: String,
        /// The value given for the certificate.
        cert: String,
    },
    /// Both the common names and the host names of clients are restricted.
    #[error(
        "AllowedCNs and AllowedHostnames are mutually exclusive (cns={cns}, hostnames={hostnames})"
    )]
    TwoLists {
        /// The accepted common names.
        cns: String,
        /// The accepted host names.
        hostnames: String,
    },
    /// The validity of self-signed certificates is zero.
    #[error("selfSignedCertValidity is invalid,it should be greater than 0")]
    Validity,
    /// The same address is used for gRPC and for HTTP-only connections.
    #[error(
        "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {0}"
    )]
    SharedUrl(Url),
    /// The maximum number of learners is negative.
    #[error("membership: too many learner members in cluster")]
    Learners,
    /// The token settings are invalid.
    #[error(transparent)]
    AuthToken(#[from] AuthTokenFault),
    /// The retention of automatic compaction is invalid.
    #[error(transparent)]
    Retention(#[from] RetentionError),
}

impl Config {
    /// Checks everything that needs neither the data directory nor the network.
    pub fn check_start(&self) -> Result<(), StartRefusal> {
        self.check_certificates()?;
        let client: BTreeSet<&str> = self.listen_client_urls.iter().map(Url::authority).collect();
        let shared = self
            .listen_client_http_urls
            .iter()
            .find(|url| !url.scheme().is_unix() && client.contains(url.authority()));
        if let Some(url) = shared {
            return Err(StartRefusal::SharedUrl(url.clone()));
        }
        AuthToken::parse(&self.auth_token)?;
        if self.max_learners < 0 {
            return Err(StartRefusal::Learners);
        }
        self.auto_compaction()?;
        Ok(())
    }

    /// Returns whether every connection to the peer port must present a certificate signed by a trusted authority.
    pub fn authenticates_peers(&self) -> bool {
        let is_secured = self.listen_peer_urls.iter().all(|url| url.scheme().is_tls());
        is_secured && self.security.peer.verifies_clients()
    }

    /// Returns whether this member replaces its state if the state is corrupt. Peers must be authenticated, because
    /// members send their state only to authenticated peers.
    pub fn rebuilds_corrupt_member(&self) -> bool {
        self.rebuild_corrupt_member && self.authenticates_peers()
    }

    /// Checks that certificates are configured or created automatically for all listeners with TLS.
    fn check_certificates(&self) -> Result<(), StartRefusal> {
        let Security { client, peer, self_signed_cert_validity, .. } = &self.security;
        let without = |transport: &Transport| transport.is_empty() && !transport.auto_tls;
        let secured = |urls: &[Url]| urls.iter().find(|url| url.scheme().is_tls()).cloned();
        if let Some(url) = secured(&self.listen_peer_urls).filter(|_| without(peer)) {
            let flags = "TLS key/cert (--peer-cert-file, --peer-key-file)";
            return Err(StartRefusal::NoCertificate { flags, what: "peer url", url });
        }
        let for_clients = [&self.listen_client_urls, &self.listen_client_http_urls];
        let secured_client = for_clients.into_iter().find_map(|urls| secured(urls));
        if let Some(url) = secured_client.filter(|_| without(client)) {
            let flags = "TLS key/cert (--cert-file, --key-file)";
            return Err(StartRefusal::NoCertificate { flags, what: "client url", url });
        }
        if secured(&self.listen_metrics_urls).is_some() && without(client) {
            return Err(StartRefusal::NoCertificateForMetrics);
        }
        if let Some(url) = secured(&self.listen_console_urls).filter(|_| without(client)) {
            let flags = "TLS key/cert (--cert-file, --key-file)";
            return Err(StartRefusal::NoCertificate { flags, what: "console url", url });
        }
        for url in &self.listen_console_urls {
            if url.scheme().is_unix() {
                return Err(StartRefusal::ConsoleSocket(url.clone()));
            }
            if !url.scheme().is_tls() && !url.is_loopback() {
                return Err(StartRefusal::PlaintextConsole(url.clone()));
            }
        }
        for transport in [client, peer] {
            check_transport(transport)?;
        }
        if (client.auto_tls || peer.auto_tls) && *self_signed_cert_validity == 0 {
            return Err(StartRefusal::Validity);
        }
        Ok(())
    }
}

fn check_transport(transport: &Transport) -> Result<(), StartRefusal> {
    let (cert, key) = (transport.cert_file.clone(), transport.key_file.clone());
    if cert.is_empty() != key.is_empty() {
        return Err(StartRefusal::HalfPair { key, cert });
    }
    let (cert, key) = (transport.client_cert_file.clone(), transport.client_key_file.clone());
    if cert.is_empty() != key.is_empty() {
        return Err(StartRefusal::HalfClientPair { key, cert });
    }
    let (cns, hostnames) = (&transport.allowed_cns, &transport.allowed_hostnames);
    if !cns.is_empty() && !hostnames.is_empty() {
        let listed = |texts: &[String]| {
            let quoted: Vec<String> = texts.iter().map(|text| go_quote(text)).collect();
            format!("[{}]", quoted.join(" "))
        };
        let (cns, hostnames) = (listed(cns), listed(hostnames));
        return Err(StartRefusal::TwoLists { cns, hostnames });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::parse_list;

    #[test]
    fn start_errors_name_the_invalid_setting() {
        let urls = |text| parse_list(text).unwrap();
        let refused = |config: Config| config.check_start().unwrap_err().to_string();
        assert_eq!(Config::default().check_start(), Ok(()));
        let tls = urls("http://localhost:1,https://localhost:2");
        assert_eq!(
            refused(Config { listen_client_urls: tls.clone(), ..Config::default() }),
            "TLS key/cert (--cert-file, --key-file) must be provided for client url https://localhost:2 with HTTPS \
             scheme"
        );
        assert_eq!(
            refused(Config { listen_peer_urls: urls("unixs://x"), ..Config::default() }),
            "TLS key/cert (--peer-cert-file, --peer-key-file) must be provided for peer url unixs://x with UNIXS \
             scheme"
        );
        assert_eq!(
            refused(Config { listen_metrics_urls: tls.clone(), ..Config::default() }),
            "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url"
        );
        let with = |client: Transport, self_signed_cert_validity| Config {
            listen_client_urls: tls.clone(),
            security: Security { client, self_signed_cert_validity, ..Security::default() },
            ..Config::default()
        };
        let pair =
            Transport { cert_file: "c".into(), key_file: "k".into(), ..Transport::default() };
        assert_eq!(with(pair.clone(), 1).check_start(), Ok(()));
        let auto = Transport { auto_tls: true, ..Transport::default() };
        assert_eq!(with(auto.clone(), 1).check_start(), Ok(()));
        assert_eq!(with(auto, 0).check_start(), Err(StartRefusal::Validity));
        assert_eq!(
            refused(with(Transport { key_file: String::new(), ..pair.clone() }, 1)),
            "KeyFile and CertFile must both be present[key: , cert: c]"
        );
        assert_eq!(
            refused(with(Transport { client_key_file: "ck".into(), ..pair.clone() }, 1)),
            "ClientKeyFile and ClientCertFile must both be present or both absent: key: ck, cert: ]"
        );
        let (allowed_cns, allowed_hostnames) = (vec!["a".into(), "b".into()], vec!["c".into()]);
        assert_eq!(
            refused(with(Transport { allowed_cns, allowed_hostnames, ..pair }, 1)),
            "AllowedCNs and AllowedHostnames are mutually exclusive (cns=[\"a\" \"b\"], hostnames=[\"c\"])"
        );
        let same = urls("http://localhost:2379");
        assert_eq!(
            refused(Config { listen_client_http_urls: same, ..Config::default() }),
            "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url \
             http://localhost:2379"
        );
        assert_eq!(
            refused(Config { max_learners: -1, ..Config::default() }),
            "membership: too many learner members in cluster"
        );
        let retention = "x".to_owned();
        assert_eq!(
            refused(Config { auto_compaction_retention: retention, ..Config::default() }),
            "error parsing CompactionRetention: time: invalid duration \"x\""
        );
    }
}
