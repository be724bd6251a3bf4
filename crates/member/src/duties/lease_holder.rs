//! Renewal and lookup of leases: the leader answers from memory, and other members forward the request to it.
//!
//! A member that does not lead forwards the request to the leader's peer port and returns the leader's response. It
//! retries until the request timeout.
//!
//! # Not here
//!
//! The waits and checks before an answer (`core::LeaseTask`), the clocks (`state::lease`), the revocation of expired
//! leases (`housekeeping`), and the services that call this module (`edge::services::lease`, `peer_port`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use prost::Message;
use prost::encoding::encoded_len_varint;
use quorate_api::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    ResponseHeader,
};
use quorate_api::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
pub use quorate_core::LeaseAnswer;
use quorate_core::{LeaseStep, LeaseTask};
use quorate_state::units::LeaseId;

use crate::duties::leadership::{LeaderWatch, RETRY_PAUSE};
use crate::{Handles, MemberInfo, Proposer, Reader};
use quorate_net::runtime::blocking;
use quorate_peer::Dialer;
use quorate_peer::call::{Call, CallError};
use quorate_peer::pool::ConnectionPool;
use quorate_requests::RequestError;
use quorate_requests::access::{AccessControl, Credentials};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

/// The path on which the leader receives renewals from other members.
pub const RENEW_PATH: &str = "/leases";
/// The path on which the leader returns the remaining time of a lease to other members.
pub const TIME_TO_LIVE_PATH: &str = "/leases/internal";

/// Maximum size of the leader's response, in bytes. The limit is large because a lease may have many keys.
const ANSWER_BYTES_MAX: usize = 100 << 20;

/// Maximum size of the other fields in a response with the keys of a lease, in bytes.
const ANSWER_HEAD_BYTES_MAX: usize = 128;

/// A response of at least this size is encoded on a blocking thread, because it would delay the messages from other
/// members.
const LARGE_ANSWER_BYTES: usize = 1 << 20;

/// Why the leader gave no usable response. A retry may succeed, unless the response is too long.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("lease: {status} {text}")]
    Status { status: StatusCode, text: String },
    #[error("lease: cannot decode the response: {0}")]
    Malformed(#[from] prost::DecodeError),
    #[error("lease: the response is for another lease")]
    OtherLease,
}

impl Unanswered {
    /// Returns whether the response is longer than [`ANSWER_BYTES_MAX`], so that a retry would fail as well.
    fn is_too_long(&self) -> bool {
        match self {
            Self::Call(CallError::TooLong { .. }) => true,
            Self::Status { status, .. } => *status == StatusCode::PAYLOAD_TOO_LARGE,
            Self::Call(_) | Self::Malformed(_) | Self::OtherLease => false,
        }
    }
}

/// Renews and looks up leases for clients and for other members.
#[derive(Debug)]
pub struct LeaseHolder {
    info: Arc<MemberInfo>,
    access_control: Arc<AccessControl>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
    leader: LeaderWatch,
    /// Connections to the leader, for requests on behalf of clients.
    to_leader: ConnectionPool,
}

impl LeaseHolder {
    /// Creates a lease holder from these handles.
    pub fn new(handles: &Handles) -> Self {
        Self {
            info: Arc::clone(&handles.info),
            access_control: Arc::clone(&handles.access_control),
            reader: Arc::clone(&handles.reader),
            proposer: Arc::clone(&handles.proposer),
            leader: LeaderWatch::new(handles),
            to_leader: ConnectionPool::default(),
        }
    }

    /// Renews a lease, locally or through the leader, for a client that has permission to write all keys of the lease.
    /// Returns the TTL in seconds, or `None` if the lease no longer exists.
    pub async fn renew(
        &self,
        client: &Credentials,
        id: LeaseId,
    ) -> Result<Option<i64>, RequestError> {
        let mut task = LeaseTask::renew(id, self.info.limits().renews_at_once);
        let mut deadline = LeaderDeadline::default();
        loop {
            match self.answer(&mut task, Some(client)).await? {
                Some(LeaseAnswer::Renewed { ttl_secs }) => return Ok(Some(ttl_secs)),
                Some(LeaseAnswer::Gone) => return Ok(None),
                Some(LeaseAnswer::TimeToLive { .. }) => {
                    unreachable!("only a renewal was requested")
                }
                None => {}
            }
            let body = || Bytes::from(LeaseKeepAliveRequest { id: id.0 }.encode_to_vec());
            let read = |answer: &_| read_renewal(answer, id);
            let asked = (id, RENEW_PATH);
            if let Some(renewed) = self.ask_leader(asked, body, read, &mut deadline).await? {
                return Ok(renewed);
            }
        }
    }

