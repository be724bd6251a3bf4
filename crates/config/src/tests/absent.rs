//! What etcd has and this program does not: refused or named, by flag, environment and file alike; and that no
//! secret is told on the way.

use super::super::absent::{ABSENT, Reason};
use super::*;

/// Every setting of etcd 3.7 that secures the server: the flag, a value that asks for something, the key in the
/// file where it has one, and values that ask for nothing. `SECRET` and the like are values that must not be told.
const SECURITY: &[(&str, &str, &str, &[&str])] = &[
    ("cert-file", "SECRET", "client-transport-security: {cert-file: SECRET}", &[""]),
    ("key-file", "SECRET", "client-transport-security: {key-file: SECRET}", &[""]),
    ("client-cert-file", "SECRET", "client-transport-security: {client-cert-file: SECRET}", &[""]),
    ("client-key-file", "SECRET", "client-transport-security: {client-key-file: SECRET}", &[""]),
    ("trusted-ca-file", "SECRET", "client-transport-security: {trusted-ca-file: SECRET}", &[""]),
    ("client-cert-auth", "true", "client-transport-security: {client-cert-auth: true}", &["false"]),
    (
        "client-cert-allowed-hostname",
        "SECRET",
        "client-transport-security: {allowed-hostname: [SECRET]}",
        &[""],
    ),
    ("client-crl-file", "SECRET", "client-crl-file: SECRET", &[""]),
    ("auto-tls", "true", "client-transport-security: {auto-tls: true}", &["false", "0"]),
    ("peer-cert-file", "SECRET", "peer-transport-security: {cert-file: SECRET}", &[""]),
    ("peer-key-file", "SECRET", "peer-transport-security: {key-file: SECRET}", &[""]),
    (
        "peer-client-cert-file",
        "SECRET",
        "peer-transport-security: {client-cert-file: SECRET}",
        &[""],
    ),
    ("peer-client-key-file", "SECRET", "peer-transport-security: {client-key-file: SECRET}", &[""]),
    ("peer-trusted-ca-file", "SECRET", "peer-transport-security: {trusted-ca-file: SECRET}", &[""]),
    (
        "peer-client-cert-auth",
        "true",
        "peer-transport-security: {client-cert-auth: true}",
        &["false"],
    ),
    ("peer-cert-allowed-cn", "SECRET", "peer-transport-security: {allowed-cn: [SECRET]}", &[""]),
    (
        "peer-cert-allowed-hostname",
        "SECRET",
        "peer-transport-security: {allowed-hostname: [SECRET]}",
        &[""],
    ),
    ("peer-crl-file", "SECRET", "peer-crl-file: SECRET", &[""]),
    ("peer-auto-tls", "true", "Peer-Transport-Security: {auto-tls: true}", &["false"]),
    (
        "peer-skip-client-san-verification",
        "true",
        "peer-transport-security: {skip-client-san-verification: true}",
        &["false"],
    ),
    ("self-signed-cert-validity", "3", "self-signed-cert-validity: 3", &["1"]),
    ("cipher-suites", "SECRET", "cipher-suites: [SECRET]", &[""]),
    ("tls-min-version", "TLS1.3", "tls-min-version: TLS1.3", &["", "TLS1.2"]),
    ("tls-max-version", "TLS1.3", "tls-max-version: TLS1.3", &[""]),
];

/// What is said of each of them.
const LACKS: &str = "TLS is not supported by this version of Quorate";

/// All that an exit says.
fn said(exit: &Exit) -> String {
    format!("{}{}{:?}", exit.stdout, exit.stderr, exit.lines)
}

