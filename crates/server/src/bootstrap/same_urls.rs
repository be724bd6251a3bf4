//! Compares two lists of URLs. The lists count as equal even if one contains names and the other contains the
//! corresponding addresses.
//!
//! The lists are first compared literally. Names are resolved only if the lists differ. `localhost` is never resolved,
//! because it refers to a different machine on each member. A failed lookup is repeated every second until the timeout,
//! because DNS may become available late when a whole cluster starts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use super::names::Names;
use quorate_config::Url;
use quorate_gotext::quote::{go_quote, go_reason};
use quorate_telemetry::log;

/// Pause after a failed lookup.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Why two lists differ. The error messages are etcd's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Difference {
    #[error("len({}) != len({})", quoted(.0), quoted(.1))]
    Count(Vec<String>, Vec<String>),
    #[error("failed to parse string to URL: {}", go_quote(.0))]
    NotUrl(String),
    #[error("failed to resolve {} (lookup {host}: {reason})", go_quote(url))]
    Unresolved { url: String, host: String, reason: String },
    #[error("resolved urls: {} != {}", go_quote(.0), go_quote(.1))]
    Places(String, String),
}

fn quoted(texts: &[String]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| go_quote(text)).collect();
    format!("[{}]", texts.join(" "))
}

/// The target of a URL in a comparable form: scheme, host and port.
type Place = (&'static str, String, String);

/// Compares lists of URLs, and caches resolved names.
pub(super) struct Comparison<'a> {
    names: &'a dyn Names,
    deadline: Instant,
    resolved: BTreeMap<String, Result<Vec<IpAddr>, String>>,
}

impl<'a> Comparison<'a> {
    /// Creates a comparison. All names together must be resolved within `limit`.
    pub(super) fn new(names: &'a dyn Names, limit: Duration) -> Self {
        Self { names, deadline: Instant::now() + limit, resolved: BTreeMap::new() }
    }

    /// Compares two lists. The order of URLs does not matter.
    pub(super) async fn check_same(
        &mut self,
        left: &[String],
        right: &[String],
    ) -> Result<(), Difference> {
        if is_literally_same(left, right)? {
            return Ok(());
        }
        if left.len() != right.len() {
            return Err(Difference::Count(left.to_vec(), right.to_vec()));
        }
        let mut rest = Vec::with_capacity(right.len());
        for text in right {
            rest.push(self.places(text).await?);
        }
        for text in left {
            let places = self.places(text).await?;
            let same = |others: &Vec<Place>| others.iter().any(|other| places.contains(other));
            match rest.iter().position(same) {
                Some(position) => drop(rest.swap_remove(position)),
                None => {
                    return Err(Difference::Places(text_of(&places), text_of(&rest[0])));
                }
            }
        }
        Ok(())
    }

    /// Returns all addresses to which a URL may refer.
    async fn places(&mut self, text: &str) -> Result<Vec<Place>, Difference> {
        let url = parse(text)?;
        let (scheme, host, port) = place(&url);
        if url.scheme().is_unix() || host == "localhost" || host.parse::<IpAddr>().is_ok() {
            return Ok(vec![(scheme, host, port)]);
        }
        let addresses = self.resolve(url.host()).await.map_err(|reason| {
            Difference::Unresolved { url: text.to_owned(), host: host.clone(), reason }
        })?;
        Ok(addresses.into_iter().map(|ip| (scheme, ip.to_string(), port.clone())).collect())
    }

    async fn resolve(&mut self, host: &str) -> Result<Vec<IpAddr>, String> {
        if let Some(known) = self.resolved.get(host) {
            return known.clone();
        }
        let resolved = loop {
            let reason =
                match tokio::time::timeout_at(self.deadline, self.names.addresses(host)).await {
                    Ok(Ok(addresses)) => break Ok(addresses),
                    Ok(Err(error)) => go_reason(&error),
                    Err(_) => break Err("context deadline exceeded".to_owned()),
                };
            log::warn!("failed to resolve URL Host", "host" = host, "error" = reason);
            let next = Instant::now() + RETRY_PAUSE;
            if next >= self.deadline {
                break Err(reason);
            }
            tokio::time::sleep_until(next).await;
        };
        self.resolved.insert(host.to_owned(), resolved.clone());
        resolved
    }
}

