//! A member's whole state for another member, whose own is bad.
//!
//! What is handed out is what a client's snapshot holds, the digest at its end included; who asks must name itself, and
//! be a member.

use std::sync::Arc;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use quorate_member::RequestError;
use quorate_member::admission::Bound;
use quorate_peer::PeerBody;
use quorate_peer::image::{CLUSTER_HEADER, FROM_HEADER};
use quorate_state::units::MemberId;
use quorate_telemetry::log;
use tokio_stream::StreamExt;

use super::{PeerService, not_allowed};
use crate::http::{Reply, reply};
use crate::snapshot_stream::{STREAM_BYTES, SnapshotStream};

impl PeerService {
    /// Hands the state out, once all that is applied is in the file.
    pub(super) async fn image(&self, request: &Request<Incoming>) -> Response<PeerBody> {
        match self.open_image(request).await {
            Ok(stream) => {
                let frames = stream.map(|part| part.map(|part| Frame::data(part.blob)));
                let body = StreamBody::new(frames).map_err(Into::into);
                self.named(Response::new(PeerBody::new(body)))
            }
            Err(refused) => refused.map(whole),
        }
    }

    async fn open_image(&self, request: &Request<Incoming>) -> Result<SnapshotStream, Box<Reply>> {
        if request.method() != Method::GET {
            return Err(Box::new(not_allowed(Some(Method::GET))));
        }
        let from = self.member_that_asks(request.headers())?;
        let replies = &self.reader.admission().replies;
        let unavailable = |error: RequestError| {
            let answer = reply::error(StatusCode::SERVICE_UNAVAILABLE, &error.to_string());
            Box::new(self.named(answer))
        };
        let room = Bound::take_owned(replies, STREAM_BYTES).map_err(RequestError::from);
        let room = room.map_err(unavailable)?;
        self.administrator.commit_backend().await.map_err(unavailable)?;
        log::warn!(
            "a member asks for the state of this one, to rebuild its own",
            "local-member-id" = format!("{:x}", self.profile.id()),
            "remote-peer-id" = from.to_string()
        );
        let version = self.profile.standing().storage_version();
        let version = version.map_or_else(String::new, |version| version.to_string());
        let metrics = Arc::clone(self.profile.metrics());
        Ok(SnapshotStream::new(self.reader.backend(), metrics, version, room))
    }

    /// Who asks, if it is a member of this cluster.
    fn member_that_asks(&self, headers: &HeaderMap) -> Result<MemberId, Box<Reply>> {
        let refuse = |status, text| Box::new(self.named(reply::error(status, text)));
        let named = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if named(CLUSTER_HEADER) != Some(&format!("{:x}", self.profile.cluster_id())) {
            return Err(refuse(StatusCode::PRECONDITION_FAILED, "cluster ID mismatch"));
        }
        let id = named(FROM_HEADER).and_then(|id| u64::from_str_radix(id, 16).ok()).map(MemberId);
        let facts = self.profile.facts();
        id.filter(|id| facts.members.get(*id).is_some())
            .ok_or_else(|| refuse(StatusCode::FORBIDDEN, "who asks is no member of this cluster"))
    }
}

fn whole(body: http_body_util::Full<bytes::Bytes>) -> PeerBody {
    PeerBody::new(body.map_err(|never| match never {}))
}
