//! Tests of security settings. Each setting must either take effect from flags, environment and file, or be refused.

use super::*;
use crate::{Security, TlsVersion};

/// Each flag, with a value and the same setting in the file.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("cert-file", "/x", "client-transport-security: {cert-file: /x}"),
    ("key-file", "/x", "client-transport-security: {key-file: /x}"),
    ("client-cert-file", "/x", "client-transport-security: {client-cert-file: /x}"),
    ("client-key-file", "/x", "client-transport-security: {client-key-file: /x}"),
    ("client-cert-auth", "true", "client-transport-security: {client-cert-auth: true}"),
    (
        "client-cert-allowed-hostname",
        "b,a",
        "client-transport-security: {allowed-hostname: [b, a]}",
    ),
    ("client-crl-file", "/x", "client-crl-file: /x"),
    ("trusted-ca-file", "/x", "client-transport-security: {trusted-ca-file: /x}"),
    ("auto-tls", "true", "Client-Transport-Security: {Auto-TLS: true}"),
    ("peer-cert-file", "/x", "peer-transport-security: {cert-file: /x}"),
    ("peer-key-file", "/x", "peer-transport-security: {key-file: /x}"),
    ("peer-client-cert-file", "/x", "peer-transport-security: {client-cert-file: /x}"),
    ("peer-client-key-file", "/x", "peer-transport-security: {client-key-file: /x}"),
    ("peer-client-cert-auth", "true", "peer-transport-security: {client-cert-auth: true}"),
    ("peer-trusted-ca-file", "/x", "peer-transport-security: {trusted-ca-file: /x}"),
    ("peer-cert-allowed-cn", "b,a", "peer-transport-security: {allowed-cn: [b, a]}"),
    ("peer-cert-allowed-hostname", "b,a", "peer-transport-security: {allowed-hostname: [b, a]}"),
    ("peer-auto-tls", "true", "peer-transport-security: {auto-tls: true}"),
    (
        "peer-skip-client-san-verification",
        "true",
        "peer-transport-security: {skip-client-san-verification: true}",
    ),
    ("peer-crl-file", "/x", "peer-crl-file: /x"),
    ("self-signed-cert-validity", "3", "self-signed-cert-validity: 3"),
    ("cipher-suites", "b,a", "cipher-suites: [b, a]"),
    ("tls-min-version", "TLS1.3", "tls-min-version: TLS1.3"),
    ("tls-max-version", "TLS1.2", "tls-max-version: TLS1.2"),
];

#[test]
fn security_settings_are_honoured_from_every_source() {
    let mut different = Vec::new();
    for (flag, value, key) in SETTINGS {
        let security = config(&format!("--{flag}={value}")).security;
        assert_ne!(security, Security::default(), "{flag}");
        let world = World::with_environment(&[(&environment_name(flag), value)]);
        assert_eq!(world.run("").unwrap().config.security, security, "{flag}");
        assert_eq!(file(key).unwrap().config.security, security, "{key}");
        assert!(!different.contains(&security), "{flag} has the same effect as another flag");
        different.push(security);
        let section = FLAGS.iter().find(|found| found.name == *flag).map(|found| found.section);
        assert_eq!(section, Some("Security"), "{flag}");
    }
    assert_eq!(SETTINGS.len(), FLAGS.iter().filter(|flag| flag.section == "Security").count());
}

/// A list without names would admit every certificate.
#[test]
fn an_empty_list_of_allowed_names_contains_an_empty_name() {
    let security = config(
        "--peer-cert-allowed-cn= --peer-cert-allowed-hostname= --client-cert-allowed-hostname=",
    )
    .security;
    assert_eq!(security.peer.allowed_cns, [""]);
    assert_eq!(security.peer.allowed_hostnames, [""]);
    assert_eq!(security.client.allowed_hostnames, [""]);
}

#[test]
fn unknown_security_settings_in_the_file_are_refused_although_etcd_ignores_them() {
    for (text, expected) in [
        (
            "cert-file: SECRET",
            "cert-file: unknown key; write it as client-transport-security.cert-file",
        ),
        (
            "Peer-Auto-TLS: true",
            "Peer-Auto-TLS: unknown key; write it as peer-transport-security.auto-tls",
        ),
        (
            "peer-transport-security: {cert_file: SECRET}",
            "peer-transport-security.cert_file: unknown key; sections with",
        ),
        (
            "client-transport-security: {crl-file: SECRET}",
            "client-transport-security.crl-file: unknown key; sections with",
        ),
        (
            "client-transport-security: 5",
            "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal number into Go struct field \
             configYAML.configJSON.client-transport-security of type embed.securityConfig",
        ),
    ] {
        let exit = file(text).unwrap_err();
        let reason = refusal(&exit);
        assert!(reason.starts_with(expected), "{reason}");
        assert!(!format!("{exit:?}").contains("SECRET"), "{exit:?}");
    }
    for text in [
        "cert-file: ''\npeer-auto-tls: false",
        "client-transport-security: {cert-file: '', cert_file: '', client-cert-auth: false, allowed-cn: []}",
        "client-transport-security:\npeer-transport-security: {}",
    ] {
        assert_eq!(file(text).unwrap().config.security, Security::default(), "{text}");
    }
}

#[test]
fn client_common_names_can_be_restricted_in_the_file() {
    let text = "client-transport-security: {allowed-cn: [a], skip-client-san-verification: true}";
    let client = file(text).unwrap().config.security.client;
    assert_eq!(
        (client.allowed_cns, client.skip_client_san_verification),
        (vec!["a".to_owned()], true)
    );
}

#[test]
fn the_certificate_validity_in_a_file_is_at_least_one_year() {
    let years = |config: Config| config.security.self_signed_cert_validity;
    assert_eq!(years(file("self-signed-cert-validity: 0").unwrap().config), 1);
    assert_eq!(years(config("--self-signed-cert-validity=0")), 0);
}

#[test]
fn tls_versions_and_cipher_suites_must_be_compatible() {
    let refused = |arguments: &str| refusal(&World::default().run(arguments).unwrap_err());
    assert_eq!(
        refused("--tls-min-version TLS1.1"),
        "unexpected TLS version \"TLS1.1\" (must be one of: TLS1.2, TLS1.3)"
    );
    assert_eq!(
        refused("--tls-min-version TLS1.3 --tls-max-version TLS1.2"),
        "min version (TLS1.3) is greater than max version (TLS1.2)"
    );
    assert_eq!(
        refused("--tls-min-version TLS1.3 --cipher-suites TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        "cipher suites cannot be configured when only TLS1.3 is enabled"
    );
    let security = config("--tls-min-version= --tls-max-version=TLS1.3").security;
    assert_eq!(security.tls_min_version, TlsVersion::Tls12);
    assert_eq!(security.tls_max_version, Some(TlsVersion::Tls13));
}
