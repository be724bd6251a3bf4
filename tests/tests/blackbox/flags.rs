//! The command line: grammar, precedence, exit codes, and reactions to signals.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;

use quorate_tests::{Finished, Kind, Options, Server, on_both_servers, on_quorate, run_to_end};
use tempfile::TempDir;

on_both_servers! {
    alone:
    the_version_is_printed,
    help_is_printed,
    unknown_flags_exit_with_code_two,
    invalid_values_exit_with_code_two,
    an_extra_argument_exits_with_code_one,
    invalid_settings_exit_with_code_one,
    flag_values_are_parsed_as_in_etcd,
    settings_are_read_from_environment_variables,
    a_setting_in_both_a_flag_and_a_variable_is_refused,
    an_invalid_variable_exits_with_code_one,
    a_configuration_file_replaces_flags_and_environment,
    a_missing_configuration_file_exits_with_code_one,
    a_signal_stops_the_server,
    a_locked_directory_is_refused,
    ineffective_security_settings_prevent_the_start,
}

on_quorate! {
    alone:
    the_version_of_quorate_is_printed,
    flags_removed_by_etcd_are_refused_with_the_reason_or_the_replacement,
    passwords_in_flags_and_variables_are_masked,
}

/// Runs the server's program in an empty directory until it exits.
fn ends(kind: Kind, args: &[&str], environment: &[(&str, &str)]) -> Finished {
    let home = TempDir::new().unwrap();
    let mut command = Command::new(kind.program());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") {
            command.env_remove(name);
        }
    }
    command.args(args).envs(environment.iter().copied()).current_dir(home.path());
    run_to_end(command, "")
}

async fn the_version_is_printed(kind: Kind) {
    for flag in ["--version", "-version", "--version=true", "-version=1"] {
        let output = ends(kind, &[flag], &[]).success();
        let mut lines = output.lines();
        let first = lines.next().unwrap();
        if kind == Kind::Quorate {
            assert_eq!(first, "etcd Version: 3.7.1");
        }
        assert!(first.starts_with("etcd Version: 3."), "{output}");
        for start in ["Git SHA: ", "Go Version: ", "Go OS/Arch: linux/"] {
            let line = lines.next().unwrap();
            assert!(line.starts_with(start), "{line}");
        }
    }
}

async fn the_version_of_quorate_is_printed(kind: Kind) {
    let output = ends(kind, &["--version"], &[]).success();
    let own = output.lines().nth(4).unwrap_or_default();
    assert!(own.to_lowercase().contains("quorate"), "{output}");
}

async fn help_is_printed(kind: Kind) {
    for flag in ["--help", "-h", "-help"] {
        let ended = ends(kind, &[flag], &[]);
        assert_eq!(ended.code, Some(0), "{flag}");
        // etcd writes half of the help text to standard error.
        let usage = if kind == Kind::Quorate { &ended.stdout } else { &ended.stderr };
        assert!(usage.contains("Usage:"), "{ended:?}");
        for flag in ["--name", "--data-dir", "--listen-client-urls", "--quota-backend-bytes"] {
            assert!(ended.stdout.contains(flag), "{flag}");
        }
    }
}

async fn ineffective_security_settings_prevent_the_start(kind: Kind) {
    let cases: [(&str, &[&str], &str); 5] = [
        ("https", &[], "TLS key/cert (--cert-file, --key-file) must be provided for client url"),
        ("http", &["--cipher-suites=TLS_NO_SUCH"], "unexpected TLS cipher suite"),
        ("http", &["--tls-min-version=TLS1.1"], "(must be one of: TLS1.2, TLS1.3)"),
        ("https", &["--cert-file=/no/c"], "KeyFile and CertFile must both be present"),
        ("https", &["--cert-file=/no/c", "--key-file=/no/k"], "open /no/c: "),
    ];
    for (scheme, args, text) in cases {
        let url = format!("{scheme}://127.0.0.1:0");
        let clients =
            [format!("--listen-client-urls={url}"), format!("--advertise-client-urls={url}")];
        let urls = ["--listen-peer-urls=http://127.0.0.1:0", &clients[0], &clients[1]];
        let ended = ends(kind, &[&urls[..], args].concat(), &[]);
        assert_eq!(ended.code, Some(1), "{args:?}");
        assert!(ended.stderr.contains(text), "{args:?}: {}", ended.stderr);
    }
}

async fn flags_removed_by_etcd_are_refused_with_the_reason_or_the_replacement(kind: Kind) {
    let ended = ends(kind, &["--experimental-initial-corrupt-check=true", "--enable-v2"], &[]);
    assert_eq!(ended.code, Some(2));
    for text in ["use --feature-gates=InitialCorruptCheck=true", "there is no v2 API"] {
        assert!(ended.stderr.contains(text), "{ended:?}");
    }
    let server = Options::new(kind)
        .flag("--feature-gates=InitialCorruptCheck=true,TxnModeWriteWithSharedBuffer=false")
        .environment("ETCD_ENABLE_V2", "true")
        .start()
        .await;
    let log = server.log();
    assert!(log.contains("there is no v2 API"), "{log}");
    let idle: Vec<&str> =
        log.lines().filter(|line| line.contains("this feature gate has no effect")).collect();
    assert!(matches!(idle[..], [line] if line.contains("TxnModeWriteWithSharedBuffer")), "{log}");
}

