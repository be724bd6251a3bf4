//! Collects the versions of all members. Requests the other members' versions with `GET /version` on their peer ports.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use quorate_state::versions::Version;
use serde::Deserialize;
use tokio::task::JoinSet;

use super::rules::lowest_of;
use crate::MemberInfo;
use quorate_peer::Dialer;
use quorate_peer::call::Call;
use quorate_peer::pool::ConnectionPool;
use quorate_telemetry::log;

/// The path from which a member's versions are requested.
pub const VERSION_PATH: &str = "/version";

/// The field of a member's response that is used here.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(rename = "etcdserver", default)]
    server: String,
}

/// The version of each member; `None` if a member did not return its version.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    pub(super) versions: Vec<Option<Version>>,
}

impl Survey {
    /// Queries the versions of all other members concurrently, and adds this member's version. The connections in the
    /// pool are reused, because a TLS handshake costs each side about half a millisecond of CPU time.
    pub(super) async fn take(info: &MemberInfo, pool: &Arc<ConnectionPool>) -> Self {
        let timeout = info.limits().request_timeout;
        let own = info.version();
        let mut asked = JoinSet::new();
        for row in info.rows() {
            if row.id.0 != info.id() {
                let (dialer, pool) = (info.dialer().clone(), Arc::clone(pool));
                asked.spawn(async move {
                    ask((&pool, &dialer), row.id.0, &row.peer_urls, own, timeout).await
                });
            }
        }
        let mut versions = asked.join_all().await;
        versions.push(Some(own));
        Self { versions }
    }

    pub(super) fn lowest(&self) -> Option<Version> {
        lowest_of(&self.versions)
    }
}

async fn ask(
    (pool, dialer): (&ConnectionPool, &Dialer),
    id: u64,
    peer_urls: &[String],
    own: Version,
    timeout: Duration,
) -> Option<Version> {
    let id = format!("{id:x}");
    for url in peer_urls {
        let answer = match Call::get(url, VERSION_PATH, timeout).send_over(pool, dialer).await {
            Ok(answer) => read(&answer),
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(version) => {
                if version > own {
                    log::warn!(
                        "leader found higher-versioned member",
                        "local-member-version" = own.to_string(),
                        "remote-member-id" = id,
                        "remote-member-version" = version.to_string()
                    );
                }
                return Some(version);
            }
            Err(error) => log::warn!(
                "failed to reach the peer URL",
                "address" = format!("{url}{VERSION_PATH}"),
                "remote-member-id" = id,
                "error" = error
            ),
        }
    }
    log::warn!("failed to get version", "remote-member-id" = id);
    None
}

fn read(answer: &Response<Bytes>) -> Result<Version, String> {
    let answer: Answer =
        serde_json::from_slice(answer.body()).map_err(|error| error.to_string())?;
    Version::parse(&answer.server).ok_or_else(|| format!("{:?} is not a version", answer.server))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_responses_from_all_releases_are_decoded() {
        let read = |body: &'static str| read(&Response::new(Bytes::from_static(body.as_bytes())));
        let of_3_5 = r#"{"etcdserver":"3.5.16","etcdcluster":"not_decided"}"#;
        assert_eq!(read(of_3_5), Ok(Version::new(3, 5)));
        let of_3_7 = r#"{"etcdserver":"3.7.1","etcdcluster":"3.7.0","storage":"3.7.0"}"#;
        assert_eq!(read(of_3_7), Ok(Version::new(3, 7)));
        for bad in ["404 page not found\n", "{}", r#"{"etcdserver":"new"}"#] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
