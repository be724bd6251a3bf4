//! Tests of the whole crate, from arguments to a configuration or an exit.

use std::{collections::BTreeMap, io, time::Duration};

use quorate_gotext::duration::SignedDuration;
use quorate_telemetry::log::{Format, Level, Output, Rotation};

use super::environment::environment_name;
use super::flags::{FLAGS, FileKey};
use super::{
    ClusterState, CompactionMode, Config, Destination, Exit, FeatureGate, FreelistType,
    MetricsLevel, Parsed, Pending, Retention, Surroundings, joined, parse,
};

mod absent;
mod effects;
mod environment;
mod file;
mod security;

/// The simulated surroundings of a test.
#[derive(Clone, Debug, Default)]
struct World {
    environment: Vec<(String, String)>,
    files: BTreeMap<String, String>,
    host: Option<String>,
}

impl Surroundings for World {
    fn environment(&self) -> Vec<(String, String)> {
        self.environment.clone()
    }

    fn read_file(&self, path: &str) -> io::Result<Vec<u8>> {
        match self.files.get(path) {
            Some(text) => Ok(text.clone().into_bytes()),
            None => std::fs::read(path),
        }
    }

    fn default_host(&self) -> Result<String, String> {
        self.host.clone().ok_or_else(|| "default host not found".to_owned())
    }
}

impl World {
    fn with_environment(pairs: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { environment: pairs.iter().map(owned).collect(), ..Self::default() }
    }

    fn with_file(text: &str) -> Self {
        Self { files: [("/c".to_owned(), text.to_owned())].into(), ..Self::default() }
    }

    fn run(&self, arguments: &str) -> Result<Parsed, Exit> {
        let words = arguments.split_whitespace();
        let all: Vec<String> = ["quorate"].into_iter().chain(words).map(str::to_owned).collect();
        parse(&all, self)
    }

    fn config(&self, arguments: &str) -> Config {
        match self.run(arguments) {
            Ok(parsed) => parsed.config,
            Err(exit) => panic!("{arguments}: {exit:?}"),
        }
    }
}

fn config(arguments: &str) -> Config {
    World::default().config(arguments)
}

fn exit(arguments: &str) -> Exit {
    World::default().run(arguments).unwrap_err()
}

fn file(text: &str) -> Result<Parsed, Exit> {
    World::with_file(text).run("--config-file /c")
}

fn messages(lines: &[Pending]) -> Vec<&str> {
    lines.iter().map(|pending| pending.line.message.as_str()).collect()
}

fn has_line(lines: &[Pending], level: Level, message: &str) -> bool {
    lines.iter().any(|p| p.line.level == level && p.line.message == message)
}

/// Returns the error in the log line about invalid flags.
fn refusal(exit: &Exit) -> String {
    assert_eq!((exit.code, exit.stdout.as_str(), exit.stderr.as_str()), (1, "", ""), "{exit:?}");
    let position = exit.lines.iter().position(|p| p.line.message == "failed to verify flags");
    let position =
        position.unwrap_or_else(|| panic!("no refusal was logged: {:?}", messages(&exit.lines)));
    assert_eq!(exit.lines[position].line.level, Level::Warn);
    assert_eq!(exit.lines[position - 1].line.message, "Running: ");
    let quoted = exit.lines[position].line.field("error").unwrap();
    serde_json::from_str(&quoted).unwrap()
}

#[test]
fn without_flags_all_settings_have_their_defaults() {
    let parsed = World::default().run("").unwrap();
    let expected = Config { data_dir: "default.etcd".to_owned(), ..Config::default() };
    assert_eq!(parsed.config, expected);
    assert_eq!(
        messages(&parsed.lines),
        [
            "Running http and grpc server on single port. This is not recommended for production.",
            "it isn't recommended to use default name, please set a value for --name. Note that \
             etcd might run into issue when multiple members have the same default name",
            "Running: ",
            "failed to detect default host",
            "'data-dir' was empty; using default",
        ]
    );
    assert!(parsed.lines.iter().all(|p| p.destination == Destination::Configured));
    assert_eq!(parsed.lines[2].line.field("args").unwrap(), "[\"quorate\"]");
}

