//! Tests of environment variables: values of flags, refused values, and the default data directory.

use super::*;

#[test]
fn every_flag_can_be_set_by_its_environment_variable() {
    let world = World::with_environment(&[
        ("PATH", "/bin"),
        ("ETCD_NAME", "x"),
        ("ETCD_MAX_WALS", "7"),
        ("ETCD_PRE_VOTE", "false"),
        ("ETCD_FEATURE_GATES", "LeaseCheckpoint=true"),
        ("ETCD_DATA_DIR", ""),
        ("ETCD_UNSUPPORTED_ARCH", "arm"),
        ("ETCD_VERSION", "3.7.1"),
    ]);
    let parsed = world.run("").unwrap();
    let config = &parsed.config;
    assert_eq!((config.name.as_str(), config.max_wals, config.pre_vote), ("x", 7, false));
    assert!(config.feature_gates.is_enabled(FeatureGate::LeaseCheckpoint));
    assert_eq!(config.data_dir, "x.etcd");
    let early: Vec<&Pending> =
        parsed.lines.iter().filter(|p| p.destination == Destination::Early).collect();
    let warnings: Vec<(&str, Option<String>)> = early
        .iter()
        .map(|p| {
            let line = &p.line;
            let name = ["key", "variable-name", "environment-variable"];
            (line.message.as_str(), name.iter().find_map(|name| line.field(name)))
        })
        .collect();
    let warnings: Vec<(&str, &str)> =
        warnings.iter().map(|(m, v)| (*m, v.as_deref().unwrap().trim_matches('"'))).collect();
    let used = "recognized and used environment variable";
    let unknown = "unrecognized environment variable";
    assert_eq!(
        warnings,
        [
            ("cannot set special environment variable", "ETCD_VERSION"),
            (used, "ETCD_FEATURE_GATES"),
            (used, "ETCD_MAX_WALS"),
            (used, "ETCD_NAME"),
            (used, "ETCD_PRE_VOTE"),
            (unknown, "ETCD_DATA_DIR"),
            (unknown, "ETCD_UNSUPPORTED_ARCH"),
        ]
    );
}

#[test]
fn a_flag_set_both_on_the_command_line_and_by_a_variable_is_refused() {
    for value in ["y", ""] {
        let world = World::with_environment(&[("ETCD_NAME", value)]);
        let exit = world.run("--name x").unwrap_err();
        assert_eq!(exit.code, 1);
        let last = &exit.lines.last().unwrap().line;
        assert_eq!(last.level, Level::Fatal);
        assert_eq!(
            last.message,
            "conflicting environment variable is shadowed by corresponding command-line flag \
             (either unset environment variable or disable flag))"
        );
        assert_eq!(last.field("environment-variable").unwrap(), "\"ETCD_NAME\"");
    }
}

#[test]
fn the_last_invalid_environment_variable_is_reported() {
    let refused =
        |pairs: &[(&str, &str)]| refusal(&World::with_environment(pairs).run("").unwrap_err());
    assert_eq!(
        refused(&[("ETCD_MAX_WALS", "x"), ("ETCD_HEARTBEAT_INTERVAL", "y")]),
        "invalid value \"x\" for ETCD_MAX_WALS: parse error"
    );
    assert_eq!(
        refused(&[("ETCD_FEATURE_GATES", "X=true")]),
        "invalid value \"X=true\" for ETCD_FEATURE_GATES: unrecognized feature gate: X"
    );
    assert_eq!(
        refused(&[("ETCD_PRE_VOTE", "maybe")]),
        "invalid value \"maybe\" for ETCD_PRE_VOTE: parse error"
    );
}

#[test]
fn a_default_data_directory_yields_to_the_flag_and_to_its_variable() {
    let default = ("QUORATE_DEFAULT_DATA_DIR", "/v/default");
    let dir = |environment: &[(&str, &str)], line: &str| {
        World::with_environment(environment).config(line).data_dir
    };
    assert_eq!(dir(&[default], "--name a"), "/v/default");
    assert_eq!(dir(&[default], "--data-dir /d"), "/d");
    assert_eq!(dir(&[default, ("ETCD_DATA_DIR", "/e")], ""), "/e");
    assert_eq!(dir(&[("QUORATE_DEFAULT_DATA_DIR", "")], "--name a"), "a.etcd");
    // `--engine` refuses the flag but not the default.
    dir(&[default], "--engine postgres://u@h/db");
    // A configuration file replaces the whole environment.
    let world = World {
        environment: World::with_environment(&[default]).environment,
        ..World::with_file("name: a")
    };
    assert_eq!(world.config("--config-file /c").data_dir, "a.etcd");
}
