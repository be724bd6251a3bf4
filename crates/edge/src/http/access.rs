//! Access rules of client listeners: the host whitelist, and CORS origins for browsers.

use std::collections::BTreeSet;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, HOST,
    HeaderMap, HeaderValue, ORIGIN,
};
use http::{Request, StatusCode};

use quorate_config::{Config, split_host_port};
use quorate_gotext::quote::go_quote;
use quorate_http_pages::reply::{self, Reply};
use quorate_telemetry::log;

/// The rules of `--host-whitelist` and `--cors`.
#[derive(Clone, Debug)]
pub struct Access {
    hosts: BTreeSet<String>,
    origins: BTreeSet<String>,
}

impl Access {
    /// Creates the rules from a configuration.
    pub fn new(config: &Config) -> Self {
        Self { hosts: config.host_whitelist.clone(), origins: config.cors.clone() }
    }

    /// Refuses a request without TLS to a host outside the whitelist. This prevents DNS rebinding attacks by web pages.
    pub(super) fn refuse_host<B>(&self, request: &Request<B>, is_tls: bool) -> Option<Reply> {
        if is_tls || self.hosts.is_empty() || self.hosts.contains("*") {
            return None;
        }
        let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let authority =
            request.uri().authority().map(http::uri::Authority::as_str).or(header).unwrap_or("");
        let host = split_host_port(authority).map_or(authority, |(host, _)| host);
        if self.hosts.contains(host) {
            return None;
        }
        log::warn!("rejecting HTTP request to prevent DNS rebinding attacks", "host" = host);
        let text = format!(
            "
etcd received your request, but the Host header was unrecognized.

To fix this, choose one of the following options:
- Enable TLS, then any HTTPS request will be allowed.
- Add the hostname you want to use to the whitelist in settings.
  - e.g. etcd --host-whitelist {}

This requirement has been added to help prevent \"DNS Rebinding\" attacks (CVE-2018-5702).
",
            go_quote(host)
        );
        Some(reply::error(StatusCode::MISDIRECTED_REQUEST, &text))
    }

    /// Returns whether a page of the request's origin may open a WebSocket. Browsers allow every page to open a
    /// WebSocket and leave the check to the server. Origins that `--cors` allows over HTTP are allowed over WebSocket
    /// too. A request without an origin, or with the server's own origin, does not come from a foreign page.
    pub(super) fn admits_web_socket(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers.get(ORIGIN) else { return true };
        let Ok(origin) = origin.to_str() else { return false };
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        let is_own = || origin.split_once("://").is_some_and(|(_, rest)| Some(rest) == host);
        self.origins.contains("*") || self.origins.contains(origin) || is_own()
    }

    /// Adds the CORS headers, if pages of this origin may read the response.
    pub(super) fn allow_origin(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        let origin = if self.origins.contains("*") {
            HeaderValue::from_static("*")
        } else {
            match origin {
                Some(origin) if origin.to_str().is_ok_and(|text| self.origins.contains(text)) => {
                    origin.clone()
                }
                _ => return,
            }
        };
        headers.insert(
            ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE"),
        );
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            ACCESS_CONTROL_ALLOW_HEADERS,
            HeaderValue::from_static("accept, content-type, authorization"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_sockets_are_open_to_allowed_origins_and_non_browser_clients() {
        let access = |cors: &[&str]| {
            let cors = cors.iter().map(|origin| (*origin).to_owned()).collect();
            Access::new(&Config { cors, ..Config::default() })
        };
        let admits = |access: &Access, origin: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, HeaderValue::from_static("member:2379"));
            headers.extend(origin.map(|origin| (ORIGIN, HeaderValue::from_static(origin))));
            access.admits_web_socket(&headers)
        };
        let restricted = access(&["https://a.com"]);
        for (origin, expected) in [
            (None, true),
            (Some("https://a.com"), true),
            (Some("http://member:2379"), true),
            (Some("https://b.com"), false),
            (Some("http://member"), false),
            (Some("null"), false),
        ] {
            assert_eq!(admits(&restricted, origin), expected, "{origin:?}");
        }
        assert!(admits(&access(&["*"]), Some("https://b.com")));
    }
}
