//! Detects members whose state differs from the state of the other members, by comparing hashes.
//!
//! There are three checks, as in etcd, and a fourth check, in which a member checks its own state (`own`).
//! [`check_before_serving`] compares this member's state with the other members' states at startup, and prevents this
//! member from serving clients if the states differ. In [`compare_periodically`] the leader compares its whole keyspace
//! with each member's keyspace. In [`compare_compactions`] the leader compares the stored hashes of compactions, so
//! that members need no additional scan. If either of the leader's checks finds a difference, the leader raises an
//! alarm. While the alarm is active, all requests that go through the log to read or write data are refused. The alarm
//! stays active until an operator deactivates it, or until the corrupt member has been rebuilt (`own`).
//!
//! # Bounds
//!
//! Hashing reads the whole keyspace once, on a separate thread, and keeps no copy. At most one compaction waits to be
//! hashed. While it waits, the pages that it replaced stay allocated. Compactions accepted during that time are not
//! hashed.
//!
//! # Not here
//!
//! The contents of a hash (`state::mvcc`), the effect of the alarm (`state::apply`), and the responses to other members
//! (`peer_port`).

mod own;
mod restored;
mod rules;
mod survey;

use std::sync::Arc;
use std::time::Duration;

use quorate_peer::Dialer;
use quorate_state::members::Members;
use quorate_state::mvcc::{HashKv, MvccError, View};
use tokio::time::{MissedTickBehavior, interval};

pub use self::own::{is_held_by_quorum, watch_own_state};
pub use self::restored::{StateDiffers, compare_restored};
use self::rules::{Agreement, Finding, Progress, Verdict};
use self::survey::{Answer, Survey};
use crate::threads::fatal::FaultReports;
use crate::{Handles, Identity};
use quorate_net::runtime::blocking;
use quorate_requests::RequestError;
use quorate_telemetry::log;

/// Why a member does not start to serve clients.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Another member has a different state at the same revision.
    #[error("{0:x} found data inconsistency with peers")]
    Inconsistent(u64),
    /// This member's data cannot be read.
    #[error("{0:x} failed to fetch hash ({1})")]
    Unreadable(u64, #[source] MvccError),
}

/// Compares this member's state with the other members' states before this member serves clients. Ignores members that
/// cannot be reached, and members that were last compacted at a different revision.
pub async fn check_before_serving(
    identity: &Identity,
    view: Arc<View>,
    members: &Members,
    dialer: &Dialer,
    timeout: Duration,
) -> Result<(), CheckError> {
    let id = identity.member_id;
    let own_id = format!("{id:x}");
    log::info!(
        "starting initial corruption check",
        "local-member-id" = own_id,
        "timeout" = timeout
    );
    let own = blocking(move || view.hash_kv(0)).await;
    let own = own.map_err(|error| CheckError::Unreadable(id, error))?;
    let answers = Survey::new(identity, members, dialer, timeout).take(&own).await;
    let mut is_consistent = true;
    for (peer, answer) in &answers {
        let Ok(answer) = answer else { continue };
        let is_comparable = answer.compact_revision == own.compact_revision;
        if answer.hash == own.hash {
            continue;
        }
        is_consistent &= !is_comparable;
        log::warn!(
            if is_comparable {
                "found different hash values from remote peer"
            } else {
                "found different compact revision values from remote peer"
            },
            "local-member-id" = own_id,
            "local-member-revision" = own.hash_revision,
            "local-member-compact-revision" = own.compact_revision,
            "local-member-hash" = own.hash,
            "remote-peer-id" = format!("{peer:x}"),
            "remote-peer-revision" = answer.revision,
            "remote-peer-compact-revision" = answer.compact_revision,
            "remote-peer-hash" = answer.hash
        );
    }
    if !is_consistent {
        return Err(CheckError::Inconsistent(id));
    }
    log::info!("initial corruption checking passed; no corruption", "local-member-id" = own_id);
    Ok(())
}

/// If this member leads, periodically compares its whole keyspace with the keyspace of each other member.
pub async fn compare_periodically(handles: Arc<Handles>, period: Duration, faults: FaultReports) {
    log::info!(
        "enabled corruption checking",
        "local-member-id" = format!("{:x}", handles.info.id()),
        "interval" = period
    );
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick completes immediately, when there is nothing to compare yet.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if !handles.info.member_status().leads() {
            continue;
        }
        match compare(&handles).await {
            Ok(None) => {}
            Ok(Some(finding)) => {
                log::warn!(
                    "found a member with an inconsistent state",
                    "member-id" = format!("{:x}", finding.member),
                    "reason" = finding.difference.to_string()
                );
                raise_alarm(&handles, finding.member).await;
            }
            Err(CompareError::Unreadable(MvccError::Fault(fault))) => {
                faults.report("hashing the keyspace", fault);
                return;
            }
            Err(error) => {
                log::warn!("failed to check hash KV", "error" = error.to_string());
            }
        }
    }
}