#[test]
fn flags_accept_one_or_two_dashes_and_a_space_or_an_equals_sign() {
    for arguments in ["-name x", "--name x", "-name=x", "--name=x", "--name y --name=x"] {
        assert_eq!(config(arguments).name, "x");
    }
    assert!(!config("--pre-vote=false").pre_vote);
    assert!(config("--pre-vote").pre_vote);
    assert_eq!(config("--max-wals 0x10").max_wals, 16);
    assert_eq!(config("--initial-cluster= --name=").initial_cluster, "");
    assert_eq!(config("--quota-backend-bytes -1").quota_bytes(), None);
    assert_eq!(config("--max-wals 1 --").max_wals, 1);
}

#[test]
fn extra_arguments_are_refused_with_a_log_line() {
    for (arguments, word) in [
        ("serve", "serve"),
        ("--pre-vote false", "false"),
        ("-- --name x", "--name"),
        ("- x", "-"),
        ("--name x a\"b", "a\\\"b"),
        ("serve=SECRET", "serve"),
    ] {
        assert_eq!(refusal(&exit(arguments)), format!("\"{word}\" is not a valid flag"));
    }
    // Unexpected words are refused before `--version` takes effect.
    assert_eq!(exit("--version x").code, 1);
}

#[test]
fn command_line_errors_exit_with_code_2_and_print_the_usage() {
    for (arguments, line) in [
        ("--nonsense", "flag provided but not defined: -nonsense"),
        ("--nonsense=1 --help", "flag provided but not defined: -nonsense"),
        (
            "--experimental-initial-corrupt-check --name x",
            "flag provided but not defined: -experimental-initial-corrupt-check",
        ),
        ("--cert-file", "flag needs an argument: -cert-file"),
        ("--name", "flag needs an argument: -name"),
        ("---name x", "bad flag syntax: ---name"),
        ("---discovery-password=SECRET", "bad flag syntax: ---discovery-password"),
        ("--max-wals x", "invalid value \"x\" for flag -max-wals: parse error"),
        ("--max-wals -1", "invalid value \"-1\" for flag -max-wals: parse error"),
        (
            "--max-wals 18446744073709551616",
            "invalid value \"18446744073709551616\" for flag -max-wals: value out of range",
        ),
        (
            "--max-learners 9223372036854775808",
            "invalid value \"9223372036854775808\" for flag -max-learners: value out of range",
        ),
        (
            "--max-concurrent-streams x",
            "invalid value \"x\" for flag -max-concurrent-streams: strconv.ParseUint: parsing \"x\": invalid syntax",
        ),
        (
            "--max-concurrent-streams 4294967296",
            "invalid value \"4294967296\" for flag -max-concurrent-streams: strconv.ParseUint: parsing \"4294967296\": value out of range",
        ),
        ("--pre-vote=x", "invalid boolean value \"x\" for -pre-vote: parse error"),
        (
            "--grpc-keepalive-interval 5",
            "invalid value \"5\" for flag -grpc-keepalive-interval: parse error",
        ),
        (
            "--initial-cluster-state old",
            "invalid value \"old\" for flag -initial-cluster-state: invalid value",
        ),
        (
            "--v2-deprecation not-yet",
            "invalid value \"not-yet\" for flag -v2-deprecation: invalid value \"not-yet\"",
        ),
        (
            "--listen-client-urls 127.0.0.1:2379",
            "invalid value \"127.0.0.1:2379\" for flag -listen-client-urls: parse \"127.0.0.1:2379\": first path segment in URL cannot contain colon",
        ),
        (
            "--listen-peer-urls http://a.com",
            "invalid value \"http://a.com\" for flag -listen-peer-urls: URL address does not have the form \"host:port\": http://a.com",
        ),
        (
            "--cors http://a.com",
            "invalid value \"http://a.com\" for flag -cors: URL address does not have the form \"host:port\": http://a.com",
        ),
        (
            "--feature-gates X=true",
            "invalid value \"X=true\" for flag -feature-gates: unrecognized feature gate: X",
        ),
        (
            "--feature-gates PriorityRequest",
            "invalid value \"PriorityRequest\" for flag -feature-gates: missing bool value for PriorityRequest",
        ),
    ] {
        let exit = exit(arguments);
        assert_eq!((exit.code, exit.stdout.as_str()), (2, ""), "{arguments}");
        let first = exit.stderr.lines().next().unwrap();
        assert_eq!(first, line, "{arguments}");
        assert!(exit.stderr.contains("\nUsage:\n"), "{arguments}");
        assert!(exit.lines.is_empty());
    }
}

