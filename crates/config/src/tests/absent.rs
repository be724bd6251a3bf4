//! Tests of etcd settings that do not exist in Quorate. They are refused or reported, whether they come from flags, the
//! environment or the file, and no secret is printed.

use super::super::absent::{ABSENT, Reason};
use super::*;

/// Returns everything that an exit prints or logs.
fn output_of(exit: &Exit) -> String {
    format!("{}{}{:?}", exit.stdout, exit.stderr, exit.lines)
}

#[test]
fn unknown_discovery_security_settings_are_refused() {
    for (section, key) in [("Secure", "Server-Name"), ("auth", "token"), ("secure", "unheard-of")] {
        let text = format!("discovery-config: {{client: {{{section}: {{{key}: SECRET}}}}}}");
        let by_file = file(&text).unwrap_err();
        let reason = refusal(&by_file);
        assert!(reason.contains(&format!("{key}: unknown key; sections")), "{reason}");
        assert!(!output_of(&by_file).contains("SECRET"), "{by_file:?}");
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
fn removed_flags_are_reported_with_their_replacement() {
    for (flag, successor) in [
        ("experimental-watch-progress-notify-interval", "use --watch-progress-notify-interval"),
        ("experimental-initial-corrupt-check", "use --feature-gates=InitialCorruptCheck=true"),
        ("experimental-corrupt-check-time", "use --corrupt-check-time"),
        ("experimental-memory-mlock", "use --memory-mlock"),
        ("experimental-enable-distributed-tracing", "use --enable-distributed-tracing"),
        ("log-package-levels", "use --log-level"),
        ("enable-v2", "3.7: there is no v2 API"),
        ("proxy", "3.7: there is no v2 proxy"),
    ] {
        let exit = exit(&format!("--{flag}=1"));
        assert_eq!(exit.code, 2, "{flag}");
        let second = exit.stderr.lines().nth(1).unwrap();
        let start = format!("--{flag}: not a flag of etcd 3.7");
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
    // A replacement named in an error must exist.
    for absent in ABSENT {
        let Reason::Replaced(by) = absent.reason else { continue };
        match by.strip_prefix("feature-gates=") {
            Some(gate) => assert!(
                config(&format!("--feature-gates=LeaseCheckpoint=true,{gate}")).feature_gates
                    != Default::default()
            ),
            None => assert!(FLAGS.iter().any(|flag| flag.name == by), "{by}"),
        }
        assert!(FLAGS.iter().all(|flag| flag.name != absent.name), "{}", absent.name);
    }
}

/// If the setting were ignored, the member would found a cluster of its own.
#[test]
fn a_removed_setting_that_decides_which_cluster_to_join_is_refused_everywhere() {
    let reason = "not a flag of etcd 3.7; use --discovery-endpoints";
    let by_flag = exit("--discovery=https://x/SECRET");
    assert!(by_flag.stderr.contains(&format!("--discovery: {reason}")), "{}", by_flag.stderr);
    let variable = [("ETCD_DISCOVERY", "https://x/SECRET")];
    let by_variable = World::with_environment(&variable).run("").unwrap_err();
    assert_eq!(refusal(&by_variable), format!("ETCD_DISCOVERY: {reason}"));
    for key in ["discovery", "Discovery"] {
        let by_file = file(&format!("{key}: https://x/SECRET")).unwrap_err();
        assert_eq!(refusal(&by_file), format!("{key}: {reason}"));
        assert!(!output_of(&by_file).contains("SECRET"), "{by_file:?}");
    }
    // etcd's sample file contains the key without a value.
    assert!(file("discovery:\ndiscovery-proxy:").is_ok());
    assert!(World::with_environment(&[("ETCD_DISCOVERY", "")]).run("").is_ok());
}

/// Returns the values of a field in the warnings about the keys of a file.
fn warnings(text: &str, field: &str) -> Vec<String> {
    let parsed = file(text).unwrap();
    let of_keys = |p: &&Pending| p.line.message.starts_with("ignoring configuration key");
    parsed.lines.iter().filter(of_keys).map(|p| p.line.field(field).unwrap()).collect()
}

/// Returns the keys that are named in warnings about a file.
fn ignored_keys(text: &str) -> Vec<String> {
    warnings(text, "key")
}

#[test]
fn the_warning_about_a_key_gives_the_reason() {
    let text = "raft-read-timeout: 1\nDiscovery-Token: t\nwhatever: 1\nfence-stalled-disk: false\n\
                rebuild-corrupt-member: false";
    let reasons = [
        "\"unknown key; write it as discovery-config.token\"",
        "\"this flag has no key in the file\"",
        "\"unknown key\"",
    ];
    assert_eq!(warnings(text, "reason"), reasons);
    assert!(!file("fence-stalled-disk: false").unwrap().config.fence_stalled_disk);
    assert!(file("rebuild-corrupt-member: true").unwrap().config.rebuild_corrupt_member);
}

#[test]
fn unknown_keys_are_reported() {
    let text = "quota-backend-byte: 100\nwhatever: {a: SECRET}\nName: m\nheartbeat-interval: 50\n\
                discovery-config: {tokken: SECRET, client: {dial: 1}}\nproxy-failure-wait: 5\ndiscovery-fallback: exit";
    assert_eq!(
        ignored_keys(text),
        [
            "\"proxy-failure-wait\"",
            "\"discovery-config.client.dial\"",
            "\"discovery-config.tokken\"",
            "\"discovery-fallback\"",
            "\"quota-backend-byte\"",
            "\"whatever\"",
        ]
    );
    let sound = "name: m\nwal-dir:\nmax-wals: 5\nlog-outputs: [stderr]\nclient-transport-security: {auto-tls: false}\n\
                 peer-transport-security: {allowed-cn: }\ninitial-cluster-state: new";
    assert!(ignored_keys(sound).is_empty());
}

#[test]
fn accepted_settings_without_effect_are_reported() {
    let parsed = World::default()
        .run(
            "--feature-gates AllAlpha=true,TxnModeWriteWithSharedBuffer=false \
             --backend-bbolt-freelist-type array",
        )
        .unwrap();
    let fields = |message: &str, field: &str| -> Vec<String> {
        let of_message = parsed.lines.iter().filter(|p| p.line.message == message);
        of_message.map(|p| p.line.field(field).unwrap()).collect()
    };
    assert_eq!(
        fields("this feature gate has no effect", "feature-gate"),
        ["\"TxnModeWriteWithSharedBuffer\""]
    );
    assert_eq!(fields("this flag has no effect", "flag"), ["\"backend-bbolt-freelist-type\""]);
    let quiet = World::default().run("--feature-gates LeaseCheckpoint=true,AllBeta=true").unwrap();
    assert!(!messages(&quiet.lines).iter().any(|message| message.contains("has no effect")));
}

#[test]
fn secrets_are_never_printed() {
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
    let lines = world.run("").unwrap().lines;
    assert!(!format!("{lines:?}").contains("SECRET"), "{lines:?}");
    assert!(format!("{lines:?}").contains("u:***"), "{lines:?}");
}
