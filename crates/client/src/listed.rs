//! Client URLs in the member list, and whether a client may send credentials to them.
//!
//! The user configures some endpoints, and the member list names further ones. If a configured endpoint uses TLS, the
//! user expects that passwords and tokens are encrypted. A listed URL without TLS would expose them, to a host that the
//! user has not named.
//!
//! # Guarantees
//!
//! * A client with credentials uses a listed URL without TLS only if no configured endpoint uses TLS, or if the URL is
//!   itself a configured endpoint. Unix sockets are always used, because their data does not leave the machine.

use quorate_tls::Place;

use crate::Address;
use crate::failure::Failure;
use crate::transport::Transport;

/// None of a member's client URLs uses TLS, so the client sends no credentials to the member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the client URL {url} does not use TLS, but the configured endpoints do, so the credentials are not sent to it. \
     Let the member advertise an https:// URL, or add {url} to the endpoints"
)]
pub struct Plaintext {
    /// The first URL.
    pub url: String,
}

impl From<Plaintext> for Failure {
    fn from(refused: Plaintext) -> Self {
        Self::error(refused.to_string())
    }
}

/// Returns the client URLs listed for a member to which a client with the configured endpoints may send credentials.
/// Returns an error if the member has URLs, but none of them may be used.
pub fn for_credentials(
    configured: &[String],
    listed: &[String],
    transport: &Transport,
) -> Result<Vec<String>, Plaintext> {
    let allowed = listed.iter().filter(|url| may_receive(url, configured, transport));
    let allowed: Vec<String> = allowed.cloned().collect();
    match listed.first() {
        Some(first) if allowed.is_empty() => Err(Plaintext { url: first.clone() }),
        _ => Ok(allowed),
    }
}

fn may_receive(url: &str, configured: &[String], transport: &Transport) -> bool {
    // An invalid URL is allowed here, because a client that tries to use it reports the error without connecting.
    let Ok(listed) = Address::of(url, transport) else { return true };
    if listed.is_secured || matches!(listed.place, Place::File(_)) {
        return true;
    }
    let mut configured = configured.iter().filter_map(|it| Address::of(it, transport).ok());
    let uses_tls = configured.clone().any(|endpoint| endpoint.is_secured);
    !uses_tls || configured.any(|endpoint| endpoint == listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(configured: &[&str], listed: &[&str], transport: &Transport) -> Vec<String> {
        let owned = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
        for_credentials(&owned(configured), &owned(listed), transport).unwrap_or_default()
    }

    #[test]
    fn credentials_for_endpoints_with_tls_are_not_sent_to_listed_urls_without_tls() {
        let plain = Transport::default();
        let secured = Transport { cacert: "/c".to_owned(), ..Transport::default() };
        let (http, https) = ("http://10.0.0.2:2379", "https://10.0.0.2:2379");
        for (configured, transport) in [
            (&["https://10.0.0.1:2379"][..], &plain),
            (&["10.0.0.1:2379"], &secured),
            (&["http://10.0.0.1:2379", "https://10.0.0.3:2379"], &plain),
            (&["unixs:///run/etcd"], &plain),
        ] {
            assert_eq!(allowed(configured, &[http], transport), [""; 0], "{configured:?}");
            assert_eq!(allowed(configured, &[http, https], transport), [https], "{configured:?}");
            assert_eq!(allowed(configured, &["unix:///run/a"], transport), ["unix:///run/a"]);
        }
        let text = for_credentials(&[https.to_owned()], &[http.to_owned()], &plain).unwrap_err();
        assert!(text.to_string().contains("http://10.0.0.2:2379"), "{text}");
    }

    #[test]
    fn listed_urls_without_tls_are_used_if_the_endpoints_have_no_tls_or_name_them() {
        let plain = Transport::default();
        let http = "http://10.0.0.2:2379";
        for configured in [
            &["http://10.0.0.1:2379"][..],
            &["127.0.0.1:2379"],
            &["unix:///run/etcd"],
            &["https://10.0.0.1:2379", "10.0.0.2:2379"],
        ] {
            assert_eq!(allowed(configured, &[http], &plain), [http], "{configured:?}");
        }
        assert_eq!(for_credentials(&["https://a:1".to_owned()], &[], &plain), Ok(Vec::new()));
    }
}
