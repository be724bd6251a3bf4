//! Parses peer URLs for `member add` and `member update`. URLs that etcd's client library rejects are rejected here
//! before any request is sent, with the same error texts.

use crate::failure::Failure;
use crate::gotext::quote;

/// Parses a comma-separated list of URLs.
pub(crate) fn parse(list: &str) -> Result<Vec<String>, Failure> {
    if list.is_empty() {
        return Err(Failure::bad_args("member peer urls not provided"));
    }
    let urls: Vec<_> = list.split(',').map(str::to_owned).collect();
    for url in &urls {
        check(url.trim()).map_err(Failure::error)?;
    }
    Ok(urls)
}

fn check(url: &str) -> Result<(), String> {
    let unparsed = |reason: &str| format!("parse {}: {reason}", quote(url.as_bytes()));
    if url.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(unparsed("net/url: invalid control character in URL"));
    }
    let (scheme, rest) = match scheme_of(url) {
        Some(("", _)) => return Err(unparsed("missing protocol scheme")),
        Some(split) => split,
        None if url.split('/').next().is_some_and(|segment| segment.contains(':')) => {
            return Err(unparsed("first path segment in URL cannot contain colon"));
        }
        None => ("", url),
    };
    let rest = rest.split('#').next().unwrap_or_default().split('?').next().unwrap_or_default();
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
        None => ("", rest),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    if let Some(reason) = fault_of_host(host) {
        return Err(unparsed(&reason));
    }
    match scheme.to_ascii_lowercase().as_str() {
        "unix" | "unixs" => Ok(()),
        "http" | "https" if !has_port(host) => {
            Err(format!("URL address does not have the form \"host:port\": {url}"))
        }
        "http" | "https" if !path.is_empty() => Err(format!("URL must not contain a path: {url}")),
        "http" | "https" => Ok(()),
        _ => Err(format!("URL scheme must be http, https, unix, or unixs: {url}")),
    }
}

/// Splits the URL at the first colon, if the part before it may be a scheme.
fn scheme_of(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let is_scheme = scheme.bytes().enumerate().all(|(at, byte)| {
        byte.is_ascii_alphabetic()
            || (at > 0 && (byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.')))
    });
    is_scheme.then_some((scheme, rest))
}

fn fault_of_host(host: &str) -> Option<String> {
    let port = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            None => return Some("missing ']' in host".to_owned()),
            Some((_, after)) => after,
        },
        None => &host[host.rfind(':').unwrap_or(host.len())..],
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    if !is_port {
        return Some(format!("invalid port {} after host", quote(port.as_bytes())));
    }
    let odd = host.chars().find(|c| " \"<>\\^`{|}".contains(*c));
    odd.map(|odd| format!("invalid character {} in host name", quote(odd.to_string().as_bytes())))
}

fn has_port(host: &str) -> bool {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, after)) => after.starts_with(':'),
        None => host.matches(':').count() == 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_urls_are_refused_with_etcd_errors() {
        for good in ["http://a:1", " https://[::1]:1 ", "unix://a", "http://a:1?x=1", "HTTP://a:1"]
        {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (url, words) in [
            (
                "127.0.0.1:2380",
                "parse \"127.0.0.1:2380\": first path segment in URL cannot contain colon",
            ),
            ("b:2380", "URL scheme must be http, https, unix, or unixs: b:2380"),
            ("/a", "URL scheme must be http, https, unix, or unixs: /a"),
            ("x y", "URL scheme must be http, https, unix, or unixs: x y"),
            ("http://x", "URL address does not have the form \"host:port\": http://x"),
            ("http://a:1/p", "URL must not contain a path: http://a:1/p"),
            ("http://[::1", "parse \"http://[::1\": missing ']' in host"),
            ("http://a:b", "parse \"http://a:b\": invalid port \":b\" after host"),
            ("http:// a:1", "parse \"http:// a:1\": invalid character \" \" in host name"),
            (":1", "parse \":1\": missing protocol scheme"),
        ] {
            let list = format!("http://a:1,{url}");
            assert_eq!(parse(&list).unwrap_err(), Failure::error(words));
        }
        assert_eq!(parse("").unwrap_err().code, 128);
    }
}
