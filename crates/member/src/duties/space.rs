//! Space for the backend file: a warning before the quota is reached, and the member's NOSPACE alarm.
//!
//! Flags enable the warning and the automatic disarming of a quota alarm. etcd has neither, and leaves both tasks to
//! the operator. An alarm that this member raised for a full disk is always disarmed automatically. A member watches
//! only its own file and its own alarm. It raises or disarms the alarm with a proposal, as an operator would, so the
//! effect is in the log and the same on all members.
//!
//! # Invariants
//!
//! * A quota alarm is disarmed only when the file is smaller than `--quota-disarm-percent` of the quota, and all
//!   applied changes are in the file. If the disk is full, the alarm remains.
//! * The alarm for a full disk is raised while `node` refuses writes. It is disarmed when all applied changes are in
//!   the file, or when another member leads, unless the file has reached its quota. The alarm stores its cause
//!   (`quorate_state::alarm`), so this also holds after a restart.
//! * While this member's quota alarm is active, the file is defragmented online if that can bring it below
//!   `--quota-disarm-percent` of the quota, at most once for the same number of bytes in use.

use std::sync::Arc;
use std::time::Duration;

use quorate_api::etcdserverpb::alarm_request::AlarmAction;
use quorate_api::etcdserverpb::{AlarmRequest, AlarmType, InternalRaftRequest};
use quorate_core::request::Disarming;
use quorate_net::ticks::shared_ticks;
use quorate_raft::NONE;
use quorate_state::alarm::Cause;
use quorate_state::units::MemberId;
use quorate_telemetry::log;
use quorate_telemetry::metrics::RequestKind;

use crate::Handles;

/// Interval at which the file size and the alarm are checked.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum time to write all applied changes to the file. If writing takes longer, the disk counts as full.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// Hysteresis of the warning: the warning ends only when the file is smaller than the threshold by this percentage of
/// the quota.
const CALM_PERCENT: u64 = 5;

/// The thresholds set by the operator, in percent of the quota.
#[derive(Clone, Copy, Debug)]
pub struct SpaceRules {
    /// The file size at which a warning is logged; `None` for no warning.
    pub warning_percent: Option<u64>,
    /// The file size below which the alarm is disarmed; `None` to leave it raised.
    pub disarm_percent: Option<u64>,
}

/// Logs the warning and disarms the alarm. Returns immediately if there is no quota, or if neither the warning nor the
/// disarming is enabled.
pub async fn watch_space(handles: Arc<Handles>, rules: SpaceRules) {
    let SpaceRules { warning_percent, disarm_percent } = rules;
    let Some(quota_bytes) = handles.proposer.quota_bytes() else { return };
    if warning_percent.or(disarm_percent).is_none() {
        return;
    }
    let mut warning = warning_percent.map(|percent| Warning::new(percent, quota_bytes));
    let mut keeper = disarm_percent
        .map(|percent| Keeper { below_bytes: share(quota_bytes, percent), tried_at_bytes: None });
    let mut looks = shared_ticks(LOOK);
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

/// Returns `percent` percent of `bytes`.
fn share(bytes: u64, percent: u64) -> u64 {
    (u128::from(bytes) * u128::from(percent) / 100).try_into().unwrap_or(u64::MAX)
}

/// The warning before the quota is reached.
#[derive(Debug)]
struct Warning {
    quota_bytes: u64,
    from_bytes: u64,
    calm_below_bytes: u64,
    is_warned: bool,
}

impl Warning {
    fn new(percent: u64, quota_bytes: u64) -> Self {
        let from_bytes = share(quota_bytes, percent);
        let calm_below_bytes = share(quota_bytes, percent.saturating_sub(CALM_PERCENT));
        Self { quota_bytes, from_bytes, calm_below_bytes, is_warned: false }
    }

    /// Records the file size. Returns the new state of the warning if the state has changed: true if the warning is
    /// active.
    fn note(&mut self, file_bytes: u64) -> Option<bool> {
        let is_high = match self.is_warned {
            false => file_bytes >= self.from_bytes,
            true => file_bytes >= self.calm_below_bytes,
        };
        let was_warned = std::mem::replace(&mut self.is_warned, is_high);
        (is_high != was_warned).then_some(is_high)
    }

    fn look(&mut self, handles: &Handles) {
        let (bytes, in_use) = handles.proposer.backend_bytes();
        let Some(is_high) = self.note(bytes) else { return };
        handles.info.metrics().server.quota_warning.set(i64::from(is_high));
        if is_high {
            log::warn!(
                "the backend file is close to its quota; writes are refused when the quota is reached",
                "backend-size-bytes" = bytes,
                "backend-size-in-use-bytes" = in_use,
                "warning-size-bytes" = self.from_bytes,
                "quota-size-bytes" = self.quota_bytes,
                "advice" = "delete keys and compact, then defragment; or restart all members with a larger \
                            --quota-backend-bytes"
            );
        } else {
            log::info!(
                "the backend file is no longer close to its quota",
                "backend-size-bytes" = bytes,
                "quota-size-bytes" = self.quota_bytes
            );
        }
    }
}

/// Disarms this member's quota alarm.
#[derive(Debug)]
struct Keeper {
    below_bytes: u64,
    /// The number of bytes in use at the last defragmentation. Another defragmentation with the same number of bytes in
    /// use would not free any space.
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
                "defragmented the backend file, so that the NOSPACE alarm can be disarmed",
                "size-bytes-before" = outcome.bytes_before,
                "size-bytes" = outcome.bytes_after
            ),
            Err(error) => log::warn!(
                "failed to defragment the backend file before disarming the NOSPACE alarm",
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
            "disarmed the NOSPACE alarm of this member",
            "backend-size-bytes" = bytes,
            "backend-size-in-use-bytes" = in_use
        ),
        Err(error) => log::warn!(
            "failed to disarm the NOSPACE alarm of this member; retrying",
            "error" = error.to_string()
        ),
    }
}