/// Why the members could not be compared.
#[derive(Debug, thiserror::Error)]
enum CompareError {
    #[error(transparent)]
    Unreadable(#[from] MvccError),
    #[error(transparent)]
    NoBarrier(#[from] RequestError),
}

/// Compares this member's state with every other member's state once. Each response is compared with two states of this
/// member: the state before the request, and the state after a quorum has confirmed that this member leads.
async fn compare(handles: &Handles) -> Result<Option<Finding>, CompareError> {
    let before = hash_now(handles).await?;
    let answers = survey(handles).take(&before).await;
    handles.reader.read_barrier().await?;
    let after = hash_now(handles).await?;
    let own = Progress { member: handles.info.id(), before, after };
    let answers: Vec<(u64, Answer)> =
        answers.into_iter().filter_map(|(id, answer)| Some((id, answer.ok()?))).collect();
    let mut finding = rules::compare(&own, &answers);
    let judges_itself = handles.info.limits().rebuilds_itself;
    if finding.is_some() && judges_itself && is_contradicted(handles, &before, &answers) {
        log::warn!(
            "no alarm is raised, because this member's own state differs from the state of a quorum"
        );
        finding = None;
    }
    log::info!("finished peer corruption check", "number-of-peers-checked" = answers.len());
    Ok(finding)
}

/// Returns whether a quorum of the other members agrees on a state that differs from this member's state.
fn is_contradicted(handles: &Handles, held: &HashKv, answers: &[(u64, Answer)]) -> bool {
    matches!(own::verdict(handles, held, answers), Verdict::Bad { .. })
}

async fn hash_now(handles: &Handles) -> Result<HashKv, MvccError> {
    let view = handles.reader.view();
    blocking(move || view.hash_kv(0)).await
}

/// If this member leads, periodically compares its stored hashes of compactions with the other members' hashes.
pub async fn compare_compactions(handles: Arc<Handles>, period: Duration) {
    log::info!(
        "enabled compaction hash checking",
        "local-member-id" = format!("{:x}", handles.info.id()),
        "interval" = period
    );
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    let mut checked = 0;
    loop {
        ticks.tick().await;
        if handles.info.member_status().leads() {
            checked = compare_remembered(&handles, checked).await;
        }
    }
}

/// Compares the hashes of compactions after revision `checked`, newest first, until one comparison is conclusive.
/// Returns the newest revision on which all members have agreed.
async fn compare_remembered(handles: &Handles, checked: i64) -> i64 {
    let mut hashes = handles.reader.view().remembered_hashes();
    hashes.retain(|hash| hash.hash_revision > checked);
    let own = handles.info.id();
    for (position, hash) in hashes.iter().rev().enumerate() {
        let answers = survey(handles).take(hash).await;
        let agreement = rules::agree(own, hash, &answers);
        match agreement {
            Agreement::Alone => continue,
            Agreement::AsFarAsKnown => {
                log::warn!(
                    "skipped revision in compaction hash check; was not able to check all peers",
                    "number-of-peers" = answers.len(),
                    "revision" = hash.hash_revision,
                    "compact-revision" = hash.compact_revision
                );
                continue;
            }
            Agreement::Whole => {
                log::info!(
                    "successfully checked hash on whole cluster",
                    "number-of-peers-checked" = answers.len(),
                    "revision" = hash.hash_revision,
                    "compact-revision" = hash.compact_revision
                );
                log_checked(position + 1);
                return hash.hash_revision;
            }
            Agreement::None { accused } => {
                let ids: Vec<String> = accused.iter().map(|id| format!("{id:x}")).collect();
                log::error!(
                    "Detected compaction hash mismatch",
                    "leader-id" = format!("{own:x}"),
                    "leader-revision" = hash.hash_revision,
                    "leader-compact-revision" = hash.compact_revision,
                    "leader-hash" = hash.hash,
                    "peer-ids" = ids.join(","),
                    "quorum-exist" = accused != [rules::ANY_MEMBER]
                );
                for member in accused {
                    raise_alarm(handles, member).await;
                }
                log_checked(position + 1);
                return checked;
            }
        }
    }
    log_checked(hashes.len());
    checked
}

fn log_checked(count: usize) {
    log::info!("finished compaction hash check", "number-of-hashes-checked" = count);
}

/// Hashes the keyspace as it was before each compaction, as etcd does. Other members and tools request these hashes by
/// the revision of the compaction.
pub async fn hash_compactions(handles: Arc<Handles>, faults: FaultReports) {
    loop {
        let (compaction, view) = handles.compactions.next().await;
        match blocking(move || view.hash_compaction(&compaction)).await {
            Ok(None) => {}
            Ok(Some(hash)) => log::info!(
                "storing new hash",
                "hash" = hash.hash,
                "revision" = hash.hash_revision,
                "compact-revision" = hash.compact_revision
            ),
            Err(fault) => {
                faults.report("hashing a compaction", fault);
                return;
            }
        }
    }
}

fn survey(handles: &Handles) -> Survey {
    let (info, facts) = (&handles.info, handles.info.facts());
    let timeout = info.limits().request_timeout;
    Survey::new(info.identity(), &facts.members, info.dialer(), timeout)
}

async fn raise_alarm(handles: &Handles, member: u64) {
    if let Err(error) = handles.proposer.raise_corrupt(member).await {
        log::warn!(
            "failed to raise the alarm; the next check will try again",
            "member-id" = format!("{member:x}"),
            "error" = error.to_string()
        );
    }
}
