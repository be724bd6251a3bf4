//! Forwards the promotion of a learner to the leader, with `POST /members/promote/<id>` on the leader's peer port.

use std::time::Instant;

use http::{Method, Response, StatusCode};

use bytes::Bytes;
use quorate_state::members::{Member, MembershipRefusal};

use super::{Membership, peer_text};
use crate::duties::leadership::RETRY_PAUSE;
use quorate_peer::Dialer;
use quorate_peer::call::{Call, CallError};
use quorate_requests::RequestError;
use quorate_requests::access::Credentials;
use quorate_telemetry::log;

/// The path of the request. The learner's id is appended in decimal.
pub const PROMOTE_PATH: &str = "/members/promote/";

/// Why the leader gave no valid response. A retry may succeed.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("member promote: unknown error({0})")]
    Unknown(String),
    #[error("cannot decode the members in the response: {0}")]
    Members(String),
}

impl Membership {
    /// Forwards the promotion to the leader. Retries until the request timeout.
    pub(super) async fn forward_promotion(
        &self,
        client: &Credentials,
        id: u64,
        token: Option<&str>,
    ) -> Result<Vec<Member>, RequestError> {
        let deadline = Instant::now() + self.info.limits().request_timeout;
        loop {
            let leader = self.leader.wait_for_leader(deadline).await?;
            if leader.id == self.info.id() {
                match self.promote_as_leader(client, id).await {
                    Err(RequestError::NotLeader) => {}
                    outcome => return outcome,
                }
            } else {
                for url in &leader.peer_urls {
                    match ask(self.info.dialer(), url, id, token, deadline).await {
                        Ok(outcome) => return outcome,
                        Err(error) => log::warn!(
                            "failed to forward a promotion to the leader",
                            "member-id" = format!("{id:x}"),
                            "url" = url,
                            "error" = error.to_string()
                        ),
                    }
                }
            }
            tokio::time::sleep(RETRY_PAUSE).await;
            if Instant::now() >= deadline {
                return Err(RequestError::Timeout);
            }
        }
    }
}

async fn ask(
    dialer: &Dialer,
    url: &str,
    id: u64,
    token: Option<&str>,
    deadline: Instant,
) -> Result<Result<Vec<Member>, RequestError>, Unanswered> {
    let timeout = deadline.saturating_duration_since(Instant::now());
    let mut call = Call::get(url, &format!("{PROMOTE_PATH}{id}"), timeout);
    call.method = Method::POST;
    call.headers.extend(token.map(|token| ("authorization", token.to_owned())));
    read(&call.send(dialer).await?)
}

/// Parses the leader's response, which contains either the members or a refusal.
fn read(answer: &Response<Bytes>) -> Result<Result<Vec<Member>, RequestError>, Unanswered> {
    let text = String::from_utf8_lossy(answer.body());
    match answer.status() {
        StatusCode::OK => read_members(answer.body()).map(Ok).map_err(Unanswered::Members),
        StatusCode::NOT_FOUND => Ok(Err(RequestError::Membership(MembershipRefusal::NotFound))),
        StatusCode::PRECONDITION_FAILED => {
            // Both refusals have this status and are distinguished by their text.
            let refusals = [
                RequestError::LearnerNotReady,
                RequestError::Membership(MembershipRefusal::NotLearner),
            ];
            let refusal = refusals.into_iter().find(|refusal| text.contains(&peer_text(refusal)));
            refusal.map(Err).ok_or_else(|| Unanswered::Unknown(text.into_owned()))
        }
        _ => Err(Unanswered::Unknown(text.into_owned())),
    }
}

fn read_members(json: &[u8]) -> Result<Vec<Member>, String> {
    let rows: Vec<serde_json::Value> =
        serde_json::from_slice(json).map_err(|error| error.to_string())?;
    rows.iter()
        .map(|row| Member::from_json(row.to_string().as_bytes()).map_err(|error| error.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(status: u16, body: &'static str) -> Result<Result<Vec<Member>, String>, String> {
        let answer = Response::builder().status(status).body(Bytes::from(body)).unwrap();
        match read(&answer) {
            Ok(outcome) => Ok(outcome.map_err(|error| error.to_string())),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn errors_from_the_leader_are_returned_to_the_client() {
        let rows = "[{\"id\":18446744073709551615,\"peerURLs\":[\"http://a:1\"],\"name\":\"a\"}]\n";
        let rows = read_text(200, rows).unwrap().unwrap();
        assert_eq!((rows[0].id.0, rows[0].name.as_str()), (u64::MAX, "a"));
        let learner = "membership: can only promote a learner member\n";
        for (status, body, refusal) in [
            (404, "membership: ID not found\n", "etcdserver: member not found"),
            (404, "member x not found in cluster\n", "etcdserver: member not found"),
            (412, learner, "etcdserver: can only promote a learner member"),
            (
                412,
                "etcdserver: can only promote a learner member which is in sync with leader\n",
                "etcdserver: can only promote a learner member which is in sync with leader",
            ),
        ] {
            assert_eq!(read_text(status, body).unwrap().unwrap_err(), refusal);
        }
        for (status, body) in [(408, "later\n"), (412, "odd\n"), (500, "{}"), (200, "{}")] {
            assert!(read_text(status, body).is_err(), "{status} {body}");
        }
    }
}
