//! Tracks the origin of a member's state, and refuses members with a different origin.
//!
//! If the peer URLs and the cluster token are unchanged, a data directory that is restored from a snapshot has the same
//! member id and cluster id as the directory that it replaces. If such a member connected to members that were not
//! restored from the same snapshot, it would join their cluster with a different state, and nothing in the log would
//! reveal that. Therefore requests and responses between members carry the sender's origin in a Quorate-specific
//! header: the restore mark in the backend file, or `never`. etcd members ignore the header and do not send it. A
//! member without any state has no origin yet and is compatible with every origin.
//!
//! # Invariants
//!
//! * Members with different origins exchange no consensus messages.
//! * A member stops if a quorum of the members has a different origin. A newly restored member also stops if any member
//!   was never restored. Only the origins in responses on connections that the member itself has opened are counted, so
//!   that a forged request cannot stop the member.

use std::collections::BTreeMap;
use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use quorate_raft::MemberId;

use crate::handshake::Mismatch;

pub(crate) const ORIGIN: HeaderName = HeaderName::from_static("x-quorate-restored");

/// The header value of a member that was never restored.
const NEVER: &str = "never";

/// Why a member stops: other members have a state of a different origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct OtherOrigin {
    /// Whether this member was restored from a snapshot.
    pub is_restored: bool,
    /// The members with a different origin.
    pub others: Vec<MemberId>,
    /// The number of members in the cluster.
    pub member_count: usize,
}

impl fmt::Display for OtherOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = if self.is_restored { "was" } else { "was not" };
        let names: Vec<String> = self.others.iter().map(|id| format!("{id:x}")).collect();
        write!(
            f,
            "this member {own} restored from a snapshot, and {} of the {} members of its cluster have a state of \
             a different origin: {}",
            names.len(),
            self.member_count,
            names.join(", ")
        )
    }
}

/// The origins of this member and of the other members.
#[derive(Debug, Default)]
pub(crate) struct Origin(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The header value; empty while this member has no state.
    own: String,
    /// Whether this member was restored from a snapshot and its state has not yet been compared with the other members'
    /// states.
    is_unproven: bool,
    /// The header values of the other members; `None` for members that do not send an origin, such as etcd members.
    others: BTreeMap<MemberId, Option<String>>,
}

impl Origin {
    /// Sets the origin; `None` if the state was never restored.
    pub(crate) fn set(&self, mark: Option<String>) {
        self.0.lock().own = mark.unwrap_or_else(|| NEVER.to_owned());
    }

    pub(crate) fn set_unproven(&self, is_unproven: bool) {
        self.0.lock().is_unproven = is_unproven;
    }

    pub(crate) fn is_known(&self) -> bool {
        !self.0.lock().own.is_empty()
    }

    /// Returns the header for requests and responses.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let own = self.0.lock().own.clone();
        // Quorate writes only marks that are valid header values. A member with an invalid mark sends no header.
        (!own.is_empty()).then(|| HeaderValue::try_from(own).ok())?
    }

    /// Checks the origin in a member's headers.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Mismatch> {
        match (self.header(), headers.get(ORIGIN)) {
            (Some(own), Some(other)) if own != *other => Err(Mismatch::Origin),
            _ => Ok(()),
        }
    }

    /// Checks and stores the origin in the response of a member to which this member has connected. The second value is
    /// the conflict if this member must stop.
    pub(crate) fn note(
        &self,
        from: MemberId,
        headers: &HeaderMap,
        member_count: usize,
    ) -> (Result<(), Mismatch>, Option<OtherOrigin>) {
        let checked = self.check(headers);
        let mut state = self.0.lock();
        let announced =
            headers.get(ORIGIN).map(|announced| String::from_utf8_lossy(announced.as_bytes()));
        state.others.insert(from, announced.map(std::borrow::Cow::into_owned));
        (checked, state.conflict(member_count))
    }

    /// Returns the members that have answered without an origin.
    pub(crate) fn silent(&self) -> Vec<MemberId> {
        let state = self.0.lock();
        state
            .others
            .iter()
            .filter(|(_, announced)| announced.is_none())
            .map(|(id, _)| *id)
            .collect()
    }

    pub(crate) fn forget(&self, id: MemberId) {
        self.0.lock().others.remove(&id);
    }
}

impl State {
    fn conflict(&self, member_count: usize) -> Option<OtherOrigin> {
        if self.own.is_empty() {
            return None;
        }
        let announced =
            self.others.iter().filter_map(|(id, announced)| Some((*id, announced.as_deref()?)));
        let differing: Vec<(MemberId, &str)> =
            announced.filter(|(_, announced)| *announced != self.own).collect();
        let is_outvoted = differing.len() > member_count / 2;
        let is_misplaced =
            self.is_unproven && differing.iter().any(|(_, announced)| *announced == NEVER);
        (is_outvoted || is_misplaced).then(|| OtherOrigin {
            is_restored: self.own != NEVER,
            others: differing.into_iter().map(|(id, _)| id).collect(),
            member_count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(value: &'static str) -> HeaderMap {
        [(ORIGIN, HeaderValue::from_static(value))].into_iter().collect()
    }

    fn origin(mark: Option<&str>, is_unproven: bool) -> Origin {
        let origin = Origin::default();
        origin.set(mark.map(str::to_owned));
        origin.set_unproven(is_unproven);
        origin
    }

    #[test]
    fn members_with_the_same_or_no_origin_are_accepted() {
        let restored = origin(Some("a1"), true);
        for announced in [headers("a1"), HeaderMap::new()] {
            assert_eq!(restored.note(2, &announced, 3), (Ok(()), None));
        }
        assert_eq!(restored.silent(), [2]);
        let stateless = Origin::default();
        assert_eq!(stateless.header(), None);
        assert_eq!(stateless.note(2, &headers("a1"), 3), (Ok(()), None));
    }

    #[test]
    fn a_restored_member_stops_if_another_member_was_never_restored() {
        let (checked, end) = origin(Some("a1"), true).note(2, &headers("never"), 3);
        assert_eq!(checked, Err(Mismatch::Origin));
        let text = end.unwrap().to_string();
        assert!(
            text.starts_with("this member was restored from a snapshot, and 1 of the 3"),
            "{text}"
        );
        let (checked, end) = origin(None, false).note(1, &headers("a1"), 3);
        assert_eq!((checked, end), (Err(Mismatch::Origin), None), "this member continues");
    }

    #[test]
    fn a_member_stops_if_a_quorum_has_another_origin() {
        let odd = origin(None, false);
        assert_eq!(odd.note(2, &headers("a1"), 3).1, None);
        assert_eq!(odd.note(2, &headers("a1"), 3).1, None, "a member is counted only once");
        assert_eq!(odd.note(3, &headers("a1"), 3).1.unwrap().others, [2, 3]);
        let two = origin(Some("b2"), true);
        assert_eq!(two.note(2, &headers("a1"), 3).1, None);
        two.forget(2);
        assert_eq!(two.note(3, &headers("a1"), 3).1, None);
    }
}