#[test]
fn what_secures_etcd_is_refused_wherever_it_stands() {
    for (flag, value, key, _) in SECURITY {
        let by_flag = exit(&format!("--{flag}={value}"));
        assert_eq!(by_flag.code, 2, "{flag}");
        let mut lines = by_flag.stderr.lines();
        assert_eq!(lines.next(), Some(&*format!("flag provided but not defined: -{flag}")));
        let reason = lines.next().unwrap();
        assert!(reason.starts_with(&format!("--{flag}: {LACKS}")), "{reason}");
        assert!(!said(&by_flag).contains("SECRET"), "{by_flag:?}");

        let variable = environment_name(flag);
        let world = World::with_environment(&[(&variable, value)]);
        let by_environment = world.run("").unwrap_err();
        let reason = refusal(&by_environment);
        assert!(reason.starts_with(&format!("{variable}: {LACKS}")), "{reason}");
        assert!(!said(&by_environment).contains("SECRET"), "{by_environment:?}");

        for key in [*key, &format!("{flag}: {value}")] {
            let by_file = file(key).unwrap_err();
            let reason = refusal(&by_file);
            let section = key.split(':').next().unwrap();
            assert!(reason.starts_with(section) && reason.contains(LACKS), "{key}: {reason}");
            assert!(!said(&by_file).contains("SECRET"), "{by_file:?}");
        }
    }
}

#[test]
fn what_secures_is_found_behind_merges_and_in_any_case() {
    let tls = "tls: &tls {client-transport-security: {cert-file: SECRET}}\n";
    for merge in ["<<: *tls", "<<: [*tls]", "<<: [{name: x}, *tls]"] {
        let by_file = file(&format!("{tls}{merge}\n")).unwrap_err();
        let reason = refusal(&by_file);
        assert!(reason.starts_with("client-transport-security.cert-file: TLS"), "{reason}");
        assert!(!said(&by_file).contains("SECRET"), "{by_file:?}");
    }
    // As a later entry, the merged section takes the place of the empty one.
    assert!(file(&format!("{tls}client-transport-security: {{}}\n<<: *tls\n")).is_err());

    for (section, key) in [("Secure", "Server-Name"), ("auth", "token"), ("secure", "unheard-of")] {
        let text = format!("discovery-config: {{client: {{{section}: {{{key}: SECRET}}}}}}");
        let by_file = file(&text).unwrap_err();
        let reason = refusal(&by_file);
        assert!(reason.contains(&format!("{key}: not supported by this version")), "{reason}");
        assert!(!said(&by_file).contains("SECRET"), "{by_file:?}");
    }
    let idle = "discovery-config: {client: {secure: {server-name: ''}, auth: {token: }}}";
    assert!(file(idle).is_ok());
    let text = "Discovery-Config: {Token: t, Client: {Endpoints: ['http://x:1'], \
                Secure: {Cert: c, Insecure-Transport: false}, Auth: {Username: u, PassWord: p}}}";
    let discovery = file(text).unwrap().config.discovery;
    assert!(!discovery.insecure_transport);
    assert_eq!((discovery.token.as_str(), discovery.cert.as_str()), ("t", "c"));
    assert_eq!(discovery.login(), Some(("u".to_owned(), "p".to_owned())));
}

#[test]
fn the_table_has_every_setting_that_secures() {
    let mut refused: Vec<&str> = SECURITY.iter().map(|(flag, ..)| *flag).collect();
    let secures = |reason: Reason| reason.secures();
    let mut known: Vec<&str> =
        ABSENT.iter().filter(|absent| secures(absent.reason)).map(|absent| absent.name).collect();
    refused.sort_unstable();
    known.sort_unstable();
    assert_eq!(refused, known);
}

#[test]
fn a_security_setting_that_asks_for_nothing_is_accepted() {
    for (flag, _, _, idle) in SECURITY {
        for value in *idle {
            config(&format!("--{flag}={value}"));
            let world = World::with_environment(&[(&environment_name(flag), value)]);
            let parsed = world.run("").unwrap();
            let named = has_line(&parsed.lines, Level::Warn, "unrecognized environment variable");
            assert_eq!(named, value.is_empty(), "{flag}={value}");
            assert!(file(&format!("{flag}: {value}")).is_ok(), "{flag}: {value}");
        }
    }
    for text in [
        "client-transport-security: {cert-file: '', client-cert-auth: false, allowed-cn: []}",
        "client-transport-security:\npeer-transport-security: {}",
    ] {
        assert!(file(text).is_ok(), "{text}");
    }
    // A key that etcd does not know, in a section that is there for security alone.
    let typo = refusal(&file("peer-transport-security: {cert_file: /x}").unwrap_err());
    assert!(typo.starts_with("peer-transport-security.cert_file: TLS is not"), "{typo}");
}

