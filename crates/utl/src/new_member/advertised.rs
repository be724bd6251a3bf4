//! Checks that a member advertises the URLs that the initial cluster lists for it.
//!
//! The other members learn this member's URLs from the initial cluster, so the advertised URLs must match the URLs
//! listed there, either literally or after name resolution.

use std::net::{SocketAddr, ToSocketAddrs};

use quorate_config::{InitialMembers, Url, texts};

use crate::failure::RestoreError;

/// Rejects advertised URLs that differ from the URLs in the initial cluster.
pub(super) fn check(
    name: &str,
    advertised: &[Url],
    initial: &InitialMembers,
) -> Result<(), RestoreError> {
    let own = initial.urls_of(name).unwrap_or_default();
    let (advertised_texts, own_texts) = (texts(advertised), texts(own));
    if advertised_texts == own_texts {
        return Ok(());
    }
    let difference = match (resolve(advertised), resolve(own)) {
        (Ok(advertised), Ok(own)) if advertised == own => return Ok(()),
        (Ok(advertised), Ok(own)) => {
            format!("resolved urls: {} and {}", shown(&advertised), shown(&own))
        }
        (Err(error), _) | (_, Err(error)) => error,
    };
    let missing = |from: &[&str], all: &[&str], mark: &str| {
        let missing = all.iter().filter(|url| !from.contains(url));
        missing.map(|url| format!("{mark}{url}")).collect::<Vec<_>>().join(",")
    };
    let advertised = advertised_texts.join(",");
    let of_initial = missing(&advertised_texts, &own_texts, &format!("{name}="));
    if !of_initial.is_empty() {
        return Err(RestoreError::NotAdvertised { missing: of_initial, advertised, difference });
    }
    Err(RestoreError::NotInitial {
        missing: missing(&own_texts, &advertised_texts, ""),
        initial_cluster: initial.to_string(),
    })
}

fn shown(resolved: &[(&'static str, SocketAddr)]) -> String {
    let urls = resolved.iter().map(|(scheme, address)| format!("{scheme}://{address}"));
    urls.collect::<Vec<_>>().join(",")
}

/// Resolves the hosts of the URLs. Returns the addresses in sorted order.
fn resolve(urls: &[Url]) -> Result<Vec<(&'static str, SocketAddr)>, String> {
    let mut resolved = Vec::new();
    for url in urls {
        let failed = |error: &dyn std::fmt::Display| {
            format!("failed to resolve \"{}\" ({error})", url.as_str())
        };
        let addresses = url.authority().to_socket_addrs().map_err(|error| failed(&error))?;
        let first = addresses.into_iter().min().ok_or_else(|| failed(&"no address"))?;
        resolved.push((url.scheme().name(), first));
    }
    resolved.sort_by_key(|(scheme, address)| (*scheme, *address));
    Ok(resolved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(advertised: &str, initial: &str) -> Result<(), String> {
        let urls: Vec<Url> = advertised.split(',').map(|url| Url::parse(url).unwrap()).collect();
        let initial = InitialMembers::parse(initial).unwrap();
        check("a", &urls, &initial).map_err(|error| error.to_string())
    }

    #[test]
    fn advertised_urls_match_literally_or_after_name_resolution() {
        let initial = "a=http://127.0.0.1:1,b=http://127.0.0.1:2";
        assert_eq!(checked("http://127.0.0.1:1", initial), Ok(()));
        assert_eq!(checked("http://localhost:1", initial), Ok(()));
        let missing = checked("http://127.0.0.1:3", initial).unwrap_err();
        let expected = "--initial-cluster has a=http://127.0.0.1:1 but missing from \
                        --initial-advertise-peer-urls=http://127.0.0.1:3 \
                        (resolved urls: http://127.0.0.1:3 and http://127.0.0.1:1)";
        assert_eq!(missing, expected);
        assert_eq!(
            checked("http://127.0.0.1:1,http://127.0.0.1:3", initial).unwrap_err(),
            "--initial-advertise-peer-urls has http://127.0.0.1:3 but missing from \
             --initial-cluster=a=http://127.0.0.1:1,b=http://127.0.0.1:2"
        );
    }
}