    /// Renews a lease if authentication is disabled and no step has to wait. Returns the lease's TTL in seconds, or
    /// `None` if the caller must use [`Self::renew`].
    pub fn renew_at_once(&self, id: LeaseId) -> Option<i64> {
        if !self.access_control.is_open() {
            return None;
        }
        let task = LeaseTask::renew(id, self.info.limits().renews_at_once);
        let ttl_secs = task.renew_at_once(&*self.reader)?;
        self.info.metrics().lease.renewed.inc();
        Some(ttl_secs)
    }

    /// Looks up a lease, locally or through the leader. Returns `None` if there is no such lease. The caller fills in
    /// the header.
    pub async fn time_to_live(
        &self,
        request: &LeaseTimeToLiveRequest,
    ) -> Result<Option<LeaseTimeToLiveResponse>, RequestError> {
        let id = LeaseId(request.id);
        let mut task = LeaseTask::time_to_live(id, request.keys);
        let mut deadline = LeaderDeadline::default();
        loop {
            if let Some(answer) = self.answer(&mut task, None).await? {
                return Ok(into_response(id, answer));
            }
            let body = || {
                let forwarded = LeaseInternalRequest { lease_time_to_live_request: Some(*request) };
                Bytes::from(forwarded.encode_to_vec())
            };
            let read = |answer: &_| read_time_to_live(answer, id.0);
            let asked = (id, TIME_TO_LIVE_PATH);
            if let Some(found) = self.ask_leader(asked, body, read, &mut deadline).await? {
                return Ok(found);
            }
        }
    }

    /// Renews a lease for a client of another member, which has checked the client's permissions. Returns `None` if the
    /// lease clock does not run on this member.
    pub async fn renew_here(&self, id: LeaseId) -> Result<Option<LeaseAnswer>, RequestError> {
        self.answer(&mut LeaseTask::renew(id, false), None).await
    }

    /// Looks up a lease for another member. Returns the encoded response, `None` if the lease clock does not run on this
    /// member, or `Some(None)` if there is no such lease. Fails if the response would be longer than the other member
    /// accepts.
    pub async fn time_to_live_here(
        &self,
        request: &LeaseTimeToLiveRequest,
    ) -> Result<Option<Option<Bytes>>, RequestError> {
        let id = LeaseId(request.id);
        let answer = self.answer(&mut LeaseTask::time_to_live(id, request.keys), None).await?;
        let Some(answer) = answer else { return Ok(None) };
        let key_bytes = encoded_key_bytes(&answer);
        check_answer_bytes(key_bytes)?;
        let encode = move || {
            let found = into_response(id, answer)?;
            let response = LeaseInternalResponse { lease_time_to_live_response: Some(found) };
            Some(Bytes::from(response.encode_to_vec()))
        };
        if key_bytes < LARGE_ANSWER_BYTES {
            Ok(Some(encode()))
        } else {
            Ok(Some(blocking(encode).await))
        }
    }

    /// Runs the steps of the task until it has an answer. Returns `None` if only the leader can answer.
    async fn answer(
        &self,
        task: &mut LeaseTask,
        client: Option<&Credentials>,
    ) -> Result<Option<LeaseAnswer>, RequestError> {
        let mut has_happened = true;
        loop {
            let step = task.step(has_happened, &*self.reader);
            has_happened = true;
            match step {
                LeaseStep::AwaitApplied => self.reader.wait_applied().await?,
                LeaseStep::CheckClient => {
                    if let Some(client) = client {
                        self.access_control.check_renewal(client, task.id()).await?;
                    }
                }
                LeaseStep::AskQuorum => has_happened = self.leader.confirm_leadership().await,
                LeaseStep::AwaitGone => {
                    std::future::poll_fn(|cx| self.reader.leases().poll_gone(task.id(), cx)).await;
                }
                LeaseStep::Propose(term, request) => {
                    let kind = RequestKind::LeaseCheckpoint;
                    match self.proposer.propose_as_leader(term, *request, kind).await {
                        Ok(_) => {}
                        // Another member leads or is about to lead, so the request was not proposed.
                        Err(RequestError::ProposalDropped) => has_happened = false,
                        Err(error) => return Err(error),
                    }
                }
                LeaseStep::AskLeader => return Ok(None),
                LeaseStep::Answer(answer) => {
                    if matches!(answer, LeaseAnswer::Renewed { .. }) {
                        self.info.metrics().lease.renewed.inc();
                    }
                    return Ok(Some(answer));
                }
            }
        }
    }

