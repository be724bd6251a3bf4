//! URLs that members listen on and advertise: `http`, `https`, `unix` and `unixs`.
//!
//! A [`Url`] has the form that etcd accepts in its flags: a scheme, a host and a port without a path, or a scheme and
//! the path of a socket. The error messages are etcd's or, for common mistakes (a missing scheme, an invalid host),
//! the messages of Go's URL parser.
//!
//! # Invariants
//!
//! * A list of URLs is sorted as strings and has no duplicates.
//! * Printing a URL yields the text that etcd stores and compares: the text as given, with the scheme in lower case.

use std::fmt;
use std::net::IpAddr;

use quorate_gotext::quote::go_quote;

/// The transport of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// TCP without encryption.
    Http,
    /// TCP with TLS.
    Https,
    /// An unencrypted Unix socket.
    Unix,
    /// A Unix socket with TLS.
    Unixs,
}

impl Scheme {
    /// Returns the name of the scheme, which precedes `://`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Unix => "unix",
            Self::Unixs => "unixs",
        }
    }

    /// Returns whether connections are encrypted.
    pub const fn is_tls(self) -> bool {
        matches!(self, Self::Https | Self::Unixs)
    }

    /// Returns whether the address is a Unix socket.
    pub const fn is_unix(self) -> bool {
        matches!(self, Self::Unix | Self::Unixs)
    }
}

/// A URL in one of etcd's flags.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    /// The text of the URL. This is the first field, so that URLs are sorted by text.
    text: String,
    scheme: Scheme,
    authority: String,
    path: String,
}

/// The reason why a string is not a valid URL for a flag. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The string is not a URL.
    #[error("parse {}: {reason}", go_quote(text))]
    Malformed {
        /// The string as given.
        text: String,
        /// The reason why the string is not a URL.
        reason: String,
    },
    /// The scheme is missing or not supported.
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    /// The port is missing.
    #[error("URL address does not have the form \"host:port\": {0}")]
    Address(String),
    /// The URL has more parts than a host and a port.
    #[error("URL must not contain a path: {0}")]
    Path(String),
}

