//! Tests of the configuration file: accepted values, refused values, and values without effect.

use super::*;

#[test]
fn a_configuration_file_replaces_flags_and_environment() {
    let world = World {
        environment: vec![("ETCD_MAX_WALS".to_owned(), "9".to_owned())],
        ..World::with_file(
            "name: x\ndata-dir: /d\nheartbeat-interval: 50\nlisten-client-urls: http://localhost:1\n\
             grpc-keepalive-interval: 1000000000\nlog-outputs: [stdout]\nsnapshot-count: 0x10\n\
             socket-options: {reuse-port: yes}\nfeature-gates: PriorityRequest=true\n\
             cors: http://a:1\nhost-whitelist: h\nunknown: 1\nquota-backend-bytes: -1\n\
             Pre-Vote: false\ninitial-cluster:\nauto-compaction-retention: \"1\"\n",
        )
    };
    let parsed = world.run("--config-file /c --name y --max-wals 7").unwrap();
    let config = &parsed.config;
    assert_eq!((config.name.as_str(), config.data_dir.as_str()), ("x", "/d"));
    assert_eq!((config.heartbeat_interval_ms, config.snapshot_count), (50, 16));
    assert_eq!((config.max_wals, config.quota_backend_bytes), (5, -1));
    assert_eq!(config.grpc_keepalive_interval, SignedDuration::from_secs(1));
    assert_eq!(joined(&config.listen_client_urls), "http://localhost:1");
    assert_eq!(joined(&config.advertise_client_urls), "http://localhost:2379");
    assert_eq!(config.initial_cluster, "x=http://localhost:2380");
    assert_eq!(config.log.outputs, [Output::Stdout]);
    assert!(config.socket_reuse_port && !config.socket_reuse_address && !config.pre_vote);
    assert!(config.feature_gates.is_enabled(FeatureGate::PriorityRequest));
    assert!(config.cors.iter().eq(["http://a:1"]) && config.host_whitelist.iter().eq(["h"]));
    let loaded = "loaded server configuration, other configuration command line flags and \
                  environment variables will be ignored if provided";
    let line = parsed.lines.iter().find(|p| p.line.message == loaded).unwrap();
    assert_eq!(line.line.field("path").unwrap(), "\"/c\"");
    assert!(!messages(&parsed.lines).contains(&"recognized and used environment variable"));
    // The command line is checked even though the file replaces its values.
    assert_eq!(world.run("--config-file /c --max-wals x").unwrap_err().code, 2);
}

#[test]
fn the_environment_may_name_a_configuration_file_in_json() {
    let world = World {
        environment: vec![("ETCD_CONFIG_FILE".to_owned(), "/c".to_owned())],
        ..World::with_file("{\"name\": \"x\", \"election-timeout\": 3000}")
    };
    let config = world.config("");
    assert_eq!((config.name.as_str(), config.election_timeout_ms), ("x", 3_000));
    assert_eq!(file("").unwrap().config.name, "default");
}

#[test]
fn lists_and_sections_of_a_file_may_end_with_an_unindented_bracket() {
    let read = file(
        "cipher-suites: [\n  TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\n  \
         TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384\n]\nlog-outputs: [\n  \"stderr\"\n]\n\
         client-transport-security: {\n  \"cert-file\": \"a\",\n  \"key-file\": \"b\"\n}\nname: x\n",
    );
    let config = read.unwrap().config;
    assert_eq!(config.security.cipher_suites.len(), 2);
    assert_eq!(config.log.outputs, [Output::Stderr]);
    assert_eq!(config.security.client.cert_file, "a");
    assert_eq!(config.name, "x");
}

