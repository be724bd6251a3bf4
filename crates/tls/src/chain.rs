//! Verifies the chain from a certificate to a trusted authority.
//!
//! webpki builds the chain. It checks signatures, validity periods, purposes, name constraints, and that intermediate
//! certificates belong to authorities. To webpki, however, a trusted authority is only a name with a key and name
//! constraints. This file therefore decides which trusted certificates are authorities.
//!
//! # Invariants
//!
//! * A trusted certificate signs other certificates only if Go permits it: a certificate of version 3 must be a CA
//!   certificate whose key usage, if it has one, includes the signing of certificates. Certificates of earlier versions
//!   cannot state whether they belong to an authority, and may sign.
//!
//! # Not here
//!
//! Certificates that are themselves trusted (`verify`), names (`names`) and revocation (`revocation`).

use std::sync::Arc;

use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use rustls::{CertificateError, Error, OtherError};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{ExtendedKeyUsage, X509Certificate, X509Version};

/// The use of a certificate in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Server,
    Client,
}

impl Purpose {
    /// Returns whether a certificate with this extended key usage permits the use.
    pub(crate) const fn is_permitted_by(self, usage: &ExtendedKeyUsage<'_>) -> bool {
        match self {
            Self::Server => usage.any || usage.server_auth,
            Self::Client => usage.any || usage.client_auth,
        }
    }

    const fn key_usage(self) -> KeyUsage {
        match self {
            Self::Server => KeyUsage::server_auth(),
            Self::Client => KeyUsage::client_auth(),
        }
    }
}

/// The trusted certificates that may sign other certificates.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    anchors: Vec<TrustAnchor<'static>>,
}

impl Anchors {
    /// Adds a trusted certificate, unless it may not sign other certificates.
    pub(crate) fn add(&mut self, certificate: &CertificateDer<'_>, parsed: &X509Certificate<'_>) {
        if may_sign(parsed)
            && let Ok(anchor) = anchor_from_trusted_cert(certificate)
        {
            self.anchors.push(anchor.to_owned());
        }
    }

    /// Checks that a certificate has a chain to an authority, and that the whole chain is valid now and permits the
    /// purpose.
    pub(crate) fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        purpose: Purpose,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Error> {
        let usage = purpose.key_usage();
        EndEntityCert::try_from(end_entity)
            .and_then(|certificate| {
                certificate
                    .verify_for_usage(
                        algorithms,
                        &self.anchors,
                        intermediates,
                        now,
                        usage,
                        None,
                        None,
                    )
                    .map(drop)
            })
            .map_err(library_error)
    }
}

/// Returns whether a certificate may sign other certificates.
fn may_sign(certificate: &X509Certificate<'_>) -> bool {
    if certificate.version() != X509Version::V3 {
        return certificate.extensions().is_empty();
    }
    let constraints = certificate.basic_constraints();
    let is_ca = matches!(constraints, Ok(Some(constraints)) if constraints.value.ca);
    let may_sign = match certificate.key_usage() {
        Ok(None) => true,
        Ok(Some(usage)) => usage.value.key_cert_sign(),
        Err(_) => false,
    };
    is_ca && may_sign
}

/// Converts webpki's error as rustls does, because the alert and the text of the error depend on it.
fn library_error(error: webpki::Error) -> Error {
    use webpki::Error as Reason;
    let error = match error {
        Reason::BadDer | Reason::BadDerTime | Reason::TrailingData(_) => {
            CertificateError::BadEncoding
        }
        Reason::CertExpired { time, not_after } => {
            CertificateError::ExpiredContext { time, not_after }
        }
        Reason::CertNotValidYet { time, not_before } => {
            CertificateError::NotValidYetContext { time, not_before }
        }
        Reason::InvalidCertValidity => CertificateError::Expired,
        Reason::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        Reason::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        Reason::UnknownIssuer => CertificateError::UnknownIssuer,
        Reason::UnsupportedSignatureAlgorithmContext(context) => {
            CertificateError::UnsupportedSignatureAlgorithmContext {
                signature_algorithm_id: context.signature_algorithm_id,
                supported_algorithms: context.supported_algorithms,
            }
        }
        Reason::UnsupportedSignatureAlgorithmForPublicKeyContext(context) => {
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                signature_algorithm_id: context.signature_algorithm_id,
                public_key_algorithm_id: context.public_key_algorithm_id,
            }
        }
        other => CertificateError::Other(OtherError(Arc::new(other))),
    };
    error.into()
}
