//! All methods, with keys written by OpenSSL, and invalid tokens.

use base64::prelude::BASE64_STANDARD;

use super::*;

macro_rules! file {
    ($name:literal) => {
        &include_bytes!(concat!("../testdata/", $name))[..]
    };
}

/// The private and the public key of a method that has two keys.
fn pair(method: Method) -> (&'static [u8], &'static [u8]) {
    match method {
        Method::Hs256 | Method::Hs384 | Method::Hs512 => (b"a secret of some length", b""),
        Method::Rs256 | Method::Rs384 | Method::Ps256 => (file!("rsa.pem"), file!("rsa.pub.pem")),
        Method::Rs512 | Method::Ps384 | Method::Ps512 => {
            (file!("rsa.pkcs1.pem"), file!("rsa.pub.pem"))
        }
        Method::Es256 => (file!("es256.pem"), file!("es256.pub.pem")),
        Method::Es384 => (file!("es384.pkcs8.pem"), file!("es384.pub.pem")),
        Method::Es512 => (file!("es512.pem"), file!("es512.pub.pem")),
        Method::EdDsa => (file!("eddsa.pem"), file!("eddsa.pub.pem")),
    }
}

fn has_one_key(method: Method) -> bool {
    method.name().starts_with("HS")
}

#[test]
fn tokens_signed_with_one_key_are_verified_with_the_other() {
    for method in Method::ALL {
        let (private, public) = pair(method);
        let signing = Keys::read(method, Some(private), None).unwrap();
        let token = sign(&signing, "ann", 7, 1000).unwrap();
        let claims = read(&signing, &token).unwrap();
        let said =
            Claims { username: "ann".into(), revision: 7, not_before: None, expires: Some(1000) };
        assert_eq!(claims, said, "{}", method.name());
        if has_one_key(method) {
            continue;
        }
        let verifying = Keys::read(method, None, Some(public)).unwrap();
        assert_eq!(read(&verifying, &token), Some(said), "{}", method.name());
        assert_eq!(sign(&verifying, "ann", 7, 1000), Err(SignFault::VerifyOnly));
        Keys::read(method, Some(private), Some(public)).unwrap();
    }
}

#[test]
fn a_certificate_contains_a_public_key() {
    for (method, certificate) in [
        (Method::Rs256, file!("rsa.crt.pem")),
        (Method::Ps512, file!("rsa.crt.pem")),
        (Method::Es256, file!("es256.crt.pem")),
        (Method::Es512, file!("es512.crt.pem")),
    ] {
        let (private, _) = pair(method);
        let keys = Keys::read(method, Some(private), Some(certificate)).unwrap();
        let token = sign(&keys, "ann", 7, 1000).unwrap();
        let verifying = Keys::read(method, None, Some(certificate)).unwrap();
        assert!(read(&verifying, &token).is_some(), "{}", method.name());
        // A truncated certificate is refused.
        let text = std::str::from_utf8(certificate).unwrap();
        let (label, der) = pem::first(text.as_bytes()).unwrap();
        for len in 0..der.len() {
            let cut = BASE64_STANDARD.encode(&der[..len]);
            let text = format!("-----BEGIN {label}-----\n{cut}\n-----END {label}-----\n");
            let refused = Keys::read(method, None, Some(text.as_bytes())).unwrap_err();
            assert_eq!(refused, KeyFault::Unreadable("public"), "{len} bytes");
        }
    }
    let of_other_key =
        Keys::read(Method::Es256, Some(file!("es256.pem")), Some(file!("rsa.crt.pem")));
    assert_eq!(of_other_key.unwrap_err(), KeyFault::Unreadable("public"));
    // As in etcd, certificates are not accepted for this method.
    let refused = Keys::read(Method::EdDsa, None, Some(file!("eddsa.crt.pem"))).unwrap_err();
    assert_eq!(refused, KeyFault::Unreadable("public"));
}

