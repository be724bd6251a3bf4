//! Reads a configuration, step by step.
//!
//! The command line is parsed first, then the file or the environment. The values are then checked, and finally values
//! that depend on several other values are filled in. An [`Exit`] is returned if the process must end.

use std::io::ErrorKind;

use quorate_gotext::duration::SignedDuration;
use quorate_gotext::quote::{go_quote, go_reason};
use quorate_telemetry::log::{self, Line, Settings};

use super::config::{Config, DEFAULT_CLIENT_URL, DEFAULT_NAME, DEFAULT_PEER_URL};
use super::draft::Draft;
use super::grammar::{self, CommandLine};
use super::outcome::{self, Destination, Exit, Parsed, Pending, Stop};
use super::surroundings::Surroundings;
use super::url::Url;
use super::validate::{self, Refusal, Rejected};
use super::{environment, file, usage};

/// Reads a configuration from arguments (the first is the program's name), environment and file.
///
/// # Errors
///
/// An [`Exit`] if the process must not continue as a server: an error, `--help` or `--version`.
pub fn parse(arguments: &[String], surroundings: &dyn Surroundings) -> Result<Parsed, Exit> {
    let mut draft = Draft::default();
    let words = arguments.get(1..).unwrap_or_default();
    let leftover = match grammar::read(words, &mut draft) {
        CommandLine::Flags(leftover) => leftover,
        CommandLine::Help => {
            let stdout = usage::usage() + &usage::flags();
            return Err(Exit { stdout, ..Exit::default() });
        }
        CommandLine::Wrong(reason) => {
            let stderr = format!("{reason}\n{}", usage::usage());
            return Err(Exit { code: 2, stderr, ..Exit::default() });
        }
    };
    let mut reading = Reading { arguments, lines: Vec::new() };
    if let Some(word) = leftover.first() {
        let text = format!("{} is not a valid flag", go_quote(grammar::without_value(word)));
        return Err(reading.refused(Destination::Early, &text));
    }
    if draft.print_version {
        return Err(Exit { stdout: quorate_version::version_text(), ..Exit::default() });
    }
    let environment = surroundings.environment();
    if draft.config_file.is_empty() {
        let named = environment::value_of(&environment, "ETCD_CONFIG_FILE");
        draft.config_file = named.unwrap_or_default().to_owned();
    }
    let checked = if draft.config_file.is_empty() {
        reading.take_environment(&mut draft, environment)
    } else {
        reading.take_file(&mut draft, surroundings)
    };
    let mut config = checked.map_err(|stop| reading.stopped(stop))?;
    reading.warn_of_deprecated(&draft);
    reading.warn_of_inert(&draft);
    reading.say(outcome::running(arguments));
    reading.complete(&mut config, surroundings);
    Ok(Parsed { config, lines: reading.lines })
}

/// The state while a configuration is read: the arguments, and the log lines so far.
struct Reading<'a> {
    arguments: &'a [String],
    lines: Vec<Pending>,
}

/// The reason why reading ended, and the log settings at that point, if they were valid.
struct Ended {
    stop: Stop,
    log: Option<Settings>,
    /// Whether an additional line about missing advertised URLs is logged.
    is_missing_advertised: bool,
}

impl From<Stop> for Ended {
    fn from(stop: Stop) -> Self {
        Self { stop, log: None, is_missing_advertised: false }
    }
}

impl From<Rejected> for Ended {
    fn from(rejected: Rejected) -> Self {
        let stop = match &rejected.refusal {
            Refusal::UnknownLevel(level) => {
                let level = go_quote(level);
                Stop::Aborted(format!("panic: unrecognized level: {level}\n"))
            }
            other => Stop::Refused(other.to_string()),
        };
        let is_missing_advertised = matches!(rejected.refusal, Refusal::MissingAdvertised);
        Self { stop, log: rejected.log, is_missing_advertised }
    }
}

