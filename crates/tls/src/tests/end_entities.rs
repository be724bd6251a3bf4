//! Tests certificates that Go accepts as the first certificate of a chain, but webpki does not: CA certificates, and
//! certificates of version 1 or 2.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, KeyPair,
    NameConstraints, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, PublicKeyData, SerialNumber,
    SignatureAlgorithm, SigningKey,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::chains::{
    Authority, Chain, UNKNOWN_AUTHORITY, intermediate, is_accepted, leaf, leaf_params, present,
    refusal, root, self_signed, verify_client,
};
use super::{DAY, Files, Said, acceptor, handshake, handshake_succeeds};
use crate::names::Names;
use crate::*;

/// The algorithm identifier of ECDSA signatures with SHA-256, with which rcgen's default keys sign.
const ECDSA_WITH_SHA256: [u8; 12] = [0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];

fn make_ca(params: &mut CertificateParams) {
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
}

fn pem(encoded: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(encoded);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// Encodes a DER value.
fn tagged(tag: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let [high, low] = u16::try_from(content.len()).unwrap().to_be_bytes();
    let header = match (high, low) {
        (0, 0..0x80) => vec![tag, low],
        (0, _) => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    [header, content].concat()
}

/// The version field of a certificate and the fields that follow the public key.
struct Older {
    version: &'static [u8],
    after: Vec<u8>,
}

const VERSION_1: Older = Older { version: &[], after: Vec::new() };
const VERSION_2: Older = Older { version: &[0xa0, 3, 2, 1, 1], after: Vec::new() };

/// Returns the DER encoding of a certificate of an older version, with the names, serial number, validity and key of
/// these parameters.
fn encode_older(
    by: &Authority,
    older: &Older,
    params: CertificateParams,
    key: &KeyPair,
) -> Vec<u8> {
    let newer = params.signed_by(key, by).unwrap();
    let encoded = newer.der();
    let (_, parsed) = X509Certificate::from_der(encoded).unwrap();
    let position =
        |part: &[u8]| encoded.windows(part.len()).position(|found| found == part).unwrap();
    let version_3 = [0xa0, 3, 2, 1, 2];
    let public_key = parsed.public_key().raw;
    let fields =
        &encoded[position(&version_3) + version_3.len()..position(public_key) + public_key.len()];
    let signed = tagged(0x30, &[older.version, fields, &older.after]);
    let signature = tagged(3, &[&[0], &by.key().sign(&signed).unwrap()]);
    tagged(0x30, &[&signed, &ECDSA_WITH_SHA256, &signature])
}

fn older_with_key(
    by: &Authority,
    older: &Older,
    algorithm: &'static SignatureAlgorithm,
    change: impl FnOnce(&mut CertificateParams),
) -> Chain {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let encoded = encode_older(by, older, leaf_params(change), &key);
    Chain { pem: pem(&encoded), key: key.serialize_pem() }
}

fn older(by: &Authority, older: &Older, change: impl FnOnce(&mut CertificateParams)) -> Chain {
    older_with_key(by, older, &PKCS_ECDSA_P256_SHA256, change)
}

/// Returns whether a certificate without alternative names is accepted from a client.
async fn is_client(trusted: &[&str], chain: &Chain) -> bool {
    let [as_server, as_client] = present(trusted, chain).await;
    // A client that verifies the server must refuse such a certificate.
    as_server.unwrap_err();
    as_client.is_ok()
}

/// Replaces the only occurrence of some bytes in a chain's only certificate.
fn replace(chain: &Chain, from: &[u8], to: &[u8]) -> Chain {
    let mut encoded = CertificateDer::from_pem_slice(chain.pem.as_bytes()).unwrap().to_vec();
    let found: Vec<_> =
        (0..=encoded.len() - from.len()).filter(|at| encoded[*at..].starts_with(from)).collect();
    assert_eq!(found.len(), 1, "{from:?}");
    encoded.splice(found[0]..found[0] + from.len(), to.iter().copied());
    Chain { pem: pem(&encoded), key: chain.key.clone() }
}

#[tokio::test]
async fn a_ca_certificate_is_accepted_as_a_servers_or_clients_certificate() {
    let ca = root(|_| {});
    let middle = intermediate(&ca, |_| {});
    let trusted: &[&str] = &[&ca.pem()];
    assert!(is_accepted(trusted, &leaf(&ca, make_ca)).await);
    assert!(is_accepted(trusted, &leaf(&middle, make_ca).through(&middle)).await);
    let limited = |params: &mut CertificateParams| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    };
    assert!(is_accepted(trusted, &leaf(&middle, limited).through(&middle)).await);
    // The authorities' limits apply.
    let limited = root(limited);
    assert!(is_accepted(&[&limited.pem()], &leaf(&limited, make_ca)).await);
    let middle = intermediate(&limited, |_| {});
    assert!(!is_accepted(&[&limited.pem()], &leaf(&middle, make_ca).through(&middle)).await);
}

#[tokio::test]
async fn a_ca_certificate_is_verified_like_every_other_certificate() {
    let (ca, other, now) = (root(|_| {}), root(|_| {}), SystemTime::now());
    let trusted: &[&str] = &[&ca.pem()];
    assert_eq!(refusal(trusted, &leaf(&other, make_ca)).await, "BadSignature");
    let (_, stranger) = self_signed(make_ca);
    assert_eq!(refusal(trusted, &stranger).await, UNKNOWN_AUTHORITY);
    let (pinned, _) = self_signed(|_| {});
    assert_eq!(refusal(&[&pinned.pem()], &leaf(&pinned, make_ca)).await, UNKNOWN_AUTHORITY);
    let expired = leaf(&ca, |params| {
        make_ca(params);
        params.not_after = (now - DAY).into();
    });
    assert!(refusal(trusted, &expired).await.contains("has expired"));
    let old = root(|params| params.not_after = (now - DAY).into());
    assert!(refusal(&[&old.pem()], &leaf(&old, make_ca)).await.contains("(trusted CA"));
    let no_ca = intermediate(&ca, |params| params.is_ca = IsCa::NoCa);
    assert!(!is_accepted(trusted, &leaf(&no_ca, make_ca).through(&no_ca)).await);
    for (usage, expected) in [
        (ExtendedKeyUsagePurpose::ServerAuth, [true, false]),
        (ExtendedKeyUsagePurpose::ClientAuth, [false, true]),
    ] {
        let chain = leaf(&ca, |params| {
            make_ca(params);
            params.extended_key_usages = vec![usage];
        });
        let outcome = present(trusted, &chain).await;
        assert_eq!(outcome.each_ref().map(Result::is_ok), expected);
    }
    // A server's certificate must be valid for the dialed host.
    let elsewhere = leaf(&ca, |params| {
        make_ca(params);
        params.subject_alt_names.clear();
    });
    assert!(is_client(trusted, &elsewhere).await);
}

#[tokio::test]
async fn name_constraints_apply_to_ca_certificates_of_servers_and_clients() {
    let permit = |name: &str| {
        let permitted_subtrees = vec![GeneralSubtree::DnsName(name.to_owned())];
        let constraints = NameConstraints { permitted_subtrees, excluded_subtrees: vec![] };
        move |params: &mut CertificateParams| params.name_constraints = Some(constraints)
    };
    for change in [(|_| {}) as fn(&mut CertificateParams), make_ca] {
        for (name, is_permitted) in [("localhost", true), ("example.com", false)] {
            let ca = root(permit(name));
            assert_eq!(is_accepted(&[&ca.pem()], &leaf(&ca, change)).await, is_permitted);
            let ca = root(|_| {});
            let middle = intermediate(&ca, permit(name));
            let chain = leaf(&middle, change).through(&middle);
            assert_eq!(is_accepted(&[&ca.pem()], &chain).await, is_permitted);
        }
    }
}

#[tokio::test]
async fn a_certificate_that_differs_from_the_signed_one_in_the_ca_flag_is_refused() {
    let ca = root(|_| {});
    let set =
        |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(3));
    let chain = leaf(&ca, set);
    assert!(is_accepted(&[&ca.pem()], &chain).await);
    let (flag, cleared) = ([1, 1, 0xff, 2, 1, 3], [1, 1, 0, 2, 1, 3]);
    let changed = replace(&chain, &flag, &cleared);
    assert_eq!(refusal(&[&ca.pem()], &changed).await, "BadSignature");
    let changed = replace(&chain, &flag, &[1, 1, 0xff, 2, 1, 4]);
    assert_eq!(refusal(&[&ca.pem()], &changed).await, "BadSignature");
}