impl Url {
    /// Parses a URL. Surrounding blanks are ignored.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        let parts = split(text).map_err(|reason| UrlError::Malformed {
            text: text.to_owned(),
            reason: reason.to_string(),
        })?;
        let scheme = match parts.scheme.as_str() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            "unix" => Scheme::Unix,
            "unixs" => Scheme::Unixs,
            _ => return Err(UrlError::Scheme(text.to_owned())),
        };
        if !scheme.is_unix() {
            if split_host_port(parts.authority).is_none() {
                return Err(UrlError::Address(text.to_owned()));
            }
            if !parts.path.is_empty() {
                return Err(UrlError::Path(text.to_owned()));
            }
        }
        Ok(Self {
            text: format!("{}{}", parts.scheme, &text[parts.scheme.len()..]),
            scheme,
            authority: parts.authority.to_owned(),
            path: parts.path.to_owned(),
        })
    }

    /// Returns a URL with the same scheme and another host and port.
    #[must_use]
    pub fn with_host(&self, host: &str, port: &str) -> Self {
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let authority = format!("{host}:{port}");
        let text = format!("{}://{authority}", self.scheme.name());
        Self { text, scheme: self.scheme, authority, path: String::new() }
    }

    /// Returns the complete URL.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the scheme, which determines the transport.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the host and port as written in the URL, such as `[::1]:2379` or `localhost:2379`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the host without the port and brackets; empty for a Unix socket.
    pub fn host(&self) -> &str {
        split_host_port(&self.authority).map_or("", |(host, _)| host)
    }

    /// Returns whether only this machine can connect to the URL's host.
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }

    /// Returns the port as written in the URL; empty for a Unix socket, and if nothing follows the colon.
    pub fn port(&self) -> &str {
        split_host_port(&self.authority).map_or("", |(_, port)| port)
    }

    /// Returns the path of a Unix socket; `None` for a TCP address.
    ///
    /// The path in `unix://sock` is relative, and the path in `unix:///run/sock` is absolute.
    pub fn socket_path(&self) -> Option<String> {
        self.scheme.is_unix().then(|| format!("{}{}", self.authority, self.path))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns the URLs as strings, for log fields.
pub fn texts(urls: &[Url]) -> Vec<&str> {
    urls.iter().map(Url::as_str).collect()
}

/// Returns the URLs separated by commas, for log fields and messages.
pub fn joined(urls: &[Url]) -> String {
    texts(urls).join(",")
}

/// Parses comma-separated URLs. The result is sorted and has no duplicates.
pub(super) fn parse_list(text: &str) -> Result<Vec<Url>, UrlError> {
    let mut urls = text.split(',').map(Url::parse).collect::<Result<Vec<_>, _>>()?;
    urls.sort();
    urls.dedup();
    Ok(urls)
}

/// Splits an authority into host and port. Returns `None` unless it consists of a host, a colon and a port.
pub fn split_host_port(authority: &str) -> Option<(&str, &str)> {
    let (host, port) = authority.rsplit_once(':')?;
    if let Some(inner) = host.strip_prefix('[') {
        return inner.strip_suffix(']').filter(|h| !h.contains(['[', ']'])).map(|h| (h, port));
    }
    (!host.contains([':', '[', ']']) && !port.contains(['[', ']'])).then_some((host, port))
}

/// Refuses a URL to listen on if its host is a name other than `localhost`, because binding needs an address.
pub(crate) fn check_bindable(urls: &[Url]) -> Result<(), String> {
    for url in urls.iter().filter(|url| !url.scheme.is_unix()) {
        let host = url.host();
        if host != "localhost" && host.parse::<IpAddr>().is_err() {
            return Err(format!("expected IP in URL for binding ({url})"));
        }
    }
    Ok(())
}

/// Refuses a URL to advertise if it has no host.
pub(crate) fn check_advertisable(urls: &[Url]) -> Result<(), String> {
    let empty = |url: &&Url| !url.scheme.is_unix() && url.host().is_empty();
    match urls.iter().find(empty) {
        Some(url) => Err(format!("unexpected empty host ({url})")),
        None => Ok(()),
    }
}

struct Parts<'a> {
    scheme: String,
    authority: &'a str,
    path: &'a str,
}

/// The reason why a string is not a URL.
#[derive(Debug, thiserror::Error)]
enum Malformation {
    #[error("net/url: invalid control character in URL")]
    Control,
    #[error("missing protocol scheme")]
    NoScheme,
    #[error("first path segment in URL cannot contain colon")]
    ColonInPath,
    #[error("missing ']' in host")]
    Bracket,
    #[error("invalid port {0} after host")]
    Port(String),
    #[error("invalid character {0} in host name")]
    Character(String),
}

/// Splits a URL as Go's parser does, in all cases on which etcd depends.
fn split(text: &str) -> Result<Parts<'_>, Malformation> {
    if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
        return Err(Malformation::Control);
    }
    let (scheme, rest) = split_scheme(text)?;
    let Some(after) = rest.strip_prefix("//") else {
        let before_query = rest.split(['?', '#']).next().unwrap_or("");
        let first_segment = before_query.split('/').next().unwrap_or("");
        if scheme.is_empty() && first_segment.contains(':') {
            return Err(Malformation::ColonInPath);
        }
        // `unix:name` has no host, and no path on which a socket could be bound.
        let path = if before_query.starts_with('/') { before_query } else { "" };
        return Ok(Parts { scheme, authority: "", path });
    };
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    let (authority, tail) = after.split_at(end);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    check_host(authority)?;
    Ok(Parts { scheme, authority, path: tail.split(['?', '#']).next().unwrap_or("") })
}

