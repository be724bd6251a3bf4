//! Alarms: what is wrong with the cluster, as the log says, and what it therefore must not do.
//!
//! An alarm is a fact about one member and one kind of trouble. Raised alarms are stored, so they survive
//! restarts, and hold for the whole cluster until they are taken back one by one.
//!
//! # Not here
//!
//! What an alarm forbids (`apply`), and who raises one (quota checks and corruption checks in the server).

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;
use quorate_api::etcdserverpb::{AlarmMember, AlarmType};

use crate::backend::Batch;
use crate::schema::Bucket;
use crate::units::MemberId;

/// One raised alarm. The kind is a number: kinds this version does not know are kept like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alarm {
    /// The member in trouble; 0 if it is not known which.
    pub member: MemberId,
    /// Which trouble, as `AlarmType` numbers it.
    pub kind: i32,
}

impl Alarm {
    /// The alarm as a message.
    #[must_use]
    pub const fn to_message(self) -> AlarmMember {
        AlarmMember { member_id: self.member.0, alarm: self.kind }
    }

    fn key(self) -> Bytes {
        self.to_message().encode_to_vec().into()
    }
}

/// All raised alarms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    raised: BTreeSet<Alarm>,
    is_out_of_space: bool,
    is_corrupt: bool,
}

impl Alarms {
    /// Reads the keys of bucket `alarm`; `None` if one is no alarm.
    pub fn load<'a>(keys: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut alarms = Self::default();
        for key in keys {
            let AlarmMember { member_id, alarm } = AlarmMember::decode(key).ok()?;
            alarms.raised.insert(Alarm { member: MemberId(member_id), kind: alarm });
        }
        alarms.refresh();
        Some(alarms)
    }

    /// Raises an alarm, if it is not raised already.
    pub fn activate(&mut self, alarm: Alarm, batch: &mut Batch) {
        if self.raised.insert(alarm) {
            batch.put(Bucket::Alarm, alarm.key(), Bytes::new());
            self.refresh();
        }
    }

    /// Takes an alarm back. Says whether it was raised.
    pub fn deactivate(&mut self, alarm: Alarm, batch: &mut Batch) -> bool {
        let raised = self.raised.remove(&alarm);
        if raised {
            batch.delete(Bucket::Alarm, alarm.key());
            self.refresh();
        }
        raised
    }

    /// The alarms of one kind, or all of them for `AlarmType::None`, by member.
    pub fn of_kind(&self, kind: i32) -> impl Iterator<Item = Alarm> {
        let all = kind == AlarmType::None as i32;
        self.raised.iter().copied().filter(move |alarm| all || alarm.kind == kind)
    }

    /// Whether any member is out of space.
    #[must_use]
    pub const fn is_out_of_space(&self) -> bool {
        self.is_out_of_space
    }

    /// Whether any member is corrupt.
    #[must_use]
    pub const fn is_corrupt(&self) -> bool {
        self.is_corrupt
    }

    fn refresh(&mut self) {
        let any = |kind: AlarmType| self.raised.iter().any(|alarm| alarm.kind == kind as i32);
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
    fn alarms_are_kept_by_member_and_kind() {
        let mut alarms = Alarms::default();
        let mut batch = Batch::new();
        let (no_space, corrupt) = (alarm(1, AlarmType::Nospace), alarm(0, AlarmType::Corrupt));
        alarms.activate(no_space, &mut batch);
        alarms.activate(no_space, &mut batch);
        alarms.activate(corrupt, &mut batch);
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
    fn stored_alarms_are_read_back() {
        let keys = [alarm(7, AlarmType::Nospace).key(), alarm(0, AlarmType::Corrupt).key()];
        assert_eq!(&keys[0][..], [0x08, 7, 0x10, 1]);
        let alarms = Alarms::load(keys.iter().map(|key| &key[..])).unwrap();
        assert!(alarms.is_out_of_space() && alarms.is_corrupt());
        assert_eq!(Alarms::load([&b"\x08"[..]]), None);
    }
}
