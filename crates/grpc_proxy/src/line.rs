//! The command line: etcd's flags and the checks of their combinations.

use std::time::Duration;

use quorate_cli::flags::{Flag, Kind, Matches};
use quorate_cli::gotext;
use quorate_tcp_gateway::Discovery;
use quorate_tls::{Pair, Version, Versions};
use thiserror::Error;

use crate::upstream::{KeepAlive, Limits};

/// A flag whose default is a number.
const fn number(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
    Flag { name, short: None, kind: Kind::Int, default, usage }
}

const fn list(name: &'static str, default: &'static str, usage: &'static str) -> Flag {
    Flag { name, short: None, kind: Kind::List, default, usage }
}

/// All flags, sorted by name.
pub(crate) const FLAGS: &[Flag] = &[
    Flag::text(
        "advertise-client-url",
        "127.0.0.1:23790",
        "advertise address to register (must be reachable by client)",
    ),
    Flag::bool("auto-tls", "proxy TLS using generated certificates"),
    Flag::text(
        "cacert",
        "",
        "verify certificates of TLS-enabled secure etcd servers using this CA bundle",
    ),
    Flag::text(
        "cert",
        "",
        "identify secure connections with etcd servers using this TLS certificate file",
    ),
    Flag::text(
        "cert-file",
        "",
        "identify secure connections to the proxy using this TLS certificate file",
    ),
    Flag::text("client-crl-file", "", "proxy client certificate revocation list file."),
    Flag::text("data-dir", "default.proxy", "Data directory for persistent data"),
    Flag::bool("debug", "Enable debug-level logging for grpc-proxy."),
    Flag::duration(
        "dial-keepalive-time",
        "0s",
        "keepalive time for client(grpc-proxy) connections (default 0, disable).",
    ),
    Flag::duration(
        "dial-keepalive-timeout",
        "20s",
        "keepalive timeout for client(grpc-proxy) connections (default 20s).",
    ),
    Flag::text(
        "discovery-srv",
        "",
        "domain name to query for SRV records describing cluster endpoints",
    ),
    Flag::text("discovery-srv-name", "", "service name to query when using DNS discovery"),
    Flag::bool(
        "enable-pprof",
        "Enable runtime profiling data via HTTP server. Address is at client URL + \"/debug/pprof/\"",
    ),
    list("endpoints", "127.0.0.1:2379", "comma separated etcd cluster endpoints"),
    Flag::duration(
        "endpoints-auto-sync-interval",
        "0s",
        "etcd endpoints auto sync interval (disabled by default)",
    ),
    Flag::bool("experimental-enable-grpc-logging", "logging all grpc requests and responses"),
    Flag::text(
        "experimental-leasing-prefix",
        "",
        "leasing metadata prefix for disconnected linearized reads.",
    ),
    Flag::bool(
        "experimental-serializable-ordering",
        "Ensure serializable reads have monotonically increasing store revisions across endpoints.",
    ),
    Flag::duration(
        "grpc-keepalive-interval",
        "2h0m0s",
        "Frequency duration of server-to-client ping to check if a connection is alive (0 to disable).",
    ),
    Flag::duration(
        "grpc-keepalive-min-time",
        "5s",
        "Minimum interval duration that a client should wait before pinging proxy.",
    ),
    Flag::duration(
        "grpc-keepalive-timeout",
        "20s",
        "Additional duration of wait before closing a non-responsive connection (0 to disable).",
    ),
    Flag::bool("insecure-discovery", "accept insecure SRV records"),
    Flag::bool(
        "insecure-skip-tls-verify",
        "skip authentication of etcd server TLS certificates (CAUTION: this option should be enabled only for \
         testing purposes)",
    ),
    Flag::text("key", "", "identify secure connections with etcd servers using this TLS key file"),
    Flag::text("key-file", "", "identify secure connections to the proxy using this TLS key file"),
    Flag::text("listen-addr", "127.0.0.1:23790", "listen address"),
    list(
        "listen-cipher-suites",
        "",
        "Comma-separated list of supported TLS cipher suites between client/proxy (all secure ones if empty).",
    ),
    Flag::uint(
        "max-concurrent-streams",
        "4294967295",
        "Maximum concurrent streams that each client can open at a time.",
    ),
    number(
        "max-recv-bytes",
        "2147483647",
        "message receive limits in bytes (default value is math.MaxInt32)",
    ),
    number("max-send-bytes", "1572864", "message send limits in bytes (default value is 1.5 MiB)"),
    Flag::text(
        "metrics-addr",
        "",
        "listen for endpoint /metrics requests on an additional interface",
    ),
    Flag::text("namespace", "", "string to prefix to all keys for namespacing requests"),
    Flag::bool(
        "permit-without-stream",
        "Enable client(grpc-proxy) to send keepalive pings even with no active RPCs.",
    ),
    Flag::text(
        "resolver-prefix",
        "",
        "prefix to use for registering proxy (must be shared with other grpc-proxy members)",
    ),
    Flag::int("resolver-ttl", "specify TTL, in seconds, when registering proxy endpoints"),
    Flag::uint(
        "self-signed-cert-validity",
        "1",
        "The validity period of the proxy certificates, unit is year",
    ),
    Flag::text(
        "tls-max-version",
        "",
        "Maximum TLS version supported by grpc proxy. Possible values: TLS1.2, TLS1.3 (empty for the highest).",
    ),
    Flag::text(
        "tls-min-version",
        "TLS1.2",
        "Minimum TLS version supported by grpc proxy. Possible values: TLS1.2, TLS1.3.",
    ),
    Flag::text(
        "trusted-ca-file",
        "",
        "verify certificates of TLS-enabled secure proxy using this CA bundle",
    ),
];