#[test]
fn everything_that_is_missing_is_told_at_once() {
    let exit = exit("--cert-file=/c --name x --enable-v2 --client-cert-auth -key-file /k");
    assert_eq!(exit.code, 2);
    let lines: Vec<&str> = exit.stderr.lines().take(3).collect();
    assert_eq!(
        lines,
        [
            "flag provided but not defined: -cert-file",
            "--cert-file, --client-cert-auth, --key-file: TLS is not supported by this version of Quorate, \
             which serves in plaintext only",
            "--enable-v2: no flag of etcd 3.7 any more: there is no v2 API",
        ]
    );
    let world = World::with_environment(&[("ETCD_KEY_FILE", "/k"), ("ETCD_CERT_FILE", "/c")]);
    let text = refusal(&world.run("").unwrap_err());
    assert!(text.starts_with("ETCD_CERT_FILE, ETCD_KEY_FILE: TLS is not supported"), "{text}");
    let both = file(
        "peer-transport-security: {auto-tls: true}\nclient-transport-security: {auto-tls: true}",
    )
    .unwrap_err();
    let both = refusal(&both);
    assert!(
        both.contains("client-transport-security.auto-tls, peer-transport-security.auto-tls"),
        "{both}"
    );
}

#[test]
fn a_feature_that_is_not_there_is_refused_on_the_command_line_and_named_elsewhere() {
    let told = "not supported by this version of Quorate";
    for (flag, value, idle) in [
        ("enable-pprof", "true", "false"),
        ("enable-grpc-gateway", "true", "false"),
        ("enable-log-rotation", "true", "false"),
        ("memory-mlock", "true", "false"),
        ("corrupt-check-time", "1h", "0s"),
        ("compact-hash-check-time", "2m", "1m"),
        ("bootstrap-defrag-threshold-megabytes", "100", "0"),
        ("enable-distributed-tracing", "true", "false"),
        ("grpc-keepalive-min-time", "5s", "0"),
    ] {
        let refused = exit(&format!("--{flag}={value}"));
        let second = refused.stderr.lines().nth(1).unwrap();
        assert!(second.starts_with(&format!("--{flag}: {told}: ")), "{second}");
        config(&format!("--{flag}={idle}"));
        let variable = environment_name(flag);
        let parsed = World::with_environment(&[(&variable, value)]).run("").unwrap();
        let line = |p: &&Pending| p.line.message == "unrecognized environment variable";
        let named = parsed.lines.iter().find(line).unwrap();
        assert_eq!(named.line.field("environment-variable").unwrap(), format!("\"{variable}\""));
        assert!(named.line.field("reason").unwrap().contains(told), "{flag}");
        let quiet = World::with_environment(&[(&variable, idle)]).run("").unwrap();
        assert!(!quiet.lines.iter().any(|p| line(&p)), "{flag}");
    }
}

