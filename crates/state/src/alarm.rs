//! Alarms: member problems that are recorded in the log and make the cluster refuse requests.
//!
//! An alarm concerns one member and one kind of problem. Raised alarms are stored, so they survive restarts. Each of
//! them applies to the whole cluster until it is deactivated.
//!
//! Each alarm has a cause. A member deactivates its NOSPACE alarm automatically only if it raised the alarm because its
//! own disk was full. The cause is part of the log entry that raises the alarm, and is stored as the value of the
//! alarm's row. etcd members ignore the cause in the entry and the value of the row.
//!
//! # Invariants
//!
//! * The cause is a full disk only if every entry that raised the alarm names this cause. An alarm that the quota or an
//!   operator also raised stays until an operator deactivates it.
//!
//! # Not here
//!
//! Refusing requests while an alarm is raised (`apply`), and the quota and corruption checks that raise alarms (the
//! server).

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{AlarmMember, AlarmType, alarm_request::AlarmAction};

use crate::backend::Batch;
use crate::schema::{Bucket, alarm};
use crate::units::MemberId;

/// One raised alarm. The kind is a number, so that a kind unknown to this version is stored like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// The member with the problem; 0 if the member is unknown.
    pub member: MemberId,
    /// The kind of problem, as a number of `AlarmType`.
    pub kind: i32,
}

impl Alarm {
    /// Returns the alarm as a message.
    #[must_use]
    pub const fn to_message(self) -> AlarmMember {
        AlarmMember { member_id: self.member.0, alarm: self.kind }
    }

    fn key(self) -> Bytes {
        self.to_message().encode_to_vec().into()
    }
}

/// Why an alarm is raised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// The quota, an operator, a corruption check, or an unknown cause.
    #[default]
    Other,
    /// The member's disk has no space for its backend file.
    FullDisk,
}

impl Cause {
    /// Returns the value of the alarm's row.
    const fn stored(self) -> Bytes {
        match self {
            Self::Other => Bytes::new(),
            Self::FullDisk => Bytes::from_static(alarm::FULL_DISK),
        }
    }

    /// Decodes the value of an alarm's row. An unknown value was written by another program and counts as
    /// [`Cause::Other`].
    fn load(value: &[u8]) -> Self {
        if value == alarm::FULL_DISK { Self::FullDisk } else { Self::Other }
    }
}

/// The raised alarms of all members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    raised: BTreeMap<Alarm, Cause>,
    is_out_of_space: bool,
    is_corrupt: bool,
}

