//! The keys that sign and verify tokens.

use std::fmt;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, ParsedPublicKey,
    RsaEncoding, RsaKeyPair, VerificationAlgorithm,
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{Method, SignFault, pem};

/// A message that is signed and verified to check whether two keys match.
const PROBE: &[u8] = b"message to test whether two keys match";

/// The reason why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyFault {
    /// Neither a private nor a public key is given.
    #[error("auth: missing key data")]
    Missing,
    /// The public key does not match the private key.
    #[error("auth: public and private keys don't match")]
    Mismatch,
    /// A key cannot be parsed, or is for another signing method.
    #[error("auth: the {0} key cannot be parsed, or is not for the sign-method")]
    Unreadable(&'static str),
}

enum Signing {
    Hmac(Box<hmac::Key>),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Ecdsa(Box<EcdsaKeyPair>),
    Ed25519(Box<Ed25519KeyPair>),
}

/// The keys for one signing method.
pub struct Keys {
    method: Method,
    signing: Option<Signing>,
    /// `None` if the signing key is also used to verify signatures.
    verifying: Option<ParsedPublicKey>,
}

/// Omits the keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("method", &self.method).finish_non_exhaustive()
    }
}

impl Keys {
    /// Parses keys from the contents of their files. For a method with a single key, that key is passed as the private
    /// key.
    pub fn read(
        method: Method,
        private: Option<&[u8]>,
        public: Option<&[u8]>,
    ) -> Result<Self, KeyFault> {
        let private = private.filter(|bytes| !bytes.is_empty());
        let public = public.filter(|bytes| !bytes.is_empty());
        if let Some(algorithm) = hmac_of(method) {
            let key = hmac::Key::new(algorithm, private.ok_or(KeyFault::Missing)?);
            return Ok(Self {
                method,
                signing: Some(Signing::Hmac(Box::new(key))),
                verifying: None,
            });
        }
        let signing = private
            .map(|text| read_private(method, text).ok_or(KeyFault::Unreadable("private")))
            .transpose()?;
        let verifying = match (public, &signing) {
            (Some(text), _) => read_public(method, text).ok_or(KeyFault::Unreadable("public"))?,
            (None, Some(signing)) => public_of(method, signing).ok_or(KeyFault::Missing)?,
            (None, None) => return Err(KeyFault::Missing),
        };
        let keys = Self { method, signing, verifying: Some(verifying) };
        if keys.signing.is_some() {
            let signature = keys.sign(PROBE).map_err(|_| KeyFault::Unreadable("private"))?;
            if !keys.verify(PROBE, &signature) {
                return Err(KeyFault::Mismatch);
            }
        }
        Ok(keys)
    }

    /// Returns the signing method.
    #[must_use]
    pub const fn method(&self) -> Method {
        self.method
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignFault> {
        let random = SystemRandom::new();
        match self.signing.as_ref().ok_or(SignFault::VerifyOnly)? {
            Signing::Hmac(key) => Ok(hmac::sign(key, message).as_ref().to_vec()),
            Signing::Rsa(key, encoding) => {
                let mut signature = vec![0; key.public_modulus_len()];
                key.sign(*encoding, &random, message, &mut signature)
                    .map_err(|_| SignFault::Failed)?;
                Ok(signature)
            }
            Signing::Ecdsa(key) => {
                let signature = key.sign(&random, message).map_err(|_| SignFault::Failed)?;
                Ok(signature.as_ref().to_vec())
            }
            Signing::Ed25519(key) => Ok(key.sign(message).as_ref().to_vec()),
        }
    }

    /// Verifies a signature. Takes constant time, so that the duration does not reveal how much of the signature is
    /// correct.
    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        match (&self.verifying, &self.signing) {
            (Some(key), _) => key.verify_sig(message, signature).is_ok(),
            (None, Some(Signing::Hmac(key))) => hmac::verify(key, message, signature).is_ok(),
            (None, _) => false,
        }
    }
}

const fn hmac_of(method: Method) -> Option<hmac::Algorithm> {
    match method {
        Method::Hs256 => Some(hmac::HMAC_SHA256),
        Method::Hs384 => Some(hmac::HMAC_SHA384),
        Method::Hs512 => Some(hmac::HMAC_SHA512),
        Method::Rs256
        | Method::Rs384
        | Method::Rs512
        | Method::Ps256
        | Method::Ps384
        | Method::Ps512
        | Method::Es256
        | Method::Es384
        | Method::Es512
        | Method::EdDsa => None,
    }
}

