//! Tests which certificate chains each side accepts. The rules are those of Go's crypto/x509.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};

use super::{Files, Said, acceptor, handshake};
use crate::{Acceptor, ClientCheck, Connector, ConnectorSettings, Pair, ServerCheck, Trust};

type Authority = CertifiedIssuer<'static, KeyPair>;

/// A certificate chain and the key of its first certificate, both in PEM.
struct Chain {
    pem: String,
    key: String,
}

impl Chain {
    /// Adds an intermediate certificate.
    fn through(mut self, intermediate: &Authority) -> Self {
        self.pem += &intermediate.pem();
        self
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn ca_params(name: &str, change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    change(&mut params);
    params
}

fn root(change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let params = ca_params("root CA", change);
    Authority::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn intermediate(by: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let params = ca_params("intermediate CA", change);
    Authority::signed_by(params, KeyPair::generate().unwrap(), by).unwrap()
}

fn leaf_params(change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = params("root");
    params.subject_alt_names =
        CertificateParams::new(["localhost".to_owned()]).unwrap().subject_alt_names;
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    params
}

/// Returns a certificate for servers and clients, with its key.
fn leaf(by: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Chain {
    let key = KeyPair::generate().unwrap();
    let certificate = leaf_params(change).signed_by(&key, by).unwrap();
    Chain { pem: certificate.pem(), key: key.serialize_pem() }
}

/// Returns a self-signed certificate for servers and clients.
fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> (Authority, Chain) {
    let key = KeyPair::generate().unwrap();
    let key_pem = key.serialize_pem();
    let certificate = Authority::self_signed(leaf_params(change), key).unwrap();
    let chain = Chain { pem: certificate.pem(), key: key_pem };
    (certificate, chain)
}

/// Presents a chain as a server and then as a client, to a side that trusts the certificates in `trusted`. Returns the
/// error that the connecting side receives.
async fn present(trusted: &[&str], chain: &Chain) -> [Result<(), String>; 2] {
    let files = Files::new();
    let pair = Pair::new(files.path("chain.pem"), files.path("chain.key"));
    std::fs::write(&pair.cert, &chain.pem).unwrap();
    std::fs::write(&pair.key, &chain.key).unwrap();
    std::fs::write(files.path("trusted.pem"), trusted.concat()).unwrap();
    let trust = Trust::File(files.path("trusted.pem"));
    let check = ServerCheck::Verify(trust.clone());
    let connector = Connector::new(ConnectorSettings { check, ..files.connector(None) }).unwrap();
    let server = Acceptor::new(acceptor(pair.clone(), None)).unwrap();
    let as_server = handshake(&server, &connector).await;
    let check = ClientCheck { trust, ..files.check() };
    let own = files.pair("server", &Said::default());
    let server = Acceptor::new(acceptor(own, Some(check))).unwrap();
    let connector = Connector::new(files.connector(Some(pair))).unwrap();
    let as_client = handshake(&server, &connector).await;
    [as_server, as_client].map(|(accepted, connected)| {
        assert_eq!(accepted.is_some(), connected.is_ok(), "{connected:?}");
        connected
    })
}

async fn is_accepted(trusted: &[&str], chain: &Chain) -> bool {
    let [as_server, as_client] = present(trusted, chain).await;
    assert_eq!(as_server.is_ok(), as_client.is_ok(), "{as_server:?} {as_client:?}");
    as_server.is_ok()
}

/// Presents a chain that both sides must refuse. Returns the reason of the connecting side.
async fn refusal(trusted: &[&str], chain: &Chain) -> String {
    let [as_server, as_client] = present(trusted, chain).await;
    as_client.unwrap_err();
    let reason = as_server.unwrap_err();
    let prefix = "tls: failed to verify certificate: ";
    reason.strip_prefix(prefix).unwrap_or_else(|| panic!("{reason}")).to_owned()
}

const UNKNOWN_AUTHORITY: &str = "x509: certificate signed by unknown authority";

#[tokio::test]
async fn a_chain_must_lead_to_a_trusted_ca() {
    let (ca, other) = (root(|_| {}), root(|_| {}));
    let middle = intermediate(&ca, |_| {});
    let trusted: &[&str] = &[&ca.pem()];
    assert!(is_accepted(trusted, &leaf(&ca, |_| {})).await);
    assert!(is_accepted(trusted, &leaf(&middle, |_| {}).through(&middle)).await);
    assert!(is_accepted(&[&middle.pem()], &leaf(&middle, |_| {})).await, "the root is not needed");
    // `other` has the same name as `ca`, so only the signatures differ.
    assert_eq!(refusal(trusted, &leaf(&other, |_| {})).await, "BadSignature");
    assert_eq!(refusal(trusted, &leaf(&middle, |_| {})).await, UNKNOWN_AUTHORITY);
    let mismatched = leaf(&intermediate(&other, |_| {}), |_| {}).through(&middle);
    assert!(!is_accepted(trusted, &mismatched).await);
}

#[tokio::test]
async fn a_trusted_certificate_that_is_not_a_ca_certificate_signs_no_other_certificate() {
    for is_ca in [IsCa::NoCa, IsCa::ExplicitNoCa] {
        let (pinned, chain) = self_signed(|params| params.is_ca = is_ca);
        let trusted: &[&str] = &[&pinned.pem()];
        assert!(is_accepted(trusted, &chain).await, "the trusted certificate itself was refused");
        assert_eq!(refusal(trusted, &leaf(&pinned, |_| {})).await, UNKNOWN_AUTHORITY);
        let middle = intermediate(&pinned, |_| {});
        let longer = leaf(&middle, |_| {}).through(&middle);
        assert_eq!(refusal(trusted, &longer).await, UNKNOWN_AUTHORITY);
    }
    // A certificate that a CA has signed may be trusted instead of the CA.
    let ca = root(|_| {});
    let key = KeyPair::generate().unwrap();
    let pem = key.serialize_pem();
    let pinned = Authority::signed_by(leaf_params(|_| {}), key, &ca).unwrap();
    let trusted: &[&str] = &[&pinned.pem()];
    assert!(is_accepted(trusted, &Chain { pem: pinned.pem(), key: pem }).await);
    assert_eq!(refusal(trusted, &leaf(&pinned, |_| {})).await, UNKNOWN_AUTHORITY);
    assert_eq!(refusal(trusted, &leaf(&ca, |_| {})).await, UNKNOWN_AUTHORITY);
}

#[tokio::test]
async fn a_trusted_ca_whose_key_usage_lacks_certificate_signing_signs_no_certificate() {
    let ca = root(|params| params.key_usages = vec![KeyUsagePurpose::CrlSign]);
    assert_eq!(refusal(&[&ca.pem()], &leaf(&ca, |_| {})).await, UNKNOWN_AUTHORITY);
    let unlimited = root(|params| params.key_usages = vec![]);
    assert!(is_accepted(&[&unlimited.pem()], &leaf(&unlimited, |_| {})).await);
}
