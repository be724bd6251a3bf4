//! Answers requests for the member list, promotions forwarded by other members, and requests for hashes to compare.

use http::{HeaderMap, Request, StatusCode, header};
use quorate_net::listen::IncomingBody;
use quorate_state::members::{Member, MembershipRefusal};
use quorate_state::mvcc::{HashKv, MvccError};
use serde::Deserialize;

use crate::{JSON, PeerService, read_body};
use quorate_http_pages::reply::{self, Reply};
use quorate_member::membership::peer_text;
use quorate_peer::image::CLUSTER_HEADER;
use quorate_requests::RequestError;
use quorate_requests::access::{Credentials, Remembered};
use quorate_telemetry::log;

/// A request for a hash.
#[derive(Debug, Deserialize)]
struct HashRequest {
    #[serde(default)]
    revision: Option<i64>,
    /// The compaction revision on which the hash must be based so that the requesting member can compare it with its
    /// own hash. Members that run etcd do not send this revision.
    #[serde(default)]
    compact_revision: Option<i64>,
}

impl PeerService {
    pub(super) fn members(&self) -> Reply {
        let rows = self.info.rows();
        let rows = if rows.is_empty() { &self.known_at_start[..] } else { &rows[..] };
        self.named(reply::typed(JSON, rows_json(rows)))
    }

    pub(super) async fn promote(&self, id: &str, headers: &HeaderMap) -> Reply {
        let digits = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        let Some(number) = digits.then(|| id.parse().ok()).flatten() else {
            let text = format!("member {id} not found in cluster");
            return self.named(reply::error(StatusCode::NOT_FOUND, &text));
        };
        let token = headers.get(header::AUTHORIZATION).and_then(|token| token.to_str().ok());
        // The forwarding member passes on its client's token, with which the client is authorised here.
        let credentials = Credentials::passed_on(headers.get(header::AUTHORIZATION));
        let credentials = self.access_control.read(credentials, &Remembered::default()).await;
        let promoted = match self.access_control.check_admin(&credentials) {
            Ok(()) => self.membership.promote(&credentials, number, token).await,
            Err(error) => Err(error),
        };
        let answer = match promoted {
            Ok(rows) => reply::typed(JSON, rows_json(&rows)),
            Err(error) => {
                log::warn!(
                    "failed to promote a member",
                    "member-id" = format!("{number:x}"),
                    "error" = peer_text(&error)
                );
                not_promoted(&error)
            }
        };
        self.named(answer)
    }

    pub(super) async fn hash_kv(&self, request: Request<IncomingBody>) -> Reply {
        let (head, body) = request.into_parts();
        let own = format!("{:x}", self.info.cluster_id());
        if head.headers.get(CLUSTER_HEADER).is_some_and(|id| !id.is_empty() && *id != own) {
            return reply::error(StatusCode::PRECONDITION_FAILED, "cluster ID mismatch");
        }
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(refused) => return refused,
        };
        let Ok(request) = serde_json::from_slice::<HashRequest>(&body) else {
            return reply::error(StatusCode::BAD_REQUEST, "error unmarshalling request");
        };
        let revision = request.revision.unwrap_or_default();
        self.administrator.wait_hashed(revision).await;
        let permit = match self.administrator.hash_permit().await {
            Ok(permit) => permit,
            Err(error) => {
                return reply::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string());
            }
        };
        let view = self.reader.view();
        let current = view.current_revision();
        let compute = move || view.hash_kv_to_compare(revision, request.compact_revision);
        let hashed = permit.compute(compute).await;
        match hashed {
            Ok(hash) => self.named(reply::typed(JSON, hash_json(current, &hash))),
            Err(MvccError::Refusal(refusal)) => {
                let text = RequestError::Refused(refusal.into()).to_string();
                let text = text.strip_prefix("etcdserver: ").unwrap_or(&text);
                reply::error(StatusCode::BAD_REQUEST, text)
            }
            Err(MvccError::Fault(fault)) => {
                let text = self.reader.fault(fault).to_string();
                reply::error(StatusCode::INTERNAL_SERVER_ERROR, &text)
            }
        }
    }
}

