//! Answers lease requests that other members forward to the leader, whose clock determines when leases expire.

use bytes::Bytes;
use http::{Request, StatusCode};
use prost::Message;
use quorate_api::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use quorate_api::leasepb::LeaseInternalRequest;
use quorate_net::listen::IncomingBody;
use quorate_state::units::LeaseId;

use crate::{PeerService, read_body};
use quorate_http_pages::reply::{self, Reply};
use quorate_member::lease_holder::LeaseAnswer;
use quorate_requests::RequestError;

const PROTOBUF: &str = "application/protobuf";

impl PeerService {
    pub(super) async fn renew_lease(&self, request: Request<IncomingBody>) -> Reply {
        let body = match read_body(request.into_body()).await {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let Ok(request) = LeaseKeepAliveRequest::decode(body) else { return unreadable() };
        match self.leases.renew_here(LeaseId(request.id)).await {
            Ok(Some(LeaseAnswer::Renewed { ttl_secs: ttl })) => {
                protobuf(&LeaseKeepAliveResponse { header: None, id: request.id, ttl })
            }
            Ok(Some(LeaseAnswer::Gone | LeaseAnswer::TimeToLive { .. })) => not_found(),
            Ok(None) => refuse(StatusCode::BAD_REQUEST, &RequestError::NotPrimaryLessor),
            Err(RequestError::TimeoutWaitingForApply) => not_caught_up(),
            Err(error) => refuse(StatusCode::BAD_REQUEST, &error),
        }
    }

    pub(super) async fn lease_time_to_live(&self, request: Request<IncomingBody>) -> Reply {
        let body = match read_body(request.into_body()).await {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let request = LeaseInternalRequest::decode(body).unwrap_or_default();
        let Some(request) = request.lease_time_to_live_request else { return unreadable() };
        match self.leases.time_to_live_here(&request).await {
            Ok(Some(None)) => not_found(),
            Ok(Some(Some(response))) => reply::typed(PROTOBUF, response),
            Err(RequestError::TimeoutWaitingForApply) => not_caught_up(),
            Err(error @ RequestError::TooLarge) => refuse(StatusCode::PAYLOAD_TOO_LARGE, &error),
            Ok(None) | Err(_) => {
                refuse(StatusCode::INTERNAL_SERVER_ERROR, &RequestError::NotPrimaryLessor)
            }
        }
    }
}

fn protobuf(message: &impl Message) -> Reply {
    reply::typed(PROTOBUF, Bytes::from(message.encode_to_vec()))
}

fn refuse(status: StatusCode, error: &RequestError) -> Reply {
    reply::error(status, &error.to_string())
}

fn unreadable() -> Reply {
    reply::error(StatusCode::BAD_REQUEST, "error unmarshalling request")
}

fn not_found() -> Reply {
    reply::error(StatusCode::NOT_FOUND, "lease not found")
}

fn not_caught_up() -> Reply {
    let text = "waiting for node to catch up its applied index has timed out";
    reply::error(StatusCode::REQUEST_TIMEOUT, text)
}
