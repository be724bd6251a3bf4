//! Requests from a starting member to running members, for the member list and the versions.
//!
//! Every part of a response is validated before it is used. A peer that returns an invalid response is treated like a
//! peer that does not answer.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_core::bootstrap::{AskVersions, Cluster, NoCluster, Refusal, check_supported};
use quorate_state::members::Member;
use quorate_state::units::MemberId;
use quorate_state::versions::Version;
use serde_json::Value;
use tokio::task::JoinSet;

use quorate_peer::Dialer;
use quorate_peer::call::{Call, CallError};
use quorate_telemetry::log;

/// Why a response cannot be used.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("failed to unmarshal: {0}")]
    Body(String),
    #[error("failed to parse cluster ID {0:?}")]
    ClusterId(String),
}

/// Asks the URLs in turn until one returns the members. A peer that returns no members is itself joining the cluster.
pub(super) async fn cluster_of(
    urls: &[String],
    (dialer, timeout): (&Dialer, Duration),
) -> Result<Cluster, NoCluster> {
    let mut outcome = Err(NoCluster::Unreachable);
    for url in urls {
        match ask_members(url, dialer, timeout).await {
            Ok(cluster) if cluster.members.is_empty() => outcome = Err(NoCluster::Empty),
            Ok(cluster) => return Ok(cluster),
            Err(error) => log::warn!(
                "failed to get cluster response",
                "address" = format!("{url}/members"),
                "error" = log::error_chain(&error)
            ),
        }
    }
    outcome
}

/// Asks all URLs at the same time about a member, and returns the first matching description. URLs that do not answer
/// are ignored.
pub(super) async fn row_of(
    urls: Vec<String>,
    id: MemberId,
    is_wanted: impl Fn(&Member) -> bool,
    (dialer, timeout): (&Dialer, Duration),
) -> Option<Member> {
    let mut asked = JoinSet::new();
    for url in urls {
        let dialer = dialer.clone();
        asked.spawn(async move { ask_members(&url, &dialer, timeout).await });
    }
    while let Some(answer) = asked.join_next().await {
        let Ok(Ok(mut cluster)) = answer else { continue };
        let row = cluster.members.remove(&id);
        if let Some(row) = row.filter(|row| is_wanted(row)) {
            return Some(row);
        }
    }
    None
}

async fn ask_members(url: &str, dialer: &Dialer, timeout: Duration) -> Result<Cluster, NoAnswer> {
    let answer = Call::get(url, "/members", timeout).send(dialer).await?;
    let rows: Option<Vec<Value>> =
        serde_json::from_slice(answer.body()).map_err(|error| NoAnswer::Body(error.to_string()))?;
    let mut members = BTreeMap::new();
    for row in rows.unwrap_or_default() {
        let member = Member::from_json(row.to_string().as_bytes())
            .map_err(|error| NoAnswer::Body(error.to_string()))?;
        members.insert(member.id, member);
    }
    let header = answer.headers().get("x-etcd-cluster-id");
    let header = header.map_or("", |value| value.to_str().unwrap_or_default());
    let id = u64::from_str_radix(header, 16).map_err(|_| NoAnswer::ClusterId(header.to_owned()))?;
    Ok(Cluster { id, members })
}

/// Checks whether this member may join members with these versions. At least one member must report the cluster
/// version, and no reported version may be out of range or unsupported.
pub(super) async fn check_versions(
    question: &AskVersions,
    (dialer, timeout): (&Dialer, Duration),
) -> Result<(), Refusal> {
    let (others, own) = (question.others(), question.own_version());
    let mut asked = JoinSet::new();
    for (id, urls) in others.clone() {
        let dialer = dialer.clone();
        asked.spawn(async move {
            (id, first_answer(&urls, "/version", (&dialer, timeout), to_versions).await)
        });
    }
    let mut versions = BTreeMap::new();
    while let Some(answer) = asked.join_next().await {
        if let Ok((id, Some(version))) = answer {
            versions.insert(id, version);
        }
    }
    let (least, most) = if is_downgrade_enabled(others, (dialer, timeout)).await {
        let above = Version::new(own.major, own.minor + 1);
        (above, above)
    } else {
        (Version::MINIMUM, own)
    };
    let mut any = false;
    for (id, Versions { cluster: text, server }) in versions {
        let Some(version) = Version::parse(&text) else {
            log::warn!(
                "failed to parse cluster version of remote member",
                "remote-member-id" = id.to_string(),
                "remote-member-cluster-version" = text
            );
            continue;
        };
        if version < least || version > most {
            log::warn!(
                "cluster version of remote member is not compatible",
                "remote-member-id" = id.to_string(),
                "remote-member-cluster-version" = version.to_string(),
                "minimum-cluster-version-supported" = least.to_string(),
                "maximum-cluster-version-supported" = most.to_string()
            );
            return Err(Refusal::Incompatible);
        }
        check_supported(version, server)?;
        any = true;
    }
    if any { Ok(()) } else { Err(Refusal::Incompatible) }
}

/// Returns whether a downgrade is in progress. The first response is used, because the answering member has already
/// asked the other members.
async fn is_downgrade_enabled(
    others: &BTreeMap<MemberId, Vec<String>>,
    ways: (&Dialer, Duration),
) -> bool {
    for urls in others.values() {
        if let Some(enabled) = first_answer(urls, "/downgrade/enabled", ways, to_bool).await {
            return enabled;
        }
    }
    false
}

fn to_bool(body: &[u8]) -> Option<bool> {
    match body {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// The versions that a member reports.
struct Versions {
    /// The cluster version as text; empty if the member reports none.
    cluster: String,
    /// The version of the member, if it can be parsed.
    server: Option<Version>,
}

fn to_versions(body: &[u8]) -> Option<Versions> {
    let versions: serde_json::Map<String, Value> = serde_json::from_slice(body).ok()?;
    let text = |name: &str| versions.get(name).and_then(Value::as_str).unwrap_or_default();
    let (cluster, server) = (text("etcdcluster").to_owned(), Version::parse(text("etcdserver")));
    Some(Versions { cluster, server })
}

/// Returns the first readable response from a member's URLs.
async fn first_answer<T>(
    urls: &[String],
    path: &str,
    (dialer, timeout): (&Dialer, Duration),
    read: fn(&[u8]) -> Option<T>,
) -> Option<T> {
    for url in urls {
        let reason = match Call::get(url, path, timeout).send(dialer).await {
            Ok(answer) => match read(answer.body()) {
                Some(said) => return Some(said),
                None => format!("status {}, unreadable body", answer.status()),
            },
            Err(error) => log::error_chain(&error),
        };
        log::warn!(
            "failed to reach the peer URL",
            "address" = format!("{url}{path}"),
            "error" = reason
        );
    }
    None
}
