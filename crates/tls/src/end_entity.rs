//! The form in which a server's or client's own certificate is passed to webpki and rustls.
//!
//! webpki refuses two kinds of end-entity certificates that Go accepts: certificates of version 1 or 2, which old tools
//! create, and CA certificates. For these certificates, this file creates a copy that differs only in the version or in
//! the CA flag. The signature does not match the copy, so it is verified over the original instead.
//!
//! # Invariants
//!
//! * The copy has the same names, key, issuer, validity period and extensions as the original. Only the version, or the
//!   value of the CA flag, differs.
//! * A copy is accepted only if the issuer has signed the original. All other rules apply to the copy.
//! * Only the first certificate of a chain is copied. An intermediate certificate must be a CA certificate of version 3.

use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm,
};
use x509_parser::oid_registry::OID_X509_EXT_BASIC_CONSTRAINTS;
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

const SEQUENCE: u8 = 0x30;

/// The version field of a certificate of version 3.
const VERSION_3: [u8; 5] = [0xa0, 3, 2, 1, 2];

/// The version field up to the number of the version. Without the field, the version is 1.
const VERSION: [u8; 4] = [0xa0, 3, 2, 1];

/// A CA flag that is set: a boolean with the value true.
const CA_FLAG: [u8; 3] = [1, 1, 0xff];

/// A server's or client's own certificate.
#[derive(Debug)]
pub(crate) struct EndEntity<'a> {
    original: &'a [u8],
    form: CertificateDer<'a>,
}

impl<'a> EndEntity<'a> {
    /// Returns the form of a certificate. An invalid certificate is not changed, so that the libraries report the error.
    pub(crate) fn new(certificate: &'a CertificateDer<'_>) -> Self {
        let original: &[u8] = certificate;
        let changed = match X509Certificate::from_der(original) {
            Ok((&[], parsed)) => with_version_3(&parsed).or_else(|| without_ca_flag(&parsed)),
            Ok(_) | Err(_) => None,
        };
        let form = changed.map_or_else(|| CertificateDer::from(original), CertificateDer::from);
        Self { original, form }
    }

    /// Returns the certificate as webpki and rustls accept it. Its signature may be invalid.
    pub(crate) const fn form(&self) -> &CertificateDer<'a> {
        &self.form
    }

    /// Returns algorithms that verify the signature of this certificate over the original.
    pub(crate) fn algorithms<'b>(
        &'b self,
        algorithms: &[&'b dyn SignatureVerificationAlgorithm],
    ) -> Vec<OverOriginal<'b>> {
        let (form, original) = (signed_part(&self.form), signed_part(self.original));
        algorithms.iter().map(|inner| OverOriginal { inner: *inner, form, original }).collect()
    }
}

/// A signature algorithm that replaces the signed part of a copy by the signed part of the original.
#[derive(Debug)]
pub(crate) struct OverOriginal<'a> {
    inner: &'a dyn SignatureVerificationAlgorithm,
    form: Option<&'a [u8]>,
    original: Option<&'a [u8]>,
}

impl SignatureVerificationAlgorithm for OverOriginal<'_> {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let message = match (self.form, self.original) {
            (Some(form), Some(original)) if message == form => original,
            _ => message,
        };
        self.inner.verify_signature(public_key, message, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.inner.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.inner.signature_alg_id()
    }
}

/// Returns a copy of a certificate of version 1 or 2 as a certificate of version 3 without extensions. Returns `None`
/// for other certificates, and if the certificate has fields that its version does not permit.
fn with_version_3(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    let is_older = matches!(certificate.version(), X509Version::V1 | X509Version::V2);
    if !is_older || !certificate.extensions().is_empty() {
        return None;
    }
    let (content, _) = split_sequence(certificate.as_raw())?;
    let (fields, after) = split_sequence(content)?;
    let fields = match fields.strip_prefix(&VERSION) {
        Some(with_number) => with_number.get(1..)?,
        None => fields,
    };
    let signed = sequence(&[&VERSION_3, fields]);
    Some(sequence(&[&signed, after]))
}

/// Returns a copy of a CA certificate whose CA flag is cleared. Returns `None` for other certificates.
fn without_ca_flag(certificate: &X509Certificate<'_>) -> Option<Vec<u8>> {
    let extension =
        certificate.get_extension_unique(&OID_X509_EXT_BASIC_CONSTRAINTS).ok().flatten()?;
    let (constraints, _) = split_sequence(extension.value)?;
    if !constraints.starts_with(&CA_FLAG) {
        return None;
    }
    // The parser returns slices of the certificate.
    let whole = certificate.as_raw();
    let value = constraints.as_ptr().addr().checked_sub(whole.as_ptr().addr())? + 2;
    let mut copy = whole.to_vec();
    *copy.get_mut(value)? = 0;
    Some(copy)
}

/// Returns the part of a certificate that its issuer signs.
fn signed_part(certificate: &[u8]) -> Option<&[u8]> {
    let (content, _) = split_sequence(certificate)?;
    let (_, after) = split_sequence(content)?;
    content.get(..content.len() - after.len())
}

/// Splits a DER sequence from the start of `bytes`. Returns its content and the bytes that follow it.
pub(crate) fn split_sequence(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let ([SEQUENCE, first], bytes) = bytes.split_first_chunk()? else { return None };
    let (len, bytes) = match first {
        0..=0x7f => (usize::from(*first), bytes),
        0x81..=0x83 => {
            let (digits, bytes) = bytes.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), bytes)
        }
        _ => return None,
    };
    bytes.split_at_checked(len)
}

/// Encodes a DER sequence with this content.
fn sequence(content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let len = content.len().to_be_bytes();
    let digits = &len[len.iter().position(|digit| *digit != 0).unwrap_or(len.len() - 1)..];
    let mut encoded = vec![SEQUENCE];
    if content.len() >= 0x80 {
        let count = u8::try_from(digits.len()).expect("a length has at most eight digits");
        encoded.push(0x80 | count);
    }
    encoded.extend(digits);
    encoded.extend(content);
    encoded
}
