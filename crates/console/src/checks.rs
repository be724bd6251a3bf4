//! The checks that every request must pass before any other part of the console processes it.
//!
//! A browser sends requests to the console on behalf of any page that its user has open. The checks accept only
//! requests that open the console's page or come from it:
//!
//! - The host must be one under which the console is known. A page whose name was made to resolve to this machine (DNS
//!   rebinding) is therefore refused.
//! - A request that names its origin must come from the same host. If the browser reports how the request was initiated
//!   (`Sec-Fetch-Site`), an API call must come from the page itself. The page and its files may also be opened from the
//!   address bar, and another site may link to the page.
//! - An API call, even a read-only one, is a POST with a header that neither forms nor simple requests from other sites
//!   can send.
//!
//! # Not here
//!
//! Users and permissions, which the cluster checks (`access`).

use std::net::IpAddr;

use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::uri::Authority;
use http::{Method, Request};
use quorate_net::listen::Ends;

use crate::refusal::{Kind, Refusal};

/// The header that every API call must have, with the value 1.
const MARK: HeaderName = HeaderName::from_static("x-quorate-console");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The page itself, which other pages may link to.
    Page,
    /// A file that the page loads, or a download that it starts.
    File,
    /// An API call.
    Call,
}

/// The hosts under which the console is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    /// Names in lower case, without ports.
    allowed: Vec<String>,
    /// Whether another process may be listening on an address to which `localhost` resolves.
    shares_localhost: bool,
}

impl Hosts {
    /// Allows these names, in addition to the address of the listener. Also allows `localhost` if the console listens
    /// on every address to which `localhost` resolves. Otherwise, another process could serve a page under that name,
    /// and the page would count as the console's own.
    pub(crate) fn new(names: &[String], knows_localhost: bool) -> Self {
        let bare = |name: &String| name.trim_matches(['[', ']']).to_ascii_lowercase();
        let allowed = names.iter().map(bare).collect();
        Self { allowed, shares_localhost: !knows_localhost }
    }

    /// Returns whether a host names this console on a connection to the address `local`. A host that is this address
    /// itself cannot result from rebinding, because no name was resolved.
    fn allow(&self, host: &str, local: Option<IpAddr>) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        if self.allowed.contains(&host) {
            return true;
        }
        let is_local = local.is_some_and(|local| local.to_canonical().is_loopback());
        match host.parse::<IpAddr>() {
            Ok(address) if address.is_loopback() => is_local,
            Ok(address) => local.is_some_and(|local| local.to_canonical() == address),
            Err(_) => host == "localhost" && is_local && !self.shares_localhost,
        }
    }
}

/// Checks a request that has this purpose.
pub(crate) fn check<B>(
    request: &Request<B>,
    purpose: Purpose,
    hosts: &Hosts,
) -> Result<(), Refusal> {
    let headers = request.headers();
    let host = host_of(request)?;
    let ends = request.extensions().get::<Ends>().copied().unwrap_or_default();
    if !hosts.allow(host.host(), ends.local.map(|local| local.ip())) {
        let text = format!("the console does not accept the host {:?}", host.host());
        let advice =
            "Open the address on which the console listens, or add the host to --allowed-hosts.";
        return Err(Refusal::new(Kind::RefusedHost, text).advising(advice));
    }
    check_origin(headers, &host)?;
    check_fetch(headers, purpose)?;
    match purpose {
        Purpose::Page | Purpose::File => {
            if matches!(*request.method(), Method::GET | Method::HEAD) {
                return Ok(());
            }
            Err(Refusal::bad_request("only GET and HEAD are allowed for this path"))
        }
        Purpose::Call => check_call(request),
    }
}

/// Returns the host of a request, which must be given exactly once.
fn host_of<B>(request: &Request<B>) -> Result<Authority, Refusal> {
    let refused = |text: &str| Refusal::new(Kind::RefusedHost, text);
    let mut given = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (given.next(), given.next()) else {
        return Err(refused("the request must have exactly one Host header"));
    };
    let host = host.to_str().ok().filter(|host| !host.contains('@'));
    let host: Option<Authority> = host.and_then(|host| host.parse().ok());
    let host = host.ok_or_else(|| refused("the Host header of the request is invalid"))?;
    match request.uri().authority() {
        Some(other) if *other != host => Err(refused("the request names two hosts")),
        Some(_) | None => Ok(host),
    }
}