    /// Waits for a leader and sends the request to it. Returns `None` after a pause if this member leads now, or if the
    /// leader gives no usable response. Fails if the response is too long.
    async fn ask_leader<T>(
        &self,
        (id, path): (LeaseId, &str),
        body: impl Fn() -> Bytes,
        read: impl Fn(&Response<Bytes>) -> Result<T, Unanswered>,
        deadline: &mut LeaderDeadline,
    ) -> Result<Option<T>, RequestError> {
        let limit = self.info.limits().request_timeout;
        let deadline = *deadline.0.get_or_insert_with(|| Instant::now() + limit);
        let leader = self.leader.wait_for_leader(deadline).await?;
        let is_other = leader.id != self.info.id();
        let body = body();
        for url in leader.peer_urls.iter().filter(|_| is_other) {
            let asking = ask((&self.to_leader, self.info.dialer()), url, path, &body, deadline);
            let Some(answer) = self.leader.while_leading(leader.id, asking).await else { break };
            match answer.and_then(|answer| read(&answer)) {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) => {
                    note_failure(id, url, &error);
                    if error.is_too_long() {
                        return Err(RequestError::TooLarge);
                    }
                }
            }
        }
        pause_until_retry(deadline).await?;
        Ok(None)
    }
}

/// The deadline for requests to the leader, set at the first request.
#[derive(Default)]
struct LeaderDeadline(Option<Instant>);

fn into_response(id: LeaseId, answer: LeaseAnswer) -> Option<LeaseTimeToLiveResponse> {
    match answer {
        LeaseAnswer::TimeToLive { ttl_secs, granted_secs, keys } => Some(LeaseTimeToLiveResponse {
            header: Some(ResponseHeader::default()),
            id: id.0,
            ttl: ttl_secs,
            granted_ttl: granted_secs,
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
        }),
        LeaseAnswer::Gone => None,
        LeaseAnswer::Renewed { .. } => unreachable!("only the time to live was requested"),
    }
}

/// Returns the size of the keys in the encoded response, in bytes.
fn encoded_key_bytes(answer: &LeaseAnswer) -> usize {
    match answer {
        LeaseAnswer::TimeToLive { keys, .. } => {
            let encoded = |key: &Arc<[u8]>| 1 + encoded_len_varint(key.len() as u64) + key.len();
            keys.iter().map(encoded).sum()
        }
        LeaseAnswer::Gone | LeaseAnswer::Renewed { .. } => 0,
    }
}

/// Refuses a response that would be longer than the other member accepts.
const fn check_answer_bytes(key_bytes: usize) -> Result<(), RequestError> {
    let fits = key_bytes.saturating_add(ANSWER_HEAD_BYTES_MAX) <= ANSWER_BYTES_MAX;
    if fits { Ok(()) } else { Err(RequestError::TooLarge) }
}

async fn pause_until_retry(deadline: Instant) -> Result<(), RequestError> {
    tokio::time::sleep(RETRY_PAUSE).await;
    if Instant::now() >= deadline { Err(RequestError::Timeout) } else { Ok(()) }
}

fn note_failure(id: LeaseId, url: &str, error: &Unanswered) {
    log::debug!(
        "failed to forward a lease request to the leader",
        "lease-id" = format!("{:016x}", id.0),
        "url" = url,
        "error" = error.to_string()
    );
}

async fn ask(
    (pool, dialer): (&ConnectionPool, &Dialer),
    url: &str,
    path: &str,
    body: &Bytes,
    deadline: Instant,
) -> Result<Response<Bytes>, Unanswered> {
    let timeout: Duration = deadline.saturating_duration_since(Instant::now());
    let mut call = Call::get(url, path, timeout);
    call.method = Method::POST;
    call.headers.push(("content-type", "application/protobuf".to_owned()));
    call.body = body.clone();
    call.bytes_max = ANSWER_BYTES_MAX;
    Ok(call.send_over(pool, dialer).await?)
}

/// Returns the body of a successful response, or `None` if there is no such lease.
fn body_of(answer: &Response<Bytes>) -> Result<Option<&Bytes>, Unanswered> {
    match answer.status() {
        StatusCode::OK => Ok(Some(answer.body())),
        StatusCode::NOT_FOUND => Ok(None),
        status => {
            let text = String::from_utf8_lossy(answer.body()).trim_end().to_owned();
            Err(Unanswered::Status { status, text })
        }
    }
}