#[test]
fn invalid_files_are_refused_with_the_messages_of_etcd() {
    let field = |text: &str| {
        format!("error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {text}")
    };
    let plain = "Go struct field configYAML.Config";
    let coded = "Go struct field configYAML.configJSON";
    for (text, expected) in [
        (
            "watch-progress-notify-interval: 10m",
            field(&format!(
                "string into {plain}.watch-progress-notify-interval of type time.Duration"
            )),
        ),
        ("name: 5", field(&format!("number into {plain}.name of type string"))),
        (
            "auto-compaction-retention: 1",
            field(&format!("number into {plain}.auto-compaction-retention of type string")),
        ),
        ("max-wals: -1", field(&format!("number -1 into {plain}.max-wals of type uint"))),
        ("max-wals: 1.5", field(&format!("number 1.5 into {plain}.max-wals of type uint"))),
        (
            "max-concurrent-streams: 4294967296",
            field(&format!("number 4294967296 into {plain}.max-concurrent-streams of type uint32")),
        ),
        ("pre-vote: 1", field(&format!("number into {plain}.pre-vote of type bool"))),
        (
            "listen-client-urls: [http://localhost:1]",
            field(&format!("array into {coded}.listen-client-urls of type string")),
        ),
        (
            "socket-options: {reuse-port: x}",
            field(&format!("string into {plain}.socket-options.reuse-port of type bool")),
        ),
        (
            "peer-transport-security: 5",
            field(&format!(
                "number into {coded}.peer-transport-security of type embed.securityConfig"
            )),
        ),
        ("[1]", field("array into Go value of type embed.configYAML")),
        ("peer-transport-security:", "invalid peer-transport-security".to_owned()),
        ("feature-gates: X=true", "unrecognized feature gate: X".to_owned()),
        ("initial-cluster-state: x", "unexpected clusterState \"x\"".to_owned()),
        ("heartbeat-interval: 0", "--heartbeat-interval must be >0 (set to 0ms)".to_owned()),
        (
            "discovery-config: 5",
            field(&format!(
                "number into {plain}.discovery-config of type v3discovery.DiscoveryConfig"
            )),
        ),
        (
            "discovery-config: {client: {secure: {cert: 5}}}",
            field(&format!(
                "number into {plain}.discovery-config.client.secure.cert of type string"
            )),
        ),
        (
            "discovery-config: {token: x}",
            "both --discovery-token and --discovery-endpoints must be set".to_owned(),
        ),
    ] {
        assert_eq!(refusal(&file(text).unwrap_err()), expected, "{text}");
    }
    let missing = World::default().run("--config-file /none").unwrap_err();
    assert_eq!(refusal(&missing), "open /none: no such file or directory");
    let folder = World::default().run("--config-file /").unwrap_err();
    assert_eq!(refusal(&folder), "read /: is a directory");
    let broken = refusal(&file("a: [1\nb: 2").unwrap_err());
    assert!(broken.starts_with("error converting YAML to JSON: yaml: line "), "{broken}");
}

#[test]
fn invalid_urls_in_a_file_are_printed_to_standard_error() {
    for (key, name) in [
        ("listen-peer-urls", "listen-peer-urls"),
        ("listen-client-urls", "listen-client-urls"),
        ("listen-client-http-urls", "listen-client-http-urls"),
        ("listen-metrics-urls", "listen-metrics-urls"),
        ("initial-advertise-peer-urls", "initial-advertise-peer-urls"),
        ("advertise-client-urls", "advertise-peer-urls"),
        ("cors", "cors"),
    ] {
        let exit = file(&format!("{key}: x")).unwrap_err();
        assert_eq!(exit.code, 1);
        let reason = "URL scheme must be http, https, unix, or unixs: x";
        assert_eq!(exit.stderr, format!("unexpected error setting up {name}: {reason}\n"));
    }
}

#[test]
fn configuration_keys_without_effect_are_reported() {
    let parsed = file(
        "peer-transport-security:\n  auto-tls: false\nDebug: true\nmemory-mlock: false\n\
         max-snapshots: 3\ndiscovery-srv:\nforce-new-cluster: false\nenable-v2: false\n",
    )
    .unwrap();
    let named: Vec<(String, String)> = parsed
        .lines
        .iter()
        .filter(|p| p.line.message.starts_with("ignoring configuration key"))
        .map(|p| (p.line.field("key").unwrap(), p.line.field("reason").unwrap()))
        .collect();
    let [(debug, why), (old, gone)] = &named[..] else { panic!("unexpected warnings: {named:?}") };
    assert_eq!((debug.as_str(), old.as_str()), ("\"Debug\"", "\"enable-v2\""));
    assert!(why.contains("not a flag of etcd 3.7; use --log-level"), "{why}");
    assert!(gone.contains("not a flag of etcd 3.7: there is no v2 API"), "{gone}");
    assert!(has_line(
        &parsed.lines,
        Level::Warn,
        "--max-snapshots is deprecated in 3.6 and will be decommissioned in 3.8."
    ));
}
