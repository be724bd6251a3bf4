//! Tests which certificate chains each side accepts. The rules are those of Go's crypto/x509.

use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyPair, KeyUsagePurpose, NameConstraints,
    SanType,
};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{CertificateError, Error};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{DAY, Files, Said, acceptor, handshake};
use crate::chain::{Anchors, Purpose};
use crate::end_entity::EndEntity;
use crate::{
    Acceptor, ClientCheck, Connector, ConnectorSettings, Pair, Protocols, ServerCheck, Trust,
};

pub(super) type Authority = CertifiedIssuer<'static, KeyPair>;

/// A certificate chain and the key of its first certificate, both in PEM.
pub(super) struct Chain {
    pub(super) pem: String,
    pub(super) key: String,
}

impl Chain {
    /// Adds an intermediate certificate.
    pub(super) fn through(mut self, intermediate: &Authority) -> Self {
        self.pem += &intermediate.pem();
        self
    }

    /// Writes the chain and the key to files.
    pub(super) fn write(&self, files: &Files) -> Pair {
        let pair = Pair::new(files.path("chain.pem"), files.path("chain.key"));
        std::fs::write(&pair.cert, &self.pem).unwrap();
        std::fs::write(&pair.key, &self.key).unwrap();
        pair
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

pub(super) fn root(change: impl FnOnce(&mut CertificateParams)) -> Authority {
    let params = ca_params("root CA", change);
    Authority::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

pub(super) fn intermediate(
    by: &Authority,
    change: impl FnOnce(&mut CertificateParams),
) -> Authority {
    let params = ca_params("intermediate CA", change);
    Authority::signed_by(params, KeyPair::generate().unwrap(), by).unwrap()
}

pub(super) fn leaf_params(change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = params("root");
    params.subject_alt_names =
        CertificateParams::new(["localhost".to_owned()]).unwrap().subject_alt_names;
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    change(&mut params);
    params
}

/// Returns a certificate for servers and clients, with its key.
pub(super) fn leaf(by: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Chain {
    let key = KeyPair::generate().unwrap();
    let certificate = leaf_params(change).signed_by(&key, by).unwrap();
    Chain { pem: certificate.pem(), key: key.serialize_pem() }
}

/// Returns a self-signed certificate for servers and clients.
pub(super) fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> (Authority, Chain) {
    let key = KeyPair::generate().unwrap();
    let key_pem = key.serialize_pem();
    let certificate = Authority::self_signed(leaf_params(change), key).unwrap();
    let chain = Chain { pem: certificate.pem(), key: key_pem };
    (certificate, chain)
}

/// Presents a chain as a server and then as a client, to a side that trusts the certificates in `trusted`. Returns the
/// error that the connecting side receives.
pub(super) async fn present(trusted: &[&str], chain: &Chain) -> [Result<(), String>; 2] {
    let files = Files::new();
    let pair = chain.write(&files);
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

pub(super) async fn is_accepted(trusted: &[&str], chain: &Chain) -> bool {
    let [as_server, as_client] = present(trusted, chain).await;
    assert_eq!(as_server.is_ok(), as_client.is_ok(), "{as_server:?} {as_client:?}");
    as_server.is_ok()
}

/// Presents a chain that both sides must refuse. Returns the reason of the connecting side.
pub(super) async fn refusal(trusted: &[&str], chain: &Chain) -> String {
    let [as_server, as_client] = present(trusted, chain).await;
    as_client.unwrap_err();
    let reason = as_server.unwrap_err();
    let prefix = "tls: failed to verify certificate: ";
    reason.strip_prefix(prefix).unwrap_or_else(|| panic!("{reason}")).to_owned()
}

pub(super) const UNKNOWN_AUTHORITY: &str = "x509: certificate signed by unknown authority";

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

#[tokio::test]
async fn an_expired_trusted_ca_signs_no_certificate() {
    let now = SystemTime::now();
    let old = root(|params| params.not_after = (now - DAY).into());
    let reason = refusal(&[&old.pem()], &leaf(&old, |_| {})).await;
    let text = "x509: certificate has expired or is not yet valid: current time ";
    assert!(reason.starts_with(text) && reason.contains(" is after "), "{reason}");
    assert!(reason.ends_with("(trusted CA \"CN=root CA\")"), "{reason}");
    let early = root(|params| params.not_before = (now + DAY).into());
    let reason = refusal(&[&early.pem()], &leaf(&early, |_| {})).await;
    assert!(reason.starts_with(text) && reason.contains(" is before "), "{reason}");
    let middle = intermediate(&old, |_| {});
    assert!(!is_accepted(&[&old.pem()], &leaf(&middle, |_| {}).through(&middle)).await);
    assert!(is_accepted(&[&old.pem(), &middle.pem()], &leaf(&middle, |_| {})).await);
}

#[tokio::test]
async fn an_expired_ca_does_not_affect_chains_to_its_successor() {
    let now = SystemTime::now();
    let old = root(|params| params.not_after = (now - DAY).into());
    let new = root(|_| {});
    for trusted in [[old.pem(), new.pem()], [new.pem(), old.pem()]] {
        let trusted = trusted.each_ref().map(String::as_str);
        assert!(is_accepted(&trusted, &leaf(&new, |_| {})).await);
        assert!(!is_accepted(&trusted, &leaf(&old, |_| {})).await);
    }
    // The renewed CA keeps the key of the old one.
    let key = KeyPair::from_pem(&old.key().serialize_pem()).unwrap();
    let renewed = Authority::self_signed(ca_params("root CA", |_| {}), key).unwrap();
    for trusted in [[old.pem(), renewed.pem()], [renewed.pem(), old.pem()]] {
        let trusted = trusted.each_ref().map(String::as_str);
        assert!(is_accepted(&trusted, &leaf(&old, |_| {})).await);
    }
}

#[tokio::test]
async fn expired_certificates_below_the_trusted_ca_are_refused() {
    let (now, ca) = (SystemTime::now(), root(|_| {}));
    let trusted: &[&str] = &[&ca.pem()];
    let text = "x509: certificate has expired or is not yet valid: ";
    let expire = |params: &mut CertificateParams| params.not_after = (now - DAY).into();
    let reason = refusal(trusted, &leaf(&ca, expire)).await;
    assert!(reason.starts_with(text) && !reason.contains("trusted CA"), "{reason}");
    assert!(refusal(trusted, &self_signed(expire).1).await.starts_with(text));
    let middle = intermediate(&ca, expire);
    let reason = refusal(trusted, &leaf(&middle, |_| {}).through(&middle)).await;
    assert!(reason.starts_with(text), "{reason}");
    // Another certificate of the intermediate authority is still valid.
    let key = KeyPair::from_pem(&middle.key().serialize_pem()).unwrap();
    let renewed = Authority::signed_by(ca_params("intermediate CA", |_| {}), key, &ca).unwrap();
    let chain = leaf(&middle, |_| {}).through(&middle).through(&renewed);
    assert!(is_accepted(trusted, &chain).await);
}

#[tokio::test]
async fn only_ca_certificates_that_may_sign_certificates_are_accepted_as_intermediates() {
    let ca = root(|_| {});
    for (change, reason) in [
        (
            (|params| params.is_ca = IsCa::NoCa) as fn(&mut CertificateParams),
            "x509: certificate is not authorized to sign other certificates",
        ),
        (
            |params| params.is_ca = IsCa::ExplicitNoCa,
            "x509: certificate is not authorized to sign other certificates",
        ),
        (
            |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature],
            "x509: invalid signature: parent certificate cannot sign this kind of certificate",
        ),
    ] {
        let middle = intermediate(&ca, change);
        let chain = leaf(&middle, |_| {}).through(&middle);
        assert_eq!(refusal(&[&ca.pem()], &chain).await, reason);
    }
    let middle = intermediate(&ca, |params| params.key_usages = vec![]);
    assert!(is_accepted(&[&ca.pem()], &leaf(&middle, |_| {}).through(&middle)).await);
}

#[tokio::test]
async fn the_path_length_limits_of_all_authorities_are_respected() {
    let limit = |params: &mut CertificateParams| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    };
    let text = "x509: too many intermediates for path length constraint";
    let ca = root(limit);
    assert!(is_accepted(&[&ca.pem()], &leaf(&ca, |_| {})).await);
    let middle = intermediate(&ca, |_| {});
    let chain = leaf(&middle, |_| {}).through(&middle);
    assert_eq!(refusal(&[&ca.pem()], &chain).await, text);
    let ca = root(|params| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1)));
    let middle = intermediate(&ca, limit);
    assert!(is_accepted(&[&ca.pem()], &leaf(&middle, |_| {}).through(&middle)).await);
    let last =
        Authority::signed_by(ca_params("last CA", |_| {}), KeyPair::generate().unwrap(), &middle);
    let last = last.unwrap();
    let chain = leaf(&last, |_| {}).through(&last).through(&middle);
    assert_eq!(refusal(&[&ca.pem()], &chain).await, text);
}

#[tokio::test]
async fn each_certificate_of_a_chain_must_permit_the_purpose() {
    let only = |usage: ExtendedKeyUsagePurpose| {
        move |params: &mut CertificateParams| params.extended_key_usages = vec![usage.clone()]
    };
    let ca = root(|_| {});
    for (usage, expected) in [
        (ExtendedKeyUsagePurpose::ServerAuth, [true, false]),
        (ExtendedKeyUsagePurpose::ClientAuth, [false, true]),
        (ExtendedKeyUsagePurpose::CodeSigning, [false, false]),
    ] {
        let limited = root(only(usage.clone()));
        let middle = intermediate(&ca, only(usage.clone()));
        let (pinned, chain) = self_signed(only(usage.clone()));
        for (trusted, chain) in [
            (&ca, leaf(&ca, only(usage.clone()))),
            (&ca, leaf(&middle, |_| {}).through(&middle)),
            (&limited, leaf(&limited, |_| {})),
            (&pinned, chain),
        ] {
            let outcome = present(&[&trusted.pem()], &chain).await;
            assert_eq!(outcome.each_ref().map(Result::is_ok), expected, "{usage:?}");
            if let Err(reason) = &outcome[0] {
                assert!(reason.ends_with("specifies an incompatible key usage"), "{reason}");
            }
        }
    }
}

/// Verifies a client's certificate at this time, without a handshake.
pub(super) fn verify_client(
    ca: &Authority,
    certificate: &CertificateDer<'_>,
    time: SystemTime,
) -> Result<(), Error> {
    let mut anchors = Anchors::default();
    anchors.add(ca.der(), &X509Certificate::from_der(ca.der()).unwrap().1);
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let time = UnixTime::since_unix_epoch(since_epoch);
    let provider = Protocols::default().provider().unwrap();
    let algorithms = provider.signature_verification_algorithms.all;
    anchors.verify(&EndEntity::new(certificate), &[], time, Purpose::Client, algorithms)
}

#[test]
fn the_validity_of_a_trusted_ca_is_checked_at_the_time_of_the_handshake() {
    let now = SystemTime::now();
    let ca = root(|params| params.not_after = (now + DAY).into());
    let certificate = leaf_params(|_| {}).signed_by(&KeyPair::generate().unwrap(), &ca).unwrap();
    let verify = |time| verify_client(&ca, certificate.der(), time);
    assert_eq!(verify(now), Ok(()));
    assert_eq!(verify(now + DAY * 2), Err(CertificateError::Expired.into()));
}

#[tokio::test]
async fn any_extended_key_usage_permits_every_purpose() {
    let any = |params: &mut CertificateParams| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::Any];
    };
    let ca = root(any);
    let middle = intermediate(&ca, any);
    let (pinned, pinned_chain) = self_signed(any);
    assert!(is_accepted(&[&ca.pem()], &leaf(&ca, any)).await);
    assert!(is_accepted(&[&ca.pem()], &leaf(&middle, any).through(&middle)).await);
    assert!(is_accepted(&[&pinned.pem()], &pinned_chain).await);
    let also_any = |params: &mut CertificateParams| {
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::CodeSigning, ExtendedKeyUsagePurpose::Any];
    };
    assert!(is_accepted(&[&ca.pem()], &leaf(&ca, also_any)).await);
    assert!(!is_accepted(&[&ca.pem()], &leaf(&root(any), any)).await);
}

