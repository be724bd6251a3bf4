//! Verifies the chain from a certificate to a trusted authority.
//!
//! webpki builds the chain. It checks signatures and name constraints, and the other rules for the certificates that the
//! other side presents. To webpki, however, a trusted authority is only a name with a key and name constraints. This
//! file therefore decides which trusted certificates are authorities, and checks the other properties of the authority
//! at the end of each chain. If there are several chains, one valid chain is sufficient.
//!
//! # Invariants
//!
//! * A certificate signs other certificates only if Go permits it: a certificate of version 3 must be a CA certificate
//!   whose key usage, if it has one, includes the signing of certificates. Certificates of earlier versions cannot state
//!   whether they belong to an authority, and may sign if they are trusted.
//! * The authority's certificate must be valid at the time of the handshake, limits the number of intermediate
//!   certificates, and must permit the purpose.
//!
//! # Not here
//!
//! Certificates that are themselves trusted (`verify`), names (`names`) and revocation (`revocation`).

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, SignatureVerificationAlgorithm, TrustAnchor, UnixTime};
use rustls::{CertificateError, Error, OtherError};
use webpki::{
    EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter, KeyUsage,
    RequiredEkuNotFoundContext, VerifiedPath, anchor_from_trusted_cert,
};
use x509_parser::prelude::{ASN1Time, ExtendedKeyUsage, FromDer, X509Certificate, X509Version};

use crate::end_entity::EndEntity;
use crate::errors::date;
use crate::observed::refuse_as;

/// Maximum number of intermediate certificates that are considered. A chain contains at most six of them. The library
/// parses all certificates at each step of its search, and the number of steps grows exponentially with the number of
/// certificates that have the same names.
const INTERMEDIATES_MAX: usize = 8;

/// The object identifier 1.3.6.1.5.5.7.3.1.
const SERVER_AUTH: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 1]);

/// The object identifier 1.3.6.1.5.5.7.3.2.
const CLIENT_AUTH: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 2]);

/// The object identifier 2.5.29.37.0.
const ANY_PURPOSE: KeyPurposeId<'static> = KeyPurposeId::new(&[0x55, 0x1d, 0x25, 0]);

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

    const fn id(self) -> KeyPurposeId<'static> {
        match self {
            Self::Server => SERVER_AUTH,
            Self::Client => CLIENT_AUTH,
        }
    }

    const fn key_usage(self) -> KeyUsage {
        match self {
            Self::Server => KeyUsage::server_auth(),
            Self::Client => KeyUsage::client_auth(),
        }
    }
}

impl ExtendedKeyUsageValidator for Purpose {
    /// Like webpki's own check, but "any" permits every purpose.
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let mut is_limited = false;
        for id in purposes {
            let id = id?;
            if id == self.id() || id == ANY_PURPOSE {
                return Ok(());
            }
            is_limited = true;
        }
        if !is_limited {
            return Ok(());
        }
        let (required, present) = (self.key_usage(), Vec::new());
        let context = RequiredEkuNotFoundContext { required, present };
        Err(webpki::Error::RequiredEkuNotFoundContext(context))
    }
}

/// The reason why a chain is refused that is valid to webpki. The messages are Go's.
#[derive(Clone, Debug, thiserror::Error)]
enum ChainError {
    #[error(
        "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time {} is after \
         {} (trusted CA {subject:?})", date(now.as_secs()), date(not_after.as_secs())
    )]
    Expired { subject: String, now: UnixTime, not_after: UnixTime },
    #[error(
        "tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time {} is before \
         {} (trusted CA {subject:?})", date(now.as_secs()), date(not_before.as_secs())
    )]
    NotValidYet { subject: String, now: UnixTime, not_before: UnixTime },
    #[error(
        "tls: failed to verify certificate: x509: too many intermediates for path length constraint"
    )]
    TooManyIntermediates,
    #[error(
        "tls: failed to verify certificate: x509: certificate specifies an incompatible key usage"
    )]
    IncompatibleUsage,
    #[error(
        "tls: failed to verify certificate: x509: certificate is not authorized to sign other certificates"
    )]
    NotAuthorized,
    #[error(
        "tls: failed to verify certificate: x509: invalid signature: parent certificate cannot sign this kind of \
         certificate"
    )]
    CannotSign,
}

impl From<ChainError> for Error {
    fn from(reason: ChainError) -> Self {
        let error = match reason {
            ChainError::Expired { .. } => CertificateError::Expired,
            ChainError::NotValidYet { .. } => CertificateError::NotValidYet,
            ChainError::IncompatibleUsage => CertificateError::InvalidPurpose,
            ChainError::TooManyIntermediates
            | ChainError::NotAuthorized
            | ChainError::CannotSign => CertificateError::NotValidForName,
        };
        refuse_as(error, reason)
    }
}

/// The properties of an authority's certificate that webpki does not check.
#[derive(Debug)]
struct Limits {
    subject: String,
    not_before: UnixTime,
    not_after: UnixTime,
    intermediates_max: Option<u32>,
    /// The purposes that the certificate permits.
    purposes: Vec<Purpose>,
}

