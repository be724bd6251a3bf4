//! A member's check of its own state against a quorum of the other members (`--rebuild-corrupt-member`).
//!
//! [`watch_own_state`] checks periodically, if a period is set, and repeatedly while an alarm names this member or no
//! particular member. If this member's state differs from the state of a quorum of the others twice in a row, this
//! member stops serving ([`crate::threads::fatal::End::Rebuild`]), and the server fetches the state again. Once the
//! fetched state is found to be sound, an earlier alarm against this member is disarmed. [`is_held_by_quorum`] checks a
//! fetched state before the member uses it.
//!
//! # Invariants
//!
//! * A member keeps its state if no quorum of voters agrees on a state (two voters that differ, or three voters with
//!   three states), or if all other members run etcd, which does not provide its state.
//!
//! # Not here
//!
//! Fetching the state (`server::bootstrap`), and raising alarms against other members (`super`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest, alarm_request};
use quorate_net::ticks::shared_ticks;
use quorate_peer::Dialer;
use quorate_state::members::Members;
use quorate_state::mvcc::{HashKv, MvccError};
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

use super::rules::{self, Verdict};
use super::survey::{Answer, Survey};
use super::{hash_now, survey};
use crate::threads::fatal::FaultReports;
use crate::{Handles, Identity};

/// Interval at which a member checks whether there is an alarm against it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Pause between two checks while an alarm names this member or no particular member. The pause is needed because each
/// check reads the whole keyspace.
const ACCUSED_PAUSE: Duration = Duration::from_secs(5);

/// Number of consecutive checks that must find a difference before the member stops. A brief difference is ignored,
/// because the hashes of etcd members can differ for a moment during compactions.
const FINDINGS_MIN: u32 = 2;

/// Returns whether a quorum of voters has the state with this hash. The member that is to receive the state is not
/// counted.
pub async fn is_held_by_quorum(
    identity: &Identity,
    members: &Members,
    (dialer, timeout): (&Dialer, Duration),
    hash: &HashKv,
) -> bool {
    let survey = Survey::new(identity, members, dialer, timeout);
    let answers = successful_answers(survey.take(hash).await);
    rules::judge(hash, None, &voters(members), &answers) == Verdict::Sound
}

/// Checks this member's state periodically if `period` is given, and repeatedly while an alarm names this member or no
/// particular member. `was_rebuilt` is true if this member's state was recently replaced by another member's state.
pub async fn watch_own_state(
    handles: Arc<Handles>,
    period: Option<Duration>,
    was_rebuilt: bool,
    faults: FaultReports,
) {
    let mut ticks = shared_ticks(LOOK_INTERVAL);
    let mut last_look: Option<Instant> = None;
    let (mut findings, mut has_logged) = (0, false);
    loop {
        ticks.tick().await;
        let is_due = |pause| last_look.is_none_or(|at| at.elapsed() >= pause);
        let is_wanted = findings > 0
            || period.is_some_and(is_due)
            || is_due(ACCUSED_PAUSE) && may_name_this_member(&handles);
        if !is_wanted {
            continue;
        }
        last_look = Some(Instant::now());
        match compare(&handles).await {
            Ok(Verdict::Bad { hash }) => {
                findings += 1;
                log::error!(
                    "this member's state differs from the state on which a quorum of the other members agrees",
                    "local-member-id" = format!("{:x}", handles.info.id()),
                    "quorum-hash" = hash,
                    "findings" = findings
                );
                if findings < FINDINGS_MIN {
                    continue;
                }
                if has_source(&handles) {
                    faults.report_rebuild(
                        "this member's hash differs from the hash that a quorum of the other members reported"
                            .to_owned(),
                    );
                    return;
                }
                log::error!(
                    "this member continues with a corrupt state, because no other member provides a correct one",
                    "local-member-id" = format!("{:x}", handles.info.id()),
                    "advice" = "remove this member, delete its directory, and add it again"
                );
            }
            Ok(Verdict::Sound) if was_rebuilt && is_accused(&handles) => {
                disarm_alarm(&handles).await;
            }
            Ok(Verdict::Unknown) if is_accused(&handles) => {
                if !has_logged {
                    log::warn!(
                        "an alarm reports this member as corrupt, but no quorum of other members agrees on a state; \
                         the member keeps its state",
                        "local-member-id" = format!("{:x}", handles.info.id())
                    );
                }
                has_logged = true;
            }
            Ok(Verdict::Sound | Verdict::Unknown) => has_logged = false,
            Err(MvccError::Refusal(refusal)) => {
                log::warn!("failed to hash this member's state", "error" = refusal.to_string());
            }
            Err(MvccError::Fault(fault)) => {
                faults.report("hashing the keyspace", fault);
                return;
            }
        }
        findings = 0;
    }
}

/// Returns whether any other member runs Quorate. Members that run etcd do not provide their state.
fn has_source(handles: &Handles) -> bool {
    let (own, facts) = (handles.info.id(), handles.info.facts());
    let gate = quorate_config::FeatureGate::CompactHashCheck.name();
    let mut others = facts.members.iter().filter(|member| member.id.0 != own);
    others.any(|member| handles.peers.setting_of(member.id.0, gate).is_some())
}

/// Compares this member's state with the states of the other members.
async fn compare(handles: &Handles) -> Result<Verdict, MvccError> {
    let held = hash_now(handles).await?;
    let answers = successful_answers(survey(handles).take(&held).await);
    Ok(verdict(handles, &held, &answers))
}

/// Returns the verdict on this member's state according to these responses.
pub(super) fn verdict(handles: &Handles, held: &HashKv, answers: &[(u64, Answer)]) -> Verdict {
    let facts = handles.info.facts();
    rules::judge(held, Some(handles.info.id()), &voters(&facts.members), answers)
}

fn voters(members: &Members) -> BTreeSet<u64> {
    members.iter().filter(|member| !member.is_learner).map(|member| member.id.0).collect()
}

fn successful_answers<E>(answers: Vec<(u64, Result<Answer, E>)>) -> Vec<(u64, Answer)> {
    answers.into_iter().filter_map(|(id, answer)| Some((id, answer.ok()?))).collect()
}

/// Returns whether an alarm names this member.
fn is_accused(handles: &Handles) -> bool {
    is_alarm_against(handles, &[handles.info.id()])
}

/// Returns whether an alarm names this member, or names no member. An alarm that names no member means that an
/// unidentified member is corrupt.
fn may_name_this_member(handles: &Handles) -> bool {
    is_alarm_against(handles, &[handles.info.id(), rules::ANY_MEMBER])
}

fn is_alarm_against(handles: &Handles, members: &[u64]) -> bool {
    let facts = handles.info.facts();
    let mut raised = facts.alarms.of_kind(i32::from(AlarmType::Corrupt));
    raised.any(|alarm| members.contains(&alarm.member.0))
}

async fn disarm_alarm(handles: &Handles) {
    let alarm = AlarmRequest {
        action: alarm_request::AlarmAction::Deactivate.into(),
        member_id: handles.info.id(),
        alarm: AlarmType::Corrupt.into(),
    };
    let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
    match handles.proposer.propose_as_member(request, RequestKind::Alarm).await {
        Ok(_) => log::warn!(
            "disarmed the alarm against this member, which was rebuilt: a quorum has the same state",
            "local-member-id" = format!("{:x}", handles.info.id())
        ),
        Err(error) => log::warn!(
            "failed to disarm the alarm against this member; the next check will try again",
            "error" = error.to_string()
        ),
    }
}
