//! Space for the backend file: a warning before the quota is reached, and the member's NOSPACE alarm.
//!
//! The warning, and taking back an alarm that the quota has raised, are for operators that ask for them by flags; etcd
//! leaves both to its operator. An alarm that this member has raised because its disk was full it always takes back.
//! A member looks after its own file and its own alarm. Raising an alarm and taking it back are proposals like an
//! operator's: their effect is in the log and the same on all members.
//!
//! # Invariants
//!
//! * An alarm of the quota is taken back only when the file is clearly below the quota, by the share that the flags
//!   say, and when everything applied has been written to it: a disk without room keeps the alarm.
//! * An alarm of a full disk is raised while `node` says so, and taken back when everything applied has been written
//!   to the file, or another member leads. The alarm carries its cause (`quorate_state::alarm`), so this holds across
//!   restarts as well.
//! * Space is given back before that, online, once per change of what is in use.

use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use quorate_raft::NONE;
use quorate_state::alarm::Cause;
use quorate_state::units::MemberId;
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;
use tokio::time::{MissedTickBehavior, interval};

use crate::Handles;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long the file may take to hold everything applied. Longer is a disk without room.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// Percent of the quota by which the level has to be undercut before it is told of again.
const CALM_PERCENT: u64 = 5;

/// What is asked for, in percent of the quota.
#[derive(Clone, Copy, Debug)]
pub struct SpaceRules {
    /// From here on there is a warning; `None` for none.
    pub warning_percent: Option<u64>,
    /// Below this an alarm is taken back; `None` for never.
    pub disarm_percent: Option<u64>,
}

/// Keeps watch over the room under the quota. Ends at once where there is no quota, or nothing to do.
pub async fn keep_watch(handles: Arc<Handles>, rules: SpaceRules) {
    let SpaceRules { warning_percent, disarm_percent } = rules;
    let Some(quota_bytes) = handles.proposer.quota_bytes() else { return };
    if warning_percent.or(disarm_percent).is_none() {
        return;
    }
    let mut warning = warning_percent.map(|percent| Warning::new(percent, quota_bytes));
    let mut keeper = disarm_percent
        .map(|percent| Keeper { below_bytes: share(quota_bytes, percent), tried_at_bytes: None });
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if let Some(warning) = &mut warning {
            warning.look(&handles);
        }
        if let Some(keeper) = &mut keeper {
            keeper.look(&handles).await;
        }
    }
}

/// Percent of a number of bytes.
fn share(bytes: u64, percent: u64) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100).try_into().unwrap_or(u64::MAX)
}

/// The early warning.
#[derive(Debug)]
struct Warning {
    quota_bytes: u64,
    from_bytes: u64,
    calm_below_bytes: u64,
    is_told: bool,
}

impl Warning {
    fn new(percent: u64, quota_bytes: u64) -> Self {
        let from_bytes = share(quota_bytes, percent);
        let calm_below_bytes = share(quota_bytes, percent.saturating_sub(CALM_PERCENT));
        Self { quota_bytes, from_bytes, calm_below_bytes, is_told: false }
    }

    /// Whether a file of this size changes what is told: to a warning, or away from it.
    fn note(&mut self, file_bytes: u64) -> Option<bool> {
        let is_high = match self.is_told {
            false => file_bytes >= self.from_bytes,
            true => file_bytes >= self.calm_below_bytes,
        };
        let was_told = std::mem::replace(&mut self.is_told, is_high);
        (is_high != was_told).then_some(is_high)
    }

    fn look(&mut self, handles: &Handles) {
        let (bytes, in_use) = handles.proposer.backend_bytes();
        let Some(is_high) = self.note(bytes) else { return };
        handles.info.metrics().server.quota_warning.set(i64::from(is_high));
        if is_high {
            log::warn!(
                "the backend file has come near its quota; writes are refused once it is reached",
                "backend-size-bytes" = bytes,
                "backend-size-in-use-bytes" = in_use,
                "warning-size-bytes" = self.from_bytes,
                "quota-size-bytes" = self.quota_bytes,
                "advice" = "delete keys and compact, then defragment; or restart all members with a larger \
                            --quota-backend-bytes"
            );
        } else {
            log::info!(
                "the backend file is clear of its quota again",
                "backend-size-bytes" = bytes,
                "quota-size-bytes" = self.quota_bytes
            );
        }
    }
}

/// What takes the member's own alarm back.
#[derive(Debug)]
struct Keeper {
    below_bytes: u64,
    /// What was in use when space was last given back, without enough coming of it.
    tried_at_bytes: Option<u64>,
}