#[test]
fn flags_that_etcd_dropped_are_named_with_their_successor() {
    for (flag, successor) in [
        ("experimental-watch-progress-notify-interval", "--watch-progress-notify-interval instead"),
        ("experimental-initial-corrupt-check", "--feature-gates=InitialCorruptCheck=true instead"),
        (
            "experimental-corrupt-check-time",
            "--corrupt-check-time instead; that is not supported by this version",
        ),
        ("log-package-levels", "--log-level instead"),
        ("discovery", "--discovery-endpoints instead"),
        ("enable-v2", "any more: there is no v2 API"),
        ("proxy", "any more: there is no v2 proxy"),
    ] {
        let exit = exit(&format!("--{flag}=1"));
        assert_eq!(exit.code, 2, "{flag}");
        let second = exit.stderr.lines().nth(1).unwrap();
        let start = format!("--{flag}: no flag of etcd 3.7 any more");
        assert!(second.starts_with(&start) && second.contains(successor), "{second}");
        let variable = environment_name(flag);
        let parsed = World::with_environment(&[(&variable, "1")]).run("").unwrap();
        let line = |p: &&Pending| p.line.message == "unrecognized environment variable";
        let reason = parsed.lines.iter().find(line).unwrap().line.field("reason").unwrap();
        assert!(reason.contains(successor), "{reason}");
        let parsed = file(&format!("{flag}: '1'")).unwrap();
        let line = |p: &&Pending| p.line.message.starts_with("ignoring configuration key");
        let reason = parsed.lines.iter().find(line).unwrap().line.field("reason").unwrap();
        assert!(reason.contains(successor), "{reason}");
    }
    // What is said to be there instead is there, or says that it is not.
    for absent in ABSENT {
        let Reason::Replaced(by) = absent.reason else { continue };
        match by.strip_prefix("feature-gates=") {
            Some(gate) => assert!(
                config(&format!("--feature-gates=LeaseCheckpoint=true,{gate}")).feature_gates
                    != Default::default()
            ),
            None => assert!(
                FLAGS.iter().any(|flag| flag.name == by) || ABSENT.iter().any(|a| a.name == by),
                "{by}"
            ),
        }
        assert!(FLAGS.iter().all(|flag| flag.name != absent.name), "{}", absent.name);
    }
}

#[test]
fn what_is_accepted_and_changes_nothing_is_named() {
    let parsed = World::default()
        .run(
            "--feature-gates AllAlpha=true,TxnModeWriteWithSharedBuffer=false \
             --backend-bbolt-freelist-type array --discovery-insecure-skip-tls-verify",
        )
        .unwrap();
    let fields = |message: &str, field: &str| -> Vec<String> {
        let of_message = parsed.lines.iter().filter(|p| p.line.message == message);
        of_message.map(|p| p.line.field(field).unwrap()).collect()
    };
    assert_eq!(
        fields("this feature gate has no effect", "feature-gate"),
        [
            "\"CompactHashCheck\"",
            "\"InitialCorruptCheck\"",
            "\"SetMemberLocalAddr\"",
            "\"TxnModeWriteWithSharedBuffer\""
        ]
    );
    assert_eq!(
        fields("this flag has no effect", "flag"),
        ["\"backend-bbolt-freelist-type\"", "\"discovery-insecure-skip-tls-verify\""]
    );
    let quiet = World::default().run("--feature-gates LeaseCheckpoint=true,AllBeta=true").unwrap();
    assert!(!messages(&quiet.lines).iter().any(|message| message.contains("has no effect")));
}

#[test]
fn secrets_are_never_told() {
    let arguments = "--name x --discovery-password SECRET -discovery-user=u:SECRET \
         --discovery-token t --discovery-endpoints http://x:1 --initial-cluster=";
    for arguments in [arguments, &format!("{arguments} --heartbeat-interval 0")] {
        let lines = match World::default().run(arguments) {
            Ok(parsed) => parsed.lines,
            Err(exit) => exit.lines,
        };
        let running = lines.iter().find(|p| p.line.message == "Running: ").unwrap();
        let args = running.line.field("args").unwrap();
        assert!(args.contains("\"--discovery-password\",\"***\""), "{args}");
        assert!(args.contains("\"-discovery-user=u:***\""), "{args}");
        assert!(!format!("{lines:?}").contains("SECRET"), "{lines:?}");
    }
    let world = World::with_environment(&[
        ("ETCD_DISCOVERY_PASSWORD", "SECRET"),
        ("ETCD_DISCOVERY_USER", "u:SECRET"),
        ("ETCD_ROOT_PASSWORD", "SECRET"),
        ("ETCD_AUTH_TOKEN", "jwt,priv-key=SECRET"),
    ]);
    let lines = world.run("").unwrap_err().lines;
    assert!(!format!("{lines:?}").contains("SECRET"), "{lines:?}");
    assert!(format!("{lines:?}").contains("u:***"), "{lines:?}");
}