impl Reading<'_> {
    fn say(&mut self, line: Line) {
        self.lines.push(Pending::configured(line));
    }

    /// Returns the exit for an error that is reported in the log.
    fn refused(&mut self, destination: Destination, text: &str) -> Exit {
        outcome::refuse(&mut self.lines, destination, self.arguments, text);
        Exit { code: 1, lines: std::mem::take(&mut self.lines), ..Exit::default() }
    }

    fn stopped(&mut self, ended: Ended) -> Exit {
        let text = match ended.stop {
            Stop::Refused(text) => text,
            Stop::Printed(stderr) => return self.exit(1, stderr),
            Stop::Aborted(stderr) => return self.exit(2, stderr),
            Stop::Logged => return self.exit(1, String::new()),
        };
        let destination =
            if ended.log.is_some() { Destination::Configured } else { Destination::Early };
        let mut exit = self.refused(destination, &text);
        if ended.is_missing_advertised {
            let line = log::pending!(Warn, "advertise client URLs are not set", "error" = text);
            exit.lines.push(Pending { destination, line });
        }
        exit.log = ended.log;
        exit
    }

    fn exit(&mut self, code: i32, stderr: String) -> Exit {
        Exit { code, stderr, lines: std::mem::take(&mut self.lines), ..Exit::default() }
    }

    fn take_environment(
        &mut self,
        draft: &mut Draft,
        environment: Vec<(String, String)>,
    ) -> Result<Config, Ended> {
        environment::read(environment, draft, &mut self.lines)?;
        self.raise_peer_timeouts(&mut draft.config);
        let is_set = |name: &str| draft.explicit.contains(name);
        if is_set("listen-client-urls") && !is_set("advertise-client-urls") {
            draft.config.advertise_client_urls.clear();
        }
        let finds_others = ["discovery-endpoints", "discovery-srv", "discovery-srv-name"];
        if finds_others.into_iter().any(is_set) && !is_set("initial-cluster") {
            draft.config.initial_cluster.clear();
        }
        if draft.discovery_fallback == "proxy" {
            return Err(Rejected { refusal: Refusal::ProxyFallback, log: None }.into());
        }
        Ok(validate::check(draft, &mut self.lines)?)
    }

    /// Reads the file and checks its values. Errors are logged to standard error, because the log settings of an
    /// invalid file are not trusted.
    fn take_file(
        &mut self,
        draft: &mut Draft,
        surroundings: &dyn Surroundings,
    ) -> Result<Config, Ended> {
        let path = draft.config_file.clone();
        let bytes = surroundings.read_file(&path).map_err(|error| {
            let action = if error.kind() == ErrorKind::IsADirectory { "read" } else { "open" };
            Stop::Refused(format!("{action} {path}: {}", go_reason(&error)))
        })?;
        let mut fresh = Draft::default();
        file::read(&bytes, &mut fresh, &mut self.lines)?;
        let given = &mut fresh.config;
        let finds_others = !given.discovery_srv.is_empty() || given.discovery.is_asked_for();
        if finds_others && given.initial_cluster == Config::default().initial_cluster {
            given.initial_cluster.clear();
        }
        let config = validate::check(&fresh, &mut self.lines)
            .map_err(|rejected| Ended { log: None, ..Ended::from(rejected) })?;
        self.say(log::pending!(
            Info,
            "loaded server configuration, other configuration command line flags and environment \
             variables will be ignored if provided",
            "path" = path
        ));
        *draft = fresh;
        Ok(config)
    }

    fn raise_peer_timeouts(&mut self, config: &mut Config) {
        let least = SignedDuration::from_secs(5);
        for (name, timeout) in [
            ("raft-read-timeout", &mut config.raft_read_timeout),
            ("raft-write-timeout", &mut config.raft_write_timeout),
        ] {
            if *timeout < least {
                *timeout = least;
                let text = format!("{name} increased to minimum value: {least}");
                self.lines.push(Pending::early(log::pending!(Info, text)));
            }
        }
    }

    fn warn_of_deprecated(&mut self, draft: &Draft) {
        const DEPRECATED: [(&str, &str); 2] = [
            (
                "max-snapshots",
                "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8.",
            ),
            (
                "v2-deprecation",
                "--v2-deprecation is deprecated and scheduled for removal in v3.8. The default \
                 value is enforced, ignoring user input.",
            ),
        ];
        for (name, text) in DEPRECATED {
            if draft.explicit.contains(name) {
                self.say(log::pending!(Warn, text));
            }
        }
    }

    /// Warns about flags that are accepted for compatibility with etcd but have no effect in Quorate.
    fn warn_of_inert(&mut self, draft: &Draft) {
        const INERT: [(&str, &str); 1] = [(
            "backend-bbolt-freelist-type",
            "free pages are always tracked in the same way; files with either free list type can be read",
        )];
        for (flag, reason) in INERT {
            if draft.explicit.contains(flag) {
                let message = "this flag has no effect";
                self.say(log::pending!(Warn, message, "flag" = flag, "reason" = reason));
            }
        }
        for (gate, reason) in draft.config.feature_gates.inert() {
            self.say(log::pending!(
                Warn,
                "this feature gate has no effect",
                "feature-gate" = gate.name(),
                "reason" = reason
            ));
        }
    }

    /// Fills in values that depend on other values: the advertised host, the initial cluster and the data directory.
    fn complete(&mut self, config: &mut Config, surroundings: &dyn Surroundings) {
        let host = surroundings.default_host();
        let mut used = false;
        if let Ok(host) = &host {
            used = advertise(
                &config.listen_peer_urls,
                &mut config.initial_advertise_peer_urls,
                DEFAULT_PEER_URL,
                host,
            );
        }
        let default_cluster = format!("{DEFAULT_NAME}={DEFAULT_PEER_URL}");
        if config.name != DEFAULT_NAME && config.initial_cluster == default_cluster {
            config.initial_cluster = config.initial_cluster_from_name(&config.name);
        }
        match &host {
            Ok(host) => {
                used |= advertise(
                    &config.listen_client_urls,
                    &mut config.advertise_client_urls,
                    DEFAULT_CLIENT_URL,
                    host,
                );
                if used {
                    self.say(log::pending!(
                        Info,
                        "detected default host for advertise",
                        "host" = host
                    ));
                }
            }
            Err(reason) => {
                self.say(log::pending!(Info, "failed to detect default host", "error" = reason));
            }
        }
        if config.data_dir.is_empty() {
            config.data_dir = format!("{}.etcd", config.name);
            if config.engine.get().is_some() {
                return;
            }
            self.say(log::pending!(
                Warn,
                "'data-dir' was empty; using default",
                "data-dir" = config.data_dir
            ));
        }
    }
}

/// Replaces the advertised host with `host` if the member listens on all addresses and advertises only the URL
/// `default`. Returns whether the host was replaced.
fn advertise(listened: &[Url], advertised: &mut [Url], default: &str, host: &str) -> bool {
    match (listened.first(), advertised) {
        (Some(listened), [only]) if only.as_str() == default && listened.host() == "0.0.0.0" => {
            *only = only.with_host(host, listened.port());
            true
        }
        _ => false,
    }
}