impl Alarms {
    /// Reads the rows of bucket `alarm`. Returns the first invalid key as an error.
    pub fn load<'a>(
        rows: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<Self, &'a [u8]> {
        let mut alarms = Self::default();
        for (key, value) in rows {
            let AlarmMember { member_id, alarm } = AlarmMember::decode(key).map_err(|_| key)?;
            let alarm = Alarm { member: MemberId(member_id), kind: alarm };
            alarms.raised.insert(alarm, Cause::load(value));
        }
        alarms.refresh();
        Ok(alarms)
    }

    /// Raises an alarm. If the alarm is already raised, only its cause can change, from a full disk to any other cause.
    pub fn activate(&mut self, alarm: Alarm, cause: Cause, batch: &mut Batch) {
        let is_new = match self.raised.get(&alarm) {
            None => true,
            Some(Cause::FullDisk) => cause != Cause::FullDisk,
            Some(Cause::Other) => false,
        };
        if is_new {
            self.raised.insert(alarm, cause);
            batch.put(Bucket::Alarm, alarm.key(), cause.stored());
            self.refresh();
        }
    }

    /// Deactivates an alarm. Returns `false` if the alarm was not raised.
    pub fn deactivate(&mut self, alarm: Alarm, batch: &mut Batch) -> bool {
        let raised = self.raised.remove(&alarm).is_some();
        if raised {
            batch.delete(Bucket::Alarm, alarm.key());
            self.refresh();
        }
        raised
    }

    /// Returns the alarms of one kind, or all alarms for `AlarmType::None`, sorted by member.
    pub fn of_kind(&self, kind: i32) -> impl Iterator<Item = Alarm> {
        let all = kind == AlarmType::None as i32;
        self.raised.keys().copied().filter(move |alarm| all || alarm.kind == kind)
    }

    /// Returns the action that a member proposes for its own NOSPACE alarm, or `None` if there is nothing to do. The
    /// member raises the alarm while it `refuses_writes` because its disk is full, and deactivates the alarm afterwards
    /// if the full disk is the only cause.
    #[must_use]
    pub fn due_for_disk(&self, member: MemberId, refuses_writes: bool) -> Option<AlarmAction> {
        let own = Alarm { member, kind: AlarmType::Nospace as i32 };
        match (refuses_writes, self.raised.get(&own)) {
            (true, None) => Some(AlarmAction::Activate),
            (false, Some(Cause::FullDisk)) => Some(AlarmAction::Deactivate),
            (true, Some(_)) | (false, Some(Cause::Other) | None) => None,
        }
    }

    /// Returns whether any member is out of space.
    #[must_use]
    pub const fn is_out_of_space(&self) -> bool {
        self.is_out_of_space
    }

    /// Returns whether any member is corrupt.
    #[must_use]
    pub const fn is_corrupt(&self) -> bool {
        self.is_corrupt
    }

    fn refresh(&mut self) {
        let any = |kind: AlarmType| self.raised.keys().any(|alarm| alarm.kind == kind as i32);
        (self.is_out_of_space, self.is_corrupt) =
            (any(AlarmType::Nospace), any(AlarmType::Corrupt));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alarm(member: u64, kind: AlarmType) -> Alarm {
        Alarm { member: MemberId(member), kind: kind as i32 }
    }

    #[test]
    fn alarms_are_stored_per_member_and_type() {
        let mut alarms = Alarms::default();
        let mut batch = Batch::new();
        let (no_space, corrupt) = (alarm(1, AlarmType::Nospace), alarm(0, AlarmType::Corrupt));
        alarms.activate(no_space, Cause::Other, &mut batch);
        alarms.activate(no_space, Cause::Other, &mut batch);
        alarms.activate(corrupt, Cause::Other, &mut batch);
        assert_eq!(batch.op_count(), 2);
        assert_eq!(alarms.of_kind(0).collect::<Vec<_>>(), [corrupt, no_space]);
        assert_eq!(alarms.of_kind(1).collect::<Vec<_>>(), [no_space]);
        assert!(!alarms.deactivate(alarm(2, AlarmType::Nospace), &mut batch));
        assert!(alarms.is_out_of_space());
        assert!(alarms.deactivate(no_space, &mut batch));
        assert!(!alarms.is_out_of_space());
        assert!(alarms.is_corrupt());
        assert_eq!(batch.op_count(), 3);
    }

    #[test]
    fn stored_alarms_are_loaded_at_startup() {
        let keys = [alarm(7, AlarmType::Nospace).key(), alarm(0, AlarmType::Corrupt).key()];
        assert_eq!(&keys[0][..], [0x08, 7, 0x10, 1]);
        let alarms = Alarms::load(keys.iter().map(|key| (&key[..], &b""[..]))).unwrap();
        assert!(alarms.is_out_of_space() && alarms.is_corrupt());
        assert_eq!(Alarms::load([(&b"\x08"[..], &b""[..])]), Err(&b"\x08"[..]));
    }

    #[test]
    fn a_member_deactivates_only_its_own_full_disk_alarm() {
        use AlarmAction::{Activate, Deactivate};
        use Cause::{FullDisk, Other};
        let own = alarm(1, AlarmType::Nospace);
        for (causes, taken_back) in [
            (&[FullDisk][..], true),
            (&[FullDisk, FullDisk], true),
            (&[Other], false),
            (&[FullDisk, Other], false),
            (&[Other, FullDisk], false),
        ] {
            let mut alarms = Alarms::default();
            let mut batch = Batch::new();
            assert_eq!(alarms.due_for_disk(own.member, true), Some(Activate));
            for cause in causes {
                alarms.activate(own, *cause, &mut batch);
            }
            assert_eq!(
                alarms.due_for_disk(own.member, true),
                None,
                "the alarm is already raised: {causes:?}"
            );
            let due = alarms.due_for_disk(own.member, false);
            assert_eq!(due, taken_back.then_some(Deactivate), "{causes:?}");
            assert_eq!(
                alarms.due_for_disk(MemberId(2), false),
                None,
                "the alarm belongs to another member"
            );
            let value = if taken_back { alarm::FULL_DISK } else { b"" };
            let stored = Alarms::load([(&own.key()[..], value)]).unwrap();
            assert_eq!(stored, alarms, "{causes:?}");
            alarms.deactivate(own, &mut batch);
            assert_eq!(alarms.due_for_disk(own.member, false), None);
        }
    }

    #[test]
    fn an_unknown_alarm_cause_is_loaded_as_other() {
        let own = alarm(1, AlarmType::Nospace);
        let alarms = Alarms::load([(&own.key()[..], &b"other"[..])]).unwrap();
        assert_eq!(alarms.due_for_disk(own.member, false), None);
    }
}
