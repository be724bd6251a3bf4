//! Renewing leases and looking at them: on the leader from memory, anywhere else by asking the leader.
//!
//! Renewals are no log entries. Only the leader's clocks run, so any other member passes a renewal on to
//! the leader's peer port and hands back what that says, trying again until the request timeout.
//!
//! # Invariant
//!
//! A leader answers for leases only while a quorum is known to follow it (`core::lease_rules`). Otherwise it asks a
//! quorum first, and it always does before it says that there is no such lease: the next leader may have granted it.
//!
//! # Not here
//!
//! The clocks (`state::lease`), when a leader may answer on its own (`core::lease_rules`), proposing the end of leases (`housekeeping`), the services that call this
//! (`edge::services::lease`, `peer_port`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use prost::Message;
use quorate_api::etcdserverpb::{
    InternalRaftRequest, LeaseCheckpoint, LeaseCheckpointRequest, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, ResponseHeader,
};
use quorate_api::leasepb::{LeaseInternalRequest, LeaseInternalResponse};
pub use quorate_core::lease_rules::Renewed;
use quorate_core::lease_rules::{self, RenewalCourse, RenewalStep};
use quorate_state::apply::Permission;
use quorate_state::auth::Access;
use quorate_state::units::LeaseId;

use crate::access::{Gate, Shown};
use crate::leadership::{LeaderWatch, RETRY_PAUSE};
use crate::{Handles, Profile, Proposer, Reader, RequestError};
use quorate_peer::Dialer;
use quorate_peer::call::{Call, CallError};
use quorate_peer::pool::ConnectionPool;
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

/// Where the leader takes renewals of other members.
pub const RENEW_PATH: &str = "/leases";
/// Where it tells them what is left of a lease.
pub const TIME_TO_LIVE_PATH: &str = "/leases/internal";

/// Longest answer of the leader that is read: a lease may have many keys.
const ANSWER_BYTES_MAX: usize = 100 << 20;

/// Why the leader could not be made to answer; asking again may help.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("lease: {status} {text}")]
    Status { status: StatusCode, text: String },
    #[error("lease: the answer cannot be read: {0}")]
    Malformed(#[from] prost::DecodeError),
    #[error("lease: the answer is about another lease")]
    OtherLease,
}

/// See the module.
#[derive(Debug)]
pub struct LeaseHolder {
    profile: Arc<Profile>,
    gate: Arc<Gate>,
    reader: Arc<Reader>,
    proposer: Arc<Proposer>,
    leader: LeaderWatch,
    /// For what the leader is asked on behalf of clients.
    to_leader: ConnectionPool,
}

impl LeaseHolder {
    /// Of these handles.
    pub fn new(handles: &Handles) -> Self {
        Self {
            profile: Arc::clone(&handles.profile),
            gate: Arc::clone(&handles.gate),
            reader: Arc::clone(&handles.reader),
            proposer: Arc::clone(&handles.proposer),
            leader: LeaderWatch::new(handles),
            to_leader: ConnectionPool::default(),
        }
    }

    /// Renews a lease for who may write all its keys, here or at the leader. Returns its lifetime in seconds, or `None`
    /// if there is no such lease any more.
    pub async fn renew(&self, client: &Shown, id: LeaseId) -> Result<Option<i64>, RequestError> {
        if self.profile.standing().leads() {
            // One that is not known here may just have been granted, by an entry that is not applied yet.
            if !self.profile.limits().renews_at_once || !self.reader.leases().contains(id) {
                self.reader.wait_applied().await?;
            }
            self.check_renewal(client, id).await?;
            match self.renew_here(id).await? {
                Renewed::For(ttl_secs) => return Ok(Some(ttl_secs)),
                Renewed::Gone => return Ok(None),
                Renewed::NotPrimary => {}
            }
        }
        let body = Bytes::from(LeaseKeepAliveRequest { id: id.0 }.encode_to_vec());
        let deadline = Instant::now() + self.profile.limits().request_timeout;
        loop {
            let leader = self.leader.wait_for_leader(deadline).await?;
            self.check_renewal(client, id).await?;
            if leader.id == self.profile.id() {
                match self.renew_here(id).await? {
                    Renewed::For(ttl_secs) => return Ok(Some(ttl_secs)),
                    Renewed::Gone => return Ok(None),
                    Renewed::NotPrimary => {}
                }
            } else {
                for url in &leader.peer_urls {
                    let asking = ask(
                        (&self.to_leader, self.profile.dialer()),
                        url,
                        RENEW_PATH,
                        &body,
                        deadline,
                    );
                    let Some(answer) = self.leader.while_leading(leader.id, asking).await else {
                        break;
                    };
                    match answer.and_then(|answer| read_renewal(&answer, id)) {
                        Ok(renewed) => return Ok(renewed),
                        Err(error) => note_failure(id, url, &error),
                    }
                }
            }
            pause_until_retry(deadline).await?;
        }
    }