fn rows_json(rows: &[Member]) -> String {
    let rows: Vec<String> = rows.iter().map(Member::to_json).collect();
    format!("[{}]\n", rows.join(","))
}

/// Formats a hash as the JSON response to a hash request. Fields with the value zero are omitted.
fn hash_json(current: i64, hash: &HashKv) -> String {
    let field = |name: &str, value: i64| match value {
        0 => String::new(),
        value => format!(",\"{name}\":{value}"),
    };
    let header = field("revision", current);
    format!(
        "{{\"header\":{{{}}}{}{}{}}}",
        header.trim_start_matches(','),
        field("hash", i64::from(hash.hash)),
        field("compact_revision", hash.compact_revision),
        field("hash_revision", hash.hash_revision),
    )
}

fn not_promoted(error: &RequestError) -> Reply {
    let status = match error {
        RequestError::Membership(MembershipRefusal::NotFound) => StatusCode::NOT_FOUND,
        RequestError::Membership(MembershipRefusal::NotLearner) | RequestError::LearnerNotReady => {
            StatusCode::PRECONDITION_FAILED
        }
        _ => {
            let mut answer = reply::typed(JSON, "{\"message\":\"Internal Server Error\"}");
            *answer.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            return answer;
        }
    };
    reply::error(status, &peer_text(error))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use quorate_state::units::MemberId;

    use super::*;

    #[test]
    fn the_member_list_json_matches_the_output_of_go() {
        let mut started = Member::new(MemberId(u64::MAX), vec!["http://a:1".to_owned()]);
        started.name = "a".to_owned();
        let mut learner = Member::new(MemberId(7), vec!["http://b:1".to_owned()]);
        learner.is_learner = true;
        assert_eq!(
            rows_json(&[learner, started]),
            "[{\"id\":7,\"peerURLs\":[\"http://b:1\"],\"isLearner\":true},\
             {\"id\":18446744073709551615,\"peerURLs\":[\"http://a:1\"],\"name\":\"a\"}]\n"
        );
    }

    #[test]
    fn zero_fields_are_omitted_from_the_hash_json() {
        let hash = HashKv { hash: 5, compact_revision: -1, hash_revision: 3 };
        assert_eq!(
            hash_json(4, &hash),
            "{\"header\":{\"revision\":4},\"hash\":5,\"compact_revision\":-1,\"hash_revision\":3}"
        );
        let none = HashKv { hash: 0, compact_revision: 0, hash_revision: 0 };
        assert_eq!(hash_json(0, &none), "{\"header\":{}}");
        let asked =
            |json: &str| serde_json::from_str::<HashRequest>(json).map(|asked| asked.revision).ok();
        assert_eq!(asked("{\"revision\":7,\"more\":1}"), Some(Some(7)));
        assert_eq!(asked("{}"), Some(None));
        assert_eq!(asked(""), None);
        assert_eq!(asked("{\"revision\":\"7\"}"), None);
    }

    #[tokio::test]
    async fn failed_promotions_return_the_error_messages_of_etcd() {
        for (error, status, body) in [
            (
                RequestError::Membership(MembershipRefusal::NotFound),
                404,
                "membership: ID not found\n",
            ),
            (
                RequestError::Membership(MembershipRefusal::NotLearner),
                412,
                "membership: can only promote a learner member\n",
            ),
            (
                RequestError::LearnerNotReady,
                412,
                "etcdserver: can only promote a learner member which is in sync with leader\n",
            ),
            (RequestError::Unhealthy, 500, "{\"message\":\"Internal Server Error\"}"),
        ] {
            let answer = not_promoted(&error);
            assert_eq!(answer.status().as_u16(), status);
            let received = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(received, body);
        }
    }
}