fn read_renewal(answer: &Response<Bytes>, id: LeaseId) -> Result<Option<i64>, Unanswered> {
    let Some(body) = body_of(answer)? else { return Ok(None) };
    let response = LeaseKeepAliveResponse::decode(body.clone())?;
    if response.id == id.0 { Ok(Some(response.ttl)) } else { Err(Unanswered::OtherLease) }
}

fn read_time_to_live(
    answer: &Response<Bytes>,
    id: i64,
) -> Result<Option<LeaseTimeToLiveResponse>, Unanswered> {
    let Some(body) = body_of(answer)? else { return Ok(None) };
    let response = LeaseInternalResponse::decode(body.clone())?;
    let found = response.lease_time_to_live_response.unwrap_or_default();
    if found.id == id { Ok(Some(found)) } else { Err(Unanswered::OtherLease) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: Vec<u8>) -> Response<Bytes> {
        Response::builder().status(status).body(body.into()).unwrap()
    }

    #[test]
    fn renewal_responses_from_the_leader_are_decoded() {
        let renewed = LeaseKeepAliveResponse { header: None, id: 7, ttl: 60 }.encode_to_vec();
        let read = |status, body: &[u8]| read_renewal(&answer(status, body.to_vec()), LeaseId(7));
        assert_eq!(read(200, &renewed).unwrap(), Some(60));
        assert_eq!(read(404, b"lease not found\n").unwrap(), None);
        let refused = read(400, b"not a primary lessor\n").unwrap_err();
        assert_eq!(refused.to_string(), "lease: 400 Bad Request not a primary lessor");
        assert!(read(200, b"\xff").is_err());
        let other = read_renewal(&answer(200, renewed), LeaseId(8)).unwrap_err();
        assert!(matches!(other, Unanswered::OtherLease));
    }

    #[test]
    fn a_response_with_too_many_keys_is_refused_without_a_retry() {
        let answer_of =
            |keys| LeaseAnswer::TimeToLive { ttl_secs: i64::MAX, granted_secs: i64::MAX, keys };
        let keys: Vec<Arc<[u8]>> = [1, 127, 128, 20_000].map(|len| vec![b'k'; len].into()).into();
        let key_bytes = encoded_key_bytes(&answer_of(keys.clone()));
        let encoded = |keys| {
            let found = into_response(LeaseId(i64::MAX), answer_of(keys));
            LeaseInternalResponse { lease_time_to_live_response: found }.encoded_len()
        };
        let head_bytes = encoded(keys) - key_bytes;
        assert!((encoded(Vec::new())..=ANSWER_HEAD_BYTES_MAX).contains(&head_bytes));
        check_answer_bytes(ANSWER_BYTES_MAX - ANSWER_HEAD_BYTES_MAX).unwrap();
        let refused = check_answer_bytes(ANSWER_BYTES_MAX - ANSWER_HEAD_BYTES_MAX + 1).unwrap_err();
        let refused = refused.to_string().into_bytes();
        assert!(read_time_to_live(&answer(413, refused), 7).unwrap_err().is_too_long());
        let url = "http://a".to_owned();
        let too_long = CallError::TooLong { url, bytes_max: ANSWER_BYTES_MAX };
        assert!(Unanswered::from(too_long).is_too_long());
        assert!(!read_time_to_live(&answer(500, Vec::new()), 7).unwrap_err().is_too_long());
    }

    #[test]
    fn the_remaining_ttl_is_wrapped_in_an_internal_response() {
        let found = LeaseTimeToLiveResponse {
            header: Some(ResponseHeader::default()),
            id: -7,
            ttl: 3,
            granted_ttl: 60,
            keys: vec![Bytes::from_static(b"k")],
        };
        let envelope = LeaseInternalResponse { lease_time_to_live_response: Some(found.clone()) };
        let body = envelope.encode_to_vec();
        assert_eq!(read_time_to_live(&answer(200, body.clone()), -7).unwrap(), Some(found));
        assert!(read_time_to_live(&answer(200, body), 7).is_err());
        assert!(read_time_to_live(&answer(200, Vec::new()), 7).is_err());
        assert_eq!(read_time_to_live(&answer(404, Vec::new()), 7).unwrap(), None);
    }
}
