//! Requests the hashes of the other members, with `GET /members/hashkv` on each member's peer port.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use quorate_state::members::Members;
use quorate_state::mvcc::HashKv;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::Identity;
use quorate_peer::Dialer;
use quorate_peer::call::{Call, CallError};
use quorate_telemetry::log;

/// The path from which a member's hash is requested.
const HASH_PATH: &str = "/members/hashkv";

/// The hash that a member reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) hash: u32,
    pub(super) compact_revision: i64,
    /// The newest revision of the member.
    pub(super) revision: i64,
}

/// Why a member reported no hash.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    #[error("cluster ID mismatch")]
    OtherCluster,
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("cannot decode the response: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("unknown error: {0}")]
    Other(String),
    #[error("the member has no peer URL")]
    NoUrl,
}

/// A response in JSON, in which fields with the value zero are omitted.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    header: Header,
    hash: u32,
    compact_revision: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    revision: i64,
}

/// The members to query, and the identity and connections of this member.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    asking: Asking,
    others: Vec<(u64, Vec<String>)>,
}

#[derive(Clone, Debug)]
struct Asking {
    local_member: String,
    cluster: String,
    dialer: Dialer,
    timeout: Duration,
}

impl Survey {
    pub(super) fn new(
        identity: &Identity,
        members: &Members,
        dialer: &Dialer,
        timeout: Duration,
    ) -> Self {
        let others = members.iter().filter(|member| member.id.0 != identity.member_id);
        Self {
            asking: Asking {
                local_member: format!("{:x}", identity.member_id),
                cluster: format!("{:x}", identity.cluster_id),
                dialer: dialer.clone(),
                timeout,
            },
            others: others.map(|member| (member.id.0, member.peer_urls.clone())).collect(),
        }
    }

    /// Queries all other members concurrently for the hash that is comparable with `held`. The responses are in
    /// ascending order of member id.
    pub(super) async fn take(&self, held: &HashKv) -> Vec<(u64, Result<Answer, Unanswered>)> {
        let wanted =
            Wanted { revision: held.hash_revision, compact_revision: held.compact_revision };
        let mut asked = JoinSet::new();
        for (id, urls) in self.others.iter().cloned() {
            let asking = self.asking.clone();
            asked.spawn(async move { (id, asking.ask(id, &urls, wanted).await) });
        }
        let mut answers = asked.join_all().await;
        answers.sort_by_key(|(id, _)| *id);
        answers
    }
}

/// The parameters of a hash request.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    revision: i64,
    compact_revision: i64,
}

impl Wanted {
    /// Encodes the request. etcd members use the revision and ignore the compaction. A Quorate member can have two
    /// hashes for one revision: one stored by a compaction at this revision, and a computed one. The member returns the
    /// hash that belongs to the requested compaction.
    fn to_json(self) -> String {
        let Self { revision, compact_revision } = self;
        match revision {
            0 => "{}".to_owned(),
            revision => {
                format!("{{\"revision\":{revision},\"compact_revision\":{compact_revision}}}")
            }
        }
    }
}

impl Asking {
    /// Tries the URLs of a member until one of them returns a response.
    async fn ask(&self, id: u64, urls: &[String], wanted: Wanted) -> Result<Answer, Unanswered> {
        let mut outcome = Err(Unanswered::NoUrl);
        for url in urls {
            outcome = self.ask_at(url, wanted).await;
            match &outcome {
                Ok(_) => break,
                Err(error) => log::warn!(
                    "failed hash kv request",
                    "local-member-id" = self.local_member,
                    "requested-revision" = wanted.revision,
                    "remote-peer-id" = format!("{id:x}"),
                    "remote-peer-endpoint" = url,
                    "error" = error.to_string()
                ),
            }
        }
        outcome
    }

    async fn ask_at(&self, url: &str, wanted: Wanted) -> Result<Answer, Unanswered> {
        let mut call = Call::get(url, HASH_PATH, self.timeout);
        call.headers = vec![
            ("content-type", "application/json".to_owned()),
            ("x-etcd-cluster-id", self.cluster.clone()),
        ];
        call.body = Bytes::from(wanted.to_json());
        read(&call.send(&self.dialer).await?)
    }
}

/// Parses the response of a member. Refusals with the same status are distinguished by their text.
fn read(answer: &Response<Bytes>) -> Result<Answer, Unanswered> {
    let text = || String::from_utf8_lossy(answer.body()).trim().to_owned();
    match answer.status() {
        StatusCode::OK => {
            let Body { header, hash, compact_revision } = serde_json::from_slice(answer.body())?;
            Ok(Answer { hash, compact_revision, revision: header.revision })
        }
        StatusCode::BAD_REQUEST if text().contains("has been compacted") => {
            Err(Unanswered::Compacted)
        }
        StatusCode::BAD_REQUEST if text().contains("is a future revision") => {
            Err(Unanswered::FutureRevision)
        }
        StatusCode::PRECONDITION_FAILED => Err(Unanswered::OtherCluster),
        _ => Err(Unanswered::Other(text())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_responses_and_errors_from_members_are_decoded() {
        let read = |status: u16, body: &'static str| {
            let answer = Response::builder().status(status).body(Bytes::from(body)).unwrap();
            read(&answer).map_err(|error| error.to_string())
        };
        let whole = r#"{"header":{"revision":9},"hash":5,"compact_revision":-1,"hash_revision":7}"#;
        assert_eq!(read(200, whole), Ok(Answer { hash: 5, compact_revision: -1, revision: 9 }));
        let empty = r#"{"header":{}}"#;
        assert_eq!(read(200, empty), Ok(Answer { hash: 0, compact_revision: 0, revision: 0 }));
        for (status, body, expected) in [
            (
                400,
                "mvcc: required revision has been compacted\n",
                "etcdserver: mvcc: required revision has been compacted",
            ),
            (
                400,
                "mvcc: required revision is a future revision\n",
                "etcdserver: mvcc: required revision is a future revision",
            ),
            (412, "cluster ID mismatch\n", "cluster ID mismatch"),
            (404, "404 page not found\n", "unknown error: 404 page not found"),
            (200, "{\"hash\":-1}", "cannot decode the response: invalid value"),
        ] {
            let error = read(status, body).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