/// An invalid combination of flags. If etcd has the same check, the text is etcd's.
#[derive(Debug, Error)]
pub(crate) enum LineError {
    #[error("invalid resolver-ttl {0}")]
    ResolverTtl(i64),
    #[error("invalid resolver-prefix \"\"")]
    ResolverPrefix,
    #[error("invalid advertise-client-url \"\"")]
    AdvertiseUrl,
    #[error("selfSignedCertValidity is invalid,it should be greater than 0")]
    Validity,
    #[error("{name} is invalid: unexpected TLS version {} (must be one of: TLS1.2, TLS1.3)", gotext::quote(.given.as_bytes()))]
    TlsVersion { name: &'static str, given: String },
    #[error("min version ({min}) is greater than max version ({max})")]
    TlsVersions { min: String, max: String },
    #[error("cipher suites cannot be configured when only TLS1.3 is enabled")]
    Suites,
}

/// The settings with which this proxy registers itself.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    pub(crate) prefix: String,
    pub(crate) ttl_secs: i64,
}

/// TLS settings for connections to members.
#[derive(Clone, Debug)]
pub(crate) struct MemberSecurity {
    pub(crate) authorities: String,
    pub(crate) pair: Option<Pair>,
    pub(crate) skips_verification: bool,
}

/// TLS settings for connections from clients.
#[derive(Clone, Debug)]
pub(crate) struct ClientSecurity {
    pub(crate) pair: Option<Pair>,
    pub(crate) authorities: String,
    pub(crate) revocations: String,
    pub(crate) is_automatic: bool,
    pub(crate) validity_years: u32,
    pub(crate) suites: Vec<String>,
    pub(crate) versions: Versions,
}

/// The validated flags.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) listen_addr: String,
    pub(crate) metrics_addr: String,
    pub(crate) advertise_url: String,
    pub(crate) data_dir: String,
    pub(crate) endpoints: Vec<String>,
    pub(crate) discovery: Discovery,
    pub(crate) sync_interval: Duration,
    pub(crate) registration: Option<Registration>,
    pub(crate) namespace: String,
    pub(crate) leasing_prefix: String,
    pub(crate) members: MemberSecurity,
    pub(crate) clients: ClientSecurity,
    pub(crate) limits: Limits,
    pub(crate) dial_keep_alive: KeepAlive,
    pub(crate) keep_alive: Option<(Duration, Duration)>,
    pub(crate) ping_floor: Duration,
    pub(crate) streams_max: Option<u32>,
    pub(crate) enables_pprof: bool,
    pub(crate) keeps_order: bool,
    pub(crate) logs_messages: bool,
    pub(crate) is_debugged: bool,
}

fn version(matches: &Matches, name: &'static str) -> Result<Option<Version>, LineError> {
    match matches.text(name) {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(Version::Tls12)),
        "TLS1.3" => Ok(Some(Version::Tls13)),
        given => Err(LineError::TlsVersion { name, given: given.to_owned() }),
    }
}

fn pair(matches: &Matches, cert: &str, key: &str) -> Option<Pair> {
    let (cert, key) = (matches.text(cert), matches.text(key));
    (!cert.is_empty() || !key.is_empty()).then(|| Pair::new(cert, key))
}

/// Removes empty items from a list.
fn named(list: Vec<String>) -> Vec<String> {
    list.into_iter().filter(|name| !name.is_empty()).collect()
}