/// Returns the scheme in lower case, or an empty string if there is no scheme, and the text after the scheme's colon.
fn split_scheme(text: &str) -> Result<(String, &str), Malformation> {
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if position > 0 => {}
            b':' if position == 0 => return Err(Malformation::NoScheme),
            b':' => return Ok((text[..position].to_ascii_lowercase(), &text[position + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

fn check_host(authority: &str) -> Result<(), Malformation> {
    let port = if authority.starts_with('[') {
        let close = authority.rfind(']').ok_or(Malformation::Bracket)?;
        &authority[close + 1..]
    } else {
        authority.rfind(':').map_or("", |colon| &authority[colon..])
    };
    let digits = port.strip_prefix(':');
    if !port.is_empty() && !digits.is_some_and(|d| d.bytes().all(|b| b.is_ascii_digit())) {
        return Err(Malformation::Port(go_quote(port)));
    }
    let foreign =
        |c: &char| matches!(c, ' ' | '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}');
    match authority.chars().find(foreign) {
        Some(c) => Err(Malformation::Character(go_quote(&c.to_string()))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_socket_paths_are_accepted() {
        let url = Url::parse(" HTTP://[::1]:2379 ").unwrap();
        assert_eq!((url.as_str(), url.host(), url.port()), ("http://[::1]:2379", "::1", "2379"));
        let url = Url::parse("https://[10.0.0.1]:2379").unwrap();
        assert_eq!((url.as_str(), url.host()), ("https://[10.0.0.1]:2379", "10.0.0.1"));
        let url = Url::parse("https://localhost:1").unwrap();
        assert_eq!((url.scheme(), url.authority()), (Scheme::Https, "localhost:1"));
        let path = |text: &str| Url::parse(text).unwrap().socket_path();
        assert_eq!(path("unix://sock"), Some("sock".to_owned()));
        assert_eq!(path("unix:///run/e.sock"), Some("/run/e.sock".to_owned()));
        assert_eq!(path("unixs://a/b:1"), Some("a/b:1".to_owned()));
        assert_eq!(path("http://a:1"), None);
    }

    #[test]
    fn url_lists_are_sorted_without_duplicates() {
        let urls = parse_list("http://b:1,http://a:2, http://b:1").unwrap();
        assert_eq!(joined(&urls), "http://a:2,http://b:1");
    }

    #[test]
    fn invalid_urls_are_refused_with_etcd_errors() {
        for (text, expected) in [
            ("localhost:2379", "URL scheme must be http, https, unix, or unixs: localhost:2379"),
            ("ftp://a:1", "URL scheme must be http, https, unix, or unixs: ftp://a:1"),
            ("", "URL scheme must be http, https, unix, or unixs: "),
            ("http://a.com", "URL address does not have the form \"host:port\": http://a.com"),
            ("http://::1:23", "URL address does not have the form \"host:port\": http://::1:23"),
            ("http://a:1/x", "URL must not contain a path: http://a:1/x"),
            ("http://a:1/", "URL must not contain a path: http://a:1/"),
            (
                "127.0.0.1:2379",
                "parse \"127.0.0.1:2379\": first path segment in URL cannot contain colon",
            ),
            (":2379", "parse \":2379\": missing protocol scheme"),
            ("http://a:b", "parse \"http://a:b\": invalid port \":b\" after host"),
            ("http://[::1", "parse \"http://[::1\": missing ']' in host"),
            ("http://a b:1", "parse \"http://a b:1\": invalid character \" \" in host name"),
        ] {
            assert_eq!(Url::parse(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn listen_urls_need_an_address_and_advertised_urls_need_a_host() {
        let list = |text: &str| parse_list(text).unwrap();
        assert_eq!(check_bindable(&list("http://localhost:1,http://0.0.0.0:2,unix://x")), Ok(()));
        assert_eq!(
            check_bindable(&list("http://a.com:1")),
            Err("expected IP in URL for binding (http://a.com:1)".to_owned())
        );
        assert!(check_bindable(&list("http://:1")).is_err());
        assert_eq!(
            check_advertisable(&list("http://:1")),
            Err("unexpected empty host (http://:1)".to_owned())
        );
    }

    #[test]
    fn an_ipv6_replacement_host_is_enclosed_in_brackets() {
        let url = Url::parse("http://localhost:2379").unwrap();
        assert_eq!(url.with_host("10.0.0.1", "99").as_str(), "http://10.0.0.1:99");
        assert_eq!(url.with_host("fe80::1", "99").as_str(), "http://[fe80::1]:99");
    }
}
