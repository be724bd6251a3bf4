//! Looking for members that hold something else than the others: by hashes of what each of them holds.
//!
//! Three checks, as etcd has them, and one of a member's own (`own`). [`check_before_serving`] compares this member with the others before it takes part,
//! and keeps it from doing so. [`compare_periodically`] has the leader compare the whole keyspace with each member.
//! [`compare_compactions`] has it compare the hashes that compactions leave behind, which costs members no scan of
//! their own. What the last two find becomes an alarm, under which nothing is written any more until an operator
//! has taken it back.
//!
//! # Bounds
//!
//! A hash reads the whole keyspace once, on a thread of its own, and keeps none of it. Of compactions one at most waits
//! to be hashed, and holds the file's former pages meanwhile; one that comes when another waits is not hashed.
//!
//! # Not here
//!
//! What a hash covers (`state::mvcc`), what the alarm forbids (`state::apply`), answering other members
//! (`edge::peer_port`).

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

pub use self::own::{is_held_by_quorum, keep_watch};
pub use self::restored::{HoldsOther, compare_restored};
use self::rules::{Agreement, Finding, Progress, Verdict};
use self::survey::{Answer, Survey};
use crate::threads::fatal::FaultReports;
use crate::{Handles, Identity, RequestError};
use quorate_net::runtime::blocking;
use quorate_telemetry::log;

/// Why a member does not take part.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Others hold something else at the same revision.
    #[error("{0:x} found data inconsistency with peers")]
    Inconsistent(u64),
    /// This member's own data cannot be read.
    #[error("{0:x} failed to fetch hash ({1})")]
    Unreadable(u64, #[source] MvccError),
}

/// Compares what this member holds with the others, before it takes part. Whoever cannot be asked, or is at another
/// compaction, says nothing against it.
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

/// Has the leader compare the whole keyspace with what each member holds, every so often.
pub async fn compare_periodically(handles: Arc<Handles>, period: Duration, faults: FaultReports) {
    log::info!(
        "enabled corruption checking",
        "local-member-id" = format!("{:x}", handles.info.id()),
        "interval" = period
    );
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once, and there is nothing to compare then.
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
                    "found a member that holds something else",
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

/// Why members were not compared.
#[derive(Debug, thiserror::Error)]
enum CompareError {
    #[error(transparent)]
    Unreadable(#[from] MvccError),
    #[error(transparent)]
    NoBarrier(#[from] RequestError),
}

/// Compares all members once. What a member holds that answers is held against this member's state before it was asked
/// and after a quorum has confirmed that this member leads.
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
    if finding.is_some() && judges_itself && is_bad(handles, &before, &answers) {
        log::warn!("nobody is accused: a quorum holds something else than this member");
        finding = None;
    }
    log::info!("finished peer corruption check", "number-of-peers-checked" = answers.len());
    Ok(finding)
}

/// Whether it is this member that a quorum of the others contradicts.
fn is_bad(handles: &Handles, held: &HashKv, answers: &[(u64, Answer)]) -> bool {
    matches!(own::verdict(handles, held, answers), Verdict::Bad { .. })
}

async fn hash_now(handles: &Handles) -> Result<HashKv, MvccError> {
    let view = handles.reader.view();
    blocking(move || view.hash_kv(0)).await
}

/// Has the leader compare the hashes that compactions have left with those of the others, every so often.
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

/// Goes through the hashes of compactions beyond the one at `checked`, newest first, until one tells something. Returns
/// the newest on which all members have agreed.
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

/// Hashes the keyspace as it was before each compaction, as etcd does: tools and members that compare members ask for
/// these hashes by the revisions of the compactions.
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
            "failed to raise the alarm; the next check will again",
            "member-id" = format!("{member:x}"),
            "error" = error.to_string()
        );
    }
}
