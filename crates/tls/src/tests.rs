//! Tests handshakes over a pipe with generated certificates.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P521_SHA512, PKCS_RSA_SHA256, RevokedCertParams, SerialNumber, SignatureAlgorithm,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use crate::*;

mod chains;
mod end_entities;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Files in a temporary directory, with certificates signed by one authority.
struct Files {
    dir: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

/// The names and the validity period in a generated certificate.
struct Said<'a> {
    name: &'a str,
    hosts: &'a [&'a str],
    usage: ExtendedKeyUsagePurpose,
    serial: u64,
    from: SystemTime,
    until: SystemTime,
    algorithm: &'static SignatureAlgorithm,
}

impl Default for Said<'_> {
    fn default() -> Self {
        Self {
            name: "",
            hosts: &["localhost", "127.0.0.1"],
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            serial: 1,
            from: SystemTime::now() - DAY,
            until: SystemTime::now() + DAY,
            algorithm: &PKCS_ECDSA_P256_SHA256,
        }
    }
}

fn client(name: &str) -> Said<'_> {
    Said { name, usage: ExtendedKeyUsagePurpose::ClientAuth, ..Said::default() }
}

impl Files {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        let files = Self { dir: tempfile::tempdir().unwrap(), authority };
        std::fs::write(files.path("ca.pem"), files.authority.pem()).unwrap();
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a certificate and its key.
    fn pair(&self, file: &str, said: &Said<'_>) -> Pair {
        let hosts: Vec<String> = said.hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !said.name.is_empty() {
            params.distinguished_name.push(DnType::CommonName, said.name);
        }
        params.extended_key_usages = vec![said.usage.clone()];
        params.serial_number = Some(SerialNumber::from(said.serial));
        params.not_before = said.from.into();
        params.not_after = said.until.into();
        let key = KeyPair::generate_for(said.algorithm).unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        let pair = Pair::new(self.path(&format!("{file}.pem")), self.path(&format!("{file}.key")));
        std::fs::write(&pair.cert, certificate.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }

    /// Returns a revocation list with this serial number.
    fn revoke(&self, serial: u64) -> rcgen::CertificateRevocationList {
        self.revoke_until(serial, SystemTime::now() + DAY)
    }

    /// Returns a revocation list with this serial number and this next-update time.
    fn revoke_until(&self, serial: u64, next: SystemTime) -> rcgen::CertificateRevocationList {
        let revoked = RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: (SystemTime::now() - DAY).into(),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: (next - DAY * 2).into(),
            next_update: next.into(),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.authority).unwrap()
    }

    fn trust(&self) -> Trust {
        Trust::File(self.path("ca.pem"))
    }

    fn check(&self) -> ClientCheck {
        ClientCheck {
            trust: self.trust(),
            allowed: Allowed::All,
            revocations: None,
            checks_origin: false,
            names_users: true,
        }
    }

    fn connector(&self, pair: Option<Pair>) -> ConnectorSettings {
        ConnectorSettings {
            pair,
            protocols: Protocols::default(),
            check: ServerCheck::Verify(self.trust()),
            allowed: Allowed::All,
            http2: true,
            server_name: None,
        }
    }
}

fn acceptor(pair: Pair, clients: Option<ClientCheck>) -> AcceptorSettings {
    let protocols = Protocols::default();
    AcceptorSettings { pair, protocols, clients, http2: true, endpoint: "client" }
}

/// Connects once and returns the result of each side. The server sends a byte, because a TLS 1.3 client must read
/// before it can detect that the server has refused its certificate.
async fn handshake(
    acceptor: &Acceptor,
    connector: &Connector,
) -> (Option<Accepted<DuplexStream>>, Result<(), String>) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let from = Some(SocketAddr::from(([127, 0, 0, 1], 4)));
    let serve = async {
        let mut accepted = acceptor.accept(far, from).await?;
        accepted.stream.write_all(b"!").await.ok()?;
        accepted.stream.flush().await.ok()?;
        Some(accepted)
    };
    let ask = async {
        let connected = connector.connect(Some("localhost"), near).await;
        let mut stream = connected.map_err(|error| error.to_string())?;
        let read: io::Result<u8> = stream.read_u8().await;
        read.map(drop).map_err(|error| error.to_string())
    };
    tokio::join!(serve, ask)
}