#[tokio::test]
async fn certificates_of_older_versions_are_accepted_from_clients() {
    let ca = root(|_| {});
    let middle = intermediate(&ca, |_| {});
    let trusted: &[&str] = &[&ca.pem()];
    for version in [VERSION_1, VERSION_2] {
        assert!(is_client(trusted, &older(&ca, &version, |_| {})).await);
        assert!(is_client(trusted, &older(&middle, &version, |_| {}).through(&middle)).await);
        // The certificate itself may be trusted.
        let chain = older(&ca, &version, |_| {});
        assert!(is_client(&[&chain.pem], &chain).await);
    }
    let chain = older(&ca, &VERSION_1, |_| {});
    let reason = present(trusted, &chain).await[0].clone().unwrap_err();
    assert!(reason.contains("certificate is not valid for any names"), "{reason}");
}

#[tokio::test]
async fn certificates_of_older_versions_are_verified_like_every_other_certificate() {
    let (ca, other, now) = (root(|_| {}), root(|_| {}), SystemTime::now());
    let trusted: &[&str] = &[&ca.pem()];
    assert!(!is_client(trusted, &older(&other, &VERSION_1, |_| {})).await);
    let (pinned, _) = self_signed(|_| {});
    assert!(!is_client(&[&pinned.pem()], &older(&pinned, &VERSION_1, |_| {})).await);
    let expire = |params: &mut CertificateParams| params.not_after = (now - DAY).into();
    assert!(!is_client(trusted, &older(&ca, &VERSION_1, expire)).await);
    let early = |params: &mut CertificateParams| params.not_before = (now + DAY).into();
    assert!(!is_client(trusted, &older(&ca, &VERSION_1, early)).await);
    let pinned = older(&ca, &VERSION_1, expire);
    assert!(!is_client(&[&pinned.pem], &pinned).await);
    let old = root(expire);
    assert!(!is_client(&[&old.pem()], &older(&old, &VERSION_1, |_| {})).await);
    let limited = root(|params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    assert!(!is_client(&[&limited.pem()], &older(&limited, &VERSION_1, |_| {})).await);
    let no_ca = intermediate(&ca, |params| params.is_ca = IsCa::NoCa);
    assert!(!is_client(trusted, &older(&no_ca, &VERSION_1, |_| {}).through(&no_ca)).await);
}

#[tokio::test]
async fn a_certificate_that_differs_from_the_signed_one_in_the_version_is_refused() {
    let ca = root(|_| {});
    let trusted: &[&str] = &[&ca.pem()];
    let chain = older(&ca, &VERSION_2, |_| {});
    assert!(is_client(trusted, &chain).await);
    for version in [0, 2] {
        let changed = replace(&chain, VERSION_2.version, &[0xa0, 3, 2, 1, version]);
        assert!(!is_client(trusted, &changed).await, "{version}");
    }
}

#[test]
fn certificates_of_older_versions_with_extensions_are_refused() {
    let ca = root(|_| {});
    // An extension with the alternative name `localhost`.
    let names = tagged(0x30, &[&tagged(0x82, &[b"localhost"])]);
    let extension = tagged(0x30, &[&[6, 3, 0x55, 0x1d, 17], &tagged(4, &[&names])]);
    let after = tagged(0xa3, &[&tagged(0x30, &[&extension])]);
    let is_valid = |version| {
        let (older, key) = (Older { version, after: after.clone() }, KeyPair::generate().unwrap());
        let encoded = encode_older(&ca, &older, leaf_params(|_| {}), &key);
        verify_client(&ca, &CertificateDer::from(encoded), SystemTime::now()).is_ok()
    };
    assert!(!is_valid(VERSION_1.version) && !is_valid(VERSION_2.version));
    // Versions 3 and 4.
    assert!(is_valid(&[0xa0, 3, 2, 1, 2]) && !is_valid(&[0xa0, 3, 2, 1, 3]));
}

#[tokio::test]
async fn an_intermediate_certificate_of_an_older_version_is_refused() {
    let ca = root(|_| {});
    for version in [VERSION_1, VERSION_2] {
        let key = KeyPair::generate().unwrap();
        let mut params = leaf_params(|_| {});
        make_ca(&mut params);
        let encoded = encode_older(&ca, &version, params.clone(), &key);
        let middle = Authority::self_signed(params, key).unwrap();
        let mut chain = leaf(&middle, |_| {});
        chain.pem += &pem(&encoded);
        assert!(!is_accepted(&[&ca.pem()], &chain).await);
        // Go accepts an authority of an older version if it is trusted.
        assert!(is_accepted(&[&pem(&encoded)], &leaf(&middle, |_| {})).await);
    }
}

#[tokio::test]
async fn keys_of_certificates_of_older_versions_are_verified_in_both_tls_versions() {
    let (files, ca) = (Files::new(), root(|_| {}));
    std::fs::write(files.path("old-ca.pem"), ca.pem()).unwrap();
    let trust = Trust::File(files.path("old-ca.pem"));
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_RSA_SHA256] {
        let chain = older_with_key(&ca, &VERSION_1, algorithm, |_| {});
        let pair = chain.write(&files);
        for version in [Version::Tls12, Version::Tls13] {
            let versions = Versions { min: version, max: version };
            let protocols = Protocols { versions, ..Protocols::default() };
            let check = ClientCheck { trust: trust.clone(), ..files.check() };
            let server = files.pair("server", &Said::default());
            let server = acceptor(server, Some(check));
            let client = ConnectorSettings { protocols, ..files.connector(Some(pair.clone())) };
            assert!(handshake_succeeds(server, client.clone()).await);
            // A client that does not verify the server's certificate verifies that the server has the key.
            let client = ConnectorSettings { pair: None, check: ServerCheck::Skip, ..client };
            assert!(handshake_succeeds(acceptor(pair.clone(), None), client).await);
        }
    }
    let chain = older(&ca, &VERSION_1, |_| {});
    let other = older(&ca, &VERSION_1, |_| {});
    let mixed = Chain { pem: chain.pem, key: other.key }.write(&files);
    let error = Acceptor::new(acceptor(mixed, None)).unwrap_err().to_string();
    assert!(error.ends_with("private key does not match public key"), "{error}");
}

