//! Parses endpoints and configures connections to them.

use http::Uri;
use quorate_tls::{ChannelConnector, Connector, Place, authority_of_file, split_scheme};
use thiserror::Error;

/// An invalid endpoint.
#[derive(Debug, Error)]
pub(crate) enum TargetError {
    #[error("error parsing endpoint {0:?}")]
    Endpoint(String),
    #[error("unknown scheme {scheme}: {endpoint}")]
    Scheme { scheme: String, endpoint: String },
    #[error(
        "cannot verify the certificate of {endpoint}: {reason}; set --cacert to the CA file that signed the members' \
         certificates, or install the system's CA certificates"
    )]
    NoAuthorities { endpoint: String, reason: String },
}

/// TLS settings for connections to endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Targets {
    /// The connectors, or the reason why there are none. There are none if the system has no CA certificates and no
    /// flag configures TLS. In this case, the proxy connects to plaintext endpoints and refuses endpoints with TLS.
    pub(crate) connectors: Result<Connectors, String>,
    /// Whether a flag configures TLS. Endpoints without a scheme then use TLS.
    pub(crate) is_asked_for: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Connectors {
    pub(crate) grpc: Connector,
    pub(crate) http1: Connector,
}

/// A parsed endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The endpoint as configured.
    pub(crate) text: String,
    /// The base URI of requests.
    pub(crate) uri: Uri,
    pub(crate) connector: ChannelConnector,
    /// The connector for HTTP/1 requests.
    pub(crate) http_connector: ChannelConnector,
}

impl Target {
    /// Returns an address in the format used in errors.
    pub(crate) fn shown(place: &Place) -> String {
        match place {
            Place::Host(authority) => authority.clone(),
            Place::File(path) => path.display().to_string(),
        }
    }
}

impl Targets {
    /// Parses an endpoint in any format accepted by etcd.
    pub(crate) fn target(&self, endpoint: &str) -> Result<Target, TargetError> {
        let (scheme, rest) = split_scheme(endpoint);
        let is_secured = match scheme {
            "https" | "unixs" => true,
            "http" => false,
            "" | "unix" => self.is_asked_for,
            _ => {
                let (scheme, endpoint) = (scheme.to_owned(), endpoint.to_owned());
                return Err(TargetError::Scheme { scheme, endpoint });
            }
        };
        let place = match scheme {
            "unix" | "unixs" => Place::File(rest.into()),
            _ => Place::Host(authority(rest, scheme)),
        };
        let authority = match &place {
            Place::Host(authority) => authority,
            Place::File(path) => authority_of_file(path),
        };
        let uri = format!("{}://{authority}", if is_secured { "https" } else { "http" });
        let uri = uri.parse().map_err(|_| TargetError::Endpoint(endpoint.to_owned()))?;
        let (grpc, http1) = match &self.connectors {
            _ if !is_secured => (None, None),
            Ok(Connectors { grpc, http1 }) => (Some(grpc.clone()), Some(http1.clone())),
            Err(reason) => {
                let (endpoint, reason) = (endpoint.to_owned(), reason.clone());
                return Err(TargetError::NoAuthorities { endpoint, reason });
            }
        };
        Ok(Target {
            text: endpoint.to_owned(),
            uri,
            connector: ChannelConnector::new(place.clone(), grpc),
            http_connector: ChannelConnector::new(place, http1),
        })
    }
}

fn authority(rest: &str, scheme: &str) -> String {
    let authority = rest.split('/').next().unwrap_or(rest);
    let port = if scheme == "https" { 443 } else { 80 };
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if has_port { authority.to_owned() } else { format!("{authority}:{port}") }
}

#[cfg(test)]
mod tests {
    use quorate_tls::{Allowed, ConnectorSettings, Protocols, ServerCheck};

    use super::*;

    #[test]
    fn endpoints_without_a_scheme_use_tls_if_a_flag_configures_it() {
        let connector = Connector::new(ConnectorSettings {
            pair: None,
            protocols: Protocols::default(),
            check: ServerCheck::Skip,
            allowed: Allowed::All,
            http2: true,
            server_name: None,
        });
        let connector = connector.unwrap();
        let targets = |is_asked_for| Targets {
            connectors: Ok(Connectors { grpc: connector.clone(), http1: connector.clone() }),
            is_asked_for,
        };
        for (text, without, with) in [
            ("a:1", "http://a:1/", "https://a:1/"),
            ("http://a:1", "http://a:1/", "http://a:1/"),
            ("https://a", "https://a:443/", "https://a:443/"),
            ("https://[::1]:1/", "https://[::1]:1/", "https://[::1]:1/"),
            ("unix:///tmp/s", "http://s/", "https://s/"),
            ("unix:s:1", "http://s:1/", "https://s:1/"),
        ] {
            let uri = |is_asked_for| targets(is_asked_for).target(text).unwrap().uri.to_string();
            assert_eq!((&*uri(false), &*uri(true)), (without, with), "{text}");
        }
        let error = targets(false).target("ftp://a:1").unwrap_err();
        assert_eq!(error.to_string(), "unknown scheme ftp: ftp://a:1");
        assert!(targets(false).target("a b:1").is_err());
    }

    #[test]
    fn an_endpoint_that_cannot_be_verified_is_never_dialed_in_plaintext() {
        let targets = Targets { connectors: Err("why".to_owned()), is_asked_for: false };
        for secured in ["https://a:1", "unixs:///tmp/s", "unixs:s:1"] {
            let error = targets.target(secured).unwrap_err().to_string();
            let begins = format!("cannot verify the certificate of {secured}: why; ");
            assert!(error.starts_with(&begins) && error.contains("--cacert"), "{error}");
        }
        for plain in ["a:1", "http://a:1", "unix:///tmp/s"] {
            assert!(targets.target(plain).is_ok(), "{plain}");
        }
    }
}
