//! How a new member finds the others through a cluster that already runs (`--discovery-*`).

use std::fmt;

use quorate_gotext::duration::SignedDuration;

/// The cluster in which members register, and the token under which they find each other.
#[derive(Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Client addresses of the discovery cluster; none for no discovery.
    pub endpoints: Vec<String>,
    /// What the new cluster registers under; it takes the place of the cluster token too.
    pub token: String,
    /// Longest wait for a connection.
    pub dial_timeout: SignedDuration,
    /// Longest wait for an answer.
    pub request_timeout: SignedDuration,
    /// Idle time before the connection is checked.
    pub keepalive_time: SignedDuration,
    /// Longest wait for the answer to such a check.
    pub keepalive_timeout: SignedDuration,
    /// Whether connections are not encrypted.
    pub insecure_transport: bool,
    /// Whether the certificate of an encrypted connection is not looked at.
    pub insecure_skip_tls_verify: bool,
    /// A client certificate's file.
    pub cert: String,
    /// Its key's file.
    pub key: String,
    /// The file of the authorities that are trusted.
    pub cacert: String,
    /// `NAME` or `NAME:PASSWORD`; empty for no login.
    pub user: String,
    /// The password, where it does not stand with the name.
    pub password: String,
}

impl fmt::Debug for Discovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Who registers, but for the password, which `user` may hold too.
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
    /// Whether a new member looks for the others this way.
    pub fn is_asked_for(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// Name and password to log in with.
    pub fn login(&self) -> Option<(String, String)> {
        let (name, password) = match self.user.split_once(':') {
            Some((name, password)) if self.password.is_empty() => (name, password),
            _ => (self.user.as_str(), self.password.as_str()),
        };
        (!name.is_empty()).then(|| (name.to_owned(), password.to_owned()))
    }

    /// Whether connections to an endpoint are encrypted.
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
    fn a_password_is_in_no_debug() {
        let (user, password) = ("u:SECRET".to_owned(), "SECRET".to_owned());
        let shown = format!("{:?}", Discovery { user, password, ..Discovery::default() });
        assert!(shown.contains("\"u\"") && !shown.contains("SECRET"), "{shown}");
    }

    #[test]
    fn the_password_may_stand_with_the_name() {
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