/// Returns whether the lists are equal without name resolution.
pub(super) fn is_literally_same(left: &[String], right: &[String]) -> Result<bool, Difference> {
    let places = |texts: &[String]| -> Result<Vec<Place>, Difference> {
        let mut places: Vec<Place> =
            texts.iter().map(|text| Ok(place(&parse(text)?))).collect::<Result<_, Difference>>()?;
        places.sort_unstable();
        Ok(places)
    };
    Ok(places(left)? == places(right)?)
}

fn parse(text: &str) -> Result<Url, Difference> {
    Url::parse(text).map_err(|_| Difference::NotUrl(text.to_owned()))
}

/// Formats the first of a URL's resolved targets as a URL.
fn text_of(places: &[Place]) -> String {
    let Some((scheme, host, port)) = places.first() else { return String::new() };
    match (port.as_str(), host.contains(':')) {
        ("", _) => format!("{scheme}://{host}"),
        (port, true) => format!("{scheme}://[{host}]:{port}"),
        (port, false) => format!("{scheme}://{host}:{port}"),
    }
}

/// Returns the target without name resolution. Addresses are in their shortest form.
fn place(url: &Url) -> Place {
    let scheme = url.scheme().name();
    if let Some(path) = url.socket_path() {
        return (scheme, path, String::new());
    }
    let host = url.host();
    let host = host.parse::<IpAddr>().map_or_else(|_| host.to_owned(), |ip| ip.to_string());
    (scheme, host, url.port().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::names::Lookup;
    use quorate_dns::{Service, no_such_host};

    /// Resolves `one` and `two` to one address each, and `both` to both addresses.
    struct Few;

    impl Names for Few {
        fn addresses<'a>(&'a self, host: &'a str) -> Lookup<'a, Vec<IpAddr>> {
            let (one, two) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
            Box::pin(std::future::ready(match host {
                "one" => Ok(vec![one]),
                "two" => Ok(vec![two]),
                "both" => Ok(vec![one, two]),
                _ => Err(no_such_host()),
            }))
        }

        fn services<'a>(&'a self, _name: &'a str) -> Lookup<'a, Vec<Service>> {
            Box::pin(std::future::ready(Err(no_such_host())))
        }
    }

    async fn compare(left: &[&str], right: &[&str]) -> Result<(), String> {
        let owned = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        let mut comparison = Comparison::new(&Few, Duration::from_millis(20));
        let compared = comparison.check_same(&owned(left), &owned(right)).await;
        compared.map_err(|difference| difference.to_string())
    }

    #[tokio::test]
    async fn urls_with_host_names_equal_urls_with_the_resolved_addresses() {
        for (left, right) in [
            (&["http://x:1", "http://y:1"][..], &["http://y:1", "http://x:1"][..]),
            (&["http://[::1]:1"], &["http://[0:0:0:0:0:0:0:1]:1"]),
            (&["http://one:1"], &["http://10.0.0.1:1"]),
            (&["http://two:1", "http://one:1"], &["http://10.0.0.1:1", "http://10.0.0.2:1"]),
            (&["http://both:1"], &["http://two:1"]),
            (&["unix://a", "http://one:1"], &["http://10.0.0.1:1", "unix://a"]),
        ] {
            assert_eq!(compare(left, right).await, Ok(()), "{left:?} {right:?}");
        }
    }

    #[tokio::test]
    async fn url_differences_are_reported_with_the_messages_of_etcd() {
        for (left, right, expected) in [
            (
                &["http://a:1"][..],
                &["http://a:1", "http://b:1"][..],
                "len([\"http://a:1\"]) != len([\"http://a:1\" \"http://b:1\"])",
            ),
            (
                &["http://one:1"],
                &["http://two:1"],
                "resolved urls: \"http://10.0.0.1:1\" != \"http://10.0.0.2:1\"",
            ),
            (
                &["http://one:1"],
                &["http://10.0.0.1:2"],
                "resolved urls: \"http://10.0.0.1:1\" != \"http://10.0.0.1:2\"",
            ),
            (
                &["http://localhost:1"],
                &["http://127.0.0.1:1"],
                "resolved urls: \"http://localhost:1\" != \"http://127.0.0.1:1\"",
            ),
            (
                &["http://one:1"],
                &["http://three:1"],
                "failed to resolve \"http://three:1\" (lookup three: no such host)",
            ),
            (&["http://one:1"], &["one"], "failed to parse string to URL: \"one\""),
        ] {
            assert_eq!(compare(left, right).await, Err(expected.to_owned()));
        }
    }
}
