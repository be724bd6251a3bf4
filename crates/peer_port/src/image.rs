//! Serves a member's whole state to another member whose own state is damaged.
//!
//! The response is identical to a snapshot that a client downloads, including the digest at its end. It contains all
//! keys and password hashes, so only members may receive it. The request names the requesting member, and the
//! connection's certificate must belong to that member. The rules are:
//!
//! * The peer port must verify certificates. Requests in plaintext or with unverified certificates are
//!   refused.
//! * If flags list the allowed names in peer certificates, every certificate that the port accepts is assumed to belong
//!   to a member.
//! * Otherwise the CA may also have signed client certificates, so the certificate must be valid for the host of one of
//!   the member's peer URLs.
//!
//! If the audit log is enabled, all requests, including refused requests, are written to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use quorate_net::listen::IncomingBody;
use quorate_net::listen::{ClientCertificate, Ends};
use quorate_peer::PeerBody;
use quorate_peer::image::{CLUSTER_HEADER, FROM_HEADER};
use quorate_requests::RequestError;
use quorate_requests::admission::Bound;
use quorate_state::units::MemberId;
use quorate_telemetry::audit::{Asked, Auditor, Outcome};
use quorate_telemetry::log;
use tokio_stream::StreamExt;
use tonic::Code;

use crate::{PeerService, not_allowed};
use quorate_grpc::methods::IMAGE_METHOD;
use quorate_grpc::status::code_name;
use quorate_http_pages::reply::{self, Reply};
use quorate_requests::{STREAM_BYTES, SnapshotStream};

/// The conditions under which a member's state is served to another member.
#[derive(Clone, Debug, Default)]
pub struct ImagePolicy {
    /// Whether flags list the allowed names in peer certificates.
    pub peers_are_named: bool,
    /// The audit log, if there is one.
    pub auditor: Option<Arc<Auditor>>,
}

impl PeerService {
    /// Serves the state, after committing all applied entries to the backend file.
    pub(super) async fn image(&self, request: &Request<IncomingBody>) -> Response<PeerBody> {
        let begun = Instant::now();
        let opened = self.open_image(request).await;
        self.audit_image(request, opened.as_ref().map_err(|refused| refused.status()), begun);
        match opened {
            Ok(stream) => {
                let frames = stream.map(|part| part.map(|part| Frame::data(part.blob)));
                let body = StreamBody::new(frames).map_err(Into::into);
                self.named(Response::new(PeerBody::new(body)))
            }
            Err(refused) => refused.map(whole),
        }
    }

    async fn open_image(
        &self,
        request: &Request<IncomingBody>,
    ) -> Result<SnapshotStream, Box<Reply>> {
        if request.method() != Method::GET {
            return Err(Box::new(not_allowed(Some(Method::GET))));
        }
        if !self.images.auditor.as_ref().is_none_or(|auditor| auditor.admits()) {
            let error = RequestError::TooManyRequests.to_string();
            return Err(Box::new(
                self.named(reply::error(StatusCode::SERVICE_UNAVAILABLE, &error)),
            ));
        }
        let from = self.member_that_asks(request)?;
        let replies = &self.info.admission().replies;
        let unavailable = |error: RequestError| {
            let answer = reply::error(StatusCode::SERVICE_UNAVAILABLE, &error.to_string());
            Box::new(self.named(answer))
        };
        let permit = Bound::take_owned(replies, STREAM_BYTES).map_err(RequestError::from);
        let permit = permit.map_err(unavailable)?;
        self.administrator.commit_backend().await.map_err(unavailable)?;
        log::warn!(
            "another member is fetching this member's state to rebuild its own state",
            "local-member-id" = format!("{:x}", self.info.id()),
            "remote-peer-id" = from.to_string(),
            "remote-addr" = remote_of(request).map(|remote| remote.to_string()).unwrap_or_default()
        );
        Ok(SnapshotStream::new(self.reader.image(), Arc::clone(self.info.metrics()), permit))
    }

    /// Returns the requesting member, if the request names a member and the certificate belongs to that member.
    fn member_that_asks(&self, request: &Request<IncomingBody>) -> Result<MemberId, Box<Reply>> {
        let headers = request.headers();
        let refuse = |status, text| Box::new(self.named(reply::error(status, text)));
        let named = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if named(CLUSTER_HEADER) != Some(&format!("{:x}", self.info.cluster_id())) {
            return Err(refuse(StatusCode::PRECONDITION_FAILED, "cluster ID mismatch"));
        }
        let id = named(FROM_HEADER).and_then(|id| u64::from_str_radix(id, 16).ok()).map(MemberId);
        let facts = self.info.facts();
        let Some(member) = id.and_then(|id| facts.members.get(id)) else {
            return Err(refuse(
                StatusCode::FORBIDDEN,
                "the requesting member is not in this cluster",
            ));
        };
        check_certificate(certificate_of(request), &member.peer_urls, self.images.peers_are_named)
            .map_err(|why| refuse(StatusCode::UNAUTHORIZED, why))?;
        Ok(member.id)
    }