/// Raises the NOSPACE alarm while this member leads with a full disk and no other member can lead. Disarms the alarm
/// afterwards, even if the process was restarted in between.
pub async fn answer_for_full_disk(handles: Arc<Handles>) {
    let own_id = MemberId(handles.info.id());
    let mut refuses_writes = handles.info.member_status().refuses_writes();
    let mut looks = shared_ticks(LOOK);
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
        // Alarms also change when entries are applied at startup, and when an operator disarms an alarm. No
        // notification reports these changes, so the loop checks periodically.
        tokio::select! {
            _ = looks.tick() => {}
            changed = refuses_writes.changed() => if changed.is_err() { return },
        }
    }
}

fn has_own_alarm(handles: &Handles) -> bool {
    let own_id = MemberId(handles.info.id());
    let kind = i32::from(AlarmType::Nospace);
    handles.info.facts().alarms.of_kind(kind).any(|alarm| alarm.member == own_id)
}

/// Disarms the alarm for a full disk as soon as [`Disarming`] allows it.
async fn take_back_for_room(handles: &Handles) {
    let member_status = handles.info.member_status();
    let decide = || {
        let leads = (member_status.leader() != NONE).then(|| member_status.leads());
        let (bytes, _) = handles.proposer.backend_bytes();
        Disarming::decide(leads, bytes, handles.proposer.quota_bytes())
    };
    let may_disarm = match decide() {
        Disarming::Allowed => true,
        // The leadership and the size of the file may change in the meantime.
        Disarming::IfWritten => is_written(handles).await && decide() != Disarming::Refused,
        Disarming::Refused => false,
    };
    if may_disarm {
        let (bytes, in_use) = handles.proposer.backend_bytes();
        disarm(handles, bytes, in_use).await;
    }
}

/// Waits up to [`WRITTEN_WITHIN`] for all applied changes to be written to the file. Returns whether they were.
async fn is_written(handles: &Handles) -> bool {
    let written = tokio::time::timeout(WRITTEN_WITHIN, handles.administrator.commit_backend());
    matches!(written.await, Ok(Ok(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quota_warning_is_logged_once_until_the_file_is_clearly_smaller() {
        let mut warning = Warning::new(80, 1000);
        let warnings: Vec<Option<bool>> =
            [799, 800, 900, 790, 760, 750, 749, 760, 799, 801].map(|n| warning.note(n)).into();
        let expected =
            [None, Some(true), None, None, None, None, Some(false), None, None, Some(true)];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn a_percentage_of_a_size_is_computed_without_overflow() {
        assert_eq!(share(1000, 90), 900);
        assert_eq!(share(u64::MAX, 100), u64::MAX);
        assert_eq!(share(u64::MAX, 0), 0);
    }
}