impl Keeper {
    async fn look(&mut self, handles: &Handles) {
        if !has_own_alarm(handles) {
            self.tried_at_bytes = None;
            return;
        }
        let (bytes, in_use) = handles.proposer.backend_bytes();
        let is_tried = self.tried_at_bytes == Some(in_use);
        if in_use >= self.below_bytes || (bytes >= self.below_bytes && is_tried) {
            return;
        }
        if !is_written(handles).await {
            return;
        }
        if bytes >= self.below_bytes {
            self.give_back(handles, in_use).await;
        }
        let (bytes, in_use) = handles.proposer.backend_bytes();
        if bytes < self.below_bytes {
            disarm(handles, bytes, in_use).await;
        }
    }

    async fn give_back(&mut self, handles: &Handles, in_use: u64) {
        self.tried_at_bytes = Some(in_use);
        match handles.administrator.defragment().await {
            Ok(outcome) => log::info!(
                "gave free space of the backend file back, for writes to be taken again",
                "size-bytes-before" = outcome.bytes_before,
                "size-bytes" = outcome.bytes_after
            ),
            Err(error) => log::warn!(
                "failed to give free space of the backend file back",
                "error" = error.to_string()
            ),
        }
    }
}

async fn disarm(handles: &Handles, bytes: u64, in_use: u64) {
    let alarm = AlarmRequest {
        action: AlarmAction::Deactivate.into(),
        member_id: handles.info.id(),
        alarm: AlarmType::Nospace.into(),
    };
    let request = InternalRaftRequest { alarm: Some(alarm), ..InternalRaftRequest::default() };
    match handles.proposer.propose_as_member(request, RequestKind::Alarm).await {
        Ok(_) => log::warn!(
            "took the NOSPACE alarm of this member back",
            "backend-size-bytes" = bytes,
            "backend-size-in-use-bytes" = in_use
        ),
        Err(error) => log::warn!(
            "failed to take the NOSPACE alarm of this member back; retrying",
            "error" = error.to_string()
        ),
    }
}

/// Raises the NOSPACE alarm while this member leads with a full disk and no other member can lead, and takes it back
/// afterwards, also when the process was restarted meanwhile.
pub async fn answer_for_full_disk(handles: Arc<Handles>) {
    let own_id = MemberId(handles.info.id());
    let mut refuses_writes = handles.info.member_status().refuses_writes();
    loop {
        let refuses = *refuses_writes.borrow_and_update();
        match handles.info.facts().alarms.due_for_disk(own_id, refuses) {
            Some(AlarmAction::Activate) => {
                if let Err(error) = handles.proposer.raise_no_space(Cause::FullDisk).await {
                    log::warn!(
                        "failed to raise the NOSPACE alarm for a full disk; retrying",
                        "error" = error.to_string()
                    );
                }
            }
            Some(AlarmAction::Deactivate) => take_back_for_room(&handles).await,
            Some(AlarmAction::Get) | None => {}
        }
        // The alarms change when entries are applied, at the start and when an operator takes the alarm back.
        if let Ok(Err(_)) = tokio::time::timeout(LOOK, refuses_writes.changed()).await {
            return;
        }
    }
}

fn has_own_alarm(handles: &Handles) -> bool {
    let own_id = MemberId(handles.info.id());
    let kind = i32::from(AlarmType::Nospace);
    handles.info.facts().alarms.of_kind(kind).any(|alarm| alarm.member == own_id)
}

/// Takes back the alarm of a full disk when another member leads, or when this member's file holds everything applied.
async fn take_back_for_room(handles: &Handles) {
    let member_status = handles.info.member_status();
    if member_status.leader() == NONE || (member_status.leads() && !is_written(handles).await) {
        return;
    }
    let (bytes, in_use) = handles.proposer.backend_bytes();
    // The next write would raise the alarm again.
    if handles.proposer.quota_bytes().is_some_and(|quota| bytes >= quota) {
        return;
    }
    disarm(handles, bytes, in_use).await;
}

/// Whether everything applied is in the file, or comes there soon.
async fn is_written(handles: &Handles) -> bool {
    let written = tokio::time::timeout(WRITTEN_WITHIN, handles.administrator.commit_backend());
    matches!(written.await, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_is_told_once_until_the_file_is_clearly_smaller() {
        let mut warning = Warning::new(80, 1000);
        let told: Vec<Option<bool>> =
            [799, 800, 900, 790, 760, 750, 749, 760, 799, 801].map(|n| warning.note(n)).into();
        let expected =
            [None, Some(true), None, None, None, None, Some(false), None, None, Some(true)];
        assert_eq!(told, expected);
    }

    #[test]
    fn shares_of_any_size_can_be_told() {
        assert_eq!(share(1000, 90), 900);
        assert_eq!(share(u64::MAX, 100), u64::MAX);
        assert_eq!(share(u64::MAX, 0), 0);
    }
}