async fn handshake_succeeds(acceptor: AcceptorSettings, connector: ConnectorSettings) -> bool {
    let (acceptor, connector) =
        (Acceptor::new(acceptor).unwrap(), Connector::new(connector).unwrap());
    let (accepted, connected) = handshake(&acceptor, &connector).await;
    assert_eq!(accepted.is_some(), connected.is_ok(), "{connected:?}");
    connected.is_ok()
}

#[tokio::test]
async fn servers_accept_ecdsa_and_rsa_keys() {
    let files = Files::new();
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P521_SHA512, &PKCS_RSA_SHA256] {
        let server = files.pair("server", &Said { algorithm, ..Said::default() });
        let client = files.pair("client", &Said { algorithm, ..client("") });
        assert!(
            handshake_succeeds(
                acceptor(server, Some(files.check())),
                files.connector(Some(client))
            )
            .await
        );
    }
}

#[tokio::test]
async fn handshakes_fail_without_a_common_version_and_cipher_suite() {
    let files = Files::new();
    let server = files.pair("server", &Said::default());
    let settings = |min, max, names: &[&str]| {
        let suites = Suites::named(names.iter().copied()).unwrap();
        let protocols = Protocols { versions: Versions { min, max }, suites };
        AcceptorSettings { protocols, ..acceptor(server.clone(), None) }
    };
    let newest = settings(Version::Tls13, Version::Tls13, &[]);
    let oldest = ConnectorSettings {
        protocols: Protocols {
            versions: Versions { min: Version::Tls12, max: Version::Tls12 },
            suites: Suites::named(["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"]).unwrap(),
        },
        ..files.connector(None)
    };
    assert!(handshake_succeeds(newest.clone(), files.connector(None)).await);
    assert!(!handshake_succeeds(newest, oldest.clone()).await);
    let both = |name| settings(Version::Tls12, Version::Tls13, &[name]);
    assert!(
        handshake_succeeds(both("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"), oldest.clone()).await
    );
    assert!(!handshake_succeeds(both("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"), oldest).await);
}

#[tokio::test]
async fn a_client_must_present_a_valid_certificate() {
    let (files, strangers) = (Files::new(), Files::new());
    let server = files.pair("server", &Said::default());
    let now = SystemTime::now();
    for (why, pair, is_in_order) in [
        ("right", Some(files.pair("right", &client("root"))), true),
        ("none", None, false),
        ("a stranger's", Some(strangers.pair("stranger", &client("root"))), false),
        ("expired", Some(files.pair("old", &Said { until: now - DAY / 2, ..client("") })), false),
        ("not yet", Some(files.pair("new", &Said { from: now + DAY / 2, ..client("") })), false),
        ("for servers", Some(files.pair("usage", &Said::default())), false),
    ] {
        let settings = acceptor(server.clone(), Some(files.check()));
        assert_eq!(handshake_succeeds(settings, files.connector(pair)).await, is_in_order, "{why}");
    }
}

#[tokio::test]
async fn services_receive_client_certificates_only_if_certificates_identify_users() {
    let files = Files::new();
    let server = files.pair("server", &Said::default());
    let pair = files.pair("root", &client("root"));
    let connector = Connector::new(files.connector(Some(pair))).unwrap();
    for names_users in [true, false] {
        let check = ClientCheck { names_users, ..files.check() };
        let acceptor = Acceptor::new(acceptor(server.clone(), Some(check))).unwrap();
        let accepted = handshake(&acceptor, &connector).await.0.unwrap();
        let name = accepted.client.as_ref().map(|client| client.common_name.clone());
        assert_eq!(name.as_deref(), names_users.then_some("root"));
        for (host, is_named) in [("localhost", true), ("127.0.0.1", true), ("127.0.0.2", false)] {
            let found = accepted.client.as_ref().map(|client| client.stands_for(host));
            assert_eq!(found, names_users.then_some(is_named), "{host}");
        }
        assert!(accepted.is_http2);
    }
}