#[tokio::test]
async fn a_chain_has_at_most_six_intermediate_certificates() {
    let ca = root(|_| {});
    let mut authorities = vec![intermediate(&ca, |_| {})];
    for _ in 1..7 {
        authorities.push(intermediate(&authorities[authorities.len() - 1], |_| {}));
    }
    for (intermediates, is_valid) in [(6, true), (7, false)] {
        let chain = leaf(&authorities[intermediates - 1], |_| {});
        let chain = authorities[..intermediates].iter().rev().fold(chain, Chain::through);
        assert_eq!(is_accepted(&[&ca.pem()], &chain).await, is_valid, "{intermediates}");
    }
}

#[tokio::test]
async fn only_the_first_eight_different_intermediate_certificates_are_considered() {
    let ca = root(|_| {});
    let middle = intermediate(&ca, |_| {});
    for (others, copies, is_valid) in [(7, 1, true), (7, 20, true), (8, 1, false)] {
        let mut chain = leaf(&middle, |_| {});
        for _ in 0..others {
            let other = intermediate(&ca, |_| {});
            for _ in 0..copies {
                chain = chain.through(&other);
            }
        }
        let accepted = is_accepted(&[&ca.pem()], &chain.through(&middle)).await;
        assert_eq!(accepted, is_valid, "{others} others, {copies} copies of each");
    }
}

#[tokio::test]
async fn names_with_unsupported_constraints_are_refused() {
    let email = "a@localhost".to_owned();
    let directory = GeneralSubtree::DirectoryName(params("root").distinguished_name);
    for (subtree, is_valid, is_valid_with_email) in [
        (GeneralSubtree::DnsName("localhost".to_owned()), true, true),
        (GeneralSubtree::Rfc822Name("localhost".to_owned()), true, false),
        (directory, false, false),
    ] {
        let permitted_subtrees = vec![subtree];
        let constraints = NameConstraints { permitted_subtrees, excluded_subtrees: vec![] };
        let ca = root(|params| params.name_constraints = Some(constraints));
        assert_eq!(is_accepted(&[&ca.pem()], &leaf(&ca, |_| {})).await, is_valid);
        let with_email = leaf(&ca, |params| {
            let name = SanType::Rfc822Name(email.as_str().try_into().unwrap());
            params.subject_alt_names.push(name);
        });
        assert_eq!(is_accepted(&[&ca.pem()], &with_email).await, is_valid_with_email);
    }
}
