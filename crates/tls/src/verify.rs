//! Verifies the other side's certificate.
//!
//! The certificate must have a chain to a trusted authority, be within its validity period, and permit its use as a
//! server's or a client's certificate. A server's certificate must be valid for the dialed host. A flag can skip all
//! these checks for servers. If the allowed names are limited, the certificate must contain one of them. Client
//! certificates must not be revoked.
//!
//! A certificate that is itself trusted needs no chain, whether or not it belongs to an authority. Go accepts members'
//! self-signed certificates for this reason.
//!
//! # Not here
//!
//! The rules for chains (`chain`), and certificates that rustls does not read in their original form (`end_entity`).

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate};

use crate::authorities::Authorities;
use crate::chain::Purpose;
use crate::end_entity::EndEntity;
use crate::names::{Allowed, Names};
use crate::observed::{note, refuse};
use crate::revocation::Revocations;

/// The certificate contains no allowed name. The error message is etcd's for both sides.
#[derive(Debug, thiserror::Error)]
#[error("client certificate authentication failed")]
struct NotAllowed;

/// Checks the validity period and the purpose of a trusted certificate without a chain.
fn check_alone(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
    purpose: Purpose,
) -> Result<(), CertificateError> {
    let encoding = |_| CertificateError::BadEncoding;
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(encoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let now = ASN1Time::from_timestamp(now).map_err(|_| CertificateError::BadEncoding)?;
    if now < parsed.validity().not_before {
        return Err(CertificateError::NotValidYet);
    }
    if now > parsed.validity().not_after {
        return Err(CertificateError::Expired);
    }
    let usage = parsed.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    match usage {
        Some(usage) if !purpose.is_permitted_by(usage.value) => {
            Err(CertificateError::InvalidPurpose)
        }
        Some(_) | None => Ok(()),
    }
}

/// Verifies client certificates.
#[derive(Debug)]
pub(crate) struct ClientVerifier {
    pub(crate) authorities: Authorities,
    pub(crate) allowed: Allowed,
    pub(crate) revocations: Option<Revocations>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Clients receive this list of acceptable authorities at the start of a handshake. The list is empty, which
        // permits any authority, because the trusted authorities may be reloaded later.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        note(|observed| observed.names = Names::of(end_entity).unwrap_or_default());
        let trusted = self.authorities.trusted().map_err(refuse)?;
        if trusted.has(end_entity) {
            check_alone(end_entity, now, Purpose::Client)?;
        } else {
            let algorithms = self.algorithms.all;
            let certificate = EndEntity::new(end_entity);
            trusted.anchors.verify(
                &certificate,
                intermediates,
                now,
                Purpose::Client,
                algorithms,
            )?;
        }
        if !self.allowed.allows(end_entity) {
            return Err(refuse(NotAllowed));
        }
        if let Some(revocations) = &self.revocations {
            let chain = std::iter::once(end_entity).chain(intermediates);
            revocations.check(chain).map_err(refuse)?;
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, EndEntity::new(cert).form(), signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, EndEntity::new(cert).form(), signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies server certificates.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    /// The trusted authorities. `None` accepts any certificate with an allowed name, even if it has expired or is for
    /// another host.
    pub(crate) authorities: Option<Authorities>,
    pub(crate) allowed: Allowed,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
}

impl ServerVerifier {
    pub(crate) fn new(
        authorities: Option<Authorities>,
        allowed: Allowed,
        provider: &CryptoProvider,
    ) -> Self {
        Self { authorities, allowed, algorithms: provider.signature_verification_algorithms }
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(authorities) = &self.authorities {
            let trusted = authorities.trusted().map_err(refuse)?;
            let certificate = EndEntity::new(end_entity);
            if trusted.has(end_entity) {
                check_alone(end_entity, now, Purpose::Server)?;
            } else {
                let (anchors, algorithms) = (&trusted.anchors, self.algorithms.all);
                anchors.verify(&certificate, intermediates, now, Purpose::Server, algorithms)?;
            }
            verify_server_name(&ParsedCertificate::try_from(certificate.form())?, server_name)?;
        }
        // Skipping the verification does not skip the check of allowed names.
        if !self.allowed.allows(end_entity) {
            return Err(refuse(NotAllowed));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, EndEntity::new(cert).form(), signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, EndEntity::new(cert).form(), signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