#[test]
fn a_modified_token_is_refused() {
    for method in Method::ALL {
        let keys = Keys::read(method, Some(pair(method).0), None).unwrap();
        let token = sign(&keys, "ann", 7, 1000).unwrap();
        let parts: Vec<&str> = token.split('.').collect();
        let other = sign(&keys, "root", 7, 1000).unwrap();
        let claims_of_other = other.split('.').nth(1).unwrap();
        for bad in [
            String::new(),
            "..".into(),
            parts[..2].join("."),
            format!("{}.{}.", parts[0], parts[1]),
            format!("{}.{claims_of_other}.{}", parts[0], parts[2]),
            format!("{token}."),
            format!("{token}AAAA"),
            token[..token.len() - 8].to_owned(),
        ] {
            assert_eq!(read(&keys, &bad), None, "{} {bad}", method.name());
        }
    }
}

#[test]
fn a_token_cannot_choose_the_signature_method() {
    // The public key is no secret, so it must not be accepted as the key of an HMAC signature.
    let public = file!("rsa.pub.pem");
    let forged = Keys::read(Method::Hs256, Some(public), None).unwrap();
    let token = sign(&forged, "root", 7, 1000).unwrap();
    let keys = Keys::read(Method::Rs256, None, Some(public)).unwrap();
    assert_eq!(read(&keys, &token), None);
    let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let claims = encode(r#"{"username":"root","revision":7}"#);
    for head in [r#"{"alg":"none"}"#, r#"{"alg":"RS512"}"#, "{}", "[]", "x"] {
        assert_eq!(read(&keys, &format!("{}.{claims}.", encode(head))), None, "{head}");
    }
}

/// A token with these claims, as anyone with the key can create it.
fn written(keys: &Keys, claims: &str) -> String {
    let encode = |text: &str| BASE64_URL_SAFE_NO_PAD.encode(text);
    let signed = format!("{}.{}", encode(r#"{"alg":"HS256"}"#), encode(claims));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(keys.sign(signed.as_bytes()).unwrap());
    format!("{signed}.{signature}")
}

#[test]
fn claims_are_parsed_as_in_go() {
    let keys = Keys::read(Method::Hs256, Some(b"secret"), None).unwrap();
    let read = |claims: &str| read(&keys, &written(&keys, claims));
    let bare = read(r#"{"username":"u","revision":3}"#).unwrap();
    assert_eq!((bare.revision, bare.expires, bare.not_before), (3, None, None));
    assert!(bare.are_good_at(i64::MAX));
    let whole = read(r#"{"username":"u","revision":3.9,"exp":10.5,"nbf":2}"#).unwrap();
    assert_eq!((whole.revision, whole.expires, whole.not_before), (3, Some(10), Some(2)));
    assert!(whole.are_good_at(2) && whole.are_good_at(9));
    assert!(!whole.are_good_at(1) && !whole.are_good_at(10));
    for bad in [
        r#"{"revision":3}"#,
        r#"{"username":"u"}"#,
        r#"{"username":1,"revision":3}"#,
        r#"{"username":"u","revision":"3"}"#,
        r#"{"username":"u","revision":-1}"#,
        r#"{"username":"u","revision":3,"exp":"10"}"#,
        "[]",
        "{",
    ] {
        assert_eq!(read(bad), None, "{bad}");
    }
}

#[test]
fn invalid_keys_are_reported() {
    let read = |method, private: &[u8], public: &[u8]| {
        Keys::read(method, Some(private), Some(public)).unwrap_err()
    };
    assert_eq!(read(Method::Hs256, b"", b"x"), KeyFault::Missing);
    assert_eq!(read(Method::Rs256, b"", b""), KeyFault::Missing);
    let mismatch = read(Method::Es256, file!("es256.pem"), file!("es384.pub.pem"));
    assert_eq!(mismatch, KeyFault::Unreadable("public"));
    let other = Keys::read(Method::Es384, Some(file!("es384.pem")), Some(file!("es384.pub.pem")));
    assert!(other.is_ok());
    for (method, private) in [
        (Method::Rs256, file!("es256.pem")),
        (Method::Es256, file!("es512.pem")),
        (Method::EdDsa, file!("rsa.pem")),
        (Method::Ps256, b"junk"),
        (Method::Rs256, file!("rsa.pub.pem")),
    ] {
        assert_eq!(read(method, private, b""), KeyFault::Unreadable("private"));
    }
    let printed = format!("{:?}", Keys::read(Method::Hs256, Some(b"SECRET"), None).unwrap());
    assert!(!printed.contains("SECRET"), "{printed}");
}