    fn audit_image(
        &self,
        request: &Request<IncomingBody>,
        outcome: Result<&SnapshotStream, StatusCode>,
        begun: Instant,
    ) {
        let code = match outcome {
            Ok(_) => Code::Ok,
            Err(StatusCode::UNAUTHORIZED) => Code::Unauthenticated,
            Err(StatusCode::FORBIDDEN) => Code::PermissionDenied,
            Err(StatusCode::SERVICE_UNAVAILABLE) => Code::Unavailable,
            Err(_) => Code::InvalidArgument,
        };
        let remote = remote_of(request);
        let certificate =
            certificate_of(request).map(|credentials| Arc::clone(&credentials.common_name));
        if code != Code::Ok && self.image_refusals.admits().is_some() {
            log::warn!(
                "refused to provide this member's state",
                "local-member-id" = format!("{:x}", self.info.id()),
                "remote-addr" = remote.map(|remote| remote.to_string()).unwrap_or_default(),
                "certificate" = certificate.as_deref().unwrap_or_default(),
                "code" = code_name(code)
            );
        }
        let Some(auditor) = &self.images.auditor else { return };
        let from = request.headers().get(FROM_HEADER).and_then(|from| from.to_str().ok());
        let account = auditor.begin(remote, certificate);
        account.note_asked(Asked::new("image").text("member", from.unwrap_or_default()));
        let (method, code, took) = (IMAGE_METHOD, code_name(code), Some(begun.elapsed()));
        account.end(Outcome { method, code, error: "", took });
    }
}

fn remote_of(request: &Request<IncomingBody>) -> Option<SocketAddr> {
    request.extensions().get::<Ends>().and_then(|ends| ends.remote)
}

fn certificate_of(request: &Request<IncomingBody>) -> Option<&Arc<ClientCertificate>> {
    request.extensions().get::<Arc<ClientCertificate>>()
}

/// Checks that a certificate belongs to the member with these peer URLs. If it does not, returns the reason.
fn check_certificate(
    credentials: Option<&Arc<ClientCertificate>>,
    peer_urls: &[String],
    peers_are_named: bool,
) -> Result<(), &'static str> {
    let Some(credentials) = credentials else {
        return Err(
            "a request for this member's state needs a connection with a verified client certificate \
             (--peer-client-cert-auth)",
        );
    };
    if peers_are_named
        || peer_urls.iter().filter_map(|url| host(url)).any(|it| credentials.stands_for(it))
    {
        return Ok(());
    }
    Err(
        "the certificate is not valid for the host of any peer URL of the requesting member, and no allowed peer \
         names are configured (--peer-cert-allowed-cn, --peer-cert-allowed-hostname)",
    )
}

/// Returns the host of a URL without the brackets of an IPv6 address.
fn host(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("https://")?;
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next(),
        None => authority.split(':').next(),
    }
}

fn whole(body: http_body_util::Full<bytes::Bytes>) -> PeerBody {
    PeerBody::new(body.map_err(|never| match never {}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_checked_only_for_https_urls() {
        for (url, expected) in [
            ("https://a.example.com:2380", Some("a.example.com")),
            ("https://10.0.0.1:2380/path", Some("10.0.0.1")),
            ("https://[fd00::1]:2380", Some("fd00::1")),
            ("https://a", Some("a")),
            ("http://a:2380", None),
            ("unixs:///run/peer.sock", None),
        ] {
            assert_eq!(host(url), expected, "{url}");
        }
    }

    #[test]
    fn a_certificate_without_hosts_is_accepted_if_allowed_names_are_configured() {
        let nameless = Arc::new(ClientCertificate::new("app", Vec::new()));
        let urls = ["https://127.0.0.1:2380".to_owned()];
        assert!(
            check_certificate(None, &urls, true).is_err(),
            "a plaintext connection has no certificate"
        );
        assert!(check_certificate(Some(&nameless), &urls, false).is_err());
        assert!(check_certificate(Some(&nameless), &urls, true).is_ok());
    }
}