#[test]
fn help_prints_the_usage_and_every_flag_once() {
    for arguments in ["-h", "--help", "-help", "--name x --help --nonsense"] {
        let exit = exit(arguments);
        assert_eq!((exit.code, exit.stderr.as_str()), (0, ""));
        assert!(exit.stdout.starts_with("Usage:\n"));
        for flag in FLAGS.iter().filter(|flag| !flag.section.is_empty()) {
            let head = format!("\n  --{} '", flag.name);
            assert_eq!(exit.stdout.matches(&head).count(), 1, "{}", flag.name);
            let heading = format!("\n{}:\n", flag.section);
            assert_eq!(exit.stdout.matches(&heading).count(), 1, "{heading}");
        }
        assert!(!exit.stdout.contains("--vv"));
    }
    let help = exit("-h").stdout;
    for line in [
        "  --data-dir '${name}.etcd'",
        "  --listen-client-urls 'http://localhost:2379'",
        "  --initial-cluster 'default=http://localhost:2380'",
        "  --grpc-keepalive-interval '2h0m0s'",
        "  --max-concurrent-streams '4294967295'",
        "  --backend-bbolt-freelist-type 'map'",
        "  --cors '*'",
        "      FastLeaseKeepAlive=true|false (BETA - default=true)",
    ] {
        assert!(help.lines().any(|l| l == line), "{line}");
    }
}

#[test]
fn version_is_printed_before_the_configuration_is_checked() {
    let exit = World::with_environment(&[("ETCD_NAME", "x")])
        .run("--version --name y --config-file /missing")
        .unwrap_err();
    assert_eq!((exit.code, exit.stderr.as_str()), (0, ""));
    assert!(exit.stdout.starts_with("etcd Version: 3.7.1\nGit SHA: "));
    assert!(exit.lines.is_empty());
}

#[test]
fn obsolete_flags_are_accepted_with_any_value() {
    let config = config("--snapshot=what --v --vv=7 --test.coverprofile=x --config=y --force");
    assert_eq!(config.name, "default");
}

#[test]
fn flags_that_have_no_effect_with_engine_are_refused() {
    for (arguments, text) in [
        (
            "--engine postgres://u:geheim@h/db --data-dir d",
            "--data-dir has no effect with --engine: the data is in the database, not in files",
        ),
        (
            "--initial-cluster default=http://localhost:2380 --engine postgres://h/db",
            "--initial-cluster has no effect with --engine: servers find each other in the database",
        ),
    ] {
        assert_eq!(refusal(&exit(arguments)), text, "{arguments}");
    }
}