#[tokio::test]
async fn only_client_certificates_with_allowed_names_are_accepted() {
    let files = Files::new();
    let server = files.pair("server", &Said::default());
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    for (allowed, is_let_in) in [
        (Allowed::CommonNames(list(&["a", "me"])), true),
        (Allowed::CommonNames(list(&["a", "m", "me2", "*"])), false),
        (Allowed::Hosts(list(&["x.example.com"])), true),
        (Allowed::Hosts(list(&["127.0.0.9", "127.0.0.2"])), true),
        (Allowed::Hosts(list(&["127.0.0.9", "example.com", "y.x.example.com", "me", ""])), false),
    ] {
        let pair =
            files.pair("me", &Said { hosts: &["*.example.com", "127.0.0.2"], ..client("me") });
        let check = ClientCheck { allowed: allowed.clone(), ..files.check() };
        let settings = acceptor(server.clone(), Some(check));
        assert_eq!(
            handshake_succeeds(settings, files.connector(Some(pair))).await,
            is_let_in,
            "{allowed:?}"
        );
    }
}

#[tokio::test]
async fn certificates_are_refused_once_the_revocation_list_contains_them() {
    let files = Files::new();
    let server = files.pair("server", &Said::default());
    let list = files.path("list");
    let check = ClientCheck { revocations: Some(list.clone()), ..files.check() };
    let acceptor = Acceptor::new(acceptor(server, Some(check))).unwrap();
    let pair = files.pair("client", &Said { serial: 0xfe, ..client("") });
    let connector = Connector::new(files.connector(Some(pair))).unwrap();
    let is_let_in = async || handshake(&acceptor, &connector).await.1.is_ok();
    assert!(!is_let_in().await, "a certificate was accepted without a revocation list");
    std::fs::write(&list, files.revoke(0xff).der()).unwrap();
    assert!(is_let_in().await);
    std::fs::write(&list, files.revoke(0xfe).der()).unwrap();
    assert!(!is_let_in().await);
    let pem = format!("{}{}", files.revoke(0xff).pem().unwrap(), files.revoke(0xfe).pem().unwrap());
    std::fs::write(&list, pem).unwrap();
    assert!(!is_let_in().await, "the second list in the file was ignored");
    // Invalid or incomplete content does not change the list in force.
    let whole = files.revoke(0xfe).pem().unwrap();
    for broken in ["nonsense", "", &whole[..whole.len() / 2]] {
        std::fs::write(&list, broken).unwrap();
        assert!(!is_let_in().await, "{broken}");
    }
    std::fs::write(&list, files.revoke(0xff).der()).unwrap();
    assert!(is_let_in().await);
    std::fs::remove_file(&list).unwrap();
    assert!(is_let_in().await);
}

#[tokio::test]
async fn a_certificate_that_our_checks_refuse_causes_a_bad_certificate_alert() {
    let files = Files::new();
    let server = files.pair("server", &Said::default());
    let list = files.path("list");
    std::fs::write(&list, files.revoke(7).der()).unwrap();
    let pair = files.pair("client", &Said { serial: 7, ..client("app") });
    let allowed = Allowed::CommonNames(vec!["other".to_owned()]);
    let hosts = Allowed::Hosts(vec!["x.example.com".to_owned()]);
    for check in [
        ClientCheck { allowed, ..files.check() },
        ClientCheck { allowed: hosts, ..files.check() },
        ClientCheck { revocations: Some(list), ..files.check() },
    ] {
        let acceptor = Acceptor::new(acceptor(server.clone(), Some(check))).unwrap();
        let connector = Connector::new(files.connector(Some(pair.clone()))).unwrap();
        let (accepted, connected) = handshake(&acceptor, &connector).await;
        assert!(accepted.is_none());
        let error = connected.unwrap_err();
        assert!(error.contains("BadCertificate"), "{error}");
    }
    // The opposite direction: the client refuses a server whose name is not allowed.
    let allowed = Allowed::CommonNames(vec!["other".to_owned()]);
    let connector = ConnectorSettings { allowed, ..files.connector(None) };
    let connector = Connector::new(connector).unwrap();
    let acceptor = Acceptor::new(acceptor(server, None)).unwrap();
    let error = handshake(&acceptor, &connector).await.1.unwrap_err();
    assert_eq!(error, "client certificate authentication failed");
}