#[tokio::test]
async fn names_and_revocation_of_certificates_of_older_versions_are_checked() {
    let (files, ca) = (Files::new(), root(|_| {}));
    std::fs::write(files.path("old-ca.pem"), ca.pem()).unwrap();
    let list = files.path("list");
    std::fs::write(&list, files.revoke(7).der()).unwrap();
    let pair = |serial: u64| {
        let chain = older(&ca, &VERSION_1, |params| {
            params.serial_number = Some(SerialNumber::from(serial));
        });
        chain.write(&files)
    };
    let check = ClientCheck {
        trust: Trust::File(files.path("old-ca.pem")),
        revocations: Some(list),
        ..files.check()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    for (serial, allowed, is_let_in) in [
        (8, Allowed::All, true),
        (7, Allowed::All, false),
        (8, Allowed::CommonNames(names(&["root"])), true),
        (8, Allowed::CommonNames(names(&["other"])), false),
        (8, Allowed::Hosts(names(&["localhost", "root", ""])), false),
    ] {
        let check = ClientCheck { allowed, ..check.clone() };
        let server = acceptor(files.pair("server", &Said::default()), Some(check));
        let server = Acceptor::new(server).unwrap();
        let client = Connector::new(files.connector(Some(pair(serial)))).unwrap();
        let (accepted, _) = handshake(&server, &client).await;
        assert_eq!(accepted.is_some(), is_let_in);
        let client = accepted.and_then(|accepted| accepted.client);
        assert!(client.is_none_or(|client| &*client.common_name == "root"));
    }
}

#[test]
fn changed_and_incomplete_certificates_are_refused() {
    let (ca, key, now) = (root(|_| {}), KeyPair::generate().unwrap(), SystemTime::now());
    let is_valid = |bytes: &[u8]| verify_client(&ca, &CertificateDer::from(bytes), now).is_ok();
    let of_ca = leaf_params(make_ca).signed_by(&key, &ca).unwrap().der().to_vec();
    let [first, second] =
        [VERSION_1, VERSION_2].map(|older| encode_older(&ca, &older, leaf_params(|_| {}), &key));
    for encoded in [of_ca, first, second] {
        assert!(is_valid(&encoded));
        for at in 0..encoded.len() {
            assert!(!is_valid(&encoded[..at]), "{at}");
            for bit in 0..8 {
                let mut changed = encoded.clone();
                changed[at] ^= 1 << bit;
                assert!(!is_valid(&changed), "bit {bit} of byte {at}");
            }
        }
        assert!(!is_valid(&[encoded.as_slice(), &[0]].concat()));
    }
}

#[test]
fn the_names_of_a_certificate_whose_subject_cannot_be_read_completely_are_unknown() {
    let key = KeyPair::generate().unwrap();
    let name = |text: &str| {
        let value = tagged(0x0c, &[text.as_bytes()]);
        tagged(0x31, &[&tagged(0x30, &[&[6, 3, 0x55, 4, 3], &value])])
    };
    let certificate = |between: &[u8]| {
        let subject = tagged(0x30, &[&name("root"), between, &name("alice")]);
        let time = |text: &[u8]| tagged(0x17, &[text]);
        let validity = tagged(0x30, &[&time(b"250101000000Z"), &time(b"350101000000Z")]);
        let serial = [2, 1, 1];
        let public_key = key.subject_public_key_info();
        let fields: [&[u8]; 6] =
            [&serial, &ECDSA_WITH_SHA256, &subject, &validity, &subject, &public_key];
        let signed = tagged(0x30, &fields);
        let signature = tagged(3, &[&[0], &key.sign(&signed).unwrap()]);
        CertificateDer::from(tagged(0x30, &[&signed, &ECDSA_WITH_SHA256, &signature]))
    };
    let common = |between| Names::of(&certificate(between)).map(|names| names.common);
    assert_eq!(common(&[]).as_deref(), Some("alice"));
    // Go reads an empty set and then the last name, but our parser stops here and would return the first one.
    assert_eq!(common(&[0x31, 0]), None);
}