#[test]
fn invalid_settings_are_refused_in_the_order_and_with_the_messages_of_etcd() {
    for (arguments, text) in [
        ("--logger capnslog", "--logger=capnslog is removed in v3.5"),
        ("--logger x", "unknown logger option \"x\""),
        ("--log-outputs default,stdout", "multi logoutput for \"default\" is not supported yet"),
        (
            "--enable-log-rotation",
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ),
        (
            "--enable-log-rotation --log-outputs /a,/b",
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ),
        (
            "--enable-log-rotation --log-outputs /a --log-rotation-config-json {",
            "improperly formatted log rotation config: unexpected end of JSON input",
        ),
        (
            "--log-outputs systemd/journal,stdout",
            "running with systemd/journal but other '--log-outputs' values ([\"stdout\" \"systemd/journal\"]) are configured with 'default'; override 'default' value with something else",
        ),
        ("--log-format x", "unknown log format: x, supported values json, console"),
        (
            "--listen-peer-urls http://a.com:1 --heartbeat-interval 0",
            "expected IP in URL for binding (http://a.com:1)",
        ),
        ("--listen-metrics-urls http://a.com:1", "expected IP in URL for binding (http://a.com:1)"),
        (
            "--initial-advertise-peer-urls http://:1",
            "--initial-advertise-peer-urls \"http://:1\" must be \"host:port\" (unexpected empty host (http://:1))",
        ),
        (
            "--advertise-client-urls http://:1",
            "--advertise-client-urls \"http://:1\" must be in the format \"host:port\", \"unix:/path/to/socket\" or \"unixs:/path/to/socket\" (unexpected empty host (http://:1))",
        ),
        ("--heartbeat-interval 0", "--heartbeat-interval must be >0 (set to 0ms)"),
        ("--election-timeout 0", "--election-timeout must be >0 (set to 0ms)"),
        (
            "--heartbeat-interval 500",
            "--election-timeout[1000ms] should be at least as 5 times as --heartbeat-interval[500ms]",
        ),
        (
            "--heartbeat-interval 18446744073709551615",
            "--election-timeout[1000ms] should be at least as 5 times as --heartbeat-interval[18446744073709551615ms]",
        ),
        (
            "--election-timeout 50001",
            "--election-timeout[50001ms] is too long, and should be set less than 50000ms",
        ),
        (
            "--listen-client-urls http://localhost:1 --auto-compaction-mode x",
            "--advertise-client-urls is required when --listen-client-urls is set explicitly",
        ),
        ("--auto-compaction-mode=", "undefined auto-compaction-mode"),
        ("--auto-compaction-mode x", "unknown auto-compaction-mode \"x\""),
        (
            "--feature-gates LeaseCheckpointPersist=true",
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint",
        ),
        ("--compact-hash-check-time 0", "--compact-hash-check-time must be >0 (set to 0s)"),
        ("--compact-hash-check-time=-2m", "--compact-hash-check-time must be >0 (set to -2m0s)"),
    ] {
        assert_eq!(refusal(&exit(arguments)), text, "{arguments}");
    }
}

#[test]
fn a_configuration_error_is_written_to_the_configured_log() {
    let exit = exit("--log-outputs /tmp/x --log-level error --heartbeat-interval 0");
    let log = exit.log.as_ref().unwrap();
    assert_eq!(log.outputs, [Output::File("/tmp/x".to_owned())]);
    assert_eq!(log.level, Level::Error);
    assert!(exit.lines.iter().all(|p| p.destination == Destination::Configured));
    // A log with invalid settings must not be used.
    let exit = self::exit("--log-format x");
    assert!(exit.log.is_none());
    assert!(exit.lines.iter().all(|p| p.destination == Destination::Early));
}

#[test]
fn invalid_or_contradictory_quota_settings_are_refused() {
    for (arguments, text) in [
        (
            "--quota-warning-percent 100",
            "--quota-warning-percent 100 must be a percentage below 100",
        ),
        ("--quota-disarm-percent 101", "--quota-disarm-percent 101 must be a percentage below 100"),
        (
            "--quota-backend-bytes 1000 --quota-disarm-percent 90 --quota-headroom-bytes 100",
            "--quota-headroom-bytes 100 leaves no room for writes below --quota-disarm-percent of --quota-backend-bytes",
        ),
    ] {
        assert_eq!(refusal(&exit(arguments)), text, "{arguments}");
    }
    let config = config("--quota-disarm-percent 90 --quota-headroom-bytes 1000");
    assert_eq!((config.quota_disarm_percent, config.quota_headroom_bytes), (90, 1000));
}

