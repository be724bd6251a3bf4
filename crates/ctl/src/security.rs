//! `etcdctl`'s flags for TLS, for logins (`credentials` reads those), and for discovery by DNS (`discovery`).
//!
//! # Invariants
//!
//! * No value is ever printed: it may be a secret.

use quorate_tls::{
    Allowed, Connector, ConnectorSettings, MaterialError, Pair, Protocols, ServerCheck, SetupError,
    Trust,
};

use crate::discovery::Discovery;
use crate::failure::Failure;
use crate::flags::{Flag, Kind, Matches};

/// What the variable of a flag begins with.
pub(crate) const ENV_PREFIX: &str = "ETCDCTL_";

/// The flags, beside the global ones, of every command.
pub(crate) const SECURITY_FLAGS: &[Flag] = &[
    Flag::text(
        "auth-jwt-token",
        "",
        "JWT token used for authentication (if this option is used, --user and --password should not be set)",
    ),
    Flag::text(
        "cacert",
        "",
        "verify certificates of TLS-enabled secure servers using this CA bundle",
    ),
    Flag::text("cert", "", "identify secure client using this TLS certificate file"),
    Flag::text(
        "discovery-srv",
        "",
        "domain name to query for SRV records describing cluster endpoints",
    )
    .short('d'),
    Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery"),
    Flag {
        name: "insecure-discovery",
        short: None,
        kind: Kind::Bool,
        default: "true",
        usage: "accept insecure SRV records describing cluster endpoints",
    },
    Flag::bool(
        "insecure-skip-tls-verify",
        "skip server certificate verification (CAUTION: this option should be enabled only for testing purposes)",
    ),
    Flag {
        name: "insecure-transport",
        short: None,
        kind: Kind::Bool,
        default: "true",
        usage: "disable transport security for client connections",
    },
    Flag::text("key", "", "identify secure client using this TLS key file"),
    Flag::text(
        "password",
        "",
        "password for authentication (if this option is used, --user option shouldn't include password)",
    ),
    Flag::text(
        "user",
        "",
        "username[:password] for authentication (prompt if password is not supplied)",
    ),
];

/// How connections are secured. Texts are paths, empty for none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transport {
    pub(crate) cacert: String,
    pub(crate) cert: String,
    pub(crate) key: String,
    /// Also where nothing else says so.
    pub(crate) is_demanded: bool,
    pub(crate) trusts_all: bool,
    /// What certificates of servers have to be good for, if it is not their own hosts.
    pub(crate) server_name: Option<String>,
}

/// What the flags say of connections.
pub(crate) fn transport(matches: &Matches) -> Transport {
    let text = |name| matches.text(name).to_owned();
    Transport {
        cacert: text("cacert"),
        cert: text("cert"),
        key: text("key"),
        is_demanded: !matches.bool("insecure-transport"),
        trusts_all: matches.bool("insecure-skip-tls-verify"),
        server_name: Discovery::of(matches).and_then(|found| found.name_in_certificates()),
    }
}

impl Transport {
    /// Whether a connection is secured whose endpoint does not say.
    pub(crate) fn is_asked_for(&self) -> bool {
        let is_named = [&self.cacert, &self.cert, &self.key].iter().any(|path| !path.is_empty());
        is_named || self.is_demanded
    }

    /// What secures a connection for gRPC.
    pub(crate) fn connector(&self) -> Result<Connector, Failure> {
        self.connector_for(true)
    }

    /// What secures a connection for HTTP/1.
    pub(crate) fn http_connector(&self) -> Result<Connector, Failure> {
        self.connector_for(false)
    }

    fn connector_for(&self, http2: bool) -> Result<Connector, Failure> {
        let trust = match self.cacert.as_str() {
            "" => Trust::System,
            path => Trust::File(path.into()),
        };
        if self.cert.is_empty() != self.key.is_empty() {
            let (key, cert) = (&self.key, &self.cert);
            let text =
                format!("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]");
            return Err(Failure::bad_args(text));
        }
        Connector::new(ConnectorSettings {
            pair: (!self.cert.is_empty()).then(|| Pair::new(&self.cert, &self.key)),
            protocols: Protocols::default(),
            check: ServerCheck::by(trust, self.trusts_all),
            allowed: Allowed::All,
            http2,
            server_name: self.server_name.clone(),
        })
        .map_err(|error| Failure::bad_args(unusable(&error)))
    }
}

/// Why a file cannot be used, as etcd tells it where it has words for that.
fn unusable(error: &SetupError) -> String {
    match error {
        SetupError::Material(MaterialError::Pair { cert, key, reason }) => {
            format!("tls: {reason} ({}, {})", key.display(), cert.display())
        }
        other => other.to_string(),
    }
}

/// Refuses a flag for a file that names none.
pub(crate) fn check_files(matches: &Matches) -> Result<(), Failure> {
    for name in ["cert", "key", "cacert"] {
        if matches.changed(name) && matches.text(name).is_empty() {
            return Err(Failure::bad_args(format!("empty string is passed to --{name} option")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::exit;
    use crate::runs::run;

    #[test]
    fn flags_are_in_order() {
        assert!(SECURITY_FLAGS.is_sorted_by_key(|flag| flag.name));
    }

    #[test]
    fn what_asks_for_nothing_is_accepted() {
        let words = ["--insecure-transport", "--insecure-skip-tls-verify=false", "--user="];
        let (code, printed) =
            run(&words, &[("ETCDCTL_INSECURE_DISCOVERY", "true"), ("ETCDCTL_CERT", "")]);
        assert_eq!(code, exit::ERROR, "the call itself fails: {printed}");
        assert!(!printed.contains("not supported"), "{printed}");
    }

    #[test]
    fn files_that_are_of_no_use_are_bad_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none").display().to_string();
        let missing = format!("Error: open {none}: no such file or directory\n");
        // Also where the endpoint would not have been secured.
        for endpoint in ["--hex", "--endpoints=http://127.0.0.1:1"] {
            let cacert = format!("--cacert={none}");
            assert_eq!(run(&[endpoint, &cacert], &[]), (exit::BAD_ARGS, missing.clone()));
            let pair = [endpoint, &format!("--cert={none}"), &format!("--key={none}")];
            assert_eq!(run(&pair, &[]), (exit::BAD_ARGS, missing.clone()));
            let text =
                format!("Error: KeyFile and CertFile must both be present[key: , cert: {none}]\n");
            assert_eq!(run(&[endpoint, &format!("--cert={none}")], &[]), (exit::BAD_ARGS, text));
        }
    }

    #[test]
    fn a_variable_that_cannot_be_read_is_not_passed_over() {
        for name in [
            "ETCDCTL_INSECURE_DISCOVERY",
            "ETCDCTL_INSECURE_TRANSPORT",
            "ETCDCTL_INSECURE_SKIP_TLS_VERIFY",
        ] {
            let (code, printed) = run(&[], &[(name, "SECRET")]);
            assert_eq!(code, exit::ERROR);
            assert!(printed.contains(name) && printed.contains("nothing was sent"), "{printed}");
            assert!(!printed.contains("SECRET") && !printed.contains("127.0.0.1"), "{printed}");
        }
    }

    #[test]
    fn a_flag_beside_its_variable_is_a_conflict_that_tells_no_value() {
        let (code, printed) = run(&["--password=SECRET"], &[("ETCDCTL_PASSWORD", "SECRET")]);
        assert_eq!(code, exit::ERROR);
        assert!(printed.contains("conflicting environment variable"), "{printed}");
        assert!(!printed.contains("SECRET"), "{printed}");
    }
}