#[tokio::test]
async fn a_client_certificate_must_match_the_clients_address() {
    let files = Files::new();
    let server = files.pair("server", &Said::default());
    let check = ClientCheck { checks_origin: true, ..files.check() };
    for (hosts, is_let_in) in
        [(&["127.0.0.1"][..], true), (&["127.0.0.2"], false), (&["localhost"], true), (&[], true)]
    {
        let pair = files.pair("client", &Said { hosts, ..client("") });
        let acceptor = Acceptor::new(acceptor(server.clone(), Some(check.clone()))).unwrap();
        let connector = Connector::new(files.connector(Some(pair))).unwrap();
        assert_eq!(handshake(&acceptor, &connector).await.0.is_some(), is_let_in, "{hosts:?}");
    }
}

#[tokio::test]
async fn a_server_certificate_must_match_the_dialed_host() {
    let (files, strangers) = (Files::new(), Files::new());
    for (why, pair, is_right) in [
        ("right", files.pair("right", &Said::default()), true),
        (
            "elsewhere",
            files.pair("other", &Said { hosts: &["example.com"], ..Said::default() }),
            false,
        ),
        ("a stranger's", strangers.pair("right", &Said::default()), false),
        ("for clients", files.pair("usage", &client("localhost")), false),
    ] {
        assert_eq!(
            handshake_succeeds(acceptor(pair.clone(), None), files.connector(None)).await,
            is_right,
            "{why}"
        );
        let trusting = ConnectorSettings { check: ServerCheck::Skip, ..files.connector(None) };
        assert!(handshake_succeeds(acceptor(pair, None), trusting).await, "{why}");
    }
    // Skipping the verification does not skip the check of allowed names.
    for (names, is_right) in [(vec![], false), (vec!["member".to_owned()], true)] {
        let named = Said { name: "member", ..Said::default() };
        let settings = ConnectorSettings {
            check: ServerCheck::Skip,
            allowed: Allowed::CommonNames(names),
            ..files.connector(None)
        };
        assert_eq!(
            handshake_succeeds(acceptor(files.pair("named", &named), None), settings).await,
            is_right
        );
    }
    let named =
        ConnectorSettings { server_name: Some("example.com".to_owned()), ..files.connector(None) };
    let pair = files.pair("other", &Said { hosts: &["example.com"], ..Said::default() });
    assert!(handshake_succeeds(acceptor(pair, None), named).await);
}

#[tokio::test]
async fn a_generated_self_signed_certificate_is_its_own_authority() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("fixtures/client");
    let pair = find_or_make(&folder, &["127.0.0.1", "localhost"], 1).unwrap();
    let connector = ConnectorSettings {
        pair: None,
        protocols: Protocols::default(),
        check: ServerCheck::Verify(Trust::File(pair.cert.clone())),
        allowed: Allowed::All,
        http2: true,
        server_name: None,
    };
    assert!(handshake_succeeds(acceptor(pair.clone(), None), connector.clone()).await);
    let elsewhere =
        ConnectorSettings { server_name: Some("example.com".to_owned()), ..connector.clone() };
    assert!(!handshake_succeeds(acceptor(pair.clone(), None), elsewhere).await);
    // The certificate is for servers, so it is refused as a client certificate.
    let files = Files::new();
    let check = ClientCheck { trust: Trust::File(pair.cert.clone()), ..files.check() };
    let shown = ConnectorSettings { pair: Some(pair.clone()), ..connector };
    assert!(!handshake_succeeds(acceptor(pair.clone(), Some(check)), shown).await);
    let before = std::fs::read(&pair.cert).unwrap();
    assert_eq!(find_or_make(&folder, &["elsewhere"], 1).unwrap(), pair);
    assert_eq!(
        std::fs::read(&pair.cert).unwrap(),
        before,
        "the existing certificate must be reused"
    );
    assert!(matches!(find_or_make(&folder, &[], 0), Err(SelfSignedError::Validity)));
    let beyond = find_or_make(&dir.path().join("beyond"), &[], 8_000);
    assert!(matches!(beyond, Err(SelfSignedError::ValidityTooLong)), "{beyond:?}");
}