#[test]
fn requests_that_do_not_fit_in_a_message_between_members_cannot_be_allowed() {
    assert_eq!(config("--max-request-bytes 535822336").max_request_bytes, 511 << 20);
    assert_eq!(
        refusal(&exit("--max-request-bytes 535822337")),
        "--max-request-bytes 535822337 must be at most 535822336; otherwise, a request could be too \
         large for a message to another member"
    );
}

#[test]
fn a_log_file_is_rotated_if_rotation_is_enabled() {
    let json = r#"{"maxsize":1,"compress":true}"#;
    let by_flags = config(&format!(
        "--log-outputs stderr,/a --enable-log-rotation --log-rotation-config-json {json}"
    ));
    let (age_max, backups_max) = (None, None);
    let rotation =
        Rotation { bytes_max: 1 << 20, age_max, backups_max, local_time: false, compress: true };
    let rotated = Output::RotatedFile("/a".to_owned(), rotation);
    assert_eq!(by_flags.log.outputs, [rotated.clone(), Output::Stderr]);
    let text =
        format!("log-outputs: [/a]\nenable-log-rotation: true\nlog-rotation-config-json: '{json}'");
    assert_eq!(file(&text).unwrap().config.log.outputs, [rotated]);
    // Invalid rotation settings are accepted, because they have no effect unless rotation is enabled.
    let idle = config("--log-outputs /a --log-rotation-config-json x").log.outputs;
    assert_eq!(idle, [Output::File("/a".to_owned())]);
}

#[test]
fn advertised_client_urls_are_required_if_listen_client_urls_are_set() {
    let exit = exit("--listen-client-urls http://localhost:1");
    let last = &exit.lines.last().unwrap().line;
    assert_eq!(last.message, "advertise client URLs are not set");
    assert_eq!(
        last.field("error").unwrap(),
        "\"--advertise-client-urls is required when --listen-client-urls is set explicitly\""
    );
}

#[test]
fn an_unknown_log_level_exits_with_the_message_and_code_of_a_go_panic() {
    let exit = exit("--log-level loud");
    assert_eq!((exit.code, exit.lines.len()), (2, 0));
    assert_eq!(exit.stderr, "panic: unrecognized level: \"loud\"\n");
    assert_eq!(config("--log-level WARN").log.level, Level::Warn);
}

#[test]
fn enum_settings_are_parsed_and_unknown_values_select_the_default() {
    let config = config(
        "--initial-cluster-state existing --auto-compaction-mode revision --metrics extensive \
         --backend-bbolt-freelist-type array --log-format console --log-outputs stdout,stderr",
    );
    assert_eq!(config.initial_cluster_state, ClusterState::Existing);
    assert_eq!(config.auto_compaction_mode, CompactionMode::Revision);
    assert_eq!(config.metrics, MetricsLevel::Extensive);
    assert_eq!(config.backend_freelist_type, FreelistType::Array);
    assert_eq!(config.log.format, Format::Console);
    assert_eq!(config.log.outputs, [Output::Stderr, Output::Stdout]);
    let config = self::config("--metrics x --backend-bbolt-freelist-type x");
    assert_eq!(config.metrics, MetricsLevel::Basic);
    assert_eq!(config.backend_freelist_type, FreelistType::Map);
}