async fn passwords_in_flags_and_variables_are_masked(kind: Kind) {
    let server = Options::new(kind)
        .flag("--discovery-password=SECRET")
        .environment("ETCD_DISCOVERY_USER", "root:SECRET")
        .environment("ETCD_ROOT_PASSWORD", "SECRET")
        .start()
        .await;
    let (log, variables) = (server.log(), server.get("/debug/vars").text());
    for said in [log, variables] {
        assert!(said.contains("--discovery-password=***") && !said.contains("SECRET"), "{said}");
    }
}

async fn unknown_flags_exit_with_code_two(kind: Kind) {
    for flag in ["--nonsense", "-nonsense=1", "--nonsense=1"] {
        let ended = ends(kind, &[flag], &[]);
        assert_eq!(ended.code, Some(2), "{flag}");
        let first = ended.stderr.lines().next().unwrap();
        assert_eq!(first, "flag provided but not defined: -nonsense");
        assert!(ended.stderr.contains("Usage:"), "{}", ended.stderr);
    }
    let ended = ends(kind, &["--name"], &[]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(ended.stderr.lines().next().unwrap(), "flag needs an argument: -name");
}

async fn invalid_values_exit_with_code_two(kind: Kind) {
    for (flag, line) in [
        (
            "--heartbeat-interval=often",
            "invalid value \"often\" for flag -heartbeat-interval: parse error",
        ),
        (
            "--max-txn-ops=99999999999999999999999",
            "invalid value \"99999999999999999999999\" for flag -max-txn-ops: value out of range",
        ),
        ("--pre-vote=maybe", "invalid boolean value \"maybe\" for -pre-vote: parse error"),
        (
            "--initial-cluster-state=old",
            "invalid value \"old\" for flag -initial-cluster-state: invalid value",
        ),
        ("--max-txn-ops=-1", "invalid value \"-1\" for flag -max-txn-ops: parse error"),
    ] {
        let ended = ends(kind, &[flag], &[]);
        assert_eq!(ended.code, Some(2), "{flag}");
        assert_eq!(ended.stderr.lines().next().unwrap(), line);
        assert!(ended.stderr.contains("Usage:"));
    }
}

async fn an_extra_argument_exits_with_code_one(kind: Kind) {
    // Quorate takes the first word as the name of one of its tools. `words.rs` tests this.
    let first_word = (kind == Kind::Etcd).then_some(&["word"][..]);
    for args in first_word.into_iter().chain([&["--pre-vote", "false"][..], &["--", "word"]]) {
        let ended = ends(kind, args, &[]);
        assert_eq!(ended.code, Some(1), "{args:?}");
        let said = ended.stdout + &ended.stderr;
        assert!(said.contains("failed to verify flags"), "{said}");
        assert!(said.contains("is not a valid flag"), "{said}");
    }
}

async fn invalid_settings_exit_with_code_one(kind: Kind) {
    for args in [
        // The election timeout must be longer than several heartbeats.
        &["--heartbeat-interval=100", "--election-timeout=400"][..],
        &["--election-timeout=60000"],
        &["--listen-client-urls=http://127.0.0.1:23790"],
        &["--listen-peer-urls=http://example.com:2380"],
        &["--auto-compaction-mode=never", "--auto-compaction-retention=1"],
    ] {
        let ended = ends(kind, args, &[]);
        assert_eq!(ended.code, Some(1), "{args:?}");
        let said = ended.stdout + &ended.stderr;
        assert!(said.contains("failed to verify flags"), "{args:?}: {said}");
    }
}

async fn flag_values_are_parsed_as_in_etcd(kind: Kind) {
    // A flag may start with one dash, its value may be a separate argument, and a number may be in another base. The
    // last value takes precedence.
    let server = Options::new(kind)
        .flag("-max-txn-ops")
        .flag("7")
        .flag("--max-txn-ops=0x2")
        .flag("--pre-vote=F")
        .flag("--auto-compaction-retention=1h30m")
        .start()
        .await;
    let client = server.client();
    let puts = |count: usize| {
        let puts = (0..count).map(|number| quorate_tests::put_op(format!("k{number}"), "v"));
        quorate_tests::txn(puts.collect())
    };
    client.txn(puts(2)).await.unwrap();
    client.txn(puts(3)).await.unwrap_err();
}

async fn settings_are_read_from_environment_variables(kind: Kind) {
    let server = Options::new(kind)
        .environment("ETCD_MAX_TXN_OPS", "2")
        .environment("ETCD_QUOTA_BACKEND_BYTES", "")
        .environment("ETCD_NO_SUCH_THING", "x")
        .start()
        .await;
    let log = server.log();
    assert!(log.contains("recognized and used environment variable"), "{log}");
    assert!(log.contains("\"variable-name\":\"ETCD_MAX_TXN_OPS\""), "{log}");
    assert!(log.contains("unrecognized environment variable"), "{log}");
    assert!(log.contains("ETCD_NO_SUCH_THING"), "{log}");
    let puts = (0..3).map(|number| quorate_tests::put_op(format!("k{number}"), "v"));
    server.client().txn(quorate_tests::txn(puts.collect())).await.unwrap_err();
}

async fn a_setting_in_both_a_flag_and_a_variable_is_refused(kind: Kind) {
    let ended = ends(kind, &["--max-txn-ops=5"], &[("ETCD_MAX_TXN_OPS", "5")]);
    assert_eq!(ended.code, Some(1));
    let said = ended.stdout + &ended.stderr;
    let text = "conflicting environment variable is shadowed by corresponding command-line flag";
    assert!(said.contains(text), "{said}");
    assert!(said.contains("ETCD_MAX_TXN_OPS"), "{said}");
}

async fn an_invalid_variable_exits_with_code_one(kind: Kind) {
    let ended = ends(kind, &[], &[("ETCD_HEARTBEAT_INTERVAL", "often")]);
    assert_eq!(ended.code, Some(1));
    let said = ended.stdout + &ended.stderr;
    assert!(said.contains("ETCD_HEARTBEAT_INTERVAL"), "{said}");
    assert!(said.contains("failed to verify flags"), "{said}");
}

async fn a_configuration_file_replaces_flags_and_environment(kind: Kind) {
    let home = TempDir::new().unwrap();
    // The ports belonged to a server that has exited.
    let mut model = Options::new(kind).unguarded().start().await;
    model.kill();
    let (client, peer) = (model.url(), format!("http://127.0.0.1:{}", model.peer_port()));
    let file = home.path().join("etcd.yml");
    let data = home.path().join("data");
    let text = format!(
        "name: from-file\n\
         data-dir: {}\n\
         listen-client-urls: {client}\n\
         advertise-client-urls: {client}\n\
         listen-peer-urls: {peer}\n\
         initial-advertise-peer-urls: {peer}\n\
         initial-cluster: from-file={peer}\n\
         max-txn-ops: 2\n",
        data.display()
    );
    std::fs::write(&file, text).unwrap();
    let server = Options::new(kind)
        .no_addresses()
        .default_timing()
        .flag(format!("--config-file={}", file.display()))
        .flag("--max-txn-ops=100")
        .environment("ETCD_NAME", "from-environment")
        .start()
        .await;
    let connected = quorate_tests::Client::new(model.port());
    let request = quorate_api::etcdserverpb::MemberListRequest { linearizable: true };
    assert_eq!(connected.member_list(request).await.unwrap().members[0].name, "from-file");
    let puts = (0..3).map(|number| quorate_tests::put_op(format!("k{number}"), "v"));
    connected.txn(quorate_tests::txn(puts.collect())).await.unwrap_err();
    let log = server.log();
    assert!(log.contains("environment variables will be ignored if provided"), "{log}");
}

async fn a_missing_configuration_file_exits_with_code_one(kind: Kind) {
    let ended = ends(kind, &["--config-file=/nonexistent/etcd.yml"], &[]);
    assert_eq!(ended.code, Some(1));
    let said = ended.stdout + &ended.stderr;
    assert!(said.contains("/nonexistent/etcd.yml"), "{said}");
}

async fn a_signal_stops_the_server(kind: Kind) {
    for (name, number) in [("TERM", 15), ("INT", 2)] {
        let mut server = Server::start(kind).await;
        server.client().write("k", "v").await;
        server.signal(name);
        let status = server.ended().await;
        assert_eq!(
            status.signal(),
            Some(number),
            "the server was not ended by the same signal: {status}"
        );
        let log = server.log();
        assert!(log.contains("received signal; shutting down"), "{log}");
        assert!(log.contains("closed etcd server"), "{log}");
        server.start_again().await;
        assert_eq!(server.client().read("k").await.unwrap(), b"v");
    }
}

async fn a_locked_directory_is_refused(kind: Kind) {
    let server = Server::start(kind).await;
    server.client().write("k", "v").await;
    // etcd waits for the backend's lock indefinitely, so the test only checks that the second server does not serve.
    let second = Options::new(kind).data(server.data()).start_within_a_moment().await;
    assert!(second.is_none(), "two servers serve one directory");
    assert_eq!(server.client().read("k").await.unwrap(), b"v");
    server.client().write("k", "w").await;
}