/// Checks that the origin, if it is given, is the host of the request. The scheme may differ from the listener's
/// scheme, because a proxy in front of the console may terminate TLS.
fn check_origin(headers: &HeaderMap, host: &Authority) -> Result<(), Refusal> {
    let refused = || {
        Refusal::new(Kind::RefusedOrigin, "the request was made by another site")
            .advising("Use the console's own page; other sites cannot send requests to it.")
    };
    for origin in headers.get_all(ORIGIN) {
        let origin = origin.to_str().map_err(|_| refused())?;
        let rest = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        let origin: Option<Authority> = rest.and_then(|rest| rest.parse().ok());
        if origin.as_ref() != Some(host) {
            return Err(refused());
        }
    }
    Ok(())
}

/// Checks how the request was initiated, if the browser reports it.
fn check_fetch(headers: &HeaderMap, purpose: Purpose) -> Result<(), Refusal> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.as_bytes());
    let is_own = match text(&FETCH_SITE) {
        None | Some(b"same-origin") => true,
        // The request comes from the address bar or a bookmark.
        Some(b"none") => purpose != Purpose::Call,
        // The request comes from another site. Only a link to the page may be followed.
        Some(_) => purpose == Purpose::Page && text(&FETCH_DEST) == Some(b"document"),
    };
    let is_framed = matches!(text(&FETCH_DEST), Some(b"iframe" | b"frame" | b"embed" | b"object"));
    if is_own && !is_framed {
        return Ok(());
    }
    let text = if is_framed {
        "the console cannot be shown in a frame"
    } else {
        "the request was made by another site"
    };
    Err(Refusal::new(Kind::RefusedOrigin, text))
}