#[test]
fn zero_and_negative_values_select_defaults_and_low_values_are_raised() {
    let config = config(
        "--snapshot-count 0 --snapshot-catchup-entries 0 --warning-unary-request-duration 0 \
         --raft-read-timeout 1s --raft-write-timeout 6s --watch-progress-notify-interval 1ms",
    );
    assert_eq!((config.snapshot_count, config.snapshot_catchup_entries), (10_000, 5_000));
    assert_eq!(config.warning_unary_request_duration, SignedDuration::from_millis(300));
    assert_eq!(config.raft_read_timeout, SignedDuration::from_secs(5));
    assert_eq!(config.raft_write_timeout, SignedDuration::from_secs(6));
    assert_eq!(config.watch_progress_notify_interval(), Duration::from_millis(100));
    let config = self::config("--watch-progress-notify-interval -1s --compaction-batch-limit -1");
    assert_eq!(config.watch_progress_notify_interval(), Duration::from_secs(600));
    assert_eq!(config.compaction_batch_limit(), 1_000);
    assert_eq!(config.compaction_sleep_interval(), Duration::from_millis(10));
    assert_eq!(config.backend_batch_interval(), Duration::from_millis(100));
    assert_eq!(config.backend_batch_limit(), 10_000);
    assert_eq!(config.quota_bytes(), Some(2 << 30));
    assert_eq!((config.request_timeout(), config.election_ticks()), (Duration::from_secs(7), 10));
}

#[test]
fn adjusted_and_deprecated_settings_are_logged() {
    let parsed = World::default()
        .run(
            "--raft-read-timeout 1s --watch-progress-notify-interval 1ms --max-snapshots 3 \
             --v2-deprecation gone --feature-gates LeaseCheckpoint=true",
        )
        .unwrap();
    for (level, message) in [
        (Level::Info, "raft-read-timeout increased to minimum value: 5s"),
        (Level::Warn, "adjusting watch progress notify interval to minimum period"),
        (Level::Warn, "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."),
        (
            Level::Warn,
            "--v2-deprecation is deprecated and scheduled for removal in v3.8. The default value is enforced, ignoring user input.",
        ),
        (
            Level::Warn,
            "Detected that checkpointing is enabled without persistence. Consider enabling feature gate LeaseCheckpointPersist",
        ),
    ] {
        assert!(has_line(&parsed.lines, level, message), "{message}");
    }
}

#[test]
fn urls_are_sorted_and_an_empty_url_list_keeps_the_default() {
    let config = config(
        "--listen-peer-urls http://127.0.0.1:9,http://127.0.0.1:8,http://127.0.0.1:9 \
         --listen-client-urls= --advertise-client-urls=",
    );
    assert_eq!(joined(&config.listen_peer_urls), "http://127.0.0.1:8,http://127.0.0.1:9");
    assert_eq!(joined(&config.listen_client_urls), "http://localhost:2379");
    assert_eq!(joined(&config.advertise_client_urls), "http://localhost:2379");
    assert!(config.serves_http_with_grpc());
    let unix = self::config("--listen-client-urls unix://x --advertise-client-urls unix:///r/x");
    assert_eq!(unix.listen_client_urls[0].socket_path().as_deref(), Some("x"));
}

#[test]
fn configured_origins_and_hosts_replace_the_wildcard() {
    let config = config("--cors http://b:2,http://a:1 --host-whitelist x,y,x");
    assert!(config.cors.iter().eq(["http://a:1", "http://b:2"]));
    assert!(config.host_whitelist.iter().eq(["x", "y"]));
}

#[test]
fn the_default_initial_cluster_changes_only_if_the_name_is_set() {
    assert_eq!(config("--name x").initial_cluster, "x=http://localhost:2380");
    let several = config("--name x --initial-advertise-peer-urls http://b:1,http://a:1");
    assert_eq!(several.initial_cluster, "x=http://a:1,x=http://b:1");
    assert_eq!(config("--initial-cluster y=http://a:1 --name x").initial_cluster, "y=http://a:1");
    assert_eq!(
        config("--initial-advertise-peer-urls http://a:1").initial_cluster,
        "default=http://localhost:2380"
    );
}