fn verification_of(method: Method) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match method {
        Method::Hs256 | Method::Hs384 | Method::Hs512 => return None,
        Method::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
        Method::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
        Method::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
        Method::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
        Method::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
        Method::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
        Method::Es256 => &signature::ECDSA_P256_SHA256_FIXED,
        Method::Es384 => &signature::ECDSA_P384_SHA384_FIXED,
        Method::Es512 => &signature::ECDSA_P521_SHA512_FIXED,
        Method::EdDsa => &signature::ED25519,
    })
}

fn read_private(method: Method, text: &[u8]) -> Option<Signing> {
    let (label, der) = pem::first(text)?;
    let rsa = |encoding: &'static dyn RsaEncoding| {
        let key = match label.as_str() {
            "RSA PRIVATE KEY" => RsaKeyPair::from_der(&der).ok()?,
            "PRIVATE KEY" => RsaKeyPair::from_pkcs8(&der).ok()?,
            _ => return None,
        };
        Some(Signing::Rsa(Box::new(key), encoding))
    };
    let ecdsa = |algorithm: &'static EcdsaSigningAlgorithm| {
        let key = match label.as_str() {
            "EC PRIVATE KEY" => EcdsaKeyPair::from_private_key_der(algorithm, &der).ok()?,
            "PRIVATE KEY" => EcdsaKeyPair::from_pkcs8(algorithm, &der).ok()?,
            _ => return None,
        };
        Some(Signing::Ecdsa(Box::new(key)))
    };
    match method {
        Method::Hs256 | Method::Hs384 | Method::Hs512 => None,
        Method::Rs256 => rsa(&signature::RSA_PKCS1_SHA256),
        Method::Rs384 => rsa(&signature::RSA_PKCS1_SHA384),
        Method::Rs512 => rsa(&signature::RSA_PKCS1_SHA512),
        Method::Ps256 => rsa(&signature::RSA_PSS_SHA256),
        Method::Ps384 => rsa(&signature::RSA_PSS_SHA384),
        Method::Ps512 => rsa(&signature::RSA_PSS_SHA512),
        Method::Es256 => ecdsa(&signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        Method::Es384 => ecdsa(&signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        Method::Es512 => ecdsa(&signature::ECDSA_P521_SHA512_FIXED_SIGNING),
        Method::EdDsa => {
            let is_pkcs8 = label == "PRIVATE KEY";
            let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).ok().filter(|_| is_pkcs8)?;
            Some(Signing::Ed25519(Box::new(key)))
        }
    }
}

fn read_public(method: Method, text: &[u8]) -> Option<ParsedPublicKey> {
    let (label, der) = pem::first(text)?;
    let is_rsa = matches!(
        method,
        Method::Rs256
            | Method::Rs384
            | Method::Rs512
            | Method::Ps256
            | Method::Ps384
            | Method::Ps512
    );
    let key = match label.as_str() {
        "PUBLIC KEY" => der,
        "RSA PUBLIC KEY" if is_rsa => der,
        "CERTIFICATE" if method != Method::EdDsa => key_of_certificate(&der)?,
        _ => return None,
    };
    ParsedPublicKey::new(verification_of(method)?, key).ok()
}

/// Returns the public key in an X.509 certificate. The rest of the certificate is irrelevant for tokens.
fn key_of_certificate(der: &[u8]) -> Option<Vec<u8>> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    Some(certificate.tbs_certificate.subject_pki.raw.to_vec())
}

/// Returns the public key that belongs to a private key.
fn public_of(method: Method, signing: &Signing) -> Option<ParsedPublicKey> {
    let bytes = match signing {
        Signing::Hmac(_) => return None,
        Signing::Rsa(key, _) => key.public_key().as_ref(),
        Signing::Ecdsa(key) => key.public_key().as_ref(),
        Signing::Ed25519(key) => key.public_key().as_ref(),
    };
    ParsedPublicKey::new(verification_of(method)?, bytes).ok()
}
