//! Checks that a client's address matches its certificate.
//!
//! etcd members check each other in this way, unless a flag turns the check off. One of the certificate's IP addresses
//! must be the connection's remote address, or one of its host names must either be returned by a reverse lookup of
//! that address or resolve to that address. A certificate with neither IP addresses nor host names is valid from any
//! address.
//!
//! # Cost
//!
//! A certificate with host names requires lookups in each handshake, unless one of its IP addresses matches. The
//! lookups run on a blocking thread within the handshake's time limit.

use std::net::IpAddr;

use crate::names::Names;

/// The certificate does not match the address. The error message is etcd's.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElsewhereError {
    #[error("x509: certificate is valid for {valid}, not {from}")]
    Address { from: IpAddr, valid: String },
    #[error("tls: {:?} does not match any of DNSNames {names:?}", from.to_string())]
    Host { from: IpAddr, names: Vec<String> },
}

/// Looks up names and addresses.
pub(crate) trait Resolver {
    /// Returns the names of an address, by reverse lookup.
    fn names_of(&self, address: IpAddr) -> Vec<String>;

    /// Returns the addresses of a name.
    fn addresses_of(&self, name: &str) -> Vec<IpAddr>;
}

/// The system's resolver.
pub(crate) struct SystemResolver;

impl Resolver for SystemResolver {
    fn names_of(&self, address: IpAddr) -> Vec<String> {
        dns_lookup::lookup_addr(&address).into_iter().collect()
    }

    fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
        dns_lookup::lookup_host(name).map(Iterator::collect).unwrap_or_default()
    }
}

/// Returns whether comparing these names with an address requires a lookup.
pub(crate) fn needs_lookup(names: &Names, from: IpAddr) -> bool {
    !names.ips.contains(&from) && !names.dns.is_empty()
}

/// Checks the names in a certificate against the connection's remote address.
pub(crate) fn check(
    names: &Names,
    from: IpAddr,
    resolver: &impl Resolver,
) -> Result<(), ElsewhereError> {
    if names.ips.contains(&from) || (names.ips.is_empty() && names.dns.is_empty()) {
        return Ok(());
    }
    if names.dns.is_empty() {
        let valid: Vec<_> = names.ips.iter().map(ToString::to_string).collect();
        return Err(ElsewhereError::Address { from, valid: valid.join(", ") });
    }
    let stands_for = |known: &str| {
        let known = known.strip_suffix('.').unwrap_or(known);
        names.dns.iter().any(|name| match name.strip_prefix('*') {
            Some(suffix) if suffix.starts_with('.') => known.ends_with(suffix),
            Some(_) | None => known == name,
        })
    };
    let leads_here =
        |name: &String| !name.starts_with("*.") && resolver.addresses_of(name).contains(&from);
    if resolver.names_of(from).iter().any(|known| stands_for(known))
        || names.dns.iter().any(leads_here)
    {
        return Ok(());
    }
    Err(ElsewhereError::Host { from, names: names.dns.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Known(&'static [(&'static str, [u8; 4])]);

    impl Resolver for Known {
        fn names_of(&self, address: IpAddr) -> Vec<String> {
            let of = self
                .0
                .iter()
                .filter(|(name, ip)| name.ends_with('.') && address == IpAddr::from(*ip));
            of.map(|(name, _)| (*name).to_owned()).collect()
        }

        fn addresses_of(&self, name: &str) -> Vec<IpAddr> {
            self.0.iter().filter(|(known, _)| *known == name).map(|(_, ip)| (*ip).into()).collect()
        }
    }

    fn check_from(from: [u8; 4], ips: &[[u8; 4]], dns: &[&str]) -> Result<(), ElsewhereError> {
        let names = Names {
            ips: ips.iter().map(|ip| (*ip).into()).collect(),
            dns: dns.iter().map(|name| (*name).to_owned()).collect(),
            ..Names::default()
        };
        let resolver = Known(&[("m1.example.com.", [10, 0, 0, 1]), ("m2", [10, 0, 0, 2])]);
        check(&names, from.into(), &resolver)
    }

    #[test]
    fn the_client_address_must_match_an_address_or_a_name_in_the_certificate() {
        let (one, two, three) = ([10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]);
        assert_eq!(check_from(three, &[], &[]), Ok(()));
        assert_eq!(check_from(one, &[two, one], &[]), Ok(()));
        assert!(check_from(one, &[two], &[]).is_err());
        assert_eq!(
            check_from(one, &[two], &["m1.example.com"]),
            Ok(()),
            "the reverse lookup returns the name"
        );
        assert_eq!(check_from(one, &[], &["*.example.com"]), Ok(()));
        assert!(check_from(one, &[], &["*.example.org", "example.com", "m2"]).is_err());
        assert_eq!(check_from(two, &[], &["x", "m2"]), Ok(()), "the name resolves to the address");
        assert!(check_from(two, &[], &["*.m2"]).is_err());
        assert_eq!(
            check_from(three, &[], &["m2"]).unwrap_err().to_string(),
            "tls: \"10.0.0.3\" does not match any of DNSNames [\"m2\"]"
        );
    }
}