#[test]
fn listening_on_all_addresses_advertises_the_default_host() {
    let world = World { host: Some("10.0.0.7".to_owned()), ..World::default() };
    let arguments = "--name x --listen-peer-urls http://0.0.0.0:12380 \
         --listen-client-urls http://0.0.0.0:12379 --advertise-client-urls http://localhost:2379";
    let parsed = world.run(arguments).unwrap();
    let config = &parsed.config;
    assert_eq!(joined(&config.initial_advertise_peer_urls), "http://10.0.0.7:12380");
    assert_eq!(joined(&config.advertise_client_urls), "http://10.0.0.7:12379");
    assert_eq!(config.initial_cluster, "x=http://10.0.0.7:12380");
    let line =
        |message: &str| parsed.lines.iter().find(|p| p.line.message == message).map(|p| &p.line);
    let detected = line("detected default host for advertise").unwrap();
    assert_eq!(detected.field("host").unwrap(), "\"10.0.0.7\"");
    assert!(line("failed to detect default host").is_none());
    let unused = world.run("--name x").unwrap();
    assert!(!messages(&unused.lines).contains(&"detected default host for advertise"));
    assert_eq!(joined(&unused.config.advertise_client_urls), "http://localhost:2379");
}

#[test]
fn the_compaction_mode_determines_how_the_retention_is_parsed() {
    let retention = |mode: &str, text: &str| {
        let arguments = format!("--auto-compaction-mode {mode} --auto-compaction-retention={text}");
        config(&arguments).auto_compaction().map_err(|error| error.to_string())
    };
    let hours = |hours: u64| Ok(Some(Retention::Period(Duration::from_secs(hours * 3_600))));
    assert_eq!(retention("periodic", "0"), Ok(None));
    assert_eq!(retention("periodic", ""), Ok(None));
    assert_eq!(retention("periodic", "24"), hours(24));
    assert_eq!(retention("periodic", "1h"), hours(1));
    assert_eq!(retention("periodic", "-1h"), Ok(None));
    assert_eq!(retention("revision", "1000"), Ok(Some(Retention::Revisions(1_000))));
    assert_eq!(
        retention("revision", "1h"),
        Err("error parsing CompactionRetention: \"1h\" is not a number of revisions".to_owned())
    );
    assert_eq!(
        retention("periodic", "x"),
        Err("error parsing CompactionRetention: time: invalid duration \"x\"".to_owned())
    );
    assert_eq!(
        retention("periodic", "-1"),
        Err("error parsing CompactionRetention: time: missing unit in duration \"-1\"".to_owned())
    );
}

#[test]
fn the_tracing_sampling_rate_must_be_from_0_to_1000000() {
    let on = |rate: &str| {
        format!("--enable-distributed-tracing --distributed-tracing-sampling-rate={rate}")
    };
    for (rate, reason) in [
        ("-1", "tracing sampling rate must be positive"),
        ("1000001", "tracing sampling rate must be less than 1000000"),
    ] {
        let refused = exit(&on(rate));
        let words = format!("distributed tracing configurition is not valid: ({reason})");
        assert!(refusal(&refused).contains(&words), "{refused:?}");
        let config = config(&format!("--distributed-tracing-sampling-rate={rate}"));
        assert!(!config.tracing.enabled, "the sampling rate is ignored while tracing is disabled");
    }
    let tracing = config(&on("1000000")).tracing;
    assert_eq!((tracing.enabled, tracing.per_million()), (true, 1_000_000));
    assert_eq!(
        (tracing.address.as_str(), tracing.service_name.as_str()),
        ("localhost:4317", "etcd")
    );
    let text = "{enable-distributed-tracing: true, distributed-tracing-address: 'c:1', \
                distributed-tracing-service-name: s, distributed-tracing-instance-id: i, \
                distributed-tracing-sampling-rate: 7}";
    let tracing = file(text).unwrap().config.tracing;
    assert_eq!((tracing.instance_id.as_str(), tracing.per_million()), ("i", 7));
}

