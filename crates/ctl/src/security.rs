//! `etcdctl`'s flags for TLS and logins (`credentials` reads those); and the ones for discovery by DNS, which this version
//! does not have: known, so that they are refused by name instead of being passed over. What says no more than is done
//! anyway (`--insecure-discovery=true`) is accepted.
//!
//! # Invariants
//!
//! * No value is ever printed: it may be a secret.

use std::collections::BTreeMap;

use quorate_tls::{Allowed, Connector, ConnectorSettings, Pair, Protocols, Trust};

use crate::failure::{Failure, exit};
use crate::flags::{Flag, Kind, Matches};

const ABSENT: &str = "not supported by this version";

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
    Flag::text("discovery-srv", "", ABSENT).short('d'),
    Flag::text("discovery-srv-name", "", ABSENT),
    Flag {
        name: "insecure-discovery",
        short: None,
        kind: Kind::Bool,
        default: "true",
        usage: ABSENT,
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

/// What a flag is about that is not there; `None` for one that acts.
fn subject(flag: &str) -> Option<&'static str> {
    match flag {
        "discovery-srv" | "discovery-srv-name" | "insecure-discovery" => {
            Some("discovery by DNS is")
        }
        _ => None,
    }
}

/// How connections are secured. Texts are paths, empty for none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transport {
    pub(crate) cacert: String,
    pub(crate) cert: String,
    pub(crate) key: String,
    /// Also where nothing else says so.
    pub(crate) is_demanded: bool,
    pub(crate) trusts_all: bool,
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
    }
}

impl Transport {
    /// Whether a connection is secured whose endpoint does not say.
    pub(crate) fn is_asked_for(&self) -> bool {
        let is_named = [&self.cacert, &self.cert, &self.key].iter().any(|path| !path.is_empty());
        is_named || self.is_demanded
    }

    /// What secures a connection.
    pub(crate) fn connector(&self) -> Result<Connector, Failure> {
        let trust = match self.cacert.as_str() {
            "" => Trust::System,
            path => Trust::File(path.into()),
        };
        if self.cert.is_empty() != self.key.is_empty() {
            let (key, cert) = (&self.key, &self.cert);
            let text =
                format!("KeyFile and CertFile must both be present[key: {key}, cert: {cert}]");
            return Err(Failure::new(exit::BAD_CONNECTION, text));
        }
        Connector::new(ConnectorSettings {
            pair: (!self.cert.is_empty()).then(|| Pair::new(&self.cert, &self.key)),
            protocols: Protocols::default(),
            trust: (!self.trusts_all).then_some(trust),
            allowed: Allowed::All,
            http2: true,
            server_name: None,
        })
        .map_err(|error| Failure::new(exit::BAD_CONNECTION, error.to_string()))
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

/// Refuses every such flag that asks for something, whether the command line or the environment does.
pub(crate) fn refuse(matches: &Matches, env: &BTreeMap<String, String>) -> Result<(), Failure> {
    let mut refused: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let absent = |flag: &&Flag| matches.changed(flag.name) && subject(flag.name).is_some();
    for flag in SECURITY_FLAGS.iter().filter(absent) {
        let is_idle = match flag.kind {
            Kind::Bool => matches.bool(flag.name).to_string() == flag.default,
            Kind::Int | Kind::Uint | Kind::Text | Kind::Duration | Kind::List => {
                matches.text(flag.name).is_empty()
            }
        };
        if !is_idle {
            let variable = variable(flag.name);
            let by_env = env.get(&variable).is_some_and(|value| !value.is_empty());
            let setting = if by_env { variable } else { format!("--{}", flag.name) };
            refused.entry(subject(flag.name).unwrap_or_default()).or_default().push(setting);
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    let told = |(subject, settings): (&&str, &Vec<String>)| {
        format!("{}: {subject} {ABSENT}", settings.join(", "))
    };
    let told: Vec<String> = refused.iter().map(told).collect();
    Err(Failure::bad_args(format!("{}; nothing was sent", told.join("; "))))
}

/// The environment variable of a flag.
fn variable(flag: &str) -> String {
    format!("{ENV_PREFIX}{}", flag.to_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Terminal;
    use crate::failure::exit;

    /// Runs a command whose endpoint does not exist; returns its exit code and what it printed.
    fn run(words: &[&str], env: &[(&str, &str)]) -> (u8, String) {
        #[derive(Clone, Default)]
        struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let printed = Shared::default();
        let terminal = Terminal {
            input: Box::new(std::io::empty()),
            output: Box::new(printed.clone()),
            errors: Box::new(printed.clone()),
        };
        let always = ["etcdctl", "--endpoints=127.0.0.1:1", "--command-timeout=1ms", "get", "k"];
        let args = always.iter().chain(words).map(std::ffi::OsString::from);
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let code = crate::run(args, env.collect(), terminal);
        let printed = printed.0.lock().unwrap().clone();
        (code, String::from_utf8(printed).unwrap())
    }

    #[test]
    fn what_would_secure_a_command_is_refused_before_anything_is_sent() {
        for (flag, value, subject) in [
            ("discovery-srv", "SECRET", "discovery by DNS is"),
            ("discovery-srv-name", "SECRET", "discovery by DNS is"),
            ("insecure-discovery", "false", "discovery by DNS is"),
        ] {
            let variable = variable(flag);
            for (setting, outcome) in [
                (format!("--{flag}"), run(&[&format!("--{flag}={value}")], &[])),
                (variable.clone(), run(&[], &[(&variable, value)])),
            ] {
                let (code, printed) = outcome;
                let text = format!(
                    "Error: {setting}: {subject} not supported by this version; nothing was sent\n"
                );
                assert_eq!((code, printed), (exit::BAD_ARGS, text));
            }
        }
        assert!(SECURITY_FLAGS.is_sorted_by_key(|flag| flag.name));
    }

    #[test]
    fn all_that_is_refused_is_told_at_once() {
        let (code, printed) = run(&["-d", "x"], &[("ETCDCTL_DISCOVERY_SRV_NAME", "SECRET")]);
        assert_eq!(code, exit::BAD_ARGS);
        assert_eq!(
            printed,
            "Error: --discovery-srv, ETCDCTL_DISCOVERY_SRV_NAME: discovery by DNS is not supported by this version; \
             nothing was sent\n"
        );
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
    fn a_variable_that_cannot_be_read_is_not_passed_over() {
        for name in ["ETCDCTL_INSECURE_TRANSPORT", "ETCDCTL_INSECURE_SKIP_TLS_VERIFY"] {
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