#[tokio::test]
async fn certificates_are_reloaded_while_serving_unless_they_are_invalid() {
    let files = Files::new();
    let pair = files.pair("server", &Said::default());
    let acceptor = Acceptor::new(acceptor(pair.clone(), Some(files.check()))).unwrap();
    let shown = files.pair("client", &client("one"));
    let connector = Connector::new(files.connector(Some(shown.clone()))).unwrap();
    // Returns the common name of the client's certificate after a handshake.
    let met = async || {
        let (accepted, connected) = handshake(&acceptor, &connector).await;
        connected.unwrap();
        let accepted = accepted.unwrap();
        accepted.client.unwrap().common_name.clone()
    };
    assert_eq!(&*met().await, "one");
    files.pair("client", &client("two"));
    assert_eq!(&*met().await, "two");
    for pair in [&pair, &shown] {
        let (cert, key) = (std::fs::read(&pair.cert).unwrap(), std::fs::read(&pair.key).unwrap());
        let strange = files.pair("strange", &client("three"));
        // The key does not match its certificate, is incomplete, or is missing.
        std::fs::copy(&strange.key, &pair.key).unwrap();
        assert_eq!(&*met().await, "two");
        std::fs::write(&pair.key, &key[..key.len() / 2]).unwrap();
        assert_eq!(&*met().await, "two");
        std::fs::remove_file(&pair.key).unwrap();
        assert_eq!(&*met().await, "two");
        std::fs::write(&pair.key, &key).unwrap();
        std::fs::write(&pair.cert, &cert[..cert.len() / 2]).unwrap();
        assert_eq!(&*met().await, "two");
        std::fs::write(&pair.cert, &cert).unwrap();
    }
    files.pair("client", &client("four"));
    assert_eq!(&*met().await, "four");
}

#[tokio::test]
async fn both_sides_reload_authorities_while_serving() {
    let (files, others) = (Files::new(), Files::new());
    let (server, shown) =
        (files.pair("server", &Said::default()), files.pair("client", &client("one")));
    let acceptor = Acceptor::new(acceptor(server.clone(), Some(files.check()))).unwrap();
    let connector = Connector::new(files.connector(Some(shown.clone()))).unwrap();
    let is_let_in = async || {
        let (accepted, connected) = handshake(&acceptor, &connector).await;
        accepted.is_some() && connected.is_ok()
    };
    let trust = |texts: &[&str]| std::fs::write(files.path("ca.pem"), texts.concat()).unwrap();
    let (old, new) = (files.authority.pem(), others.authority.pem());
    assert!(is_let_in().await);
    trust(&[]);
    assert!(is_let_in().await, "an empty file must not change the trusted authorities");
    trust(&[&old[..old.len() / 2]]);
    assert!(is_let_in().await, "an incomplete file must not change the trusted authorities");
    // The steps of a CA rotation: trust both CAs, present new certificates, trust only the new CA.
    trust(&[&old, &new]);
    assert!(is_let_in().await);
    for (pair, said) in [(&server, Said::default()), (&shown, client("one"))] {
        let signed = others.pair("new", &said);
        std::fs::copy(&signed.cert, &pair.cert).unwrap();
        std::fs::copy(&signed.key, &pair.key).unwrap();
        assert!(is_let_in().await);
    }
    trust(&[&new]);
    assert!(is_let_in().await);
    trust(&[&old]);
    assert!(!is_let_in().await, "a certificate signed by an untrusted CA was accepted");
}

#[tokio::test]
async fn the_earliest_expiry_of_the_revocation_lists_is_reported() {
    let files = Files::new();
    let list = files.path("crl");
    let soon = SystemTime::now() + DAY * 3;
    let lists = [soon, soon - DAY].map(|until| files.revoke_until(1, until).pem().unwrap());
    std::fs::write(&list, lists.concat()).unwrap();
    let check = ClientCheck { revocations: Some(list.clone()), ..files.check() };
    let pair = files.pair("server", &Said::default());
    let acceptor = Acceptor::new(acceptor(pair, Some(check))).unwrap();
    let found = |part| acceptor.look().into_iter().find(|expiry| expiry.part == part);
    let expiry = found(Part::Revocations).unwrap();
    assert_eq!(expiry.path, list);
    // The reported time belongs to the first list to become outdated. The resolution of the time is one second.
    let before = (soon - DAY).duration_since(expiry.not_after).unwrap();
    assert!(before < Duration::from_secs(1), "{before:?}");
    std::fs::write(&list, "nonsense").unwrap();
    assert_eq!(found(Part::Revocations), Some(expiry), "the previous list must stay in force");
}