#[test]
fn audit_options_require_an_audit_log() {
    use quorate_telemetry::audit::Overflow;
    use quorate_telemetry::log::Output;
    assert_eq!(config("").audit, None);
    let audit = config("--audit-log /a --audit-log-overflow refuse").audit.unwrap();
    assert_eq!((audit.output, audit.overflow), (Output::File("/a".to_owned()), Overflow::Refuse));
    let file = file("{audit-log: stderr, audit-rules: 'exclude user=a; include'}").unwrap();
    assert_eq!(file.config.audit.unwrap().output, Output::Stderr);
    for (arguments, reason) in [
        ("--audit-rules exclude", "--audit-rules has no effect without --audit-log"),
        ("--audit-log-overflow drop", "--audit-log-overflow has no effect without --audit-log"),
        ("--audit-log /a --audit-rules drop", "--audit-rules: rule \"drop\" must start with"),
        (
            "--audit-log stdout --audit-log-rotation-config-json {}",
            "--audit-log-rotation-config-json requires a file in --audit-log",
        ),
        (
            "--audit-log /a --audit-log-rotation-config-json x",
            "--audit-log-rotation-config-json: improperly formatted log rotation config",
        ),
    ] {
        let refused = exit(arguments);
        assert!(refusal(&refused).contains(reason), "{arguments}: {refused:?}");
    }
    let json = r#"--audit-log /a --audit-log-rotation-config-json {"maxsize":1}"#;
    let rotated = config(json).audit.unwrap().output;
    assert!(
        matches!(rotated, Output::RotatedFile(path, it) if path == "/a" && it.bytes_max == 1 << 20)
    );
}

#[test]
fn only_one_way_of_finding_initial_members_is_accepted() {
    let several = "multiple discovery or bootstrap flags are set. Choose one of \
                   \"initial-cluster\", \"discovery-endpoints\" or \"discovery-srv\"";
    let half = "both --discovery-token and --discovery-endpoints must be set";
    for (arguments, expected) in [
        ("--discovery-srv a.com --initial-cluster x=http://x:1", several),
        ("--discovery-srv a.com --discovery-endpoints http://x:1 --discovery-token t", several),
        ("--discovery-endpoints http://x:1", half),
        ("--discovery-token t", half),
        (
            "--discovery-token t --discovery-endpoints http://x:1,",
            "--discovery-endpoints must not contain empty endpoints",
        ),
        (
            "--discovery-fallback proxy",
            "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"",
        ),
        (
            "--hold-cluster-version 3.4",
            "--hold-cluster-version \"3.4\" must be one of 3.5, 3.6 and 3.7",
        ),
        (
            "--hold-cluster-version 3.6.0",
            "--hold-cluster-version \"3.6.0\" must be one of 3.5, 3.6 and 3.7",
        ),
    ] {
        assert_eq!(refusal(&exit(arguments)), expected, "{arguments}");
    }
    let by_dns = config("--name x --discovery-srv a.com --discovery-srv-name y");
    assert_eq!(by_dns.initial_cluster, "");
    let text = "discovery-config: {token: t, client: {endpoints: [http://x:1], dial-timeout: 1, \
                auth: {username: u}}}";
    let by_token = file(text).unwrap().config;
    assert_eq!((by_token.initial_cluster.as_str(), by_token.discovery.user.as_str()), ("", "u"));
    assert_eq!(by_token.discovery.endpoints, ["http://x:1"]);
    assert_eq!(by_token.discovery.dial_timeout, SignedDuration::from_nanos(1));
    assert!(config("").hold_cluster_version.is_none());
    let held = config("--hold-cluster-version 3.5 --strict-reconfig-check=false");
    assert_eq!(held.hold_cluster_version, Some(quorate_version::Version::new(3, 5)));
    assert!(!held.strict_reconfig_check && !held.force_new_cluster);
}

#[test]
fn the_flag_table_has_unique_names_and_complete_rows() {
    let mut names: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "each flag is listed once");
    for flag in FLAGS {
        assert_eq!(flag.help.is_empty(), flag.section.is_empty(), "{}", flag.name);
        assert!(flag.help.is_empty() || flag.help.ends_with('.'), "{}", flag.name);
        if let FileKey::Nested(path) = flag.file {
            assert!(path.split('.').count() > 1, "{path}");
        }
        let name = environment_name(flag.name);
        assert!(name.starts_with("ETCD_") && !name.contains('-'), "{name}");
    }
}