    async fn check_renewal(&self, client: &Shown, id: LeaseId) -> Result<(), RequestError> {
        if self.gate.is_open() {
            return Ok(());
        }
        let check = |may: Permission<'_>| {
            may.check_user()?;
            may.check_lease(Access::Write, id)
        };
        let pass = self.gate.pass(client, check).await?;
        self.gate.confirm(pass).await
    }

    /// Renews a lease if its clock runs here. The caller has checked the client's permissions. Waits for an expired
    /// lease to be gone. [`Renewed::NotPrimary`] where no quorum confirms that this member leads: then another
    /// member's clock decides.
    pub async fn renew_here(&self, id: LeaseId) -> Result<Renewed, RequestError> {
        let mut course = RenewalCourse::new(id);
        loop {
            let is_confirmed = || self.profile.standing().is_leadership_confirmed();
            match course.step(self.reader.leases(), self.profile.now(), is_confirmed) {
                RenewalStep::Answer(renewed) => {
                    if matches!(renewed, Renewed::For(_)) {
                        self.profile.metrics().lease.renewed.inc();
                    }
                    return Ok(renewed);
                }
                RenewalStep::Confirm => {
                    if !self.leader.confirm_leadership().await {
                        return Ok(Renewed::NotPrimary);
                    }
                }
                RenewalStep::AwaitEnd => {
                    std::future::poll_fn(|cx| self.reader.leases().poll_gone(id, cx)).await;
                }
                RenewalStep::Checkpoint => {
                    let checkpoints = vec![LeaseCheckpoint { id: id.0, remaining_ttl: 0 }];
                    let request = InternalRaftRequest {
                        lease_checkpoint: Some(LeaseCheckpointRequest { checkpoints }),
                        ..InternalRaftRequest::default()
                    };
                    self.proposer.propose_as_member(request, RequestKind::LeaseCheckpoint).await?;
                }
            }
        }
    }

    /// Looks at a lease, here or at the leader. `None` if there is no such lease. The header is left to the
    /// caller.
    pub async fn time_to_live(
        &self,
        request: &LeaseTimeToLiveRequest,
    ) -> Result<Option<LeaseTimeToLiveResponse>, RequestError> {
        if self.profile.standing().leads() {
            self.reader.wait_applied().await?;
            match self.time_to_live_here(request).await {
                // Another member leads, or will soon.
                Err(RequestError::LeaderChanged) => {}
                answer => return answer,
            }
        }
        let forwarded = LeaseInternalRequest { lease_time_to_live_request: Some(*request) };
        let body = Bytes::from(forwarded.encode_to_vec());
        let deadline = Instant::now() + self.profile.limits().request_timeout;
        loop {
            let leader = self.leader.wait_for_leader(deadline).await?;
            if leader.id == self.profile.id() {
                self.reader.wait_applied().await?;
                match self.time_to_live_here(request).await {
                    Err(RequestError::LeaderChanged) => {}
                    answer => return answer,
                }
            }
            for url in &leader.peer_urls {
                let asking = ask(
                    (&self.to_leader, self.profile.dialer()),
                    url,
                    TIME_TO_LIVE_PATH,
                    &body,
                    deadline,
                );
                let Some(answer) = self.leader.while_leading(leader.id, asking).await else {
                    break;
                };
                match answer.and_then(|answer| read_time_to_live(&answer, request.id)) {
                    Ok(found) => return Ok(found),
                    Err(error) => note_failure(LeaseId(request.id), url, &error),
                }
            }
            pause_until_retry(deadline).await?;
        }
    }

    /// Looks at a lease whose clock runs here.
    pub async fn time_to_live_here(
        &self,
        request: &LeaseTimeToLiveRequest,
    ) -> Result<Option<LeaseTimeToLiveResponse>, RequestError> {
        let id = LeaseId(request.id);
        let is_confirmed = || self.profile.standing().is_leadership_confirmed();
        let may_tell = lease_rules::may_tell_time_to_live(self.reader.leases(), id, is_confirmed);
        if !may_tell && !self.leader.confirm_leadership().await {
            return Err(RequestError::LeaderChanged);
        }
        let leases = self.reader.leases();
        let Some(found) = leases.time_to_live(id, self.profile.now()) else { return Ok(None) };
        let keys = if request.keys { leases.keys(id).unwrap_or_default() } else { Vec::new() };
        // Without a clock this member has been deposed meanwhile.
        let ttl = found.remaining_secs.ok_or(RequestError::LeaderChanged)?;
        Ok(Some(LeaseTimeToLiveResponse {
            header: Some(ResponseHeader::default()),
            id: request.id,
            ttl,
            granted_ttl: found.granted_secs,
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key)).collect(),
        }))
    }
}

async fn pause_until_retry(deadline: Instant) -> Result<(), RequestError> {
    tokio::time::sleep(RETRY_PAUSE).await;
    if Instant::now() >= deadline { Err(RequestError::Timeout) } else { Ok(()) }
}

fn note_failure(id: LeaseId, url: &str, error: &Unanswered) {
    log::debug!(
        "failed to ask the leader about a lease",
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

/// The body of a good answer; `None` if there is no such lease.
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
    fn the_leaders_answers_are_understood() {
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
    fn what_is_left_of_a_lease_comes_in_an_envelope() {
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