impl Limits {
    /// Returns the limits of a certificate that may sign other certificates. Returns `None` if an extension is invalid.
    fn of(certificate: &X509Certificate<'_>) -> Option<Self> {
        let constraints = certificate.basic_constraints().ok()?;
        let usage = certificate.extended_key_usage().ok()?;
        let is_permitted = |purpose: &Purpose| {
            usage.as_ref().is_none_or(|usage| purpose.is_permitted_by(usage.value))
        };
        Some(Self {
            subject: certificate.subject().to_string(),
            not_before: unix_time(&certificate.validity().not_before),
            not_after: unix_time(&certificate.validity().not_after),
            intermediates_max: constraints.and_then(|found| found.value.path_len_constraint),
            purposes: [Purpose::Server, Purpose::Client].into_iter().filter(is_permitted).collect(),
        })
    }

    fn check(
        &self,
        intermediates: usize,
        now: UnixTime,
        purpose: Purpose,
    ) -> Result<(), ChainError> {
        let Self { not_before, not_after, .. } = *self;
        let subject = || self.subject.clone();
        if now < not_before {
            return Err(ChainError::NotValidYet { subject: subject(), now, not_before });
        }
        if now > not_after {
            return Err(ChainError::Expired { subject: subject(), now, not_after });
        }
        if self.intermediates_max.is_some_and(|max| intermediates as u64 > u64::from(max)) {
            return Err(ChainError::TooManyIntermediates);
        }
        if !self.purposes.contains(&purpose) {
            return Err(ChainError::IncompatibleUsage);
        }
        Ok(())
    }
}

/// Converts a time. A time before 1970 becomes 1970.
fn unix_time(time: &ASN1Time) -> UnixTime {
    let secs = u64::try_from(time.timestamp()).unwrap_or(0);
    UnixTime::since_unix_epoch(Duration::from_secs(secs))
}

/// The trusted certificates that may sign other certificates.
#[derive(Debug, Default)]
pub(crate) struct Anchors {
    anchors: Vec<TrustAnchor<'static>>,
    /// The limits of each anchor, in the same order.
    limits: Vec<Limits>,
}

impl Anchors {
    /// Adds a trusted certificate, unless it may not sign other certificates.
    pub(crate) fn add(&mut self, certificate: &CertificateDer<'_>, parsed: &X509Certificate<'_>) {
        if may_sign(parsed)
            && let Some(limits) = Limits::of(parsed)
            // webpki does not read certificates of version 2.
            && let Ok(anchor) = anchor_from_trusted_cert(EndEntity::new(certificate).form())
        {
            self.anchors.push(anchor.to_owned());
            self.limits.push(limits);
        }
    }

    /// Checks that a certificate has a chain to an authority, and that the whole chain is valid now and permits the
    /// purpose. Only the first [`INTERMEDIATES_MAX`] different intermediate certificates are considered.
    pub(crate) fn verify(
        &self,
        end_entity: &EndEntity<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        purpose: Purpose,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
    ) -> Result<(), Error> {
        let algorithms = end_entity.algorithms(algorithms);
        let algorithms: Vec<&dyn SignatureVerificationAlgorithm> =
            algorithms.iter().map(|algorithm| algorithm as _).collect();
        let end_entity = EndEntityCert::try_from(end_entity.form()).map_err(library_error)?;
        let refusal = OnceCell::new();
        let check = |path: &VerifiedPath<'_>| {
            self.check(path, now, purpose).map_err(|reason| {
                refusal.get_or_init(|| reason);
                // webpki then looks for another chain.
                webpki::Error::UnknownIssuer
            })
        };
        let mut considered: Vec<CertificateDer<'_>> = Vec::new();
        for certificate in intermediates {
            if considered.len() < INTERMEDIATES_MAX && !considered.contains(certificate) {
                considered.push(certificate.as_ref().into());
            }
        }
        let verified = end_entity.verify_for_usage(
            &algorithms,
            &self.anchors,
            &considered,
            now,
            purpose,
            None,
            Some(&check),
        );
        match (verified, refusal.get()) {
            (Ok(_), _) => Ok(()),
            (Err(_), Some(reason)) => Err(reason.clone().into()),
            (Err(error), None) => Err(library_error(error)),
        }
    }

    /// Checks the properties of a chain that webpki does not check.
    fn check(
        &self,
        path: &VerifiedPath<'_>,
        now: UnixTime,
        purpose: Purpose,
    ) -> Result<(), ChainError> {
        let mut intermediates = 0;
        for certificate in path.intermediate_certificates() {
            intermediates += 1;
            let encoded = certificate.der();
            let (_, parsed) =
                X509Certificate::from_der(&encoded).map_err(|_| ChainError::CannotSign)?;
            if !may_sign(&parsed) {
                return Err(ChainError::CannotSign);
            }
        }
        // Several certificates of one authority, such as an expired one and its successor, can have the same anchor.
        self.anchors
            .iter()
            .zip(&self.limits)
            .filter(|(anchor, _)| *anchor == path.anchor())
            .map(|(_, limits)| limits.check(intermediates, now, purpose))
            .reduce(Result::or)
            .unwrap_or(Err(ChainError::CannotSign))
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

/// Converts webpki's error. The alert and the text of the error depend on the result.
fn library_error(error: webpki::Error) -> Error {
    use webpki::Error as Reason;
    let error = match error {
        Reason::EndEntityUsedAsCa => return ChainError::NotAuthorized.into(),
        Reason::PathLenConstraintViolated => return ChainError::TooManyIntermediates.into(),
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
