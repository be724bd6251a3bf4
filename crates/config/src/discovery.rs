//! The settings with which a new member finds the other members through a discovery cluster (`--discovery-*`).

use std::fmt;

use quorate_gotext::duration::SignedDuration;

/// The settings for registering with a discovery cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct Discovery {
    /// The client addresses of the discovery cluster; empty if discovery is not used.
    pub endpoints: Vec<String>,
    /// The token under which the new cluster registers. It also replaces the cluster token.
    pub token: String,
    /// The timeout for connecting.
    pub dial_timeout: SignedDuration,
    /// The timeout of a request.
    pub request_timeout: SignedDuration,
    /// The idle time after which the connection is checked.
    pub keepalive_time: SignedDuration,
    /// The timeout of a connection check.
    pub keepalive_timeout: SignedDuration,
    /// Whether connections are unencrypted.
    pub insecure_transport: bool,
    /// Whether verification of the server certificate is skipped.
    pub insecure_skip_tls_verify: bool,
    /// The path of the client certificate.
    pub cert: String,
    /// The path of the client certificate's private key.
    pub key: String,
    /// The path of the trusted authorities' certificates.
    pub cacert: String,
    /// The user, as `NAME` or `NAME:PASSWORD`; empty for no login.
    pub user: String,
    /// The password, if `user` does not contain it.
    pub password: String,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only the name is printed, because `user` may contain the password.
        let user = self.user.split(':').next();
        f.debug_struct("Discovery")
            .field("endpoints", &self.endpoints)
            .field("token", &self.token)
            .field("insecure_transport", &self.insecure_transport)
            .field("insecure_skip_tls_verify", &self.insecure_skip_tls_verify)
            .field("cert", &self.cert)
            .field("key", &self.key)
            .field("cacert", &self.cacert)
            .field("user", &user)
            .finish_non_exhaustive()
    }
}

impl Default for Discovery {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            token: String::new(),
            dial_timeout: SignedDuration::from_secs(2),
            request_timeout: SignedDuration::from_secs(5),
            keepalive_time: SignedDuration::from_secs(2),
            keepalive_timeout: SignedDuration::from_secs(6),
            insecure_transport: true,
            insecure_skip_tls_verify: false,
            cert: String::new(),
            key: String::new(),
            cacert: String::new(),
            user: String::new(),
            password: String::new(),
        }
    }
}

impl Discovery {
    /// Returns whether discovery is used.
    pub fn is_asked_for(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// Returns the name and password for the login; `None` for no login.
    pub fn login(&self) -> Option<(String, String)> {
        let (name, password) = match self.user.split_once(':') {
            Some((name, password)) if self.password.is_empty() => (name, password),
            _ => (self.user.as_str(), self.password.as_str()),
        };
        (!name.is_empty()).then(|| (name.to_owned(), password.to_owned()))
    }

    /// Returns whether connections to an endpoint are encrypted.
    pub fn is_secured(&self, endpoint: &str) -> bool {
        let given = [&self.cert, &self.key, &self.cacert].iter().any(|path| !path.is_empty());
        let scheme = endpoint.split_once("://").map(|(scheme, _)| scheme);
        matches!(scheme, Some("https" | "unixs"))
            || (!matches!(scheme, Some("http" | "unix")) && (given || !self.insecure_transport))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_output_of_discovery_contains_no_password() {
        let (user, password) = ("u:SECRET".to_owned(), "SECRET".to_owned());
        let shown = format!("{:?}", Discovery { user, password, ..Discovery::default() });
        assert!(shown.contains("\"u\"") && !shown.contains("SECRET"), "{shown}");
    }

    #[test]
    fn discovery_endpoints_without_a_scheme_use_tls_unless_plaintext_is_allowed() {
        for (insecure_transport, cacert, is_secured) in
            [(true, "", false), (false, "", true), (true, "/ca", true)]
        {
            let cacert = cacert.to_owned();
            let discovery = Discovery { insecure_transport, cacert, ..Discovery::default() };
            let secured = ["a:1", "http://a:1", "https://a:1"].map(|at| discovery.is_secured(at));
            assert_eq!(secured, [is_secured, false, true]);
        }
    }

    #[test]
    fn the_discovery_user_may_contain_the_password() {
        let login = |user: &str, password: &str| {
            let (user, password) = (user.to_owned(), password.to_owned());
            let login = Discovery { user, password, ..Discovery::default() }.login();
            login.map(|(name, password)| format!("{name} {password}"))
        };
        assert_eq!(login("", ""), None);
        assert_eq!(login("u:p", ""), Some("u p".to_owned()));
        assert_eq!(login("u", "p"), Some("u p".to_owned()));
        assert_eq!(login("u:x", "p"), Some("u:x p".to_owned()));
    }
}
