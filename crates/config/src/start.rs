//! What is only found out when a member starts: each of these ends the program with
//! `discovery failed` in the log, whatever the true cause, and status 1.

use std::collections::BTreeSet;

use super::auth_token::{AuthToken, AuthTokenFault};
use super::config::Config;
use super::url::Url;
use super::validate::RetentionError;

/// Why a member with this configuration cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// A listener with TLS, which this version does not have.
    #[error("--{flag} {url}: TLS is not supported by this version; use {plain}://")]
    Tls {
        /// The flag of the listener.
        flag: &'static str,
        /// Its URL.
        url: Url,
        /// The scheme that works.
        plain: &'static str,
    },
    /// One address for gRPC and for HTTP alone.
    #[error(
        "cannot bind both --listen-client-urls and --listen-client-http-urls on the same url {0}"
    )]
    SharedUrl(Url),
    /// A discovery cluster behind TLS, which this version does not have.
    #[error("--{0}: TLS is not supported by this version")]
    DiscoveryTls(&'static str),
    /// Less than no learners.
    #[error("membership: too many learner members in cluster")]
    Learners,
    /// Tokens that cannot be had.
    #[error(transparent)]
    AuthToken(#[from] AuthTokenFault),
    /// A retention without meaning.
    #[error(transparent)]
    Retention(#[from] RetentionError),
}

impl Config {
    /// Checks what needs neither the data directory nor the network.
    pub fn check_start(&self) -> Result<(), StartRefusal> {
        for (flag, urls) in [
            ("listen-peer-urls", &self.listen_peer_urls),
            ("listen-client-urls", &self.listen_client_urls),
            ("listen-client-http-urls", &self.listen_client_http_urls),
            ("listen-metrics-urls", &self.listen_metrics_urls),
        ] {
            if let Some(url) = urls.iter().find(|url| url.scheme().is_tls()) {
                let plain = if url.scheme().is_unix() { "unix" } else { "http" };
                return Err(StartRefusal::Tls { flag, url: url.clone(), plain });
            }
        }
        let client: BTreeSet<&str> = self.listen_client_urls.iter().map(Url::authority).collect();
        let shared = self
            .listen_client_http_urls
            .iter()
            .find(|url| !url.scheme().is_unix() && client.contains(url.authority()));
        if let Some(url) = shared {
            return Err(StartRefusal::SharedUrl(url.clone()));
        }
        if let Some(flag) = self.discovery.tls_flag() {
            return Err(StartRefusal::DiscoveryTls(flag));
        }
        AuthToken::parse(&self.auth_token)?;
        if self.max_learners < 0 {
            return Err(StartRefusal::Learners);
        }
        self.auto_compaction()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::parse_list;

    #[test]
    fn what_cannot_start_is_named() {
        let urls = |text| parse_list(text).unwrap();
        let refused = |config: Config| config.check_start().unwrap_err().to_string();
        assert_eq!(Config::default().check_start(), Ok(()));
        let tls = urls("http://localhost:1,https://localhost:2");
        assert_eq!(
            refused(Config { listen_client_urls: tls, ..Config::default() }),
            "--listen-client-urls https://localhost:2: TLS is not supported by this version; use \
             http://"
        );
        assert_eq!(
            refused(Config { listen_peer_urls: urls("unixs://x"), ..Config::default() }),
            "--listen-peer-urls unixs://x: TLS is not supported by this version; use unix://"
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
        let discovery = super::super::Discovery { cert: "/c".to_owned(), ..Default::default() };
        assert_eq!(
            refused(Config { discovery, ..Config::default() }),
            "--discovery-cert: TLS is not supported by this version"
        );
        let retention = "x".to_owned();
        assert_eq!(
            refused(Config { auto_compaction_retention: retention, ..Config::default() }),
            "error parsing CompactionRetention: time: invalid duration \"x\""
        );
    }
}