fn check_call<B>(request: &Request<B>) -> Result<(), Refusal> {
    let headers = request.headers();
    if request.method() != Method::POST {
        return Err(Refusal::bad_request("API calls must be POST requests"));
    }
    if headers.get(&MARK).is_none_or(|mark| mark.as_bytes() != b"1") {
        return Err(Refusal::new(
            Kind::MissingHeader,
            "an API call needs the header X-Quorate-Console: 1",
        ));
    }
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let text = "an API call needs the header Content-Type: application/json";
        return Err(Refusal::new(Kind::MissingHeader, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a request as the page sends it to a console on this local address, with some headers replaced. An empty
    /// value removes a header.
    fn request(local: &str, changes: &[(&'static str, &str)]) -> Request<()> {
        let mut request = Request::post("/api/v1/session").body(()).unwrap();
        let ends = Ends { local: Some(local.parse().unwrap()), remote: None };
        request.extensions_mut().insert(ends);
        let usual = [
            ("host", "127.0.0.1:2383"),
            ("origin", "http://127.0.0.1:2383"),
            ("content-type", "application/json"),
            ("x-quorate-console", "1"),
            ("sec-fetch-site", "same-origin"),
        ];
        for (name, value) in usual.iter().chain(changes) {
            if value.is_empty() {
                request.headers_mut().remove(*name);
            } else {
                request.headers_mut().insert(*name, value.parse().unwrap());
            }
        }
        request
    }

    fn outcome(purpose: Purpose, local: &str, changes: &[(&'static str, &str)]) -> Option<Kind> {
        let hosts = Hosts::new(&["console.example.com".to_owned()], true);
        check(&request(local, changes), purpose, &hosts).err().map(|refusal| refusal.kind)
    }

    fn call(changes: &[(&'static str, &str)]) -> Option<Kind> {
        outcome(Purpose::Call, "127.0.0.1:2383", changes)
    }

    #[test]
    fn calls_from_the_consoles_own_page_are_accepted() {
        assert_eq!(call(&[]), None);
        // Old browsers, and clients that are not browsers, send neither header. Their requests are accepted.
        assert_eq!(call(&[("origin", ""), ("sec-fetch-site", "")]), None);
        assert_eq!(call(&[("content-type", "application/json; charset=utf-8")]), None);
    }

    #[test]
    fn host_names_usable_for_dns_rebinding_are_refused() {
        let host = |host: &'static str| {
            let origin = format!("http://{host}");
            call(&[("host", host), ("origin", &origin)])
        };
        for known in ["localhost:2383", "LOCALHOST", "127.0.0.1:9", "console.example.com"] {
            assert_eq!(host(known), None, "{known}");
        }
        for unknown in [
            "evil.example:2383",
            "localhost.evil.example",
            "10.0.0.1:2383",
            "x.localhost",
            "localhost.",
            "2130706433",
            "user@localhost:2383",
        ] {
            assert_eq!(host(unknown), Some(Kind::RefusedHost), "{unknown}");
        }
        assert_eq!(call(&[("host", "")]), Some(Kind::RefusedHost));
    }

    #[test]
    fn the_host_localhost_is_refused_if_another_process_listens_on_one_of_its_addresses() {
        let host = [("host", "localhost:2383"), ("origin", "http://localhost:2383")];
        let request = request("127.0.0.1:2383", &host);
        let outcome = |hosts: Hosts| check(&request, Purpose::Call, &hosts).is_ok();
        assert!(outcome(Hosts::new(&[], true)));
        assert!(!outcome(Hosts::new(&[], false)));
        assert!(outcome(Hosts::new(&["localhost".to_owned()], false)));
    }

    #[test]
    fn a_console_on_a_non_loopback_address_accepts_only_that_address_as_host() {
        let at = |host: &'static str| {
            let origin = format!("https://{host}");
            outcome(Purpose::Call, "10.0.0.1:2383", &[("host", host), ("origin", &origin)])
        };
        assert_eq!(at("10.0.0.1:2383"), None);
        for other in ["10.0.0.2:2383", "localhost:2383", "127.0.0.1:2383"] {
            assert_eq!(at(other), Some(Kind::RefusedHost), "{other}");
        }
    }

    #[test]
    fn calls_from_other_sites_are_refused() {
        let own = Some(Kind::RefusedOrigin);
        for origin in
            ["null", "http://evil.example", "http://127.0.0.1:8080", "file://", "ftp://127.0.0.1"]
        {
            assert_eq!(call(&[("origin", origin)]), own, "{origin}");
        }
        for site in ["cross-site", "same-site", "none"] {
            assert_eq!(call(&[("origin", ""), ("sec-fetch-site", site)]), own, "{site}");
        }
    }

    #[test]
    fn calls_without_the_required_headers_are_refused() {
        let missing = Some(Kind::MissingHeader);
        assert_eq!(call(&[("x-quorate-console", "")]), missing);
        assert_eq!(call(&[("x-quorate-console", "0")]), missing);
        assert_eq!(call(&[("content-type", "text/plain")]), missing);
        assert_eq!(call(&[("content-type", "")]), missing);
        let mut get = request("127.0.0.1:2383", &[]);
        *get.method_mut() = Method::GET;
        let refusal = check(&get, Purpose::Call, &Hosts::default()).unwrap_err();
        assert_eq!(refusal.kind, Kind::BadRequest);
    }

    #[test]
    fn a_link_may_open_the_page_but_not_in_a_frame() {
        let page = |purpose, site: &'static str, dest: &'static str| {
            let changes = [("sec-fetch-site", site), ("sec-fetch-dest", dest), ("origin", "")];
            let mut request = request("127.0.0.1:2383", &changes);
            *request.method_mut() = Method::GET;
            check(&request, purpose, &Hosts::default()).err().map(|refusal| refusal.kind)
        };
        assert_eq!(page(Purpose::Page, "cross-site", "document"), None);
        assert_eq!(page(Purpose::Page, "none", "document"), None);
        assert_eq!(page(Purpose::File, "same-origin", "script"), None);
        let refused = Some(Kind::RefusedOrigin);
        assert_eq!(page(Purpose::Page, "cross-site", "iframe"), refused);
        assert_eq!(page(Purpose::Page, "same-origin", "iframe"), refused);
        assert_eq!(page(Purpose::File, "cross-site", "script"), refused);
        assert_eq!(page(Purpose::File, "cross-site", "document"), refused);
    }
}