#[tokio::test]
async fn the_expiry_times_of_certificates_are_reported() {
    let files = Files::new();
    let soon = SystemTime::now() + DAY * 3;
    let pair = files.pair("server", &Said { until: soon, ..Said::default() });
    let acceptor = Acceptor::new(acceptor(pair.clone(), Some(files.check()))).unwrap();
    let connector = Connector::new(files.connector(Some(pair.clone()))).unwrap();
    let parts = |found: Vec<Expiry>| {
        found.into_iter().map(|expiry| (expiry.part, expiry.path)).collect::<Vec<_>>()
    };
    let both = [(Part::Certificate, pair.cert), (Part::Authorities, files.path("ca.pem"))];
    assert_eq!(parts(acceptor.look()), both);
    assert_eq!(parts(connector.look()), both);
    let certificate = |found: Vec<Expiry>| found[0].not_after;
    // The expiry time of a certificate has a resolution of one second.
    let difference = |time: SystemTime| soon.duration_since(time).unwrap();
    assert!(difference(certificate(acceptor.look())) < Duration::from_secs(1));
    files.pair("server", &Said { until: soon - DAY, ..Said::default() });
    assert!(difference(certificate(acceptor.look())) >= DAY);
    assert!(difference(certificate(connector.look())) >= DAY);
}

#[test]
fn common_authorities_are_found_in_files_with_several_certificates() {
    let (ours, theirs) = (Files::new(), Files::new());
    let both = ours.path("both.pem");
    let pems = [theirs.authority.pem(), ours.authority.pem()].concat();
    std::fs::write(&both, pems).unwrap();
    let common = |one: &Trust, other: &Trust| have_common_authority(one, other).unwrap();
    assert!(common(&ours.trust(), &ours.trust()));
    assert!(common(&ours.trust(), &Trust::File(both.clone())));
    assert!(common(&Trust::File(both), &theirs.trust()));
    assert!(!common(&ours.trust(), &theirs.trust()));
    let missing = Trust::File(ours.path("none"));
    assert!(have_common_authority(&missing, &ours.trust()).is_err());
}

#[test]
fn missing_and_mismatched_certificate_files_are_refused_at_startup() {
    let files = Files::new();
    let (one, other) = (files.pair("one", &Said::default()), files.pair("other", &client("")));
    let refusal =
        |pair: &Pair| Acceptor::new(acceptor(pair.clone(), None)).unwrap_err().to_string();
    let missing = Pair::new(files.path("none"), &one.key);
    assert!(refusal(&missing).contains("none: no such file"), "{}", refusal(&missing));
    let mixed = Pair::new(&one.cert, &other.key);
    assert!(refusal(&mixed).starts_with("tls: "), "{}", refusal(&mixed));
    assert!(refusal(&Pair::new(&one.key, &one.key)).contains("PEM inputs may have been switched"));
    assert!(refusal(&Pair::new(&one.cert, &one.cert)).contains("private key"));
    assert!(Acceptor::new(acceptor(one.clone(), None)).is_ok());
    let check = ClientCheck { trust: Trust::File(one.key.clone()), ..files.check() };
    assert!(Acceptor::new(acceptor(one, Some(check))).is_err());
}

#[tokio::test(start_paused = true)]
async fn a_stalled_handshake_times_out() {
    let files = Files::new();
    let acceptor = Acceptor::new(acceptor(files.pair("server", &Said::default()), None)).unwrap();
    for said in [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"] {
        let (mut near, far) = tokio::io::duplex(1000);
        near.write_all(said).await.unwrap();
        assert!(acceptor.accept(far, None).await.is_none());
    }
    let (mut near, far) = tokio::io::duplex(1000);
    near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(acceptor.accept(far, None).await.is_none());
    let (near, far) = tokio::io::duplex(1000);
    drop(near);
    assert!(acceptor.accept(far, None).await.is_none());
}