fn positive(bytes: i64, default: usize) -> usize {
    usize::try_from(bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(default)
}

impl Options {
    pub(crate) fn of(matches: &Matches) -> Result<Self, LineError> {
        let text = |name| matches.text(name).to_owned();
        let registration = registration(matches)?;
        let clients = clients(matches)?;
        let streams = u32::try_from(matches.uint("max-concurrent-streams")).unwrap_or(u32::MAX);
        let (interval, timeout) = (
            matches.duration("grpc-keepalive-interval"),
            matches.duration("grpc-keepalive-timeout"),
        );
        Ok(Self {
            listen_addr: text("listen-addr"),
            metrics_addr: text("metrics-addr"),
            advertise_url: text("advertise-client-url"),
            data_dir: text("data-dir"),
            endpoints: named(matches.list("endpoints")),
            discovery: Discovery {
                domain: text("discovery-srv"),
                service: text("discovery-srv-name"),
                is_insecure_accepted: matches.bool("insecure-discovery"),
                authorities: text("cacert"),
            },
            sync_interval: matches.duration("endpoints-auto-sync-interval"),
            registration,
            namespace: text("namespace"),
            leasing_prefix: text("experimental-leasing-prefix"),
            members: MemberSecurity {
                authorities: text("cacert"),
                pair: pair(matches, "cert", "key"),
                skips_verification: matches.bool("insecure-skip-tls-verify"),
            },
            clients,
            limits: Limits {
                send_bytes: positive(matches.int("max-send-bytes"), 2 << 20),
                receive_bytes: positive(matches.int("max-recv-bytes"), i32::MAX as usize),
            },
            dial_keep_alive: KeepAlive {
                time: matches.duration("dial-keepalive-time"),
                timeout: matches.duration("dial-keepalive-timeout"),
                without_calls: matches.bool("permit-without-stream"),
            },
            keep_alive: (!interval.is_zero() && !timeout.is_zero()).then_some((interval, timeout)),
            ping_floor: matches.duration("grpc-keepalive-min-time"),
            streams_max: (streams != u32::MAX).then_some(streams),
            enables_pprof: matches.bool("enable-pprof"),
            keeps_order: matches.bool("experimental-serializable-ordering"),
            logs_messages: matches.bool("experimental-enable-grpc-logging"),
            is_debugged: matches.bool("debug"),
        })
    }
}

fn registration(matches: &Matches) -> Result<Option<Registration>, LineError> {
    let (prefix, ttl_secs) = (matches.text("resolver-prefix"), matches.int("resolver-ttl"));
    match (prefix, ttl_secs) {
        ("", ..=0) => Ok(None),
        ("", _) => Err(LineError::ResolverPrefix),
        (_, ..=0) => Err(LineError::ResolverTtl(ttl_secs)),
        _ if matches.text("advertise-client-url").is_empty() => Err(LineError::AdvertiseUrl),
        _ => Ok(Some(Registration { prefix: prefix.to_owned(), ttl_secs })),
    }
}

fn clients(matches: &Matches) -> Result<ClientSecurity, LineError> {
    let (is_automatic, years) =
        (matches.bool("auto-tls"), matches.uint("self-signed-cert-validity"));
    if is_automatic && years == 0 {
        return Err(LineError::Validity);
    }
    let (min, max) = (version(matches, "tls-min-version")?, version(matches, "tls-max-version")?);
    if max.is_some_and(|max| min.is_some_and(|min| min > max)) {
        let text = |name| matches.text(name).to_owned();
        return Err(LineError::TlsVersions {
            min: text("tls-min-version"),
            max: text("tls-max-version"),
        });
    }
    let suites = named(matches.list("listen-cipher-suites"));
    if min == Some(Version::Tls13) && !suites.is_empty() {
        return Err(LineError::Suites);
    }
    let default = Versions::default();
    Ok(ClientSecurity {
        pair: pair(matches, "cert-file", "key-file"),
        authorities: matches.text("trusted-ca-file").to_owned(),
        revocations: matches.text("client-crl-file").to_owned(),
        is_automatic,
        validity_years: u32::try_from(years).unwrap_or(u32::MAX),
        suites,
        versions: Versions { min: min.unwrap_or(default.min), max: max.unwrap_or(default.max) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<Options, String> {
        let words: Vec<Vec<u8>> = line.split_whitespace().map(|word| word.into()).collect();
        let matches = Matches::parse(FLAGS, &words).unwrap();
        Options::of(&matches).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_sorted_and_have_the_defaults_of_etcd() {
        assert!(FLAGS.is_sorted_by_key(|flag| flag.name));
        let options = options("").unwrap();
        assert_eq!(options.endpoints, ["127.0.0.1:2379"]);
        assert_eq!(options.limits.send_bytes, 3 << 19);
        assert_eq!(options.keep_alive, Some((Duration::from_secs(7200), Duration::from_secs(20))));
        assert!(options.streams_max.is_none());
        assert!(options.clients.pair.is_none());
        assert!(options.clients.suites.is_empty());
        assert!(options.registration.is_none());
    }

    #[test]
    fn invalid_flag_combinations_are_refused_with_etcd_errors() {
        for (line, text) in [
            ("--resolver-prefix=a", "invalid resolver-ttl 0"),
            ("--resolver-ttl=5", "invalid resolver-prefix \"\""),
            (
                "--resolver-prefix=a --resolver-ttl=5 --advertise-client-url=",
                "invalid advertise-client-url \"\"",
            ),
            (
                "--auto-tls --self-signed-cert-validity=0",
                "selfSignedCertValidity is invalid,it should be greater than 0",
            ),
            (
                "--tls-min-version=1",
                "tls-min-version is invalid: unexpected TLS version \"1\" (must be one of: TLS1.2, TLS1.3)",
            ),
            (
                "--tls-min-version=TLS1.3 --tls-max-version=TLS1.2",
                "min version (TLS1.3) is greater than max version (TLS1.2)",
            ),
            (
                "--tls-min-version=TLS1.3 --listen-cipher-suites=a",
                "cipher suites cannot be configured when only TLS1.3 is enabled",
            ),
        ] {
            assert_eq!(options(line).err().as_deref(), Some(text), "{line}");
        }
    }
}
