//! `etcdctl`'s flags for TLS, login (read by `credentials`) and DNS discovery (read by `discovery`).
//!
//! # Invariants
//!
//! * Flag values are never printed, because they may be secret.

use quorate_client::transport::Transport;

use crate::discovery::Discovery;
use crate::failure::Failure;
use crate::flags::{Flag, Kind, Matches};

/// Prefix of the environment variables that set flags.
pub(crate) const ENV_PREFIX: &str = "ETCDCTL_";

/// Security flags, which every command accepts in addition to the global flags.
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

/// Returns the connection settings that the flags describe.
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

/// Rejects a file flag with an empty value.
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
    fn security_flags_are_sorted_by_name() {
        assert!(SECURITY_FLAGS.is_sorted_by_key(|flag| flag.name));
    }

    #[test]
    fn flags_with_default_values_are_accepted() {
        let words = ["--insecure-transport", "--insecure-skip-tls-verify=false", "--user="];
        let (code, printed) =
            run(&words, &[("ETCDCTL_INSECURE_DISCOVERY", "true"), ("ETCDCTL_CERT", "")]);
        assert_eq!(code, exit::ERROR, "the command did not fail with a call error: {printed}");
        assert!(!printed.contains("not supported"), "{printed}");
    }

    #[test]
    fn missing_or_unpaired_tls_files_cause_the_bad_arguments_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let none = dir.path().join("none").display().to_string();
        let missing = format!("Error: open {none}: no such file or directory\n");
        // The check applies even to connections without TLS.
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
    fn an_invalid_security_variable_is_an_error() {
        for name in [
            "ETCDCTL_INSECURE_DISCOVERY",
            "ETCDCTL_INSECURE_TRANSPORT",
            "ETCDCTL_INSECURE_SKIP_TLS_VERIFY",
        ] {
            let (code, printed) = run(&[], &[(name, "SECRET")]);
            assert_eq!(code, exit::ERROR);
            assert!(printed.contains(name) && printed.contains("no request was sent"), "{printed}");
            assert!(!printed.contains("SECRET") && !printed.contains("127.0.0.1"), "{printed}");
        }
    }

    #[test]
    fn a_conflict_between_flag_and_variable_is_reported_without_the_value() {
        let (code, printed) = run(&["--password=SECRET"], &[("ETCDCTL_PASSWORD", "SECRET")]);
        assert_eq!(code, exit::ERROR);
        assert!(printed.contains("conflicting environment variable"), "{printed}");
        assert!(!printed.contains("SECRET"), "{printed}");
    }
}
